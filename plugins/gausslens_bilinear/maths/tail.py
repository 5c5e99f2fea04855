"""The power law that the largest eigenvalues follow, if they follow one. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# Rows of the table of tails that is held at a time.
_ROWS = 256


@dataclass(frozen=True)
class PowerLaw:
    """Density proportional to x^-alpha from ``least`` on: fitted to ``count`` values, and how far off (Kolmogorov)."""

    alpha: float
    least: float
    count: int
    distance: float


def power_law(values: ArrayLike) -> PowerLaw:
    """Fit a power law to the tail of positive values (Clauset, Shalizi and Newman 2009).

    For each value as the start of the tail alpha = 1 + n / sum log(x / start) is the likeliest exponent of the n values
    from there on; the start whose fit has the smallest distance from its tail is taken. Exponents of the squared
    singular values of weights are what WeightWatcher reports as ``alpha`` (Martin and Mahoney 2021); those of random
    matrices are no power law at all. Fewer than two different values give NaN.
    """
    x = np.sort(np.asarray(values, dtype=np.float64))
    x = x[x > 0]
    logs = np.log(x)
    n = np.arange(len(x), 0, -1, dtype=np.float64)
    excess = np.cumsum(logs[::-1])[::-1] - n * logs
    # The last value alone is no tail, nor are equal ones.
    starts = np.flatnonzero((excess[:-1] > 1e-12 * n[:-1]) if len(x) > 1 else np.zeros(0, dtype=bool))
    if not len(starts):
        return PowerLaw(float("nan"), float("nan"), 0, float("nan"))
    alphas = 1 + n[starts] / excess[starts]
    distances = np.concatenate(
        [_distances(logs, starts[i : i + _ROWS], alphas[i : i + _ROWS]) for i in range(0, len(starts), _ROWS)]
    )
    best = int(np.argmin(distances))
    start = int(starts[best])
    return PowerLaw(float(alphas[best]), float(x[start]), len(x) - start, float(distances[best]))


def _distances(logs: np.ndarray, starts: np.ndarray, alphas: np.ndarray) -> np.ndarray:
    """The largest gap between the fitted distribution and the share of smaller values, for each start."""
    first = int(starts[0])
    beyond = logs[None, first:] - logs[starts, None]
    place = np.arange(first, len(logs))[None, :] - starts[:, None]
    tail = 1 - np.exp((1 - alphas)[:, None] * np.maximum(beyond, 0.0))
    gaps = np.abs(tail - place / (len(logs) - starts)[:, None])
    found: np.ndarray = np.where(place >= 0, gaps, 0.0).max(axis=1)
    return found
