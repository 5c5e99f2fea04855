"""Drawing values against values: Lines, Spectrum and Scatter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from . import thin
from .axes import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, axis, frame, number
from .colours import DASHES
from .markup import Markup, element, joined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..figures import Line, Lines, Scatter, Spectrum

_ACROSS, _UP = (LEFT, WIDTH - RIGHT), (HEIGHT - BOTTOM, TOP)


def draw_lines(figure: Lines, most: thin.Most = thin.FINE) -> tuple[Markup, str]:
    """The drawing, and what was thinned."""
    x = np.asarray(figure.x)
    series, note = _few(figure.series)
    at = thin.picked(len(x), most.points)
    note = note or thin.note(len(at), len(x), "points of each curve")
    x = x[at]
    curves = [tuple(None if v is None else np.asarray(v)[at] for v in (s.y, s.low, s.high)) for s in series]
    across = axis(x, *_ACROSS, log=figure.log_x, whole=bool(np.all(x == np.round(x))))
    up = axis(chain(*(v for curve in curves for v in curve if v is not None)), *_UP, log=figure.log_y)
    drawn = [frame(across, up, figure.x_name, _named(figure.units))]
    for place, (line, (y, low, high)) in enumerate(zip(series, curves, strict=True)):
        if low is not None and high is not None:
            drawn.append(_band(across, up, x, low, high, place))
        drawn.append(_curve(across, up, x, np.asarray(y), line, place, figure.x_name, figure.units))
    return _finished(figure.title, drawn, series), note


def draw_spectrum(figure: Spectrum, most: thin.Most = thin.FINE) -> tuple[Markup, str]:
    """The drawing, and what was thinned."""
    series, note = _few(figure.series)
    values = [np.asarray(s.y) for s in series]
    longest = max((len(v) for v in values), default=1)
    across = axis([1, max(2, longest)], *_ACROSS, whole=True)
    edges = () if figure.edges is None else figure.edges
    # The law's lower edge may be 0 or far below all values: it must not flatten the picture.
    up = axis(chain(*values, edges[1:]), *_UP, log=figure.log_y)
    drawn = [frame(across, up, "rank", _named(figure.units))]
    drawn += [_edge(across, up, edge, name) for edge, name in zip(edges, ("lower edge", "upper edge"), strict=False)]
    for place, (line, y) in enumerate(zip(series, values, strict=True)):
        at = thin.picked(len(y), most.points)
        note = note or thin.note(len(at), len(y), "values of a spectrum")
        drawn.append(_curve(across, up, (at + 1).astype(np.float64), y[at], line, place, "rank", figure.units))
    return _finished(figure.title, drawn, series), note


def draw_scatter(figure: Scatter, most: thin.Most = thin.FINE) -> tuple[Markup, str]:
    """The drawing, and what was thinned."""
    x, y = np.asarray(figure.x), np.asarray(figure.y)
    labels, group_of = tuple(figure.labels or ()), tuple(figure.groups or ())
    groups = list(dict.fromkeys(group_of))
    at = thin.picked(len(x), most.dots)
    across = axis(chain(x, y) if figure.diagonal else x, *_ACROSS, log=figure.log_x)
    up = axis(chain(x, y) if figure.diagonal else y, *_UP, log=figure.log_y)
    drawn = [frame(across, up, figure.x_name, figure.y_name)]
    if figure.diagonal:
        ends = (max(across.low, up.low), min(across.high, up.high))
        places = {"x1": across.at(ends[0]), "y1": up.at(ends[0]), "x2": across.at(ends[1]), "y2": up.at(ends[1])}
        drawn.append(element("line", class_="law", **places))
    for i in at:
        if across.has(x[i]) and up.has(y[i]):
            told = f"{labels[i]}: {figure.x_name} {number(x[i])}, {figure.y_name} {number(y[i])}".lstrip(": ")
            colour = groups.index(group_of[i]) % thin.SERIES
            drawn.append(
                element(
                    "circle", element("title", told), class_=f"dot s{colour}", cx=across.at(x[i]), cy=up.at(y[i]), r=3
                )
            )
    dots = [element("circle", class_=f"dot s{n % thin.SERIES}", cx=13, cy=5, r=4) for n in range(len(groups))]
    key = list(zip(groups, dots, strict=True)) if groups != [""] else []
    return _boxed(figure.title, drawn, key), thin.note(len(at), len(x), "points")


def _few(series: Sequence[Line]) -> tuple[list[Line], str]:
    """As many series as there are colours; references do not count."""
    plain = [s for s in series if not s.reference]
    kept = [plain[i] for i in thin.picked(len(plain), thin.SERIES)]
    return [s for s in series if s.reference or s in kept], thin.note(len(kept), len(plain), "curves")


def _curve(
    across: Axis, up: Axis, x: NDArray[Any], y: NDArray[Any], line: Line, place: int, x_name: str, units: str
) -> Markup:
    """One curve, broken where a value is missing, and a point to hover over at each value."""
    shown = np.array([across.has(a) and up.has(b) for a, b in zip(x, y, strict=True)], dtype=bool)
    drawn = []
    for start, stop in _runs(shown):
        points = " ".join(f"{across.at(a):g},{up.at(b):g}" for a, b in zip(x[start:stop], y[start:stop], strict=True))
        drawn.append(element("polyline", points=points, **_stroke(line, place)))
    unit = "" if units == "1" else f" {units}"
    few = int(shown.sum()) <= 20
    for a, b in zip(x[shown], y[shown], strict=True):
        told = element("title", f"{line.name}, {x_name} {number(a)}: {number(b)}{unit}")
        seen = f"dot s{place % thin.SERIES}" if few and not line.reference else "near"
        drawn.append(element("circle", told, class_=seen, cx=across.at(a), cy=up.at(b), r=2.6 if seen != "near" else 5))
    return joined(drawn)


def _band(across: Axis, up: Axis, x: NDArray[Any], low: NDArray[Any], high: NDArray[Any], place: int) -> Markup:
    shown = np.array(
        [across.has(a) and up.has(b) and up.has(c) for a, b, c in zip(x, low, high, strict=True)], dtype=bool
    )
    drawn = []
    for start, stop in _runs(shown):
        there = [(across.at(a), up.at(b)) for a, b in zip(x[start:stop], high[start:stop], strict=True)]
        back = [(across.at(a), up.at(b)) for a, b in zip(x[start:stop], low[start:stop], strict=True)]
        path = "M" + "L".join(f"{a:g},{b:g}" for a, b in [*there, *reversed(back)]) + "Z"
        drawn.append(element("path", class_=f"band s{place % thin.SERIES}", d=path))
    return joined(drawn)


def _edge(across: Axis, up: Axis, edge: float, name: str) -> Markup:
    """A level across the drawing, if it is within."""
    if not up.has(edge) or not up.low <= edge <= up.high:
        return Markup("")
    y = up.at(edge)
    line = element("line", class_="edge", x1=across.start, x2=across.end, y1=y, y2=y)
    return joined(
        [
            line,
            element(
                "text",
                f"{name} of the law: {number(edge)}",
                class_="tick",
                x=across.end - 4,
                y=y - 4,
                text_anchor="end",
            ),
        ]
    )


def _runs(shown: NDArray[np.bool_]) -> Iterable[tuple[int, int]]:
    """Stretches of True, as (start, stop)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], shown.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _finished(title: str, drawn: list[Markup], series: Sequence[Line]) -> Markup:
    strokes = {"x1": 0, "x2": 26, "y1": 5, "y2": 5}
    key = [(s.name, element("line", **strokes, **_stroke(s, place))) for place, s in enumerate(series)]
    return _boxed(title, drawn, key)


def _stroke(line: Line, place: int) -> dict[str, str | None]:
    """How a curve looks: by its colour, and by its dashes for those who do not tell colours apart."""
    if line.reference:
        return {"class_": "law"}
    return {"class_": f"curve s{place % thin.SERIES}", "stroke_dasharray": DASHES[place % thin.SERIES] or None}


def _boxed(title: str, drawn: list[Markup], key: Sequence[tuple[str, Markup]]) -> Markup:
    """The drawing in its box, and above it which mark is which."""
    svg = element("svg", joined(drawn), viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title, tabindex=0)
    names = [element("span", element("svg", mark, viewBox="0 0 26 10", aria_hidden="true"), name) for name, mark in key]
    return joined([element("div", *names, class_="key"), svg]) if names else svg


def _named(units: str) -> str:
    return "" if units == "1" else units
