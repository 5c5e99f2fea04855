"""Laws of random matrices: what the squared singular values of pure noise look like. Pure numpy, usable alone.

A matrix of ``rows`` x ``columns`` independent entries of mean 0 and variance s2 has p = min(rows, columns) squared
singular values (never divided by anything here). With q = max(rows, columns) they fill, as the matrix grows,

    [a, b] = s2 (sqrt q -+ sqrt p)^2,    density f(x) = sqrt((b - x)(x - a)) / (2 pi p s2 x)

(Marchenko and Pastur 1967), with mean q s2. The shape matters: 4 s2 n is the upper edge of a square matrix only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

# Mean and standard deviation of the Tracy-Widom law of real matrices (beta = 1; Bornemann 2010).
TRACY_WIDOM = (-1.2065335745820, 1.2680340580127)
# Its 99 % quantile: noise goes beyond it once in a hundred matrices.
TRACY_WIDOM_99 = 2.0234


@dataclass(frozen=True)
class MarchenkoPastur:
    """The law of the squared singular values of noise of this shape and entry variance."""

    rows: int
    columns: int
    variance: float

    def __post_init__(self) -> None:
        if min(self.rows, self.columns) < 1:
            raise ValueError(f"a matrix has a row and a column at least, not {self.rows} x {self.columns}")
        if not (np.isfinite(self.variance) and self.variance > 0):
            raise ValueError(f"the variance of the entries must be positive, not {self.variance}")

    @property
    def small(self) -> int:
        """p, the number of singular values."""
        return min(self.rows, self.columns)

    @property
    def large(self) -> int:
        """q, the longer side."""
        return max(self.rows, self.columns)

    @property
    def edges(self) -> tuple[float, float]:
        """a and b, between which the bulk lies."""
        p, q = np.sqrt(self.small), np.sqrt(self.large)
        return float(self.variance * (q - p) ** 2), float(self.variance * (q + p) ** 2)

    @property
    def mean(self) -> float:
        """q s2: exact for any size, as the sum p q s2 is."""
        return self.large * self.variance

    @property
    def largest(self) -> tuple[float, float]:
        """Mean and standard deviation of the largest squared singular value, by Tracy and Widom's law (Johnstone 2001).

        It is b + scale t, where t has that law and scale = s2 (sqrt q + sqrt p)(1/sqrt q + 1/sqrt p)^(1/3).
        """
        return self.edges[1] + TRACY_WIDOM[0] * self._scale, TRACY_WIDOM[1] * self._scale

    @property
    def level(self) -> float:
        """The largest squared singular value of noise is above this in one matrix of a hundred."""
        return self.edges[1] + TRACY_WIDOM_99 * self._scale

    @property
    def _scale(self) -> float:
        p, q = np.sqrt(self.small), np.sqrt(self.large)
        return float(self.variance * (q + p) * (1 / q + 1 / p) ** (1 / 3))

    def density(self, x: ArrayLike) -> Floats:
        """f(x); 0 outside the edges."""
        a, b = self.edges
        at = np.asarray(x, dtype=np.float64)
        inside = (at > a) & (at < b)
        safe = np.where(inside, at, (a + b) / 2)
        f = np.sqrt((b - safe) * (safe - a)) / (2 * np.pi * self.small * self.variance * safe)
        values: Floats = np.where(inside, f, 0.0)
        return values

    def distribution(self, x: ArrayLike) -> Floats:
        """F(x), in closed form.

        With l = sqrt(x - a), r = sqrt(b - x), s = atan2(l, r), t = atan2(l sqrt b, r sqrt a), integrating the density
        gives pi p s2 F = l r / 2 + (a + b)/2 s - sqrt(ab) t. (With arcsines, half of the digits go at the edges.)
        """
        a, b = self.edges
        at = np.clip(np.asarray(x, dtype=np.float64), a, b)
        left, right = np.sqrt(at - a), np.sqrt(b - at)
        s, t = np.arctan2(left, right), np.arctan2(np.sqrt(b) * left, np.sqrt(a) * right)
        total = left * right / 2 + (a + b) / 2 * s - np.sqrt(a * b) * t
        F: Floats = np.clip(total / (np.pi * self.small * self.variance), 0.0, 1.0)
        return F

    def quantiles(self, shares: ArrayLike) -> Floats:
        """x with F(x) = share, for each share between 0 and 1, by halving the interval."""
        at = np.asarray(shares, dtype=np.float64)
        if ((at < 0) | (at > 1)).any():
            raise ValueError("a share lies between 0 and 1")
        low, high = (np.full(at.shape, edge) for edge in self.edges)
        for _ in range(np.finfo(np.float64).nmant + 1):
            middle = (low + high) / 2
            below = self.distribution(middle) < at
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        found: Floats = (low + high) / 2
        return found

    def typical(self) -> Floats:
        """The p squared singular values that the law expects, largest first: its quantiles at (i - 1/2)/p."""
        return self.quantiles((np.arange(self.small, 0, -1) - 0.5) / self.small)

    def distance(self, squared: ArrayLike) -> float:
        """Kolmogorov's distance of squared singular values from the law: the largest gap between distributions."""
        values = np.sort(np.asarray(squared, dtype=np.float64))
        F = self.distribution(values)
        steps = np.arange(len(values) + 1) / len(values)
        return float(max((steps[1:] - F).max(), (F - steps[:-1]).max()))
