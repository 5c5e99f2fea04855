"""Drawings of fewer cells, points and rows, so that a page stays light; and the sentence that says so."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..figures import ColourMap, Dial, Passages, Plot, Plots, TableRows, Text, View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..figures import Curve, Drawing

SERIES = 6  # as many as there are colours
SMALLEST = 16  # a side of a map under sliders, before maps are left out


@dataclass(frozen=True)
class Most:
    """How much of a figure is drawn."""

    cells: int = 96  # a side of a heatmap
    stored: int = 400_000  # cells of all maps that the sliders of one figure reach
    tokens: int = 512  # a side of a map of tokens
    pixels: int = 1_500_000  # of all maps of tokens under the sliders of one figure
    points: int = 400  # of a curve
    faint: int = 64  # curves that stand for many
    marks: int = 4000  # points that can be pointed at, in all plots under the sliders of one figure
    plots: int = 400  # under the sliders of one figure
    dots: int = 2000  # of a scatter
    rows: int = 1000  # of a table
    letters: int = 4000  # of a text
    view: int = 3_000_000  # letters of a plugin's own view: its module and its data


FINE = Most()
# For the figures of a section that has used most of its share of the page.
COARSE = Most(
    cells=24,
    stored=20_000,
    tokens=128,
    pixels=40_000,
    points=100,
    faint=16,
    marks=300,
    plots=64,
    dots=400,
    rows=30,
    letters=1000,
    view=200_000,
)


def thinned(drawing: Drawing, most: Most = FINE) -> tuple[Drawing, str]:
    """The drawing with no more in it than there is room for, and what was left out."""
    match drawing:
        case Plot():
            return _plot(drawing, most)
        case Plots():
            return _plots(drawing, most)
        case ColourMap(shares=True):
            return _tokens(drawing, most)
        case ColourMap():
            return _maps(drawing, most)
        case TableRows():
            return replace(drawing, rows=drawing.rows[: most.rows]), note(most.rows, len(drawing.rows), "rows")
        case Passages():
            return _passages(drawing, most.letters)
        case View():
            return _view(drawing, most)
    return drawing, ""


def _plot(plot: Plot, most: Most) -> tuple[Plot, str]:
    """As many curves as there are colours, which references and faint ones need not; points evenly spread."""
    plain = [curve for curve in plot.curves if not (curve.reference or curve.faint)]
    many = [curve for curve in plot.curves if curve.faint and not curve.reference]
    chosen = [plain[i] for i in picked(len(plain), SERIES)], [many[i] for i in picked(len(many), most.faint)]
    kept = {id(curve) for curves in chosen for curve in curves}
    curves = [curve for curve in plot.curves if curve.reference or id(curve) in kept]
    said = [note(len(kept), len(plain) + len(many), "curves")]
    said += [note(most.points, len(curve.x), plot.points) for curve in curves]
    dots = plot.dots
    if dots is not None:
        at = picked(len(dots.x), most.dots)
        said.append(note(len(at), len(dots.x), "points"))
        labels, groups = (tuple(each[i] for i in at) for each in (dots.labels, dots.groups))
        dots = replace(dots, x=dots.x[at], y=dots.y[at], labels=labels, groups=groups)
    fewer = replace(plot, curves=tuple(_curve(curve, most.points) for curve in curves), dots=dots)
    return fewer, next((words for words in said if words), "")


def _curve(curve: Curve, most: int) -> Curve:
    at = picked(len(curve.x), most)
    low, high = (None if side is None else side[at] for side in (curve.low, curve.high))
    return replace(curve, x=curve.x[at], y=curve.y[at], low=low, high=high)


def _plots(drawing: Plots, most: Most) -> tuple[Plots, str]:
    """Each plot by itself, points without marks where they are many, and not all places where they are too many."""
    plots = np.arange(len(drawing.plots)).reshape([len(tuple(dial.labels)) for dial in drawing.dials])
    share = min(1.0, most.plots / plots.size)
    plots, dials, said = _fewer_places(plots, drawing.dials, share)
    each = [_plot(drawing.plots[i], most) for i in plots.ravel()]
    marks = sum(len(curve.x) for plot, _ in each for curve in plot.curves if not curve.faint)
    made = tuple(replace(plot, marked=marks <= most.marks) for plot, _ in each)
    said += [words for _, words in each if words][:1]
    return replace(drawing, plots=made, dials=tuple(dials)), " ".join(said)


def _fewer_places(values: np.ndarray, dials: Sequence[Dial], share: float) -> tuple[np.ndarray, list[Dial], list[str]]:
    """Values [*dials, ...] at about this share of the places of their dials, the dials of those, and what is said."""
    kept, said = [], []
    for axis, dial in enumerate(dials):
        labels = tuple(map(str, dial.labels))
        at = picked(len(labels), max(2, math.floor(len(labels) * share ** (1 / len(dials)))))
        if len(at) < len(labels):
            at = np.union1d(at, [dial.start])
            values = values.take(at, axis=axis)
            said.append(note(len(at), len(labels), f"places of {dial.name}"))
        kept.append(Dial(dial.name, tuple(labels[i] for i in at), int(np.searchsorted(at, dial.start))))
    return values, kept, said


def _maps(drawing: ColourMap, most: Most) -> tuple[ColourMap, str]:
    """Coarser maps where there are many, and not all places of a dial where there are too many."""
    values, dials = drawing.values, drawing.dials
    count = math.prod(values.shape[:-2])
    side = min(most.cells, max(SMALLEST, math.isqrt(most.stored // max(1, count)))) if dials else most.cells
    share = min(1.0, most.stored / (count * min(side, values.shape[-2]) * min(side, values.shape[-1]) or 1))
    values, kept, said = _fewer_places(values, dials, share)
    coarse = _every(values, side) if drawing.categories else blocks(values, side)
    said.append(coarse.note)
    rows, columns = (
        tuple(labels[i] for i in at) for labels, at in ((drawing.rows, coarse.rows), (drawing.columns, coarse.columns))
    )
    fewer = replace(drawing, values=coarse.values, dials=tuple(kept), rows=rows, columns=columns)
    return fewer, " ".join(words for words in said if words)


def _passages(drawing: Passages, most: int) -> tuple[Passages, str]:
    """The beginning of each text."""
    long = sum(len(each.text) > most for each in drawing.texts)
    texts = tuple(Text(each.name, each.text[:most] + "…" * (len(each.text) > most)) for each in drawing.texts)
    words = f"Thinned: of {long} text(s) the first {most:,} letters are shown." if long else ""
    return replace(drawing, texts=texts), words


def _view(drawing: View, most: Most) -> tuple[Drawing, str]:
    """A view as it is, for no one else can say what of it may go; where it is too large, what stands in for it."""
    fallback, said = thinned(drawing.fallback, most)
    about = f"{drawing.about} {said}".rstrip()
    letters = len(drawing.module) + len(drawing.data)
    if letters <= most.view:
        return replace(drawing, fallback=fallback, about=about), ""
    words = f"The view is left out: it takes {letters:,} letters, and the page has room for {most.view:,} of it."
    return replace(fallback, wide=drawing.wide or fallback.wide), f"{words} In its place: {about}"


@dataclass(frozen=True)
class Blocks:
    """Matrices averaged over blocks: the means, the first index of each block, and what was done."""

    values: NDArray[np.float64]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    note: str


def blocks(values: NDArray[np.float64], most: int = FINE.cells) -> Blocks:
    """At most ``most`` of the last two dimensions: means over equal blocks, in which a missing value does not count."""
    shape = values.shape[-2:]
    sizes = [-(-n // most) or 1 for n in shape]
    edges = [np.arange(0, n, size) for n, size in zip(shape, sizes, strict=True)]
    if sizes == [1, 1]:
        return Blocks(values, edges[0], edges[1], "")
    known = ~np.isnan(values)
    sums, counts = (_summed(v, edges) for v in (np.where(known, values, 0.0), known.astype(np.float64)))
    means = np.where(counts > 0, sums / np.where(counts > 0, counts, 1.0), np.nan)
    size, all_of = (" by ".join(map(str, what)) for what in (sizes, shape))
    return Blocks(
        means, edges[0], edges[1], f"Thinned: each cell is the mean of a block of {size}, of {all_of} in all."
    )


def _tokens(drawing: ColourMap, most: Most) -> tuple[ColourMap, str]:
    """Maps of tokens: none is merged with another. Of very long texts the beginning, of many maps fewer layers.

    Heads are the last to go, for they are looked at beside each other.
    """
    down, across = drawing.values.shape[-2:]
    rows, columns = min(down, most.tokens), min(across, most.tokens)
    values = drawing.values[..., :rows, :columns]
    said = [note(max(rows, columns), max(down, across), "tokens, the first,")]
    dials = list(drawing.dials)
    room = max(1, most.pixels // max(1, rows * columns))
    for axis in sorted(range(len(dials)), key=lambda i: dials[i].name == "head"):
        labels, count = tuple(map(str, dials[axis].labels)), math.prod(values.shape[:-2])
        at = picked(len(labels), max(1, len(labels) * room // count))
        if count > room and len(at) < len(labels):
            start = dials[axis].start
            at = np.union1d(at[at != start][: max(0, len(at) - 1)], [start])
            values = values.take(at, axis=axis)
            said.append(note(len(at), len(labels), f"places of {dials[axis].name}"))
            dials[axis] = Dial(dials[axis].name, tuple(labels[i] for i in at), int(np.searchsorted(at, start)))
    made = replace(
        drawing, values=values, dials=tuple(dials), rows=drawing.rows[:rows], columns=drawing.columns[:columns]
    )
    return made, " ".join(words for words in said if words)


def _every(values: NDArray[np.float64], most: int) -> Blocks:
    """At most ``most`` rows and columns, evenly spread: of categories there are no means."""
    rows, columns = (picked(n, most) for n in values.shape[-2:])
    whole = (len(rows), len(columns)) == values.shape[-2:]
    all_of = f"{values.shape[-2]} rows, {len(columns)} of {values.shape[-1]} columns"
    said = "" if whole else f"Thinned: {len(rows)} of {all_of} are shown."
    return Blocks(values[..., rows, :][..., columns], rows, columns, said)


def picked(count: int, most: int) -> NDArray[np.int64]:
    """At most ``most`` indices of ``count``, evenly spread, first and last among them."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))


def note(shown: int, count: int, what: str) -> str:
    """The sentence that says how many are shown; nothing if all are."""
    return "" if shown >= count else f"Thinned: {shown:,} of {count:,} {what} are shown."


def _summed(values: NDArray[np.float64], edges: list[NDArray[np.int64]]) -> NDArray[np.float64]:
    if not values.size:
        return values
    summed: NDArray[np.float64] = np.add.reduceat(np.add.reduceat(values, edges[0], axis=-2), edges[1], axis=-1)
    return summed
