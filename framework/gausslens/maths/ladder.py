"""The ladder of nulls: how much of a departure each null explains that shares more with the model. Pure mathematics.

Nulls that differ in one thing each, from the one that shares least: what a number has beyond the first of them is held
against each of the others in turn, and the first that gives the number too explains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from .nulls import INTERVAL

Floats: TypeAlias = NDArray[np.float64]

# What the nulls of the ladder share with the model: nothing but its architecture (before training), its gains and
# embeddings, also the size of its matrices, also their entries, or also their singular values; other trainings.
WEIGHT_RUNGS = ("before", "gains", "scale", "entries", "spectrum")
SEEDS = "seeds"
# What no null of weights explains, and what cannot be told.
ARRANGEMENT, UNDECIDED = "arrangement", "undecided"
WORDS = (*WEIGHT_RUNGS, SEEDS, ARRANGEMENT, UNDECIDED)
# A null explains a number that lies so near, as a share of the departure from the first null.
NEAR = 0.1
# More draws than this are not asked for.
MOST_DRAWS = 1000


@dataclass(frozen=True)
class Rung:
    """One null beside values, arrays of their shape.

    ``low`` and ``high`` enclose 95 % of its draws (``maths.nulls.Comparison``); ``error`` is half the 95 % interval of
    the difference from its mean by the prompts, if that is known; ``called`` says which values depart from it as tests
    over all values say, if that is known: of many values one in twenty lies outside of its own null's interval.
    """

    name: str
    draws: int
    mean: Floats
    low: Floats
    high: Floats
    error: Floats | None = None
    called: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Explained:
    """For each value the name of its rung, the share [rung, ...] that each null gives, and draws that would decide.

    ``draws`` is 0 where a value is decided, or where draws alone would not decide it: their interval does already, and
    the error over prompts or the tests over all values do not, or it is too near a tenth of the departure.
    """

    rung: NDArray[np.str_]
    share: Floats
    draws: NDArray[np.int64]


def ladder_order(names: Sequence[str]) -> list[int]:
    """Places of nulls from the one that shares least with the model; a stranger's comes after those of weights."""
    order = {name: place for place, name in enumerate((*WEIGHT_RUNGS, "", SEEDS))}
    return sorted(range(len(names)), key=lambda i: (order.get(names[i], order[""]), i))


@np.errstate(divide="ignore", invalid="ignore")
def explained(values: NDArray[np.generic], departs: NDArray[np.bool_], rungs: Sequence[Rung]) -> Explained:
    """Which null of a ladder explains each value; ``departs`` says which values depart from the first null.

    With d_k = x - mean_k, null k explains a value where the interval of d_k, by the spread of draws and by the prompts'
    error each, lies within a tenth of d_1. Where an interval lies neither within nor wholly beyond, or beyond and the
    value is not called, it is undecided: not to be told from a null is no explanation. What departs from all is
    arrangement; what does not depart from the first has its name. share_k = 1 - d_k / d_1. Infinite values, as an
    exponent of a tail can be, never depart.
    """
    x = np.asarray(values, dtype=np.float64)
    first, *others = rungs
    departure = x - first.mean
    near = NEAR * np.abs(departure)
    rung = np.full(x.shape, ARRANGEMENT, dtype=f"<U{max(len(n) for n in (*WORDS, *(r.name for r in rungs)))}")
    draws = np.zeros(x.shape, dtype=np.int64)
    share = np.zeros((len(rungs), *x.shape))
    open_ = np.asarray(departs, dtype=bool).copy()
    rung[~open_] = first.name
    for place, other in enumerate(others, start=1):
        share[place] = np.where(departure != 0, 1 - (x - other.mean) / departure, np.nan)
        within, beyond = _within_and_beyond(x, other, near)
        rung[open_ & within] = other.name
        unclear = open_ & ~within & ~beyond
        rung[unclear] = UNDECIDED
        draws[unclear] = _draws_to_decide(x[unclear], _at(other, unclear), near[unclear])
        open_ &= beyond
    share[0] = 0.0
    return Explained(rung, share, draws)


def _within_and_beyond(x: Floats, other: Rung, near: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Where the intervals of x - mean lie within +- near, and where they lie wholly beyond."""
    low, high = x - other.high, x - other.low
    within, beyond = (low >= -near) & (high <= near), (low > near) | (high < -near)
    if other.error is not None:
        # No error where prompts do not enter: the draws alone decide.
        d, e = x - other.mean, np.nan_to_num(other.error)
        within &= np.abs(d) + e <= near
        beyond &= np.abs(d) - e > near
    if other.called is not None:
        beyond &= other.called
    return within, beyond


def _at(rung: Rung, chosen: NDArray[np.bool_]) -> Rung:
    return Rung(rung.name, rung.draws, rung.mean[chosen], rung.low[chosen], rung.high[chosen])


def _draws_to_decide(x: Floats, other: Rung, near: Floats) -> NDArray[np.int64]:
    """The fewest draws whose interval would lie within or beyond, if their spread is what it seems; 0 if none would.

    0 too where the interval of the draws that there are does: something else leaves the value undecided.
    """
    half = (other.high - other.low) / 2
    wanted = np.abs(np.abs(x - (other.high + other.low) / 2) - near)
    m = np.arange(max(other.draws, 3), MOST_DRAWS + 1)
    width = stdtrit(m - 1, (1 + INTERVAL) / 2) * np.sqrt(1 + 1 / m)
    enough = half[:, None] * (width / width[0])[None] < wanted[:, None]
    return np.where(enough.any(axis=1) & ~enough[:, 0], m[np.argmax(enough, axis=1)], 0)
