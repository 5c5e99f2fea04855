"""Laws of random matrices: what the squared singular values of pure noise look like. Pure numpy, usable alone.

``MarchenkoPastur`` is the law of a matrix of independent entries, ``Product`` that of a product of two such matrices,
as W_Q W_K^T: its values are spread far wider, and judged by the first law all of them look like signal. Squared
singular values are never divided by anything here, and the shape matters: 4 s2 n is the upper edge of a square only.
The largest value is judged by the law of Tracy and Widom.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammainccinv

Floats = NDArray[np.float64]

# The law of Tracy and Widom, of the largest eigenvalue of noise at the edge of its bulk: its mean and spread.
# Bornemann, "On the numerical evaluation of distributions in random matrix theory" (2010).
TRACY_WIDOM_MEAN, TRACY_WIDOM_SD = -1.2065335745820, 1.2680340580127
_K, _THETA, _ALPHA = 46.446, 0.186054, 9.84801
# Noise goes beyond the level of a law once in a hundred matrices.
RATE = 0.01
# Points of the curve on which the law of a product is tabulated.
_GRID = 4096


def tracy_widom_level(rate: ArrayLike) -> Floats:
    """The value that the law of Tracy and Widom exceeds with this probability: 0.01 gives 2.02.

    The law is that of theta g - alpha, g of a gamma distribution of shape k, to 0.03 in its quantiles up to 99.9 %
    (Chiani, "Distribution of the largest eigenvalue for real Wishart and Gaussian random matrices", 2014).
    """
    at = np.asarray(rate, dtype=np.float64)
    if not ((at > 0) & (at < 1)).all():
        raise ValueError(f"a rate lies between 0 and 1, not {rate!r}")
    found: Floats = np.asarray(_THETA * gammainccinv(_K, at) - _ALPHA)
    return found


class Law(ABC):
    """A law of the squared singular values of noise: its edges, density and distribution, and its largest value."""

    # The variance of the entries; of a product, the product of its factors' variances.
    variance: float

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the factors, end to end: (rows, columns), or (rows, inner, columns)."""

    @property
    @abstractmethod
    def edges(self) -> tuple[float, float]:
        """Between which the bulk lies."""

    @abstractmethod
    def soft_edge(self) -> tuple[float, float]:
        """Centre and scale of the largest value: (x_1 - centre) / scale has the law of Tracy and Widom.

        Sizes enter less 1/2 each, which makes the centre right to second order (Johnstone and Ma 2012); for products
        the same holds by simulation.
        """

    @abstractmethod
    def density(self, x: ArrayLike) -> Floats:
        """f(x); 0 outside the edges."""

    @abstractmethod
    def distribution(self, x: ArrayLike) -> Floats:
        """F(x)."""

    @property
    def small(self) -> int:
        """p, the number of singular values that are not 0."""
        return min(self.sizes)

    @property
    def mean(self) -> float:
        """Of a value: the product of sizes and variance over p. Exact for any size."""
        return float(np.prod(np.array(self.sizes, dtype=np.float64))) * self.variance / self.small

    @property
    def largest(self) -> tuple[float, float]:
        """Mean and standard deviation of the largest squared singular value, by Tracy and Widom's law."""
        centre, scale = self.soft_edge()
        return centre + TRACY_WIDOM_MEAN * scale, TRACY_WIDOM_SD * scale

    def level(self, rate: float = RATE) -> float:
        """The largest squared singular value of noise is above this in so many of its matrices."""
        centre, scale = self.soft_edge()
        return centre + float(tracy_widom_level(rate)) * scale

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
        """Kolmogorov's distance max |F_n - F| of squared singular values from the law, F_n their own distribution."""
        values = np.sort(np.asarray(squared, dtype=np.float64))
        F = self.distribution(values)
        steps = np.arange(len(values) + 1) / len(values)
        return float(max((steps[1:] - F).max(), (F - steps[:-1]).max()))


def _check(sizes: Sequence[int], variance: float) -> None:
    if min(sizes) < 1:
        raise ValueError(f"a matrix has a row and a column at least, not {' x '.join(map(str, sizes))}")
    if not (np.isfinite(variance) and variance > 0):
        raise ValueError(f"the variance of the entries must be positive, not {variance}")


@dataclass(frozen=True)
class MarchenkoPastur(Law):
    """The law of noise of this shape and entry variance s2 (Marchenko and Pastur 1967).

    With p = min(rows, columns) and q = max(rows, columns) the values fill, as the matrix grows,

        [a, b] = s2 (sqrt q -+ sqrt p)^2,    density f(x) = sqrt((b - x)(x - a)) / (2 pi p s2 x),

    with mean q s2. The largest is b + scale t, t of Tracy and Widom's law, scale = s2 (sqrt q + sqrt p)(1/sqrt q +
    1/sqrt p)^(1/3) (Johnstone 2001).
    """

    rows: int
    columns: int
    variance: float

    def __post_init__(self) -> None:
        _check(self.sizes, self.variance)

    @property
    def sizes(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.rows, self.columns

    @property
    def edges(self) -> tuple[float, float]:
        """a and b, between which the bulk lies."""
        p, q = np.sqrt(min(self.sizes)), np.sqrt(max(self.sizes))
        return float(self.variance * (q - p) ** 2), float(self.variance * (q + p) ** 2)

    def soft_edge(self) -> tuple[float, float]:
        """Centre and scale of the largest value."""
        p, q = np.sqrt(min(self.sizes) - 0.5), np.sqrt(max(self.sizes) - 0.5)
        return float(self.variance * (p + q) ** 2), float(self.variance * (p + q) * (1 / p + 1 / q) ** (1 / 3))

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


@dataclass(frozen=True)
class Product(Law):
    """The law of A B^T, A [rows, inner] and B [columns, inner] independent noise; ``variance`` is s2_A s2_B.

    It is the free multiplicative convolution of two laws of Marchenko and Pastur (Voiculescu 1987). With n, h, m the
    sizes and G(x) = (1/p) sum 1/(x - x_i) over the p = min(n, h, m) values that are not 0, u = p (x G - 1) solves

        (n + u)(h + u)(m + u) = u x / (s2_A s2_B),

    in which the three sizes enter alike, and f(x) = |Im u| / (pi p x). On u = r exp(i t) with 0 < t < pi, x is real
    where 2 r^3 cos t + (n + h + m) r^2 = n h m: this curve runs through the bulk from its upper edge to its lower.
    """

    rows: int
    inner: int
    columns: int
    variance: float

    def __post_init__(self) -> None:
        _check(self.sizes, self.variance)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(rows, inner, columns)."""
        return self.rows, self.inner, self.columns

    @cached_property
    def _curve(self) -> tuple[Floats, Floats, Floats]:
        return _tabulated(*sorted(self.sizes))

    @property
    def edges(self) -> tuple[float, float]:
        """Between which the bulk lies; the lower is 0 where the two smallest sizes are equal."""
        x = self._curve[0]
        return float(self.variance * x[0]), float(self.variance * x[-1])

    def soft_edge(self) -> tuple[float, float]:
        """Centre and scale of the largest value.

        At the upper edge b the curve turns: x = b + x''/2 (u - u_b)^2, so f falls as a square root there, and the scale
        is (b^2 x'' / 2)^(1/3) with x'' = 2 + 2 n h m / u_b^3. (For one matrix the same gives Johnstone's scale.)
        """
        sizes = np.array(self.sizes) - 0.5
        r, x = _curve(sizes, np.zeros(1))
        second = 2 + 2 * np.prod(sizes) / r[0] ** 3
        return float(self.variance * x[0]), float(self.variance * (x[0] ** 2 * second / 2) ** (1 / 3))

    def density(self, x: ArrayLike) -> Floats:
        """f(x); 0 outside the edges."""
        at = np.asarray(x, dtype=np.float64) / self.variance
        grid, _, f = self._curve
        return np.interp(at, grid, f, left=0.0, right=0.0) / self.variance

    def distribution(self, x: ArrayLike) -> Floats:
        """F(x), tabulated."""
        at = np.asarray(x, dtype=np.float64) / self.variance
        grid, F, _ = self._curve
        return np.interp(at, grid, F)


def _curve(sizes: NDArray[np.float64], t: Floats) -> tuple[Floats, Floats]:
    """r and x at each angle t of the curve on which x is real (class Product)."""
    n, h, m = (float(s) for s in sizes)
    e1, e2, e3 = n + h + m, n * h + n * m + h * m, n * h * m
    c = np.cos(t)
    # The smallest positive root; the cubic rises up to r = e1 / (3 |cos t|) where cos t < 0, and always otherwise.
    low = np.zeros(len(t))
    rising = np.minimum(e1 / (3 * np.maximum(-c, 1e-12)), 2 * e1)
    high = np.where(c < 0, rising, np.sqrt(e3 / e1))
    for _ in range(60):
        r = (low + high) / 2
        below = 2 * c * r**3 + e1 * r**2 < e3
        low, high = np.where(below, r, low), np.where(below, high, r)
    r = (low + high) / 2
    return r, r**2 * np.cos(2 * t) + e1 * r * c + e2 + e3 * c / r


@lru_cache(maxsize=256)
def _tabulated(*sizes: int) -> tuple[Floats, Floats, Floats]:
    """Rising x, and F and f there, at variance 1; F by the density at the middle of each step of log x."""
    t = np.linspace(np.pi, 0, 2 * _GRID + 1)
    r, x = _curve(np.array(sizes, dtype=np.float64), t)
    x = np.maximum.accumulate(np.maximum(x, 0.0))
    if sizes[0] == sizes[1]:
        x[0] = 0.0
    weight = r * np.sin(t) / (np.pi * sizes[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        f = np.where(x > 0, weight / x, 0.0)
        steps = weight[1::2] * np.diff(np.log(x[::2]))
    if x[0] == 0:
        # The density has a pole at 0, where x goes with a power of pi - t.
        f[0] = f[1]
        steps[0] = weight[2] * np.log2(x[4] / x[2])
    F = np.concatenate([[0.0], np.cumsum(steps)])
    found = (x[::2], F / F[-1], f[::2])
    for array in found:
        array.setflags(write=False)
    return found
