"""What is said of an autoencoder: total variance, variance explained, loss recovered. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
SURE = 2.0  # standard errors that removing a site must cost before a share of this cost is worth a number


class Spread:
    """How many vectors there were, their mean, and their summed squared distance to it, in batches as they come.

    Two of them are merged by Chan, Golub and LeVeque (1979), so nothing is lost where the mean is far from 0.
    """

    def __init__(self) -> None:
        self.n, self.mean, self.square = 0, np.zeros(0), 0.0

    def add(self, x: ArrayLike) -> None:
        """Take in vectors [sample, d]."""
        values: Floats = np.asarray(x, dtype=np.float64)
        if len(values):
            mean = values.mean(axis=0)
            self._join(len(values), mean, float(np.square(values - mean).sum()))

    def merge(self, other: Spread) -> None:
        """Take in what another has seen."""
        if other.n:
            self._join(other.n, other.mean, other.square)

    def variance(self) -> float:
        """mean |x - mean x|^2: the total variance, over all dimensions; NaN of nothing."""
        return self.square / self.n if self.n else float("nan")

    def _join(self, n: int, mean: Floats, square: float) -> None:
        away = mean - (self.mean if self.n else 0.0)
        n_all = self.n + n
        self.square += square + float(away @ away) * self.n * n / n_all
        self.mean = mean.copy() if not self.n else self.mean + away * n / n_all
        self.n = n_all


def explained(residual: float, variance: float) -> float:
    """Variance explained, 1 - mean |x - x^|^2 / mean |x - mean x|^2: 1 is all, 0 is what the mean alone does."""
    return 1 - residual / variance if variance > 0 else float("nan")


def recovered(clean: ArrayLike, replaced: ArrayLike, removed: ArrayLike) -> tuple[float, float]:
    """Loss recovered, (removed - replaced) / (removed - clean) of mean losses over prompts, and its standard error.

    1: the reconstruction costs nothing; 0: as much as removing the site. Each argument is [prompt]. The error is that
    of a ratio of means on the same prompts, by linearisation (Cochran, "Sampling Techniques", 1977, 6.4):
    s(a - r b) / (sqrt(m) mean b). Where removing costs less than two of its own standard errors, or is a gain,
    there is nothing to recover: NaN.
    """
    a, b = (np.asarray(removed, dtype=np.float64) - np.asarray(each, dtype=np.float64) for each in (replaced, clean))
    here = np.isfinite(a) & np.isfinite(b)
    a, b, m = a[here], b[here], int(here.sum())
    nothing = float("nan"), float("nan")
    if m < 2 or b.mean() <= SURE * b.std(ddof=1) / np.sqrt(m):
        return nothing
    ratio = float(a.mean() / b.mean())
    return ratio, float((a - ratio * b).std(ddof=1) / np.sqrt(m) / b.mean())


@dataclass(frozen=True)
class Firings:
    """Where features fired: for each firing its feature, its value, and the prompt and position of the token."""

    feature: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    value: Floats = field(default_factory=lambda: np.zeros(0))
    prompt: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    position: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def at(self, places: NDArray[np.int64] | NDArray[np.bool_]) -> Firings:
        """Those at these places, in their order."""
        return Firings(self.feature[places], self.value[places], self.prompt[places], self.position[places])

    def and_those_of(self, other: Firings) -> Firings:
        """Both, one behind the other."""
        return Firings(
            np.concatenate([self.feature, other.feature]),
            np.concatenate([self.value, other.value]),
            np.concatenate([self.prompt, other.prompt]),
            np.concatenate([self.position, other.position]),
        )

    def ranks(self) -> NDArray[np.int64]:
        """The rank of each among those of its feature, of firings that stand feature by feature."""
        return np.arange(len(self.feature)) - np.searchsorted(self.feature, self.feature, side="left")


def best(firings: Firings, most: int) -> Firings:
    """The strongest of each feature, in order; of those that are equal to 0.01 % the first in the user's prompts.

    So it does not matter in which order, or with which rounding, firings came.
    """
    strength = np.round(np.log(firings.value) * 1e4)
    order = np.lexsort((firings.position, firings.prompt, -strength, firings.feature))
    ordered = firings.at(order)
    return ordered.at(ordered.ranks() < most)
