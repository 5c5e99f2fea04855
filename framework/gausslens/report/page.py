"""The page as a whole: what was run, the strongest departures from the null, and each plugin's section."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..reference import resolve
from ..version import VERSION
from .departed import strongest
from .facts import facts, title
from .figure import draw
from .markup import Markup, element, joined
from .style import policy, script, style

if TYPE_CHECKING:
    from ..descriptors import ReportSection
    from ..host import Host
    from ..store.results import Results
    from ..study import Owned


@dataclass(frozen=True)
class Part:
    """A part of the page: its anchor, its heading, what it is about, and what it shows."""

    anchor: str
    heading: str
    about: str
    body: Markup


def write(path: Path | str, host: Host, out: Path | str | None = None) -> Path:
    """Write the page of the store (or pack) at ``path``, by default into it as report.html. Returns where it is."""
    from ..store.results import open as open_store

    place = Path(path)
    target = Path(out) if out is not None else place / "report.html" if place.is_dir() else place.with_suffix(".html")
    text = page(open_store(place), host)
    # A reader who reloads while this runs sees the old page or the new one, never half of one.
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


def page(results: Results, host: Host) -> str:
    """The page as HTML."""
    about = "What stands out from what chance puts there: the same numbers on randomly re-initialised twins."
    parts = [Part("departures", "Against the null", about, strongest(results)), *_sections(results, host)]
    name = title(results)
    links = [element("a", part.heading, href=f"#{part.anchor}") for part in parts]
    kicker = element("p", "gausslens: what training put there, and what chance would have put there", class_="soft")
    head = element("header", kicker, element("h1", name), facts(results), element("nav", *links, aria_label="parts"))
    main = element("main", *(_shown(part) for part in parts))
    foot = element("footer", f"Drawn by gausslens {VERSION} from the store alone.")
    tip = element("div", id="tip", hidden="hidden", role="status")
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


def _shown(part: Part) -> Markup:
    about = element("p", part.about, class_="about")
    return element("section", element("h2", part.heading), about, part.body, id=part.anchor)


def _sections(results: Results, host: Host) -> list[Part]:
    """The sections of all plugins whose analyses have a result, in their order."""
    stored = {step.analysis for variant, label in results for step in results.steps(variant, label)}
    owned = sorted(host.sections.values(), key=lambda o: (o.descriptor.order, o.descriptor.name))
    return [_section(o, results) for o in owned if stored & set(o.descriptor.analyses)]


def _section(owned: Owned[ReportSection], results: Results) -> Part:
    """One section; if it fails, a note that says whose it is, and the page goes on."""
    section, owner = owned.descriptor, owned.owner
    try:
        figures: Sequence[object] = resolve(section.section)(results)
        body = element("div", *(draw(figure) for figure in figures), class_="figures")
    except (Exception, SystemExit) as error:
        whose = f"{owner.plugin} ({owner.distribution} {owner.version})"
        body = element(
            "p",
            f"The section {section.name} of the plugin {whose} could not be drawn: {type(error).__name__}: {error}",
            class_="failed",
        )
    return Part(f"section-{section.name}", section.name, section.summary, joined([body]))
