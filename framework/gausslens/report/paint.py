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

from .. import figures
from ..contract.errors import InputError, did_you_mean
from .axes import number
from .colours import SERIES_LIGHT, stops
from .markup import visible
from .scale import scale, shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Places = Mapping[str, Any]
SIZE = (6.4, 4.4)  # of one figure, in inches
LONGEST_TEXT, MOST_ROWS, MOST_LABELS, WIDEST = 600, 20, 40, 22
_DASHES = ("-", "--", ":", "-.", (0, (4, 2)), (0, (1, 2)))


def paint(figure: figures.Figure, axes: Axes, places: Places | None = None) -> None:
    """Draw a figure on matplotlib axes. ``places`` turns its dials, by label: ``{"layer": 3}``."""
    told = _dialled(figure, places or {})
    _HOW[type(figure)](figure, axes, told)
    said = ", ".join(f"{dial.name} {tuple(dial.labels)[at]}" for dial, at in told)
    title = _short(figure.title, 76) + (f"\n{_short(said, 76)}" if said else "")
    axes.set_title(title, fontsize=10, loc="left")


def canvas(given: Sequence[tuple[figures.Figure, Places]], columns: int = 2) -> Canvas:
    """Figures beside each other on one matplotlib figure, each with its caption."""
    from matplotlib.figure import Figure as Canvas

    columns = min(columns, max(1, len(given)))
    rows = max(1, math.ceil(len(given) / columns))
    made = Canvas(figsize=(SIZE[0] * columns, SIZE[1] * rows), layout="constrained")
    grid = made.subplots(rows, columns, squeeze=False)
    for axes, (figure, places) in zip(grid.flat, given, strict=False):
        paint(figure, axes, places)
        below = "\n".join(textwrap.wrap(_plain(figure.caption), 84))
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


def save(given: Sequence[figures.Figure], path: Path) -> None:
    """Write the figures into one PNG file."""
    path.write_bytes(png(canvas([(figure, {}) for figure in given])))


def _dialled(figure: figures.Figure, places: Places) -> list[tuple[figures.Dial, int]]:
    dials = figure.dials if isinstance(figure, figures.Heatmap | figures.TokenMap) else ()
    for name in places:
        if name not in [dial.name for dial in dials]:
            raise InputError(f"{figure.title!r} has no dial {name!r}{did_you_mean(name, [d.name for d in dials])}")
    found = []
    for dial in dials:
        labels = tuple(map(str, dial.labels))
        wanted = str(places.get(dial.name, labels[dial.start]))
        if wanted not in labels:
            raise InputError(f"{figure.title!r}: {dial.name} {wanted!r} is none of {', '.join(labels[:12])}")
        found.append((dial, labels.index(wanted)))
    return found


def _heatmap(figure: figures.Heatmap, axes: Axes, told: list[tuple[figures.Dial, int]]) -> None:
    names = (figure.row_name, figure.column_name)
    _map(figure, axes, told, (tuple(figure.rows), tuple(figure.columns)), names)


def _token_map(figure: figures.TokenMap, axes: Axes, told: list[tuple[figures.Dial, int]]) -> None:
    _map(figure, axes, told, (tuple(figure.queries), tuple(figure.keys)), ("query", "key"))


def _map(
    figure: figures.Heatmap | figures.TokenMap,
    axes: Axes,
    told: list[tuple[figures.Dial, int]],
    labels: tuple[Sequence[Any], Sequence[Any]],
    names: tuple[str, str],
) -> None:
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    values = np.asarray(figure.values)
    attention = isinstance(figure, figures.TokenMap)
    over = shares(values, figure.centre) if attention else scale(values, figure.centre, clip=True)
    colours = LinearSegmentedColormap.from_list("gausslens", stops(over.diverging))
    axes.set_facecolor("0.85")  # seen where a value is missing
    shown = np.ma.masked_invalid(values[tuple(at for _, at in told)])
    ends = (over.low, over.high) if over.high > over.low else (over.low - 0.5, over.high + 0.5)
    image = axes.imshow(shown, cmap=colours, norm=PowerNorm(over.power, *ends), aspect="auto", interpolation="nearest")
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    bar = axes.figure.colorbar(image, ax=axes, extend=extend[over.below, over.above])
    bar.set_label(_units(figure))
    for put, named in ((axes.set_yticks, labels[0]), (axes.set_xticks, labels[1])):
        at = range(0, len(named), max(1, math.ceil(len(named) / MOST_LABELS)))
        put(list(at), [_short(str(named[i])) for i in at], fontsize=7)
    axes.tick_params(length=0)
    if max((len(str(c)) for c in labels[1]), default=0) * len(labels[1]) > 60:
        axes.tick_params(axis="x", rotation=90)
    axes.set_ylabel(_short(names[0]))
    axes.set_xlabel(_short(names[1]))


def _lines(figure: figures.Lines, axes: Axes, _: object) -> None:
    for place, line in enumerate(figure.series):
        axes.plot(np.asarray(figure.x), np.asarray(line.y), label=_short(line.name, 40), **_stroke(line, place))
        if line.low is not None and line.high is not None:
            band: dict[str, Any] = {"color": SERIES_LIGHT[place % len(SERIES_LIGHT)], "alpha": 0.16, "linewidth": 0}
            axes.fill_between(np.asarray(figure.x), np.asarray(line.low), np.asarray(line.high), **band)
    _finish(axes, figure, _short(figure.x_name, 40), _units(figure), len(figure.series))


def _spectrum(figure: figures.Spectrum, axes: Axes, _: object) -> None:
    for place, line in enumerate(figure.series):
        y = np.asarray(line.y)
        axes.plot(np.arange(1, len(y) + 1), y, label=_short(line.name, 40), **_stroke(line, place))
    for edge in figure.edges or ():
        if edge > 0 or not figure.log_y:
            axes.axhline(edge, color="0.4", linewidth=0.8, linestyle=(0, (5, 4)))
    _finish(axes, figure, "rank", _units(figure), len(figure.series))


def _scatter(figure: figures.Scatter, axes: Axes, _: object) -> None:
    x, y, groups = np.asarray(figure.x), np.asarray(figure.y), np.asarray(tuple(figure.groups or ()), dtype=object)
    names = list(dict.fromkeys(groups.tolist()))
    for place, name in enumerate(names):
        mine = groups == name
        axes.scatter(x[mine], y[mine], s=14, color=SERIES_LIGHT[place % len(SERIES_LIGHT)], label=_short(str(name), 40))
    known = np.concatenate([x, y])[np.isfinite(np.concatenate([x, y]))]
    if figure.diagonal and known.size:
        ends = [known.min(), known.max()]
        axes.plot(ends, ends, color="0.2", linewidth=1, linestyle=":")
    _finish(axes, figure, _short(figure.x_name, 40), _short(figure.y_name, 40), len(names) if names != [""] else 1)


def _table(figure: figures.Table, axes: Axes, _: object) -> None:
    axes.set_axis_off()
    rows, columns = tuple(tuple(row) for row in figure.rows), tuple(figure.columns)
    written = [[_short(_cell(cell)) for cell in row] for row in rows[:MOST_ROWS]]
    if len(rows) > MOST_ROWS:
        written.append([f"… {len(rows) - MOST_ROWS} more", *[""] * (len(columns) - 1)])
    if written and columns:
        table = axes.table(written, colLabels=[_short(c) for c in columns], loc="upper left", cellLoc="left")
        table.auto_set_font_size(False)
        table.set_fontsize(7)


def _texts(figure: figures.Texts, axes: Axes, _: object) -> None:
    axes.set_axis_off()
    said = [f"{text.name}:\n{textwrap.fill(text.text[:LONGEST_TEXT], 84)}" for text in figure.texts]
    axes.text(0, 1, _plain("\n\n".join(said)), va="top", fontsize=7, transform=axes.transAxes)


_HOW: Mapping[type[figures.Figure], Callable[..., None]] = {
    figures.Heatmap: _heatmap,
    figures.TokenMap: _token_map,
    figures.Lines: _lines,
    figures.Spectrum: _spectrum,
    figures.Scatter: _scatter,
    figures.Table: _table,
    figures.Texts: _texts,
}


def _stroke(line: figures.Line, place: int) -> dict[str, Any]:
    if line.reference:
        return {"color": "0.2", "linewidth": 1.2, "linestyle": ":", "zorder": 1}
    return {"color": SERIES_LIGHT[place % len(SERIES_LIGHT)], "linestyle": _DASHES[place % len(_DASHES)]}


def _finish(axes: Axes, figure: Any, x_name: str, y_name: str, named: int) -> None:
    axes.set_xlabel(x_name)
    axes.set_ylabel(y_name)
    # An axis with nothing positive on it cannot be logarithmic.
    if getattr(figure, "log_x", False) and axes.dataLim.x1 > 0:
        axes.set_xscale("log", nonpositive="mask")
    if figure.log_y and axes.dataLim.y1 > 0:
        axes.set_yscale("log", nonpositive="mask")
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    if named > 1:
        axes.legend(fontsize=7, frameon=False)


def _units(figure: figures.Figure) -> str:
    return "" if figure.units == "1" else _short(figure.units)


def _cell(cell: figures.Cell) -> str:
    if cell is None:
        return ""
    return number(float(cell)) if isinstance(cell, int | float) and not isinstance(cell, bool) else str(cell)


def _short(text: str, most: int = WIDEST) -> str:
    shown = text.replace("\n", "↵").replace("\t", "⇥")
    return _plain(shown if len(shown) <= most else shown[: most - 1] + "…")


def _plain(text: str) -> str:
    """Text that matplotlib draws as it is: no controls, and a dollar sign is no mathematics."""
    return visible(text).replace("$", r"\$")
