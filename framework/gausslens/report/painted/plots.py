"""Plots of values against values on matplotlib axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..colours import SERIES_LIGHT
from ..numbers import number
from ..svg.axes import PlacedAxis, axes_of
from .words import plain, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ...figures import Curve, Dots, Plot

_DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (4, 2)), (0, (1, 2)))
_SHAPES = "os^Dv"
_LAWS: tuple[Any, ...] = (":", (0, (1, 3)), (0, (5, 2, 1, 2)), (0, (7, 2, 1, 2, 1, 2)))
_LEVELS: tuple[Any, ...] = ((0, (5, 4)), (0, (10, 4)), (0, (8, 3, 2, 3)), (0, (2, 6)))
FEW = 20  # values of a curve: so many are seen as dots


def paint_plot(plot: Plot, axes: Axes, names: bool = True) -> None:
    """A plot; what is in it has labels for a legend. Without ``names`` the axes have none."""
    # Before any value: a logarithmic axis warns of values that have no place on it.
    across, up = _axes(plot, axes, names)
    levels = [level for level in plot.levels if up.has(level.value) and up.low <= level.value <= up.high]
    for place, level in enumerate(levels):
        dashes = _LEVELS[place % len(_LEVELS)]
        axes.axhline(level.value, color="0.4", linewidth=0.8, linestyle=dashes, label=plain(level.name))
    for curve in plot.curves:
        if curve.faint:
            axes.plot(across.on_scale(curve.x), curve.y, color="0.75", linewidth=0.6, zorder=0.5)
    laws = [curve for curve in plot.curves if curve.reference]
    for place, curve in enumerate(each for each in plot.curves if not each.faint):
        x = across.on_scale(curve.x)
        look = _law(laws.index(curve)) if curve.reference else _stroke(curve, place)
        axes.plot(x, curve.y, label=plain(curve.name), **look)
        if curve.low is not None and curve.high is not None:
            band: dict[str, Any] = {"color": SERIES_LIGHT[place % len(SERIES_LIGHT)], "alpha": 0.16, "linewidth": 0}
            axes.fill_between(x, curve.low, curve.high, **band)
    if plot.dots is not None:
        _dots(plot.dots, axes)
    axes.grid(color="0.92", linewidth=0.5)
    axes.set_axisbelow(True)


def legend_of(plot: Plot, axes: Axes) -> tuple[list[Any], list[str]]:
    """What a legend says, curves before levels; nothing where there is but one curve and it needs no name."""
    found = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    levels = {plain(level.name) for level in plot.levels}
    labels = [label for label in [*(n for n in found if n not in levels), *(n for n in found if n in levels)] if label]
    return ([found[label] for label in labels], labels) if len(labels) > 1 else ([], [])


def _dots(dots: Dots, axes: Axes) -> None:
    group_of = np.array(dots.groups, dtype=object)
    for place, name in enumerate(dict.fromkeys(dots.groups)):
        mine = group_of == name
        look: dict[str, Any] = {"color": SERIES_LIGHT[place % len(SERIES_LIGHT)], "marker": _SHAPES[place % 5]}
        axes.scatter(dots.x[mine], dots.y[mine], s=9, linewidths=0, label=plain(name), **look)


def _axes(plot: Plot, axes: Axes, names: bool) -> tuple[PlacedAxis, PlacedAxis]:
    """Names and reach of the axes, which are those of the page, and x = y where it is asked for.

    Where 0 is set apart on a logarithmic axis, the marks are those of the page too.
    """
    from matplotlib.ticker import MaxNLocator, NullLocator

    across, up = axes_of(plot)
    for way, told, placed in (("x", plot.x, across), ("y", plot.y, up)):
        axes.set(**{f"{way}scale": "log" if told.log else "linear"})
        axes.set(**{f"{way}lim": (placed.low, placed.high)})
        if names:
            axes.set(**{f"{way}label": short(told.written, 60)})
        if not told.log:
            axis = getattr(axes, f"{way}axis")
            axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=told.whole))
        elif placed.high < 20 * placed.low and placed.zero is None:
            # Within a decade or so matplotlib would mark nothing, or everything.
            marks = placed.ticks()
            axes.set(**{f"{way}ticks": marks, f"{way}ticklabels": [number(mark) for mark in marks]})
            getattr(axes, f"{way}axis").set_minor_locator(NullLocator())
    if across.zero is not None:
        marks = across.ticks()
        axes.set_xticks(across.on_scale(marks), [number(mark) for mark in marks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.axvline(across.least, color="0.6", linewidth=0.8, linestyle=(0, (1, 2)))
    if plot.diagonal:
        ends = [max(across.low, up.low), min(across.high, up.high)]
        axes.plot(ends, ends, color="0.2", linewidth=0.8, linestyle=":")
    return across, up


def _law(place: int) -> dict[str, Any]:
    return {"color": "0.2", "linewidth": 1.0, "linestyle": _LAWS[place % len(_LAWS)], "zorder": 1}


def _stroke(curve: Curve, place: int) -> dict[str, Any]:
    """How a curve is drawn: of more than six the colours come again, with other dashes."""
    dots: dict[str, Any] = {"marker": "o", "markersize": 2.2} if len(curve.x) <= FEW else {}
    colours = len(SERIES_LIGHT)
    dashes = _DASHES[(place + place // colours) % len(_DASHES)]
    return {"color": SERIES_LIGHT[place % colours], "linestyle": dashes, "linewidth": 1.1, **dots}
