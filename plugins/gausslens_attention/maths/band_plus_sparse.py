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

Where keys are other tokens than queries, as in attention from one stack to another, a map is n x m, and the band is
about the diagonal stretched from its first cell to its last: in place of i stands the key nearest to i (m - 1)/(n - 1),
``places``. Widths are counted in keys; a square map has i itself there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .arrays import Bools, Floats

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def places(n: int, m: int | None = None) -> NDArray[np.int64]:
    """Where each of n queries stands among m keys (None: as many): the key nearest to i (m - 1) / (n - 1).

    i itself among as many keys. A half is rounded up, and a lone query stands in the middle.
    """
    steps, keys = n - 1, n if m is None else m
    if not steps:
        return np.array([keys // 2], dtype=np.int64)
    return np.asarray((2 * np.arange(n, dtype=np.int64) * (keys - 1) + steps) // (2 * steps))


def cells(n: int, width: int, causal: bool = False, m: int | None = None) -> int:
    """How many cells |p_i - j| <= w a map of n queries and m keys (None: as many) has, of which a causal one keeps
    j <= p_i.

    Of a square map, p_i = i: n (2w + 1) - w (w + 1), causal n (w + 1) - w (w + 1) / 2.
    """
    keys = n if m is None else m
    place = places(n, keys)
    last = place if causal else np.minimum(place + width, keys - 1)
    return int((last - np.maximum(place - width, 0) + 1).sum())


@lru_cache(maxsize=64)
def apart(n: int, m: int | None = None) -> NDArray[np.int64]:
    """p_i - j of each cell [query, key], positive where the key is behind the query; not to be written to."""
    found: NDArray[np.int64] = places(n, m)[:, None] - np.arange(n if m is None else m)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=64)
def offsets(n: int, m: int | None = None) -> NDArray[np.int64]:
    """|p_i - j| of each cell [query, key]: the width of the narrowest band that has it; not to be written to."""
    found: NDArray[np.int64] = np.abs(apart(n, m))
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
    """The nearest band plus sparse error to maps H [..., n, m]: (X, |H - X|_1).

    ``width`` may be several widths: then X is [width, ..., n, m] and the distance [width, ...]. ``budget`` entries
    may be spent outside the band, each at most ``epsilon`` in size. ``stochastic``: X >= 0 with rows that sum to one.
    ``bounded``: the band holds values in [0, 1], and errors may be spent within it too.
    """
    maps = np.asarray(H, dtype=np.float64)
    several = np.ndim(width) > 0
    widths = np.asarray(width).reshape(-1, *(1,) * (maps.ndim if several else 0))
    band = offsets(*maps.shape[-2:]) <= widths
    band = band if several else band.reshape(maps.shape[-2:])
    if stochastic:
        return fit_stochastic(maps, band, budget, epsilon)
    return fit(maps, band, budget, epsilon, bounded)


def fit(
    H: Floats, structure: Bools, budget: int = 0, epsilon: float | None = None, bounded: bool = False
) -> tuple[Floats, Floats]:
    """The nearest X that is free on ``structure`` [..., n, m] and has ``budget`` entries elsewhere."""
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
