"""Student's t for few draws: variances moderated over cells, draws against each other, a t fitted to the residuals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln, stdtr, stdtrit, zeta

Floats: TypeAlias = NDArray[np.float64]
Pair: TypeAlias = tuple[float, float]

# Tails heavier than this have no variance to speak of; above, t is a Gaussian.
FEWEST_DEGREES, MOST_DEGREES = 2.5, 400.0
# Residuals that enter a fit: of more, so many in equal steps of their size.
MOST_RESIDUALS = 20_000
# So many cells there must be for each number that is fitted to their variances.
CELLS_FOR_ONE = 3
# No more numbers are fitted to variances: they would cost more than all else.
MOST_NUMBERS = 128
# A mean log density is known no better.
_ROUNDING = 1e-12


def moderated(s2: Floats, degrees: int, alike: Floats | None = None) -> Floats:
    """Variances [..., cell] of ``degrees`` degrees of freedom, shrunk towards each other over the cells.

    v = (d0 s0^2 + d s^2) / (d0 + d), with a prior of d0 degrees and variance s0^2 fitted to mean and variance of
    log s^2 (Smyth 2004, "Linear models and empirical Bayes methods", section 6.2). One cell stays as it is. So the cell
    whose few draws happen to agree does not look sure of itself.

    ``alike`` [cell, number] is a basis, as of ``main_effects``: log s0^2 is then what it fits to log s^2 by least
    squares, another for each layer, rank, ...; without it s0^2 is one for all.
    """
    cells = s2.shape[-1]
    if cells < 2:
        return s2
    if alike is None:
        alike = np.full((cells, 1), cells**-0.5)
    # A variance of zero, by luck or rounding, would rule the fit: it counts as a small one.
    floor = 1e-5 * np.median(s2, axis=-1, keepdims=True)
    log_s2 = np.log(np.maximum(np.maximum(s2, floor), np.finfo(np.float64).tiny))
    e = log_s2 - digamma(degrees / 2) + np.log(degrees / 2)
    centre = (e @ alike) @ alike.T
    around = ((e - centre) ** 2).sum(axis=-1, keepdims=True) / (cells - alike.shape[1])
    excess = around - zeta(2, degrees / 2)
    half = _trigamma_inverse(np.maximum(excess, 1e-12))
    known = excess <= 1e-6
    with np.errstate(over="ignore"):
        prior = np.where(known, np.exp(centre), np.exp(centre + digamma(half) - np.log(half)))
    d0 = 2 * half
    return np.asarray(np.where(known, prior, (d0 * prior + degrees * s2) / (d0 + degrees)))


def main_effects(places: Sequence[NDArray[np.int64]], cells: int) -> Floats:
    """An orthonormal basis [cell, number] of a constant and of a constant for each place along each axis.

    An axis for whose places there are too few cells (``CELLS_FOR_ONE``) is left out.
    """
    found, most = np.ones((cells, 1)), min(cells // CELLS_FOR_ONE, MOST_NUMBERS)
    for along in places:
        others = np.unique(along)[1:]
        if 0 < others.size <= most - found.shape[1]:
            found = np.hstack([found, along[:, None] == others])
    # Axes may say the same: what adds nothing has no part in it.
    sizes, turned = np.linalg.eigh(found.T @ found)
    kept = sizes > 1e-9 * sizes[-1]
    return np.asarray(found @ (turned[:, kept] / np.sqrt(sizes[kept])))


def _trigamma_inverse(y: Floats) -> Floats:
    """x with trigamma(x) = y > 0, by Newton's method on 1 / trigamma, which is nearly linear (Smyth 2004, appendix).

    Trigamma is zeta(2, x), and its slope -2 zeta(3, x).
    """
    x = 0.5 + 1 / y
    for _ in range(8):
        now = zeta(2, x)
        before, x = x, np.maximum(x - now * (1 - now / y) / (2 * zeta(3, x)), 1e-8)
        if (np.abs(x - before) <= 1e-14 * x).all():
            break
    return np.asarray(x)


def residuals(draws: Floats, alike: Floats | None = None) -> Floats:
    """Each draw against the others in every cell, [m, cell] of [m, cell]: how far a draw of the null lies in its null.

    r_ic = (x_ic - mean_(-i)c) / sqrt(v_(-i)c (1 + 1/(m-1))), v the variances of the other m - 1 draws, ``moderated``.
    """
    m = draws.shape[0]
    # Without draw i: the mean is further from it by m / (m - 1), the sum of squares less by d_i^2 m / (m - 1).
    far = (draws - draws.mean(axis=0)) * (m / (m - 1))
    squares = far**2 * ((m - 1) / m)
    left = (squares.sum(axis=0) * ((m - 1) / m) - squares) / (m - 2)
    # What one draw makes up alone leaves rounding.
    variance = np.maximum(left, 1e-12 * squares)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(far / np.sqrt(moderated(variance, m - 2, alike) * (1 + 1 / (m - 1))))


@dataclass(frozen=True)
class Tail:
    """Student's t of so many ``degrees``, times ``scale``."""

    degrees: float
    scale: float

    def p(self, t: Floats) -> Floats:
        """The two-sided tail beyond t."""
        return np.asarray(2 * stdtr(self.degrees, -np.abs(t) / self.scale))

    def half_width(self, level: float) -> float:
        """Between plus and minus so much lies the share ``level``."""
        return float(self.scale * stdtrit(self.degrees, (1 + level) / 2))


def fitted_tail(found: Floats) -> Tail:
    """The t whose degrees and scale make residuals most likely; a scale below 1 is then taken as 1.

    Both are free in the fit: held at 1 or more, the scale would let the degrees be too many. Newton's method on
    (log degrees, log scale), a step halved until it helps; the degrees stay between their limits.
    """
    squared = np.sort(np.square(found[np.isfinite(found)].ravel()))
    if squared.size > MOST_RESIDUALS:
        squared = squared[np.linspace(0, squared.size - 1, MOST_RESIDUALS).round().astype(int)]
    if squared.size == 0:
        return Tail(FEWEST_DEGREES, 1.0)
    least, most = math.log(FEWEST_DEGREES), math.log(MOST_DEGREES)
    at = (math.log(6.0), math.log(max(math.sqrt(np.median(squared)) / 0.7, 1e-6)))
    now, slope, bend = _unlikely(squared, *at)
    for _ in range(50):
        step = _newton(slope, bend, at[0] <= least, at[0] >= most)
        while True:
            there = (min(max(at[0] + step[0], least), most), at[1] + step[1])
            then, slope, bend = _unlikely(squared, *there)
            if then <= now + _ROUNDING or max(map(abs, step)) < 1e-9:
                break
            step = (step[0] / 2, step[1] / 2)
        moved = max(abs(there[0] - at[0]), abs(there[1] - at[1]))
        at, now = there, then
        # What is left after a step of Newton's method is the square of it.
        if moved < 1e-5:
            break
    return Tail(math.exp(at[0]), max(math.exp(at[1]), 1.0))


def _newton(slope: Pair, bend: tuple[float, float, float], at_least: bool, at_most: bool) -> Pair:
    """The step of Newton's method, at most 2 long, downhill where the surface bends the other way.

    ``bend`` holds the second slopes: by degrees, by both, by scale. They count by the size of their eigenvalues, which
    are ``middle`` + and - ``half``.
    """
    (x, y), (xx, xy, yy) = slope, bend
    if (at_least and x >= 0) or (at_most and x <= 0):
        step = (0.0, -y / max(yy, 1e-6))
    else:
        middle, half = (xx + yy) / 2, math.hypot((xx - yy) / 2, xy)
        large, small = (max(abs(middle + sign * half), 1e-6) for sign in (1, -1))
        # The slope's part along the first eigenvector; the rest lies along the second.
        along = ((xx - middle + half) * x + xy * y, xy * x + (yy - middle + half) * y)
        first = (along[0] / (2 * half), along[1] / (2 * half)) if half > 0 else (0.0, 0.0)
        step = (-first[0] / large - (x - first[0]) / small, -first[1] / large - (y - first[1]) / small)
    shorter = max(1.0, max(map(abs, step)) / 2)
    return (step[0] / shorter, step[1] / shorter)


def _unlikely(squared: Floats, log_nu: float, log_scale: float) -> tuple[float, Pair, tuple[float, float, float]]:
    """Minus the mean log density of squared residuals at (log degrees, log scale), its slopes and second slopes.

    With w = r^2 / (nu s^2) and means A of log(1 + w), B of w / (1 + w), C of w / (1 + w)^2.
    """
    nu, n = math.exp(log_nu), squared.size
    w = squared / (nu * math.exp(2 * log_scale))
    beyond = w / (1 + w)
    A, B, C = float(np.log1p(w).sum()) / n, float(beyond.sum()) / n, float((beyond / (1 + w)).sum()) / n
    half, more = nu / 2, (nu + 1) / 2
    first = float(digamma(more) - digamma(half))
    second = float(zeta(2, more) - zeta(2, half))
    value = more * A - float(gammaln(more) - gammaln(half)) + 0.5 * math.log(nu * math.pi) + log_scale
    by_nu = half * A - more * B - half * first + 0.5
    across = (nu + 1) * C - nu * B
    bend = half * A - nu * B + more * C - half * first - half**2 * second
    return value, (by_nu, 1 - 2 * more * B), (bend, across, 4 * more * C)


def predicted(p: float, alike: Floats) -> float:
    """p of a test over many cells, held against the same p of each of m draws beside the others.

    Where cells are as independent as the test takes them for, -log p is exponential of mean 1. Where the cells of a
    draw depart together its tail is longer, which m draws show: its mean is taken as theirs, and 1 at least. That it is
    known from m draws is in the law of one more (Geisser 1993, predictive law of an exponential): with t = -log p and
    S = max(m, sum of -log p_i), p' = (1 + t / S)^-m.
    """
    known = alike[np.isfinite(alike) & (alike > 0)]
    if np.isnan(p) or known.size == 0:
        return p
    total = max(float(known.size), float(-np.log(known).sum()))
    with np.errstate(divide="ignore"):
        return float((1 - np.log(p) / total) ** -float(known.size))
