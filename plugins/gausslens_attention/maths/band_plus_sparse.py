"""The best band plus sparse error in the entrywise 1-norm, in closed form. Pure numpy on maps [..., query, key].

X = B + E with B zero outside the band |i - j| <= w and E of at most k entries. Every cell is separate: the band is
copied, and E is spent where the rest is largest:

    d(H) = sum over cells outside the band of |h|  -  the k largest of them                                 (budget k)
    d(H) = the same with min(|h|, eps) in place of |h| where it is spent                            (|e| <= eps besides)
    d(H) = sum over rows of [ sum |h| - C_i + |1 - C_i| ],  C_i = what the row captures of h+       (X row-stochastic)

For a row-stochastic H the last is twice the first. Bands are nested, so no distance grows with the width or the
budget. Conti (2024, ch. 3.4) looks for X by random draws, and reads the noise of its draws as an
optimal width. One-norm projections are not those of a Hilbert space: here the minimiser is unique because cells are
separate (off the support, and up to ties; not where rows must sum to one: there any fill that lowers no captured cell
is as good).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .arrays import Bools, Floats

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def cells(n: int, width: int, causal: bool = False) -> int:
    """How many cells |i - j| <= w a map of n tokens has: n (2w + 1) - w (w + 1), of which a causal one keeps j <= i."""
    w = min(width, n - 1)
    return n * (w + 1) - w * (w + 1) // 2 if causal else n * (2 * w + 1) - w * (w + 1)


@lru_cache(maxsize=64)
def offsets(n: int) -> NDArray[np.int64]:
    """|i - j| of each cell [query, key]; not to be written to."""
    place = np.arange(n)
    found: NDArray[np.int64] = np.abs(place[:, None] - place)
    found.flags.writeable = False
    return found


def project(
    H: ArrayLike,
    width: int | Sequence[int],
    budget: int = 0,
    epsilon: float | None = None,
    stochastic: bool = False,
    bounded: bool = False,
) -> tuple[Floats, Floats]:
    """The nearest band plus sparse error to maps H [..., n, n]: (X, |H - X|_1).

    ``width`` may be several widths: then X is [width, ..., n, n] and the distance [width, ...]. ``budget`` entries
    may be spent outside the band, each at most ``epsilon`` in size. ``stochastic``: X >= 0 with rows that sum to one.
    ``bounded``: the band holds values in [0, 1], and errors may be spent within it too.
    """
    maps = np.asarray(H, dtype=np.float64)
    several = np.ndim(width) > 0
    widths = np.asarray(width).reshape(-1, *(1,) * (maps.ndim if several else 0))
    band = offsets(maps.shape[-1]) <= widths
    band = band if several else band.reshape(maps.shape[-2:])
    if stochastic:
        return fit_stochastic(maps, band, budget, epsilon)
    return fit(maps, band, budget, epsilon, bounded)


def fit(
    H: Floats, structure: Bools, budget: int = 0, epsilon: float | None = None, bounded: bool = False
) -> tuple[Floats, Floats]:
    """The nearest X that is free on ``structure`` [..., n, n] and has ``budget`` entries elsewhere."""
    kept = np.clip(H, 0.0, 1.0) if bounded else H
    X: Floats = np.where(structure, kept, 0.0)
    if budget > 0:
        rest = H - X
        error = rest if epsilon is None else np.clip(rest, -epsilon, epsilon)
        X = X + np.where(largest(np.abs(error), budget), error, 0.0)
    return X, np.abs(H - X).sum(axis=(-1, -2))


def fit_stochastic(H: Floats, structure: Bools, budget: int = 0, epsilon: float | None = None) -> tuple[Floats, Floats]:
    """The same with X >= 0 and rows that sum to one; every row of ``structure`` must have a cell.

    What a row lacks of one is spread in proportion to h: renormalising the kept cells is one of the best fills.
    """
    gain = np.clip(H, 0.0, None)
    capped = gain if epsilon is None else np.minimum(gain, epsilon)
    kept = np.broadcast_to(structure, np.broadcast_shapes(H.shape, structure.shape))
    chosen = _spent(np.where(kept, gain, 0.0).sum(axis=-1), np.where(kept, 0.0, capped), budget)
    X: Floats = np.where(kept, gain, np.where(chosen, capped, 0.0))
    captured = X.sum(axis=-1, keepdims=True)
    room = kept if epsilon is not None else kept | chosen
    share = np.where(room, np.broadcast_to(gain, kept.shape), 0.0)
    total = share.sum(axis=-1, keepdims=True)
    even = room / room.sum(axis=-1, keepdims=True)
    share = np.where(total > 0, share / np.where(total > 0, total, 1.0), even)
    full = np.where(captured > 1, captured, 1.0)
    X = X / full + np.clip(1.0 - captured, 0.0, None) * share
    return X, np.abs(H - X).sum(axis=(-1, -2))


def _spent(captured: Floats, gain: Floats, budget: int) -> Bools:
    """Which cells to spend the budget on where rows must sum to one.

    A row that captures C costs const - C + |1 - C|, so a cell of gain g saves phi(C + g) - phi(C) with phi(C) =
    min(2C - 1, 1). That is concave: taking the largest savings of all rows, each row's cells in falling order, is
    exact.
    """
    if budget <= 0:
        return np.zeros(gain.shape, dtype=bool)
    order = np.argsort(-gain, axis=-1, kind="stable")
    reached = captured[..., None] + np.cumsum(np.take_along_axis(gain, order, axis=-1), axis=-1)
    phi = np.minimum(2 * np.concatenate([captured[..., None], reached], axis=-1) - 1, 1.0)
    chosen = np.zeros(gain.shape, dtype=bool)
    np.put_along_axis(chosen, order, largest(np.diff(phi, axis=-1), budget), axis=-1)
    return chosen


def largest(values: Floats, count: int) -> Bools:
    """Marks the ``count`` largest cells of each map [..., n, m]; of equal ones any."""
    shape = values.shape
    flat = values.reshape(*shape[:-2], -1)
    if count >= flat.shape[-1]:
        return np.ones(shape, dtype=bool)
    marked = np.zeros(flat.shape, dtype=bool)
    if count > 0:
        place = np.argpartition(flat, -count, axis=-1)[..., -count:]
        np.put_along_axis(marked, place, True, axis=-1)
    return marked.reshape(shape)
