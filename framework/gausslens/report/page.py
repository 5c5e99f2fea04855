"""The page as a whole: what was run and found, the largest departures, each plugin's section; its one script."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from ..contract.errors import StoreError
from ..version import VERSION
from .colours import SERIES_DARK, SERIES_LIGHT
from .departures import departures_table, first_sentences
from .markup import Markup, element
from .page_figures import draw, left_out
from .runs import page_title, run_facts, step_table
from .sections import Section, sections
from .thinning import COARSE, FINE

if TYPE_CHECKING:
    from ..plugins.host import Host
    from ..store.read_results import Results

# Letters of all sections together; a page of this size opens within seconds.
LARGEST = 12_000_000


@dataclass(frozen=True)
class PagePart:
    """A part of the page: its anchor, its heading, what it is about, and what it shows."""

    anchor: str
    heading: str
    about: str
    body: Markup


def write(path: Path | str, host: Host, out: Path | str | None = None) -> Path:
    """Write the page of the store (or pack) at ``path``, by default into it as report.html. Returns where it is."""
    from ..store.read_results import open as open_store

    place = Path(path)
    target = Path(out) if out is not None else place / "report.html" if place.is_dir() else place.with_suffix(".html")
    text = page(open_store(place), host)
    try:
        _replace(target, text)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        elsewhere = "`gausslens report STORE --out FILE` writes the page elsewhere"
        raise StoreError(f"cannot write {target}: {why}; {elsewhere}") from error
    return target


def _replace(target: Path, text: str) -> None:
    """Write a file whole: a reader who reloads meanwhile sees the old page or the new one, never half of one."""
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def page(results: Results, host: Host) -> str:
    """The page as HTML."""
    about = "What departs from the nulls that the run names: how far, how surely, and which other null gives it too."
    parts = [PagePart("departures", "Against the null", about, departures_table(results)), *_sections(results, host)]
    told = "What was computed, and the files of the store that hold it (schemas/STORE.md has the format)."
    parts.append(PagePart("steps", "Steps", told, step_table(results)))
    name = page_title(results)
    links = [element("a", part.heading, href=f"#{part.anchor}") for part in parts]
    kicker = element("p", "gausslens: what training put there, and what chance would have put there", class_="soft")
    nav = element("nav", *links, aria_label="parts")
    head = element("header", kicker, element("h1", name), first_sentences(results), run_facts(results), nav)
    main = element("main", *(_shown(part) for part in parts))
    foot = element("footer", f"Drawn by gausslens {VERSION} from the store alone.")
    tip = element("div", id="tip", hidden="hidden", role="status", aria_live="polite")
    body = element("body", head, main, foot, tip, element("script", script()))
    return f"<!doctype html>\n{element('html', _head(name), body, lang='en')}\n"


def _head(name: str) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", **{"http-equiv": "Content-Security-Policy", "content": policy()}),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{name} - gausslens"),
        element("style", style()),
    )


def _shown(part: PagePart) -> Markup:
    about = element("p", part.about, class_="about")
    return element("section", element("h2", part.heading), about, part.body, id=part.anchor)


def _sections(results: Results, host: Host) -> list[PagePart]:
    """The sections of all plugins; each has an equal share of the page."""
    found = sections(results, host)
    return [_part(section, results, LARGEST // len(found)) for section in found]


def _part(section: Section, results: Results, share: int) -> PagePart:
    anchor = f"section-{section.name}"
    if section.failed:
        return PagePart(anchor, section.name, section.summary, element("p", section.failed, class_="failed"))
    store = Path(results.path).name
    drawn: list[Markup] = []
    used = 0
    for place, figure in enumerate(section.figures):
        again = f"gausslens.draw(store, section={section.name!r})[{place}].plot()"
        made = draw(figure, store, again, FINE if used < share // 2 else COARSE)
        if used + len(made) > share:
            made = left_out(figure, store, again)
        used += len(made)
        drawn.append(made)
    body = element("div", *drawn, class_="figures") if drawn else element("p", "Nothing to draw.", class_="soft")
    return PagePart(anchor, section.name, section.summary, body)


@cache
def style() -> Markup:
    """The style sheet: page.css, and the colours of the series."""
    rules = "".join(f".s{i}{{--c:var(--s{i})}}\n" for i in range(len(SERIES_LIGHT)))
    dark = f"@media (prefers-color-scheme:dark){{:root{{{_series(SERIES_DARK)}}}}}\n"
    return Markup(f":root{{{_series(SERIES_LIGHT)}}}\n{dark}{_read('page.css')}{rules}")


@cache
def script() -> Markup:
    """The only script of the page."""
    return Markup(_read("page.js"))


def policy() -> str:
    """Content-Security-Policy: nothing is loaded, and only this script runs, by its digest."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _series(colours: tuple[str, ...]) -> str:
    return "".join(f"--s{i}:{c};" for i, c in enumerate(colours))


def _read(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
