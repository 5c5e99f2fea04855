"""How Gaussian a stream of numbers is: its skewness and kurtosis, and the law they have if it is. Pure numpy."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from gausslens.maths.moments import Floats
from gausslens.maths.on_device import Placed, Vectors

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# How many random directions a distribution is looked at along; fixed, so that all layers, runs and models agree.
DIRECTIONS = 64


@cache
def directions(width: int) -> Floats:
    """Fixed random unit vectors [64, width]: the same for the same width, always."""
    drawn = np.random.default_rng([DIRECTIONS, width]).standard_normal((DIRECTIONS, width))
    found: Floats = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return found


class RunningShape:
    """Sums of powers 2 to 4 about the mean, of numbers [..., sample, direction]; merged by Pebay's formulas (2008).

    With delta = mean2 - mean1, n = n1 + n2 and M_k = sum (x - mean)^k:

        M2 = a + b,  a and b the sums of both sides, + delta^2 n1 n2 / n
        M3 = ... + delta^3 n1 n2 (n1 - n2) / n^2 + 3 delta (n1 M2_2 - n2 M2_1) / n
        M4 = ... + delta^4 n1 n2 (n1^2 - n1 n2 + n2^2) / n^3
             + 6 delta^2 (n1^2 M2_2 + n2^2 M2_1) / n^2 + 4 delta (n1 M3_2 - n2 M3_1) / n
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Floats = np.zeros(0)
        self.powers: Floats = np.zeros((3, 0))

    def along(self, vectors: Placed, directions: Floats) -> None:
        """Take in what vectors [..., sample, d] are along directions [..., direction, d]."""
        if not isinstance(vectors, Vectors):
            self.add(vectors @ np.swapaxes(directions, -1, -2))
        elif vectors.shape[-2]:
            batch = RunningShape()
            batch.count = vectors.shape[-2]
            batch.mean, batch.powers = vectors.powers(directions)
            self.merge(batch)

    def add(self, values: ArrayLike) -> None:
        """Take in a batch [..., sample, direction]."""
        batch = RunningShape()
        samples = np.array(values, dtype=np.float64)
        batch.count = samples.shape[-2]
        if not batch.count:
            return
        mean = samples.mean(axis=-2)
        samples -= mean[..., None, :]
        rest = samples.mean(axis=-2)  # what rounding took from the mean
        samples -= rest[..., None, :]
        batch.mean = mean + rest
        squares = samples**2
        cubes = squares * samples
        batch.powers = np.stack([squares.sum(axis=-2), cubes.sum(axis=-2), (squares * squares).sum(axis=-2)])
        self.merge(batch)

    def merge(self, other: RunningShape) -> None:
        """Take in what another state has seen; ``other`` is not changed."""
        if not other.count:
            return
        if not self.count:
            self.count, self.mean, self.powers = other.count, other.mean.copy(), other.powers.copy()
            return
        n1, n2 = float(self.count), float(other.count)
        n = n1 + n2
        delta = other.mean - self.mean
        (a2, a3, a4), (b2, b3, b4) = self.powers, other.powers
        between = delta * n1 * n2 / n
        two = a2 + b2 + delta * between
        three = a3 + b3 + delta**2 * between * (n1 - n2) / n + 3 * delta * (n1 * b2 - n2 * a2) / n
        four = a4 + b4 + delta**3 * between * (n1 * n1 - n1 * n2 + n2 * n2) / n**2
        four = four + 6 * delta**2 * (n1 * n1 * b2 + n2 * n2 * a2) / n**2 + 4 * delta * (n1 * b3 - n2 * a3) / n
        self.powers = np.stack([two, three, four])
        self.mean = self.mean + delta * n2 / n
        self.count += other.count

    @property
    def skewness(self) -> Floats:
        """sqrt(n) M3 / M2^(3/2); 0 where there is no spread."""
        two, three, _ = self.powers
        spread = two > _floor(self.mean, self.count)
        found: Floats = np.where(spread, np.sqrt(self.count) * three / np.where(spread, two, 1.0) ** 1.5, 0.0)
        return found

    @property
    def kurtosis(self) -> Floats:
        """Excess kurtosis n M4 / M2^2 - 3; 0 where there is no spread."""
        two, _, four = self.powers
        spread = two > _floor(self.mean, self.count)
        found: Floats = np.where(spread, self.count * four / np.where(spread, two, 1.0) ** 2 - 3, 0.0)
        return found


def _floor(mean: Floats, count: int) -> Floats:
    """A sum of squares below this is rounding of numbers of this size."""
    floor: Floats = count * (8 * np.finfo(np.float64).eps * mean) ** 2
    return floor


def skewness_sd(count: int) -> float:
    """Standard deviation of the skewness of n Gaussian numbers: 6 (n - 2) / ((n + 1)(n + 3)); its mean is 0."""
    n = float(count)
    return float(np.sqrt(6 * max(n - 2, 0.0) / ((n + 1) * (n + 3))))


def kurtosis_law(count: int) -> tuple[float, float]:
    """Mean and standard deviation of the excess kurtosis of n Gaussian numbers.

    Mean -6 / (n + 1), variance 24 n (n - 2)(n - 3) / ((n + 1)^2 (n + 3)(n + 5)).
    """
    n = float(count)
    variance = 24 * n * max((n - 2) * (n - 3), 0.0) / ((n + 1) ** 2 * (n + 3) * (n + 5))
    return -6 / (n + 1), float(np.sqrt(variance))


def normality_p(skewness: ArrayLike, kurtosis: ArrayLike, count: int) -> Floats:
    """p of each direction under a Gaussian (D'Agostino and Pearson 1973): chi-squared with 2 degrees of zs^2 + zk^2.

    zs and zk are skewness (D'Agostino 1970) and kurtosis (Anscombe and Glynn 1983) made normal. Samples are taken to be
    independent; tokens of one prompt are not quite, so read p beside the sizes. NaN below 20 samples.
    """
    if count < 20:
        return np.full(np.shape(skewness), np.nan)
    zs, zk = _normal_skewness(np.asarray(skewness), float(count)), _normal_kurtosis(np.asarray(kurtosis), float(count))
    return np.exp(-(zs**2 + zk**2) / 2)


def _normal_skewness(g: Floats, n: float) -> Floats:
    y = g * np.sqrt((n + 1) * (n + 3) / (6 * (n - 2)))
    beta = 3 * (n * n + 27 * n - 70) * (n + 1) * (n + 3) / ((n - 2) * (n + 5) * (n + 7) * (n + 9))
    w2 = np.sqrt(2 * (beta - 1)) - 1
    alpha = np.sqrt(2 / (w2 - 1))
    found: Floats = np.arcsinh(y / alpha) / np.sqrt(0.5 * np.log(w2))
    return found


def _normal_kurtosis(g: Floats, n: float) -> Floats:
    mean, sd = kurtosis_law(int(n))
    x = (g - mean) / sd
    skew = 6 * (n * n - 5 * n + 2) / ((n + 7) * (n + 9)) * np.sqrt(6 * (n + 3) * (n + 5) / (n * (n - 2) * (n - 3)))
    a = 6 + 8 / skew * (2 / skew + np.sqrt(1 + 4 / skew**2))
    ratio = (1 - 2 / a) / np.maximum(1 + x * np.sqrt(2 / (a - 4)), 1e-12)
    found: Floats = (1 - 2 / (9 * a) - np.cbrt(ratio)) / np.sqrt(2 / (9 * a))
    return found
