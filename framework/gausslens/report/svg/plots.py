"""Plots of values against values on the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..colours import DASHES
from ..markup import Markup, element, joined
from ..numbers import number
from ..thinning import SERIES
from .axes import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, PlacedAxis, axes_of, frame
from .maps import slider

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...figures import Curve, Dots, Level, Plot, Plots

FEW = 20  # values of a curve: so many are seen as dots
_ACROSS, _UP = (LEFT, WIDTH - RIGHT), (HEIGHT - BOTTOM, TOP)


def plots_picture(drawing: Plots, title: str) -> Markup:
    """The sliders, and every plot; the script shows the one that they stand at, without it the first is seen."""
    drawn = []
    for i, plot in enumerate(drawing.plots):
        shown = None if plot is drawing.first else "hidden"
        drawn.append(element("div", plot_picture(plot, title), class_="turn", hidden=shown, data_place=i))
    dials = element("div", *map(slider, drawing.dials), class_="dials turns", hidden="hidden")
    return joined([dials, *drawn])


def plot_picture(plot: Plot, title: str) -> Markup:
    """The drawing, and above it which mark is which."""
    across, up = axes_of(plot, _ACROSS, _UP)
    drawn = [frame(across, up, plot.x.written, plot.y.written)]
    drawn += [_level(across, up, level) for level in plot.levels]
    if plot.diagonal:
        drawn.append(_diagonal(across, up))
    drawn += [_faint(across, up, curve) for curve in plot.curves if curve.faint]
    named = [curve for curve in plot.curves if not curve.faint]
    for place, curve in enumerate(named):
        if curve.low is not None and curve.high is not None:
            drawn.append(_band(across, up, curve.x, curve.low, curve.high, place))
        drawn.append(_curve(across, up, curve, place, plot))
    strokes = {"x1": 0, "x2": 26, "y1": 5, "y2": 5}
    key = [(c.name, element("line", **strokes, **_stroke(c, place))) for place, c in enumerate(named)]
    if plot.dots is not None:
        groups = list(dict.fromkeys(plot.dots.groups))
        drawn += _dots(across, up, plot.dots, groups, plot)
        marks = [element("circle", class_=f"dot s{n % SERIES}", cx=13, cy=5, r=4) for n in range(len(groups))]
        key += zip(groups, marks, strict=True) if groups != [""] else ()
    return _boxed(title, drawn, key)


def _dots(across: PlacedAxis, up: PlacedAxis, dots: Dots, groups: list[str], plot: Plot) -> list[Markup]:
    drawn = []
    for i in np.flatnonzero(across.has(dots.x) & up.has(dots.y)):
        x, y = dots.x[i], dots.y[i]
        told = f"{dots.labels[i]}: {plot.x.name} {number(x)}, {plot.y.name} {number(y)}".lstrip(": ")
        colour = f"dot s{groups.index(dots.groups[i]) % SERIES}"
        drawn.append(element("circle", element("title", told), class_=colour, cx=across.at(x), cy=up.at(y), r=3))
    return drawn


def _diagonal(across: PlacedAxis, up: PlacedAxis) -> Markup:
    low, high = max(across.low, up.low), min(across.high, up.high)
    return element("line", class_="law", x1=across.at(low), y1=up.at(low), x2=across.at(high), y2=up.at(high))


def _curve(across: PlacedAxis, up: PlacedAxis, curve: Curve, place: int, plot: Plot) -> Markup:
    """One curve, broken where a value is missing, and a point to hover over at each value."""
    x, y = curve.x, curve.y
    shown = across.has(x) & up.has(y)
    drawn = [
        element("polyline", points=points, **_stroke(curve, place)) for points in _stretches(across, up, curve, shown)
    ]
    if not plot.marked:
        return joined(drawn)
    units = f" {plot.units}" if plot.units else ""
    seen = f"dot s{place % SERIES}" if int(shown.sum()) <= FEW and not curve.reference else "near"
    for a, b in zip(x[shown], y[shown], strict=True):
        told = element("title", f"{curve.name}, {plot.x.name} {number(a)}: {number(b)}{units}")
        drawn.append(element("circle", told, class_=seen, cx=across.at(a), cy=up.at(b), r=2.6 if seen != "near" else 5))
    return joined(drawn)


def _faint(across: PlacedAxis, up: PlacedAxis, curve: Curve) -> Markup:
    """One curve of many: a thin line that says its name."""
    title = element("title", curve.name)
    shown = across.has(curve.x) & up.has(curve.y)
    lines = [element("polyline", title, points=p, class_="faint") for p in _stretches(across, up, curve, shown)]
    return joined(lines)


def _stretches(across: PlacedAxis, up: PlacedAxis, curve: Curve, shown: NDArray[np.bool_]) -> Iterable[str]:
    """The corners of each stretch of a curve that has no missing value."""
    for start, stop in _runs(shown):
        corners = zip(curve.x[start:stop], curve.y[start:stop], strict=True)
        yield " ".join(f"{across.at(a):g},{up.at(b):g}" for a, b in corners)


def _band(
    across: PlacedAxis, up: PlacedAxis, x: NDArray[Any], low: NDArray[Any], high: NDArray[Any], place: int
) -> Markup:
    shown = across.has(x) & up.has(low) & up.has(high)
    drawn = []
    for start, stop in _runs(shown):
        there = [(across.at(a), up.at(b)) for a, b in zip(x[start:stop], high[start:stop], strict=True)]
        back = [(across.at(a), up.at(b)) for a, b in zip(x[start:stop], low[start:stop], strict=True)]
        path = "M" + "L".join(f"{a:g},{b:g}" for a, b in [*there, *reversed(back)]) + "Z"
        drawn.append(element("path", class_=f"band s{place % SERIES}", d=path))
    return joined(drawn)


def _level(across: PlacedAxis, up: PlacedAxis, level: Level) -> Markup:
    """A line across the drawing, if the axis reaches it."""
    if not up.has(level.value) or not up.low <= level.value <= up.high:
        return Markup("")
    y = up.at(level.value)
    line = element("line", class_="edge", x1=across.start, x2=across.end, y1=y, y2=y)
    name = f"{level.name}: {number(level.value)}"
    return joined([line, element("text", name, class_="tick", x=across.end - 4, y=y - 4, text_anchor="end")])


def _runs(shown: NDArray[np.bool_]) -> Iterable[tuple[int, int]]:
    """Stretches of True, as (start, stop)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], shown.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _stroke(curve: Curve, place: int) -> dict[str, str | None]:
    """How a curve looks: by its colour, and by its dashes for those who do not tell colours apart."""
    if curve.reference:
        return {"class_": "law"}
    return {"class_": f"curve s{place % SERIES}", "stroke_dasharray": DASHES[place % SERIES] or None}


def _boxed(title: str, drawn: list[Markup], key: Sequence[tuple[str, Markup]]) -> Markup:
    """The drawing in its box, and above it which mark is which."""
    svg = element("svg", joined(drawn), viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title, tabindex=0)
    names = [element("span", element("svg", mark, viewBox="0 0 26 10", aria_hidden="true"), name) for name, mark in key]
    return joined([element("div", *names, class_="key"), svg]) if names else svg
