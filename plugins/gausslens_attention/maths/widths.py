"""Distances to band plus sparse error for every width and many budgets at once, without making an approximation.

Sorting the cells of a map once is enough: the best budget of k outside a band of width w are the first k cells in
that order that lie outside. Cells are counted in blocks of ranks, by offset, so that the place of the k-th is found
by looking up, and only one block is gone through cell by cell. Formulas and source: band_plus_sparse.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import Bools, Floats
from .band_plus_sparse import fit_stochastic, offsets

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# Cells of one block of ranks.
BLOCK = 128
# Maps that are worked on at a time.
MAPS = 8
# How far a row's sum may be from one to count as rounding.
_ROUNDING = 1e-4


def distances(
    H: ArrayLike, budgets: Sequence[int] = (0,), epsilon: float | None = None, stochastic: bool = False
) -> Floats:
    """|H - X|_1 of the nearest X to each map [..., n, m], for all widths 0 to m - 1: [..., width, budget].

    What ``band.project`` returns as the distance; ``stochastic`` for H that is row-stochastic is twice the free
    distance. float32 is not widened: sums are of double precision, the order of cells is that of the values given.
    """
    maps = np.asarray(H)
    if stochastic and not _is_stochastic(maps):
        return _one_by_one(maps, budgets, epsilon)
    n, m = maps.shape[-2:]
    flat = maps.reshape(-1, n, m)
    found = np.empty((len(flat), m, len(budgets)))
    for start in range(0, len(flat), MAPS):
        found[start : start + MAPS] = _some(flat[start : start + MAPS], budgets, epsilon)
    return (2 if stochastic else 1) * found.reshape(*maps.shape[:-2], m, len(budgets))


def _some(maps: NDArray[np.floating], budgets: Sequence[int], epsilon: float | None) -> Floats:
    """Of a few maps [map, n, m]: [map, width, budget]."""
    m = maps.shape[-1]
    seen, offset = _cells(maps)
    size = np.abs(maps[:, seen])
    outside = _outside(size, offset, m)
    most = max(budgets, default=0)
    if most <= 0:
        return np.repeat(outside[..., None], len(budgets), axis=-1)
    gain = size if epsilon is None else np.minimum(size, np.asarray(epsilon, dtype=size.dtype))
    ranked = _Ranked(*_sorted(gain, offset), m)
    saved = np.stack([ranked.largest(min(k, size.shape[1])) for k in budgets], axis=-1)
    # What is left of equal sums is rounding.
    return np.clip(outside[..., None] - saved, 0.0, None)


def _cells(maps: NDArray[np.floating]) -> tuple[Bools, NDArray[np.int64]]:
    """Which cells hold anything (a causal map has none above the diagonal), and their offsets."""
    n, m = maps.shape[-2:]
    upper = np.triu(np.ones((n, m), dtype=bool), 1)
    seen = ~upper if n == m > 1 and not maps[:, upper].any() else np.ones((n, m), dtype=bool)
    return seen, offsets(n, m)[seen]


def _outside(size: NDArray[np.floating], offset: NDArray[np.int64], widths: int) -> Floats:
    """The sum of the cells beyond each width [map, width]."""
    by_offset: Floats = np.stack([np.bincount(offset, weights=row, minlength=widths) for row in size])
    beyond = np.cumsum(by_offset[:, ::-1], axis=1)[:, ::-1]
    found: Floats = np.concatenate([beyond[:, 1:], np.zeros((len(size), 1))], axis=1)
    return found


def _sorted(gain: NDArray[np.floating], offset: NDArray[np.int64]) -> tuple[NDArray[np.floating], NDArray[np.int32]]:
    """Gains in falling order with the offsets of their cells, both [map, rank]."""
    if gain.dtype != np.float32:
        order = np.argsort(-gain, axis=1, kind="stable")
        return np.take_along_axis(gain, order, axis=1), offset.astype(np.int32)[order]
    # The bits of a float that is not negative sort as it does: value and offset in one number need no second gather.
    keys = gain.view(np.uint32).astype(np.uint64) << np.uint64(32) | offset.astype(np.uint64)
    keys.sort(axis=1)
    keys = keys[:, ::-1]
    values = (keys >> np.uint64(32)).astype(np.uint32).view(np.float32)
    return values, keys.astype(np.uint32).view(np.int32)


class _Ranked:
    """The cells of each map in falling order, with counts and sums by block of ranks and width."""

    def __init__(self, gain: NDArray[np.floating], offset: NDArray[np.int32], widths: int) -> None:
        maps, cells = gain.shape
        blocks = -(-cells // BLOCK)
        # The last block is filled up with cells that lie within every band.
        padding = ((0, 0), (0, blocks * BLOCK - cells))
        self.gain = np.pad(gain, padding).reshape(maps, blocks, BLOCK)
        self.offset = np.pad(offset, padding).reshape(maps, blocks, BLOCK)
        self.widths = widths
        place = (np.arange(maps * blocks).reshape(maps, blocks, 1) * widths + self.offset).ravel()
        shape, size = (maps, blocks, widths), maps * blocks * widths
        # Up to and with each block, beyond each width.
        self.number = _summed(np.bincount(place, minlength=size).reshape(shape).astype(np.int32))
        self.total = _summed(np.bincount(place, weights=self.gain.ravel(), minlength=size).reshape(shape))

    def largest(self, count: int) -> Floats:
        """The sum of the ``count`` largest gains beyond each width [map, width]; of all where there are fewer."""
        if count <= 0:
            return np.zeros((len(self.gain), self.widths))
        last = self.gain.shape[1] - 1
        full = (self.number <= count).sum(axis=1)
        before = np.maximum(full - 1, 0)[:, None]
        some = full > 0
        number = np.where(some, np.take_along_axis(self.number, before, axis=1)[:, 0], 0)
        total = np.where(some, np.take_along_axis(self.total, before, axis=1)[:, 0], 0.0)
        # What is still to take lies in the next block.
        place = np.arange(len(self.gain))[:, None], np.minimum(full, last)
        outside = self.offset[place] > np.arange(self.widths, dtype=np.int32)[:, None]
        wanted = np.cumsum(outside, axis=-1, dtype=np.int16) <= (count - number)[..., None]
        wanted &= outside
        rest = np.einsum("mwb,mwb->mw", self.gain[place], wanted, dtype=np.float64)
        found: Floats = total + np.where(full <= last, rest, 0.0)
        return found


def _summed(values: NDArray[Any]) -> NDArray[Any]:
    """From [map, block, offset] to [map, block, width]: what lies beyond each width, up to and with each block."""
    for block in range(1, values.shape[1]):
        values[:, block] += values[:, block - 1]
    beyond = np.zeros_like(values)
    np.cumsum(values[..., :0:-1], axis=-1, out=beyond[..., -2::-1])
    return beyond


def _is_stochastic(maps: NDArray[np.floating]) -> bool:
    return bool((maps >= 0).all() and (np.abs(maps.sum(axis=-1, dtype=np.float64) - 1) <= _ROUNDING).all())


def _one_by_one(maps: NDArray[np.floating], budgets: Sequence[int], epsilon: float | None) -> Floats:
    """Maps whose rows do not sum to one have no shorter way."""
    H = maps.astype(np.float64)
    bands = [offsets(*H.shape[-2:]) <= w for w in range(H.shape[-1])]
    found = [[fit_stochastic(H, band, k, epsilon)[1] for k in budgets] for band in bands]
    return np.moveaxis(np.array(found), (0, 1), (-2, -1))
