"""The figures of the page on matplotlib: for a notebook, a paper, or `gausslens show --png`."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..contract.errors import InputError, did_you_mean
from ..figures import ColourMap, Passages, Plot, Plots, TableRows, View
from .colours import SERIES_LIGHT, category_colour, scale_of, stops
from .markup import visible
from .numbers import number, written_cell
from .svg.axes import PlacedAxis, axes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from ..figures import Curve, Dial, Dots, Drawing, Figure

Places = Mapping[str, Any]
SIZE = (6.4, 4.4)  # of one figure, in inches
LONGEST_TEXT, MOST_ROWS, MOST_LABELS, WIDEST = 600, 20, 40, 22
_DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (4, 2)), (0, (1, 2)))


def paint(figure: Figure, axes: Axes, places: Places | None = None) -> None:
    """Draw a figure on matplotlib axes. ``places`` turns its dials, by label: ``{"layer": 3}``."""
    _paint(figure.title, _still(figure)[0], axes, places or {})


def _still(figure: Figure) -> tuple[Drawing, str]:
    """What matplotlib can draw of a figure, and its caption: of a plugin's own view what stands in for it."""
    drawing = figure.drawing()
    return (drawing.fallback, drawing.about) if isinstance(drawing, View) else (drawing, figure.caption)


def _paint(name: str, drawing: Drawing, axes: Axes, places: Places) -> None:
    turned = _turned(name, drawing, places)
    _picture(drawing, axes, tuple(at for _, at in turned))
    said = ", ".join(f"{dial.name} {tuple(dial.labels)[at]}" for dial, at in turned)
    title = _short(name, 76) + (f"\n{_short(said, 76)}" if said else "")
    axes.set_title(title, fontsize=10, loc="left")


def canvas(
    given: Sequence[tuple[Figure, Places]], columns: int = 2, tell: Callable[[int, Exception], object] | None = None
) -> Canvas:
    """Figures beside each other on one matplotlib figure, each with its caption.

    ``tell`` is called with the number of one that cannot be drawn, whose place stays empty; without it that is raised.
    """
    from matplotlib.figure import Figure as Canvas

    columns = min(columns, max(1, len(given)))
    rows = max(1, math.ceil(len(given) / columns))
    made = Canvas(figsize=(SIZE[0] * columns, SIZE[1] * rows), layout="constrained")
    grid = made.subplots(rows, columns, squeeze=False)
    for place, (axes, (figure, places)) in enumerate(zip(grid.flat, given, strict=False)):
        try:
            drawing, caption = _still(figure)
            _paint(figure.title, drawing, axes, places)
        except Exception as error:
            if tell is None:
                raise
            tell(place, error)
            axes.clear()
            axes.set_axis_off()
            continue
        below = "\n".join(textwrap.wrap(_plain(caption), 84))
        under: Any = axes.xaxis.label if axes.axison else axes.transAxes
        look: dict[str, Any] = {"va": "top", "ha": "center", "fontsize": 7, "color": "0.35"}
        axes.annotate(below, (0.5, 0), (0, -4), under, "offset points", **look)
    for axes in grid.flat[len(given) :]:
        axes.set_axis_off()
    return made


def png(made: Canvas, dpi: int = 110) -> bytes:
    """The picture as PNG; no display is needed, and nothing is left behind."""
    held = io.BytesIO()
    with warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        made.savefig(held, format="png", dpi=dpi)
    return held.getvalue()


def save(given: Sequence[Figure], path: Path, tell: Callable[[int, Exception], object] | None = None) -> None:
    """Write the figures into one PNG file; ``tell`` as in ``canvas``."""
    path.write_bytes(png(canvas([(figure, {}) for figure in given], tell=tell)))


def _turned(title: str, drawing: Drawing, places: Places) -> list[tuple[Dial, int]]:
    """Each dial, and where it is turned to."""
    dials = drawing.dials if isinstance(drawing, ColourMap | Plots) else ()
    for name in places:
        if name not in [dial.name for dial in dials]:
            raise InputError(f"{title!r} has no dial {name!r}{did_you_mean(name, [d.name for d in dials])}")
    found = []
    for dial in dials:
        labels = tuple(map(str, dial.labels))
        wanted = str(places.get(dial.name, labels[dial.start]))
        if wanted not in labels:
            raise InputError(f"{title!r}: {dial.name} {wanted!r} is none of {', '.join(labels[:12])}")
        found.append((dial, labels.index(wanted)))
    return found


def _picture(drawing: Drawing, axes: Axes, turned: tuple[int, ...]) -> None:
    match drawing:
        case Plot():
            _plot(drawing, axes)
        case Plots():
            _plot(drawing.plots[drawing.at(turned)], axes)
        case ColourMap():
            _map(drawing, axes, turned)
        case TableRows():
            _table(drawing, axes)
        case Passages():
            axes.set_axis_off()
            said = [f"{each.name}:\n{textwrap.fill(each.text[:LONGEST_TEXT], 84)}" for each in drawing.texts]
            axes.text(0, 1, _plain("\n\n".join(said)), va="top", fontsize=7, transform=axes.transAxes)
        case _:
            raise TypeError(f"there is no picture of a {type(drawing).__name__}")


def _map(drawing: ColourMap, axes: Axes, turned: tuple[int, ...]) -> None:
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    over = scale_of(drawing)
    if drawing.categories:
        _categories(drawing, axes, turned)
        return
    colours = LinearSegmentedColormap.from_list("gausslens", stops(over.diverging))
    axes.set_facecolor("0.85")  # seen where a value is missing
    shown = np.ma.masked_invalid(drawing.values[turned])
    ends = (over.low, over.high) if over.high > over.low else (over.low - 0.5, over.high + 0.5)
    image = axes.imshow(shown, cmap=colours, norm=PowerNorm(over.power, *ends), aspect="auto", interpolation="nearest")
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    bar = axes.figure.colorbar(image, ax=axes, extend=extend[over.below, over.above])
    bar.set_label(_short(drawing.units))
    _sides(drawing, axes)


def _categories(drawing: ColourMap, axes: Axes, turned: tuple[int, ...]) -> None:
    """A colour for each category, and which is which; of those that are on it."""
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.patches import Patch

    axes.set_facecolor("0.85")
    colours = [category_colour(i) for i in range(len(drawing.categories))] or ["0.5"]
    shown = np.ma.masked_invalid(drawing.values[turned])
    over = Normalize(-0.5, len(colours) - 0.5)
    axes.imshow(shown, cmap=ListedColormap(colours), norm=over, aspect="auto", interpolation="nearest")
    held = [i for i in range(len(drawing.categories)) if (shown == i).any()]
    marks = [Patch(color=colours[i], label=_short(drawing.categories[i])) for i in held]
    if np.ma.is_masked(shown):
        marks.append(Patch(color="0.85", label=_short(drawing.missing or "no value", 40)))
    if marks:
        axes.legend(handles=marks, fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    _sides(drawing, axes)


def _sides(drawing: ColourMap, axes: Axes) -> None:
    """The labels of rows and columns."""
    for put, named in ((axes.set_yticks, drawing.rows), (axes.set_xticks, drawing.columns)):
        at = range(0, len(named), max(1, math.ceil(len(named) / MOST_LABELS)))
        put(list(at), [_short(named[i]) for i in at], fontsize=7)
    axes.tick_params(length=0)
    if max((len(c) for c in drawing.columns), default=0) * len(drawing.columns) > 60:
        axes.tick_params(axis="x", rotation=90)
    axes.set_ylabel(_short(drawing.row_name))
    axes.set_xlabel(_short(drawing.column_name))


def _plot(plot: Plot, axes: Axes) -> None:
    # Before any value: a logarithmic axis warns of values that have no place on it.
    across = _axes(plot, axes)
    drawn = [curve for curve in plot.curves if not curve.faint]
    named = len(drawn)
    for level in plot.levels if not plot.y.log else [level for level in plot.levels if level.value > 0]:
        axes.axhline(level.value, color="0.4", linewidth=0.8, linestyle=(0, (5, 4)))
    for curve in plot.curves:
        if curve.faint:
            axes.plot(across.on_scale(curve.x), curve.y, color="0.75", linewidth=0.7, zorder=0.5)
    for place, curve in enumerate(drawn):
        x = across.on_scale(curve.x)
        axes.plot(x, curve.y, label=_short(curve.name, 40), **_stroke(curve, place))
        if curve.low is not None and curve.high is not None:
            band: dict[str, Any] = {"color": SERIES_LIGHT[place % len(SERIES_LIGHT)], "alpha": 0.16, "linewidth": 0}
            axes.fill_between(x, curve.low, curve.high, **band)
    if plot.dots is not None:
        named += _dots(plot.dots, axes)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    if named > 1:
        axes.legend(fontsize=7, frameon=False)


def _dots(dots: Dots, axes: Axes) -> int:
    """The points; how many groups have a name."""
    group_of = np.array(dots.groups, dtype=object)
    groups = list(dict.fromkeys(dots.groups))
    for place, name in enumerate(groups):
        mine = group_of == name
        colour = SERIES_LIGHT[place % len(SERIES_LIGHT)]
        axes.scatter(dots.x[mine], dots.y[mine], s=14, color=colour, label=_short(name, 40))
    return 0 if groups == [""] else len(groups)


def _axes(plot: Plot, axes: Axes) -> PlacedAxis:
    """Names and reach of the axes, which are those of the page, and x = y where it is asked for; gives the one across.

    Where 0 is set apart on a logarithmic axis, the marks are those of the page too.
    """
    from matplotlib.ticker import MaxNLocator, NullLocator

    across, up = axes_of(plot)
    for way, told, placed in (("x", plot.x, across), ("y", plot.y, up)):
        axes.set(**{f"{way}label": _short(told.written, 40), f"{way}scale": "log" if told.log else "linear"})
        axes.set(**{f"{way}lim": (placed.low, placed.high)})
        if told.whole and not told.log:
            getattr(axes, f"{way}axis").set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    if across.zero is not None:
        marks = across.ticks()
        axes.set_xticks(across.on_scale(marks), [number(mark) for mark in marks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.axvline(across.least, color="0.6", linewidth=0.8, linestyle=(0, (1, 2)))
    if plot.diagonal:
        ends = [max(across.low, up.low), min(across.high, up.high)]
        axes.plot(ends, ends, color="0.2", linewidth=1, linestyle=":")
    return across


def _table(drawing: TableRows, axes: Axes) -> None:
    axes.set_axis_off()
    rows, columns = drawing.rows, drawing.columns
    written = [[_short(written_cell(cell)) for cell in row] for row in rows[:MOST_ROWS]]
    if len(rows) > MOST_ROWS:
        written.append([f"… {len(rows) - MOST_ROWS} more", *[""] * (len(columns) - 1)])
    if written and columns:
        table = axes.table(written, colLabels=[_short(c) for c in columns], loc="upper left", cellLoc="left")
        table.auto_set_font_size(False)
        table.set_fontsize(7)


def _stroke(curve: Curve, place: int) -> dict[str, Any]:
    if curve.reference:
        return {"color": "0.2", "linewidth": 1.2, "linestyle": ":", "zorder": 1}
    return {"color": SERIES_LIGHT[place % len(SERIES_LIGHT)], "linestyle": _DASHES[place % len(_DASHES)]}


def _short(text: str, most: int = WIDEST) -> str:
    shown = text.replace("\n", "↵").replace("\t", "⇥")
    return _plain(shown if len(shown) <= most else shown[: most - 1] + "…")


def _plain(text: str) -> str:
    """Text that matplotlib draws as it is: no controls, and a dollar sign is no mathematics."""
    return visible(text).replace("$", r"\$")
