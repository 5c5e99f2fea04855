"""The best rare-token member of a map: rows in windows attend to one column each, all others to themselves.

The third set of Conti (2024) is the identity in which, for a few positions p, the rows p, ..., p + w - 1 look at p
instead (after Voita et al. 2019, "rare words"). Here columns, windows and their lengths are free, and
the best are found by dynamic programming over rows instead of being drawn: with F_i[k, s, E] the most mass that rows
up to i hold with k windows opened, the last row in state s (a column, or its own), and E sparse errors spent,

    F_i[k, s, E] = max over e of max(F_{i-1}[k, s, E - e], max_t F_{i-1}[k - (s is a column), t, E - e]) + g_i(s, e),

where g_i(s, e) = min(T_{e+1}, h_is + T_e) is what row i holds at s with the e largest of its other cells beside, T_e
being the sum of its e largest. Errors need not be spent row by row to be counted so: the result is exact for any
budget. Where keys are other tokens than queries, a row's own is the key at its place on the stretched diagonal
(``band_plus_sparse.places``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import Bools, Floats, Places
from .band_plus_sparse import places

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class RareTokens:
    """The best members of maps [..., n, m]: ``column`` [..., row] is where each row looks, ``own`` where that is
    itself.

    ``support`` marks the cells that hold values, those of the errors too; ``captured`` is the mass on them; ``windows``
    how many there are.
    """

    support: Bools
    captured: Floats
    column: Places
    own: Bools
    windows: Places


def rare_tokens(H: ArrayLike, windows: int, budget: int = 0) -> RareTokens:
    """At most ``windows`` windows, each of any rows and any column, and ``budget`` sparse errors besides."""
    maps = np.abs(np.asarray(H, dtype=np.float64))
    n, m = maps.shape[-2:]
    flat = maps.reshape(-1, n, m)
    steps, last = _forward(flat, min(windows, n), min(budget, n * m))
    found = [_traced(flat[i], [step.of(i) for step in steps], last[i]) for i in range(len(flat))]
    support, column, own, opened = (np.stack(part) for part in zip(*found, strict=True))
    lead = maps.shape[:-2]
    captured = np.where(support, flat, 0.0).sum(axis=(-1, -2))
    return RareTokens(
        support.reshape(maps.shape),
        captured.reshape(lead),
        column.reshape(*lead, n),
        own.reshape(*lead, n),
        opened.reshape(lead),
    )


@dataclass(frozen=True)
class _Choices:
    """What led to each state of a row: errors spent in it, whether it was switched to, and the best state before."""

    errors: NDArray[np.integer[Any]]  # [map, windows, state, spent]
    switched: Bools  # [map, windows, state, spent before this row]
    best: Places  # [map, windows, spent]: the state of the row before with most mass

    def of(self, number: int) -> _Choices:
        return _Choices(self.errors[number], self.switched[number], self.best[number])


def _forward(flat: Floats, windows: int, budget: int) -> tuple[list[_Choices], Floats]:
    maps, n, m = flat.shape
    place = places(n, m)
    held = np.full((maps, windows + 1, m + 1, budget + 1), -np.inf)
    held[:, 0, m, 0] = 0.0  # before the first row: no window is open
    steps = []
    for row in range(n):
        best = held.argmax(axis=2)
        most = held.max(axis=2)
        into = np.full_like(held, -np.inf)
        into[:, 1:, :m] = most[:, :-1, None]
        into[:, :, m] = most
        switched = into > held
        before = np.where(switched, into, held)
        held, errors = _spend(before, _gains(flat[:, row], int(place[row]), budget))
        steps.append(_Choices(errors, switched, best))
    return steps, held


def _gains(values: Floats, place: int, budget: int) -> Floats:
    """What a row with its own key at ``place`` holds in each state with e of its other cells beside [map, state, e]."""
    most = min(budget, values.shape[1] - 1)
    falling = -np.sort(-values, axis=1)[:, : most + 1]
    total = np.cumsum(falling, axis=1)
    below = np.concatenate([np.zeros((len(values), 1)), total[:, :-1]], axis=1)
    own = np.concatenate([values, values[:, place : place + 1]], axis=1)
    found: Floats = np.minimum(total[:, None], own[:, :, None] + below[:, None])
    return found


def _spend(before: Floats, gains: Floats) -> tuple[Floats, NDArray[np.integer[Any]]]:
    """max over e of before[..., E - e] + gains[e], and the e that does it."""
    held = before + gains[:, None, :, :1]
    errors = np.zeros(held.shape, dtype=np.int16)
    for e in range(1, min(gains.shape[-1], before.shape[-1])):
        other = before[..., :-e] + gains[:, None, :, e, None]
        better = other > held[..., e:]
        held[..., e:][better] = other[better]
        errors[..., e:][better] = e
    return held, errors


def _traced(values: Floats, steps: list[_Choices], last: Floats) -> tuple[Bools, Places, Bools, Places]:
    """The support, column of each row, whether that is its own, and number of windows of the best path of one map."""
    n, m = values.shape
    k, state, spent = (int(i) for i in np.unravel_index(int(last.argmax()), last.shape))
    support = np.zeros((n, m), dtype=bool)
    column, own = places(n, m), np.ones(n, dtype=bool)
    opened = k
    for row in range(n - 1, -1, -1):
        step = steps[row]
        count = int(step.errors[k, state, spent])
        if state < m:
            column[row], own[row] = state, False
        others = values[row].copy()
        others[column[row]] = -1.0
        support[row, column[row]] = True
        support[row, np.argsort(-others, kind="stable")[:count]] = True
        spent -= count
        if step.switched[k, state, spent]:
            k -= state < m
            state = int(step.best[k, spent])
    return support, column, own, np.asarray(opened)
