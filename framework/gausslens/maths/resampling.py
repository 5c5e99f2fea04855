"""Moments of numbers that come in groups: power sums that merge, and errors by leaving out a group. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
# Groups of prompts of which one at a time is left out, for standard errors.
GROUPS = 16
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
    """Mean, variance, skewness and excess kurtosis [..., 4] from sums of powers [..., 5]."""
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

    ``seen`` [group, ...] says which groups there are.
    """
    there = seen.reshape(seen.shape + (1,) * (left_out.ndim - seen.ndim))
    count = there.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.where(there, left_out, 0.0)
        centre = values.sum(axis=0) / count
        spread = np.where(there, (left_out - centre) ** 2, 0.0).sum(axis=0)
        error = np.sqrt((count - 1) / count * spread)
    return np.where(count > 1, error, np.nan)
