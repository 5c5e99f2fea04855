"""Fewer cells, points and rows than there are, so that a page stays light; and the sentence that says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SERIES = 6  # as many as there are colours


@dataclass(frozen=True)
class Most:
    """How much of a figure is drawn."""

    cells: int = 96  # a side of a heatmap
    stored: int = 400_000  # cells of all maps that the sliders of one figure reach
    points: int = 400  # of a curve
    dots: int = 2000  # of a scatter
    rows: int = 100  # of a table
    letters: int = 4000  # of a text


FINE = Most()
# For the figures of a section that has used most of its share of the page.
COARSE = Most(cells=24, stored=20_000, points=100, dots=400, rows=30, letters=1000)


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
