"""The three sets of attention maps of Conti (2024), and the best member of each: exact, not drawn.

    diagonal   one relative position: the cells (i, i - d) of one offset d               (positional heads)
    band       cells within |i - j| <= w, some of them dropped                           (syntactic heads)
    rare       rows in windows look at one column each, others at themselves             (module rare_tokens)

where i is the query's place among the keys (``band_plus_sparse.places``: in a square map the query itself), each with a
sparse error beside (ch. 3.4 there, after Voita et al. 2019). A member holds the map's own values
on its cells: nothing is nearer in the entrywise 1-norm, so the distance is the mass outside, |H|_1 - captured; of a
row-stochastic map to row-stochastic members it is twice that.

``within`` compares the families at equal storage. Values cost one scalar, so do offsets, widths, columns and the
starts of windows; an error costs two (value and place); which cells of a band are kept is a bit mask of 32 cells to
the scalar.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .arrays import Bools, Floats, Places
from .band_plus_sparse import apart, cells, largest, offsets, places
from .rare_tokens import RareTokens, rare_tokens

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

NAMES = ("diagonal", "band", "rare")
# Cells of a bit mask that one stored scalar holds.
MASK_CELLS = 32


@dataclass(frozen=True)
class Member:
    """The best members of maps [..., n, m]: the cells that hold values, the mass on them, and the offset or width."""

    support: Bools
    captured: Floats
    parameter: Places


def diagonal(H: ArrayLike, budget: int = 0) -> Member:
    """The best single diagonal and ``budget`` sparse errors elsewhere; ``parameter`` is its offset query - key."""
    maps = np.abs(np.asarray(H, dtype=np.float64))
    n, m = maps.shape[-2:]
    flat = maps.reshape(-1, n, m)
    found = [_best_offset(one, min(budget, n * m)) for one in flat]
    support = np.stack([s for s, _ in found])
    captured = np.where(support, flat, 0.0).sum(axis=(-1, -2))
    offset = np.array([d for _, d in found])
    return Member(support.reshape(maps.shape), captured.reshape(maps.shape[:-2]), offset.reshape(maps.shape[:-2]))


def _best_offset(values: Floats, budget: int) -> tuple[Bools, int]:
    """Offsets are tried by what they can hold at most: their own mass, and the largest cells of the whole map."""
    n, m = values.shape
    spent = float(np.sort(values, axis=None)[n * m - budget :].sum())
    mass = {d: _on_line(values, d) for d in range(1 - m, m)}
    best, found = -1.0, (np.zeros((n, m), dtype=bool), 0)
    for d in sorted(mass, key=lambda d: (-mass[d], abs(d))):
        if mass[d] + spent <= best:
            break
        line = apart(n, m) == d
        rest = np.where(line, -1.0, values)
        support = line | (largest(rest, budget) & (rest >= 0))
        held = float(values[support].sum())
        if held > best:
            best, found = held, (support, d)
    return found


def _on_line(values: Floats, offset: int) -> float:
    """The sum of the cells of one diagonal."""
    keys = places(*values.shape) - offset
    rows = np.flatnonzero((keys >= 0) & (keys < values.shape[1]))
    return float(values[rows, keys[rows]].sum())


def band(H: ArrayLike, width: int, keep: int | None = None, budget: int = 0) -> Member:
    """The best ``keep`` cells (None: all) within |i - j| <= ``width``, and ``budget`` sparse errors outside."""
    maps = np.abs(np.asarray(H, dtype=np.float64))
    inside = offsets(*maps.shape[-2:]) <= width
    support = np.broadcast_to(inside, maps.shape)
    if keep is not None:
        support = support & largest(np.where(inside, maps, -1.0), min(keep, int(inside.sum())))
    if budget > 0:
        outside = int((~inside).sum())
        support = support | (largest(np.where(inside, -1.0, maps), min(budget, outside)) & ~inside)
    captured = np.where(support, maps, 0.0).sum(axis=(-1, -2))
    return Member(support, captured, np.full(maps.shape[:-2], width))


def within(H: ArrayLike, scalars: int, causal: bool) -> tuple[Member, Member, RareTokens]:
    """The best diagonal, band and rare-token members that so many stored scalars allow."""
    maps = np.asarray(H, dtype=np.float64)
    n = maps.shape[-2]
    return (
        # A diagonal counts n cells whatever its offset: a short one is not to be a list of errors.
        diagonal(maps, max(scalars - 1 - n, 0) // 2),
        _band_within(maps, scalars, causal),
        rare_tokens(maps, max(scalars - n, 0) // 2),
    )


def kept_cells(n: int, width: int, scalars: int, causal: bool, m: int | None = None) -> int:
    """How many cells of a band so many scalars hold: all without a mask, fewer with one; not even that: negative."""
    inside = cells(n, width, causal, m)
    if 1 + inside <= scalars:
        return inside
    return min(inside, scalars - 1 - -(-inside // MASK_CELLS))


def _band_within(maps: Floats, scalars: int, causal: bool) -> Member:
    """The width that captures most: a wide band leaves more to choose from, and less storage for what is chosen."""
    n, m = maps.shape[-2:]
    place = offsets(n, m)
    seen = apart(n, m) >= 0 if causal else np.ones((n, m), dtype=bool)
    order = np.argsort(np.where(seen, place, m).ravel(), kind="stable")
    sizes = np.abs(maps).reshape(*maps.shape[:-2], -1)[..., order]
    best = np.full(maps.shape[:-2], -1.0)
    width = np.zeros(maps.shape[:-2], dtype=np.int64)
    for w in range(m):
        keep = kept_cells(n, w, scalars, causal, m)
        if keep <= 0:
            break
        inside = sizes[..., : cells(n, w, causal, m)]
        held = inside if keep == inside.shape[-1] else np.partition(inside, -keep, axis=-1)[..., -keep:]
        captured = held.sum(axis=-1)
        # A wider band must hold more than rounding adds.
        better = captured > best * (1 + 1e-12)
        best, width = np.where(better, captured, best), np.where(better, w, width)
    return _of_widths(maps, width, scalars, causal)


def _of_widths(maps: Floats, width: Places, scalars: int, causal: bool) -> Member:
    n, m = maps.shape[-2:]
    kept = [kept_cells(n, int(w), scalars, causal, m) for w in width.flat]
    each = zip(maps.reshape(-1, n, m), width.flat, kept, strict=True)
    found = [band(one, int(w), keep) for one, w, keep in each]
    support = np.stack([m.support for m in found]).reshape(maps.shape)
    return Member(support, np.array([m.captured for m in found]).reshape(width.shape), width)
