"""Intervals for averages over tokens, where tokens of one prompt go together. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]


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
