"""Plots of values against values on the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..colours import DASHES, EDGE_DASHES, LAW_DASHES
from ..markup import Markup, element, joined
from ..numbers import number
from ..thinning import SERIES
from .axes import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, PlacedAxis, axes_of, frame
from .maps import slider

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...figures import Curve, Dots, Level, Plot, Plots

FEW = 20  # values of a curve: so many are seen as dots
# The shapes of points after the circle: corners in units of its radius.
_SHAPES: tuple[tuple[tuple[float, float], ...], ...] = (
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.25), (1.15, 0.9), (-1.15, 0.9)),
    ((0, -1.35), (1.2, 0), (0, 1.35), (-1.2, 0)),
    ((0, 1.25), (1.15, -0.9), (-1.15, -0.9)),
    (
        *((-0.45, -1.3), (0.45, -1.3), (0.45, -0.45), (1.3, -0.45), (1.3, 0.45), (0.45, 0.45)),
        *((0.45, 1.3), (-0.45, 1.3), (-0.45, 0.45), (-1.3, 0.45), (-1.3, -0.45), (-0.45, -0.45)),
    ),
)
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
    levels = [level for level in plot.levels if up.has(level.value) and up.low <= level.value <= up.high]
    drawn += [_level(across, up, level, place) for place, level in enumerate(levels)]
    if plot.diagonal:
        drawn.append(_diagonal(across, up))
    drawn += [_faint(across, up, curve) for curve in plot.curves if curve.faint]
    named = [curve for curve in plot.curves if not curve.faint]
    for place, curve in enumerate(named):
        if curve.low is not None and curve.high is not None:
            drawn.append(_band(across, up, curve.x, curve.low, curve.high, place))
        drawn.append(_curve(across, up, curve, place, plot))
    strokes = {"x1": 0, "x2": 26, "y1": 5, "y2": 5}
    key = [(c.name, element("line", **strokes, **_stroke(c, place, named))) for place, c in enumerate(named)]
    # Levels are named above the drawing: beside their lines the names would lie over curves.
    key += [
        (f"{each.name}: {number(each.value)}", element("line", **strokes, **_edge(i))) for i, each in enumerate(levels)
    ]
    if plot.dots is not None:
        groups = list(dict.fromkeys(plot.dots.groups))
        drawn += _dots(across, up, plot.dots, groups, plot)
        marks = [_mark(n, 13.0, 5.0, 4.0) for n in range(len(groups))]
        key += zip(groups, marks, strict=True) if groups != [""] else ()
    return _boxed(title, drawn, key)


def _dots(across: PlacedAxis, up: PlacedAxis, dots: Dots, groups: list[str], plot: Plot) -> list[Markup]:
    drawn = []
    for i in np.flatnonzero(across.has(dots.x) & up.has(dots.y)):
        x, y = dots.x[i], dots.y[i]
        told = f"{dots.labels[i]}: {plot.x.name} {number(x)}, {plot.y.name} {number(y)}".lstrip(": ")
        drawn.append(_mark(groups.index(dots.groups[i]), across.at(x), up.at(y), 3.0, element("title", told)))
    return drawn


def _mark(group: int, x: float, y: float, r: float, title: str | None = None) -> Markup:
    """A point in the colour and shape of its group: no two of 36 have both."""
    shape, class_ = (group + group // SERIES) % SERIES, f"dot s{group % SERIES}"
    if shape == 0:
        return element("circle", title, class_=class_, cx=x, cy=y, r=r)
    corners = " ".join(f"{x + r * a:.4g},{y + r * b:.4g}" for a, b in _SHAPES[shape - 1])
    return element("polygon", title, class_=class_, points=corners)


def _diagonal(across: PlacedAxis, up: PlacedAxis) -> Markup:
    low, high = max(across.low, up.low), min(across.high, up.high)
    return element(
        "line",
        class_="law",
        stroke_dasharray=LAW_DASHES[0],
        x1=across.at(low),
        y1=up.at(low),
        x2=across.at(high),
        y2=up.at(high),
    )


def _curve(across: PlacedAxis, up: PlacedAxis, curve: Curve, place: int, plot: Plot) -> Markup:
    """One curve, broken where a value is missing, and a point to hover over at each value."""
    named = [each for each in plot.curves if not each.faint]
    x, y = curve.x, curve.y
    shown = across.has(x) & up.has(y)
    drawn = [
        element("polyline", points=points, **_stroke(curve, place, named))
        for points in _stretches(across, up, curve, shown)
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


def _level(across: PlacedAxis, up: PlacedAxis, level: Level, place: int) -> Markup:
    """A line across the drawing."""
    y = up.at(level.value)
    title = element("title", f"{level.name}: {number(level.value)}")
    return element("line", title, x1=across.start, x2=across.end, y1=y, y2=y, **_edge(place))


def _edge(place: int) -> dict[str, str]:
    return {"class_": "edge", "stroke_dasharray": EDGE_DASHES[place % len(EDGE_DASHES)]}


def _runs(shown: NDArray[np.bool_]) -> Iterable[tuple[int, int]]:
    """Stretches of True, as (start, stop)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], shown.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _stroke(curve: Curve, place: int, named: Sequence[Curve]) -> dict[str, str | None]:
    """How a curve looks: by its colour, and by its dashes for those who do not tell colours apart."""
    if curve.reference:
        before = sum(other.reference for other in named[:place])
        return {"class_": "law", "stroke_dasharray": LAW_DASHES[before % len(LAW_DASHES)]}
    return {"class_": f"curve s{place % SERIES}", "stroke_dasharray": DASHES[place % SERIES] or None}


def _boxed(title: str, drawn: list[Markup], key: Sequence[tuple[str, Markup]]) -> Markup:
    """The drawing in its box, and above it which mark is which."""
    svg = element("svg", joined(drawn), viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title, tabindex=0)
    names = [element("span", element("svg", mark, viewBox="0 0 26 10", aria_hidden="true"), name) for name, mark in key]
    return joined([element("div", *names, class_="key"), svg]) if names else svg
