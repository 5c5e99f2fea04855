"""Errors of averages over prompts, the independent units, and splitting prompts into parts and groups. Pure numpy.

Moments of numbers that come in groups of prompts (``PowerSums``) have errors by leaving out a group (``jackknife``);
averages over prompts have plain errors (``mean_and_error``, ``ratio_and_error``) or Student intervals (``average``).
``split_prompts`` parts prompts into those to fit on and those to measure on. Any statistic at all has an error by
deleting groups of prompts: ``dealt`` makes the groups, ``delete_group_error`` the error, ``difference_error`` that of a
model against its twins, and ``owned_by_one`` says where a single group makes most of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from .ragged import Rows

Floats: TypeAlias = NDArray[np.float64]
# Groups of prompts of which one at a time is left out, for standard errors.
GROUPS = 16
# One group that makes more than this of the spread of the leave-one-out values owns the error.
OWNS = 0.5
MOMENTS = ("mean", "variance", "skewness", "kurtosis")


@dataclass
class PowerSums:
    """Sums of x^0 to x^4 in float64, [group, ..., 5], of cells [...]."""

    sums: Floats

    @classmethod
    def empty(cls, *cells: int) -> PowerSums:
        """Nothing seen yet."""
        return cls(np.zeros((GROUPS, *cells, 5)))

    def add(self, values: NDArray[np.generic], groups: NDArray[np.int64], cell: tuple[int, ...] = ()) -> None:
        """Take in values [sample, ...] of one cell (its leading places), each in its group."""
        wide = np.asarray(values, dtype=np.float64)
        for group in np.unique(groups):
            mine = wide[groups == group]
            square = mine * mine
            powers = [mine.sum(0), square.sum(0), (square * mine).sum(0), (square * square).sum(0)]
            self.sums[(group, *cell)] += np.stack([np.full(mine.shape[1:], float(len(mine))), *powers], axis=-1)

    def merge(self, other: PowerSums) -> None:
        """Take in what another has seen."""
        self.sums += other.sums

    def moments(self) -> tuple[Floats, Floats]:
        """Mean, variance, skewness and excess kurtosis [..., 4], and their standard errors by the jackknife.

        Groups are left out one at a time; without two groups there is no error. NaN where nothing was seen.
        """
        total = self.sums.sum(axis=0)
        return standard(total), jackknife(standard(total - self.sums), self.sums[..., 0] > 0)


def standard(sums: Floats) -> Floats:
    """Mean, variance, skewness and excess kurtosis [..., 4] from sums of powers [..., 5].

    With m_r = sum x^r / n: m_1, m_2 - m_1^2, and the third and fourth central moments over powers of the variance, the
    fourth less 3. NaN for the last two where the variance is rounding.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        raw = sums[..., 1:] / sums[..., :1]
        m, s, c, q = (raw[..., i] for i in range(4))
        variance = np.maximum(s - m**2, 0.0)
        third = c - 3 * m * s + 2 * m**3
        fourth = q - 4 * m * c + 6 * m**2 * s - 3 * m**4
        # A variance that is rounding is none.
        variance = np.where(variance <= 1e-12 * s, 0.0, variance)
        shape = third / variance**1.5, fourth / variance**2 - 3
    return np.stack([m, variance, *(np.where(variance > 0, one, np.nan) for one in shape)], axis=-1)


def jackknife(left_out: Floats, seen: NDArray[np.bool_]) -> Floats:
    """Standard error sqrt((g-1)/g sum (t_i - mean t)^2) of a statistic from its values [group, ...] without each group.

    ``seen`` [group, ...] says which groups there are (Tukey 1958). NaN where there is one group or none.
    """
    there = seen.reshape(seen.shape + (1,) * (left_out.ndim - seen.ndim))
    count = there.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.where(there, left_out, 0.0)
        centre = values.sum(axis=0) / count
        spread = np.where(there, (left_out - centre) ** 2, 0.0).sum(axis=0)
        error = np.sqrt((count - 1) / count * spread)
    return np.where(count > 1, error, np.nan)


@dataclass(frozen=True)
class Estimated:
    """An average with its interval; low and high are NaN where a single prompt tells no spread."""

    value: Floats
    low: Floats
    high: Floats


def average(sums: ArrayLike, counts: ArrayLike, level: float) -> Estimated:
    """The average sum / count over prompts, with a Student interval from the jackknife over prompts.

    ``sums`` is [prompt, ...], ``counts`` [prompt]. With prompt i left out the average is a_i, and the variance is
    (g - 1)/g sum_i (a_i - mean a)^2 over the g prompts that count (Tukey 1958), with g - 1 degrees of freedom. Prompts,
    not tokens, are the independent units: an interval over tokens would be too narrow.
    """
    n = np.asarray(counts, dtype=np.float64)
    s = np.asarray(sums, dtype=np.float64)[n > 0]
    n = n[n > 0].reshape(-1, *[1] * (s.ndim - 1))
    g = len(s)
    if g == 0:
        nothing = np.full(s.shape[1:], np.nan)
        return Estimated(nothing, nothing, nothing)
    value = s.sum(axis=0) / n.sum(axis=0)
    if g == 1:
        return Estimated(value, np.full_like(value, np.nan), np.full_like(value, np.nan))
    without = (s.sum(axis=0) - s) / (n.sum(axis=0) - n)
    variance = (g - 1) / g * np.square(without - without.mean(axis=0)).sum(axis=0)
    half = stdtrit(g - 1, (1 + level) / 2) * np.sqrt(variance)
    return Estimated(value, value - half, value + half)


def mean_and_error(values: ArrayLike, axis: int = 0, skip_missing: bool = False) -> tuple[Floats, Floats]:
    """The mean over an axis of m independent values (prompts), and its standard error s / sqrt(m).

    s^2 = sum (x - mean)^2 / (m - 1). The error of one value is NaN. A missing value (NaN) makes its mean missing; with
    ``skip_missing`` it is left out, m counts the others of its cell, and the mean is NaN where there is none.
    """
    x = np.asarray(values, dtype=np.float64)
    if not skip_missing:
        m = x.shape[axis]
        mean = np.asarray(x.mean(axis=axis))
        return mean, np.asarray(x.std(axis=axis, ddof=1) / np.sqrt(m)) if m > 1 else np.full(mean.shape, np.nan)
    count = (~np.isnan(x)).sum(axis=axis)
    mean = np.where(count > 0, np.nansum(x, axis=axis) / np.maximum(count, 1), np.nan)
    apart = np.nansum((x - np.expand_dims(mean, axis)) ** 2, axis=axis)
    error = np.sqrt(apart / (np.maximum(count, 2) - 1) / np.maximum(count, 1))
    return mean, np.where(count > 1, error, np.nan)


def ratio_and_error(sums: ArrayLike, counts: ArrayLike) -> tuple[Floats, Floats]:
    """The ratio r = sum s / sum n over prompts, of sums s [prompt, ...] over n tokens [prompt], and its standard error.

    sqrt(m/(m - 1) sum (s_i - r n_i)^2) / sum n, by linearisation (Cochran, "Sampling Techniques", 1977, 6.4): of a
    difference per token, sums are differences on the same prompt, so that what prompts have in common drops out. The
    error of one prompt is NaN.
    """
    s, n = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    m, tokens, total = len(s), n.sum(), s.sum(axis=0)
    residual = s - n.reshape(m, *(1,) * (s.ndim - 1)) * total / tokens
    error = np.sqrt((residual**2).sum(axis=0) * m / max(m - 1, 1)) / tokens if m > 1 else np.full(total.shape, np.nan)
    return np.asarray(total / tokens), np.asarray(error)


def split_prompts(prompts: Sequence[ArrayLike], share: float) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which prompts (their token ids) to measure on, the others being to fit on; and their group, -1 for those.

    By the hash of their tokens: nothing depends on order, and equal prompts are on one side. Of the n different ones
    round(share n) are measured on, in ``GROUPS`` groups for the jackknife.
    """
    places = _places(prompts)
    measured = places < round(share * len(np.unique(places)))
    return measured, np.where(measured, places % GROUPS, -1)


def dealt(prompts: Sequence[ArrayLike], groups: int) -> NDArray[np.int64]:
    """The group, 0 to ``groups`` - 1, of each prompt (its token ids): dealt round in the order of their hashes.

    So groups do not depend on the order of prompts, equal prompts are in one group, and sizes differ by one at most
    where all prompts differ. ValueError where there are fewer different prompts than groups.
    """
    places = _places(prompts)
    different = len(np.unique(places))
    if different < groups:
        raise ValueError(f"{groups} groups need as many different prompts, there are {different}")
    return places % groups


def _places(prompts: Sequence[ArrayLike]) -> NDArray[np.int64]:
    """The place of each prompt among the different ones, in the order of the hashes of their tokens."""
    rows = Rows.of(prompts, np.int64).bytes("<i8")
    hashes = np.frombuffer(b"".join([sha256(ids).digest() for ids in rows]), dtype=">u8").reshape(-1, 4)
    order = np.lexsort(hashes.T[::-1])
    ordered = hashes[order]
    places = np.zeros(len(hashes), dtype=np.int64)
    places[order] = np.cumsum(np.append(False, (ordered[1:] != ordered[:-1]).any(axis=1))[: len(hashes)])
    return places


def delete_group_error(without: ArrayLike) -> Floats:
    """Standard error of a statistic from its values [group, ...] without each of g groups of prompts.

    sqrt((g-1)/g sum_i (x_(-i) - mean x_(-.))^2), the delete-a-group jackknife (Kott, "The delete-a-group jackknife",
    Journal of Official Statistics 17, 2001); compare with Student's t of g - 1 degrees.
    """
    x = np.asarray(without, dtype=np.float64)
    return jackknife(x, np.ones(len(x), dtype=np.bool_))


def difference_error(of: ArrayLike, twins: Sequence[ArrayLike], prompts: Sequence[Hashable] | None = None) -> Floats:
    """Standard error over prompts of x - mean of the twins' x, from their values [group, ...] without each group.

    ``prompts`` tells the prompts of each side, ``of`` first (None: all saw the same). Sides of the same prompts lose
    the same groups together, so that what prompts do to both alike drops out: the error is the jackknife of the
    difference. Those of different prompts are independent, and their errors add in quadrature.
    """
    sides = [np.asarray(one, dtype=np.float64) for one in (of, *twins)]
    kinds = list(prompts) if prompts is not None else [None] * len(sides)
    weights = [1.0, *[-1.0 / len(twins)] * len(twins)]
    together: dict[tuple[Hashable, int], Floats] = {}
    for kind, weight, values in zip(kinds, weights, sides, strict=True):
        shared = kind, len(values)
        together[shared] = together.get(shared, np.zeros_like(values)) + weight * values
    squares = [np.square(delete_group_error(values)) for values in together.values()]
    return np.asarray(np.sqrt(np.sum(squares, axis=0)))


def owned_by_one(without: ArrayLike) -> NDArray[np.bool_]:
    """Where one group makes more than ``OWNS`` of sum_i (x_(-i) - mean)^2, of values [group, ...]: an unsure error.

    Of Gaussian values that is so in 13 % of cells with ten groups, in 0.6 % with twenty. Where there is no spread no
    group owns it.
    """
    x = np.asarray(without, dtype=np.float64)
    square = np.square(x - x.mean(axis=0))
    return np.asarray(square.max(axis=0) > OWNS * square.sum(axis=0))
