"""Checks of report sections and of their figures: that the page, notebooks and pictures can draw them."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contract.descriptors import ReportSection
from ..contract.reference import resolve
from ..figures import Figure, Source, View

if TYPE_CHECKING:
    from ..store.read_results import Results

# What a module may not name, for it does nothing in the frame of a view.
_REFUSED = {
    "import": r"^\s*import\b|\bimport\s*\(|\bfrom\s*[\"']",
    "fetch": r"\bfetch\s*\(",
    "XMLHttpRequest": r"\bXMLHttpRequest\b",
    "WebSocket": r"\bWebSocket\b",
    "EventSource": r"\bEventSource\b",
    "sendBeacon": r"\bsendBeacon\b",
    "RTCPeerConnection": r"\bRTCPeerConnection\b",
    "Worker": r"\bnew\s+(?:Shared)?Worker\b",
    "localStorage": r"\blocalStorage\b",
    "sessionStorage": r"\bsessionStorage\b",
    "indexedDB": r"\bindexedDB\b",
    "cookie": r"\bdocument\.cookie\b",
    "eval": r"(?<![\w.])eval\s*\(|\bnew\s+Function\b",
    # Of these two a browser may ask although nothing is loaded.
    "preconnect": r"\bpreconnect\b",
    "prefetch": r"\bprefetch\b",
    # Names of namespaces are addresses too.
    "an address": r"[\"'`]\s*(?:https?:)?//(?!www\.w3\.org/)\w",
}


def check_section(section: ReportSection, results: Results) -> list[Figure]:
    """Check a report section on the results of a run (``gausslens_run`` gives some), and return its figures.

    Each is one that ``check_figure`` takes, and its sources name arrays of these results.
    """
    given: Any = resolve(section.section)(results)
    many = isinstance(given, Iterable) and not isinstance(given, str)
    assert many, f"{section.section} gives no figures: {given!r}"
    figures = [check_figure(figure) for figure in given]
    for figure in figures:
        for source in figure.sources:
            assert _is_there(source, results), f"{figure.title!r}: its source {source.line} is not in the results"
    return figures


def check_figure(figure: Figure, unused: Collection[str] = ()) -> Figure:
    """Check that a figure can be drawn: on the page, and on matplotlib, where of a view its fallback is drawn.

    The module of a view may name nothing that its frame lacks: the network, storage, other modules, workers. ``unused``
    are names that it holds and does not use, as a library in it may. Where node is installed the syntax is checked.
    """
    from ..report.matplotlib_figures import canvas, png
    from ..report.page_figures import draw
    from ..report.sections import checked_figure

    drawing = checked_figure(figure).drawing()
    assert draw(figure).startswith("<figure")
    assert png(canvas([(figure, {})]), dpi=40)
    if isinstance(drawing, View):
        _check_view(figure.title, drawing, unused)
    return figure


def _check_view(title: str, drawing: View, unused: Collection[str]) -> None:
    from ..report.thinning import FINE

    for name, form in _REFUSED.items():
        found = re.search(form, drawing.module, re.MULTILINE)
        if found is not None and name not in unused:
            line = drawing.module.count("\n", 0, found.start()) + 1
            raise AssertionError(
                f"{title!r}: its module names {name} in line {line}, which its frame does not allow: all that it needs "
                f"must be in the module and in data (unused=[{name!r}] if it never comes to that line)"
            )
    letters = len(drawing.module) + len(drawing.data)
    assert letters <= FINE.view, (
        f"{title!r}: module and data take {letters:,} letters; with more than {FINE.view:,} its fallback stands there"
    )
    node = shutil.which("node")
    if node is not None:
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "view.mjs"
            file.write_text(drawing.module, encoding="utf-8")
            ran = subprocess.run([node, "--check", str(file)], capture_output=True, text=True, check=False)  # noqa: S603
        assert ran.returncode == 0, (
            f"{title!r}: its module is no JavaScript:\n{ran.stderr.replace(str(file), 'view.mjs')}"
        )


def _is_there(source: Source, results: Results) -> bool:
    """Whether the results have the array that a source names."""
    from ..store.read_parts import DifferentShapes

    try:
        return (source.variant, source.label) in results and source.array in results[source.variant, source.label]
    except DifferentShapes:  # of draws of several shapes each is an array of its own
        return all(source.array in each for each in results.draws(source.variant, source.label).values())
