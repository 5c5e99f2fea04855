"""The checks of sections and figures that plugins' tests use: they take what is in order, and say what is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import gausslens
from gausslens import ReportSection
from gausslens.figures import BadFigure, Line, Lines, Source
from gausslens.testing import check_figure, check_section

from . import sections, views
from .sections import ABOUT
from .views import WRITES, view


def described(name: str) -> ReportSection:
    where = views if name == "hostile_view" else sections
    return ReportSection(
        name="s", version=1, summary="S.", section=f"{where.__name__}:{name}", analyses=("probe.scores",)
    )


@pytest.mark.parametrize(("section", "count"), [("every_kind", 8), ("first_result", 1), ("hostile_view", 1)])
def test_sections_that_are_in_order_are_taken(study: Path, section: str, count: int) -> None:
    assert len(check_section(described(section), gausslens.open(study))) == count


@pytest.mark.parametrize(
    ("section", "error", "words"),
    [
        ("text", AssertionError, "gives no figures: '<h1>"),
        ("nothing", AssertionError, "gives no figures: None"),
        ("halfway", ZeroDivisionError, "it broke"),
        ("undrawn", BadFigure, "its drawing"),
        ("hostile", AssertionError, "is not in the results"),
    ],
)
def test_sections_that_are_not_are_told(study: Path, section: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check_section(described(section), gausslens.open(study))


def test_a_source_that_names_no_array_is_told(study: Path) -> None:
    lost = ABOUT | {"sources": (Source("trained", "scores", "scroe"),)}
    figure = Lines(title="v", **lost, x=[0.0], x_name="n", series=(Line("a", [1.0]),))
    sections.lost = lambda results: [figure]  # type: ignore[attr-defined]
    try:
        with pytest.raises(AssertionError, match=r"'v': its source store\['trained', 'scores'\]\['scroe'\] is not in"):
            check_section(described("lost"), gausslens.open(study))
    finally:
        del sections.lost  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('import { scale } from "./scale.js";', "import"),
        ('export { scale } from "./scale.js";', "import"),
        ('const d3 = await import("https://cdn.example/d3");', "import"),
        ('fetch("data.json");', "fetch"),
        ("new XMLHttpRequest();", "XMLHttpRequest"),
        ('new WebSocket("ws:");', "WebSocket"),
        ("navigator.sendBeacon(x);", "sendBeacon"),
        ("localStorage.a = 1;", "localStorage"),
        ("indexedDB.open(x);", "indexedDB"),
        ("document.cookie = x;", "cookie"),
        ('new Function("return 1");', "eval"),
        ("eval(x);", "eval"),
        ("new Worker(x);", "Worker"),
        ('link.rel = "preconnect";', "preconnect"),
        ('image.src = "https://example.org/a.png";', "an address"),
        ("image.src = `//example.org/a.png`;", "an address"),
    ],
)
def test_a_module_that_needs_what_a_frame_lacks_is_told_with_its_line(line: str, name: str) -> None:
    module = f"// A view.\n{line}\n{WRITES}"
    with pytest.raises(AssertionError, match=f"'v': its module names {name} in line 2, which its frame does not allow"):
        check_figure(view("v", module))
    check_figure(view("v", module), unused={name, "import", "fetch", "an address"})


@pytest.mark.parametrize(
    "line",
    [
        'const space = "http://www.w3.org/2000/svg";',
        "// see https://example.org/how",
        "const important = retrieval(1), prefetched = 2; data.evaluate(important);",
        "const from = data.from;",
    ],
)
def test_what_only_looks_like_it_is_taken(line: str) -> None:
    check_figure(view("v", f"{line}\n{WRITES}"))


def test_a_view_with_more_data_than_a_page_holds_is_told() -> None:
    with pytest.raises(
        AssertionError, match=r"take [\d,]+ letters; with more than 3,000,000 its fallback stands there"
    ):
        check_figure(view("v", data={"x": np.zeros(300_000)}))


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_module_that_is_no_javascript_is_told() -> None:
    with pytest.raises(AssertionError, match=r"'v': its module is no JavaScript:\nview.mjs:2"):
        check_figure(view("v", "// A view.\nfunction draw( {"))
