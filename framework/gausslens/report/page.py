"""The page as a whole: what was run and found, the largest departures, each plugin's section; its one script."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ..contract.errors import StoreError
from ..version import VERSION
from .colours import SERIES_LIGHT, colours_style
from .departures import departures_table, first_sentences
from .findings.by_head import KV_HEADS, HeadNumber, by_head, table_of_heads
from .findings.terms import terms
from .markup import Markup, element, joined
from .page_figures import draw, hashed, left_out, of_run
from .runs import kv_of_head, page_title, run_facts, step_anchor, step_table
from .sections import Section, Undrawn, failed, sections
from .thinning import COARSE, FINE

if TYPE_CHECKING:
    from ..figures import Figure
    from ..plugins.host import Host
    from ..store.read_results import Results
    from ..verdicts import Statistic

# Who is told what could not be drawn.
Tell: TypeAlias = Callable[[Undrawn], object]
# Letters of all sections together; a page of this size opens within seconds.
LARGEST = 12_000_000
# What the page can do, in the order in which it is set up.
SCRIPTS = ("page.js", "tokens.js", "tables.js", "choose.js")
HEADS = "Which heads stand out?"
HEADS_ABOUT = (
    "Every number that each head has: the number itself, how surely it departs from the null that is chosen, and what "
    "explains it. The largest departures come first."
)


@dataclass(frozen=True)
class PagePart:
    """A part of the page: its anchor, its heading, what it is about, what it shows, and the scripts that frames run."""

    anchor: str
    heading: str
    about: str
    body: Markup
    framed: frozenset[str] = frozenset()


def write(
    store: Results | Path | str,
    host: Host,
    out: Path | str | None = None,
    every: bool = False,
    tell: Tell = lambda _undrawn: None,
) -> Path:
    """Write the page of a run, or of the one that a store (or pack) shows; ``every``: of all runs of its store.

    By default into the store as report.html. Returns where it is. ``tell`` is called with what could not be drawn.
    """
    from ..store.disk import replace_whole
    from ..store.read_results import open as open_store

    results = open_store(store) if isinstance(store, str | Path) else store
    place = Path(store if isinstance(store, str | Path) else store.path)
    target = Path(out) if out is not None else place / "report.html" if place.is_dir() else place.with_suffix(".html")
    text = page(results, host, every, tell)
    try:
        replace_whole(target, text.encode("utf-8"))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        elsewhere = "`gausslens report STORE --out FILE` writes the page elsewhere"
        raise StoreError(f"cannot write {target}: {why}; {elsewhere}") from error
    return target


def page(results: Results, host: Host, every: bool = False, tell: Tell = lambda _undrawn: None) -> str:
    """The page as HTML: of one run, or of ``every`` run of its store, each under its own heading, the newest first."""
    views = list(results.all_runs().values())[::-1] if every and results.runs else [results]
    drawn: dict[str, str] = {}
    below: list[PagePart] = []
    for view in views:
        below += _parts_of_run(view, host, LARGEST // len(views), tell, view.name if every else "", drawn)
    about = "What departs from the nulls that the run names: how far, how surely, and which other null gives it too."
    found = departures_table(*views, anchor=lambda one, run: _leads_to(one, run if every else "", drawn))
    parts = [PagePart("departures", "What departs from chance, and what explains it?", about, found), *below]
    said = (text for part in parts for text in (part.heading, part.about, re.sub("<[^>]*>", " ", part.body)))
    parts.append(PagePart("terms", "What the words mean", "Those that stand on this page.", terms(said)))
    name = page_title(views)
    links = [element("a", part.heading, href=f"#{part.anchor}") for part in parts]
    kicker = element("p", "gausslens: what training put there, and what chance would have put there", class_="soft")
    nav = element("nav", *links, aria_label="parts")
    facts = run_facts(results) if not every else None
    head = element("header", kicker, element("h1", name), first_sentences(*views))
    nulls = {one.null: view.named_null(one.null) for view in views for one in view.statistics()}
    # What each head reads matters only where figures of key/value heads are to follow it.
    groups = kv_of_head(views) if any(KV_HEADS in part.body for part in parts) else {}
    reads = json.dumps(groups) if groups else None
    about_choice = {"role": "group", "aria_label": "layer, head and null, for the whole page"}
    chosen = element(
        "div", id="choose", hidden="hidden", data_nulls=json.dumps(nulls), data_reads=reads, **about_choice
    )
    first, *others = (_shown(part) for part in parts)
    main = element("main", first, facts, nav, chosen, *others)
    foot = element("footer", f"Drawn by gausslens {VERSION} from the store alone.")
    tip = element("div", id="tip", hidden="hidden", role="status", aria_live="polite")
    framed = frozenset().union(*(part.framed for part in parts))
    body = element("body", head, main, foot, tip, element("script", script(bool(framed))))
    return f"<!doctype html>\n{element('html', _head(name, framed), body, lang='en')}\n"


def _leads_to(one: Statistic, run: str, drawn: Mapping[str, str]) -> str:
    """The anchor of the figure of a statistic beside a null: where it stands by head, else any of it, else its step."""
    label, variable = f"{one.label}.against.{one.null}", one.variable
    wanted = ((one.variant, label, f"{variable}_z"), (one.variant, label, variable), (one.variant, one.label, variable))
    places = (drawn.get("\n".join((run, *names))) for names in wanted)
    return next((place for place in places if place), step_anchor(one.variant, one.label, run))


def _head(name: str, framed: frozenset[str]) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", **{"http-equiv": "Content-Security-Policy", "content": policy(framed)}),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{name} - gausslens"),
        element("style", style()),
    )


def _shown(part: PagePart) -> Markup:
    about = element("p", part.about, class_="about")
    return element("section", element("h2", part.heading), about, part.body, id=part.anchor)


def _parts_of_run(
    results: Results, host: Host, room: int, tell: Tell, run: str, drawn: dict[str, str]
) -> list[PagePart]:
    """What was run, every number by head, the sections of all plugins, each with its share of the room, and the steps.

    ``run`` is named in headings and anchors where the page shows several; else its facts are at the head. ``drawn``
    takes for each array the anchor of the first figure that shows it.
    """
    found = sections(results, host)
    prefix = f"run-{run}-" if run else ""
    numbers, elsewhere = by_head(results, found, _opened(run))
    by_heads = _heads(numbers, results, room // 2, run, prefix, drawn) if numbers else Markup("")
    parts = [PagePart("heads", HEADS, HEADS_ABOUT, by_heads)] if numbers else []
    share = (room - len(by_heads)) // max(1, len(found))
    parts += [_part(section, results, share, tell, run, prefix, drawn, elsewhere) for section in found]
    parts = [part for part in parts if part.body]
    told = "What was computed, and the files of the store that hold it (schemas/STORE.md has the format)."
    parts.append(PagePart("steps", "Steps", told, step_table(results, run)))
    if not run:
        return parts
    named = [replace(part, anchor=f"{prefix}{part.anchor}", heading=f"{run}: {part.heading}") for part in parts]
    facts = run_facts(results, alone=False)
    return [PagePart(f"run-{run}", f"Run {run}", "What was run, on what and when.", facts), *named]


def _opened(run: str) -> str:
    """The run as lines of Python name it."""
    return f"store.run({run!r})" if run else "store"


def _heads(
    numbers: Sequence[HeadNumber], results: Results, room: int, run: str, prefix: str, drawn: dict[str, str]
) -> Markup:
    """Each number that heads have: its maps beside each other; those of several nulls are chosen between."""
    tables = [of_run(each, run) if run else each for each in table_of_heads(results, numbers)]
    made = [element("div", *(_figure(each, results, "", set(), room, True, "") for each in tables), class_="figures")]
    used = sum(map(len, made))
    for number in numbers:
        each: list[Markup] = []
        for one in number.figures:
            anchor = f"{prefix}{number.anchor(one.null)}" if one.null else ""
            figure = of_run(one.figure, run) if run else one.figure
            picture = _figure(figure, results, one.again, set(), room - used, used < room // 2, anchor, one.null)
            used += len(picture)
            each.append(picture)
            _note(figure, anchor or f"{prefix}{number.anchor()}", run, drawn)
        heading = element(
            "h3", number.title, element("small", f"{number.variable} of {number.label}, {number.variant}")
        )
        maps = element("div", *each, class_="figures three")
        made.append(element("section", heading, maps, id=f"{prefix}{number.anchor()}", class_="number"))
    return joined(made)


def _note(figure: Figure, anchor: str, run: str, drawn: dict[str, str]) -> None:
    for source in figure.sources:
        drawn.setdefault("\n".join((run, source.variant, source.label, source.array)), anchor)


def _part(
    section: Section,
    results: Results,
    share: int,
    tell: Tell,
    run: str,
    prefix: str,
    noted: dict[str, str],
    elsewhere: set[int],
) -> PagePart:
    """A section: its figures but those that stand ``elsewhere``, and where one could not be drawn why, at its place."""
    drawn: list[Markup] = []
    framed: set[str] = set()
    undrawn = list(section.undrawn)
    used = 0
    for place, figure in enumerate(section.figures):
        again = f"gausslens.draw({_opened(run)}, section={section.name!r})[{place}].plot()"
        while undrawn and undrawn[0].place == place:
            drawn.append(_told(undrawn.pop(0), tell, run))
        if id(figure) in elsewhere:
            continue
        anchor = f"{prefix}{step_anchor(section.name, str(place)).replace('step-', 'figure-', 1)}"
        try:
            figure = of_run(figure, run) if run else figure
            made = _figure(figure, results, again, framed, share - used, used < share // 2, anchor)
        except BaseException as error:  # a drawing that is malformed is found here
            drawn.append(_told(failed(f"{figure.title!r} of {section.whose}", error, place), tell, run))
            continue
        used += len(made)
        drawn.append(made)
        _note(figure, anchor, run, noted)
    drawn += [_told(each, tell, run) for each in undrawn]
    nothing = Markup("") if section.figures else element("p", "Nothing to draw.", class_="soft")
    body = element("div", *drawn, class_="figures") if drawn else nothing
    # A question of its own is the heading; its name is then beside what it shows.
    heading, about = section.name, section.summary
    if section.question:
        heading, about = section.question, f"{section.summary} ({section.name})"
    return PagePart(f"section-{section.name}", heading, about, body, frozenset(framed))


def _figure(
    figure: Figure,
    results: Results,
    again: str,
    framed: set[str],
    room: int,
    fine: bool,
    anchor: str,
    null: str = "",
) -> Markup:
    """A figure as fine as there is room for; ``framed`` takes the digests of the scripts that its frame runs."""
    place = {"id": anchor or None, "data_null": null or None}
    for most in (FINE, COARSE) if fine else (COARSE,):
        scripts: set[str] = set()
        made = draw(figure, results, again, most, scripts, **place)
        if len(made) <= room:
            framed |= scripts
            return made
    return left_out(figure, results, again, **place)


def _told(undrawn: Undrawn, tell: Tell, run: str) -> Markup:
    tell(replace(undrawn, said=f"Run {run}: {undrawn.said}") if run else undrawn)
    return element("p", undrawn.said, class_="failed")


@cache
def style() -> Markup:
    """The style sheet: the colours, page.css, and a class for each series."""
    rules = "".join(f".s{i}{{--c:var(--s{i})}}\n" for i in range(len(SERIES_LIGHT)))
    return Markup(f"{colours_style()}{_read('page.css')}{rules}")


@cache
def script(views: bool = False) -> Markup:
    """The only script of the page; with ``views`` of plugins also what makes their frames."""
    return Markup("".join(_read(name) for name in (*SCRIPTS, *(["views.js"] if views else []))))


def policy(framed: frozenset[str] = frozenset()) -> str:
    """Content-Security-Policy: nothing is loaded, and only this script runs, by its digest.

    Frames inherit it: so the digests of the scripts that are ``framed`` stand here too. Pictures are made of data.
    """
    scripts = " ".join([hashed(script(bool(framed))), *sorted(framed)])
    return (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src {scripts}; base-uri 'none'; form-action 'none'"
    )


def _read(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
