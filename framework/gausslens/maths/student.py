"""Student's t for few draws: variances moderated over cells, draws against each other, a t fitted to the residuals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln, polygamma, stdtr, stdtrit

Floats: TypeAlias = NDArray[np.float64]

# Tails heavier than this have no variance to speak of; above, t is a Gaussian.
FEWEST_DEGREES, MOST_DEGREES = 2.5, 400.0
# Residuals that enter a fit: of more, so many in equal steps of their size.
MOST_RESIDUALS = 20_000


def moderated(s2: Floats, degrees: int) -> Floats:
    """Variances [..., cell] of ``degrees`` degrees of freedom, shrunk towards each other over the cells.

    v = (d0 s0^2 + d s^2) / (d0 + d), with a prior of d0 degrees and variance s0^2 fitted to mean and variance of
    log s^2 (Smyth 2004, "Linear models and empirical Bayes methods", section 6.2). One cell stays as it is. So the cell
    whose few draws happen to agree does not look sure of itself.
    """
    if s2.shape[-1] < 2:
        return s2
    # A variance of zero, by luck or rounding, would rule the fit: it counts as a small one.
    floor = 1e-5 * np.median(s2, axis=-1, keepdims=True)
    log_s2 = np.log(np.maximum(np.maximum(s2, floor), np.finfo(np.float64).tiny))
    e = log_s2 - digamma(degrees / 2) + np.log(degrees / 2)
    centre = e.mean(axis=-1, keepdims=True)
    excess = e.var(axis=-1, ddof=1, keepdims=True) - polygamma(1, degrees / 2)
    half = _trigamma_inverse(np.maximum(excess, 1e-12))
    alike = excess <= 1e-6
    with np.errstate(over="ignore"):
        prior = np.where(alike, np.exp(centre), np.exp(centre + digamma(half) - np.log(half)))
    d0 = 2 * half
    return np.asarray(np.where(alike, prior, (d0 * prior + degrees * s2) / (d0 + degrees)))


def _trigamma_inverse(y: Floats) -> Floats:
    """x with trigamma(x) = y > 0, by Newton's method on 1 / trigamma, which is nearly linear (Smyth 2004, appendix)."""
    x = 0.5 + 1 / y
    for _ in range(8):
        now = polygamma(1, x)
        x = x + now * (1 - now / y) / polygamma(2, x)
        x = np.maximum(x, 1e-8)
    return np.asarray(x)


def residuals(draws: Floats) -> Floats:
    """Each draw against the others in every cell, [m, cell] of [m, cell]: how far a draw of the null lies in its null.

    r_ic = (x_ic - mean_(-i)c) / sqrt(v_(-i)c (1 + 1/(m-1))), v the moderated variances of the other m - 1 draws.
    """
    m = draws.shape[0]
    mean, variance = np.empty(draws.shape), np.empty(draws.shape)
    for i in range(m):
        others = np.delete(draws, i, axis=0)
        mean[i], variance[i] = others.mean(axis=0), others.var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((draws - mean) / np.sqrt(moderated(variance, m - 2) * (1 + 1 / (m - 1))))


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

    Both are free in the fit: held at 1 or more, the scale would let the degrees be too many.
    """
    from scipy.optimize import minimize  # a quarter of a second, which reading a store does not need

    squared = np.sort(np.square(found[np.isfinite(found)].ravel()))
    if squared.size > MOST_RESIDUALS:
        squared = squared[np.linspace(0, squared.size - 1, MOST_RESIDUALS).round().astype(int)]
    if squared.size == 0:
        return Tail(FEWEST_DEGREES, 1.0)

    def unlikely(at: Floats) -> tuple[float, Floats]:
        """Minus the mean log density at (log degrees, log scale), and its slopes."""
        nu, s2 = float(np.exp(at[0])), float(np.exp(2 * at[1]))
        w = squared / (nu * s2)
        logs, share = float(np.log1p(w).mean()), float((w / (1 + w)).mean())
        density = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi * s2)
        by_nu = 0.5 * (logs - (nu + 1) / nu * share - digamma((nu + 1) / 2) + digamma(nu / 2) + 1 / nu)
        return float((nu + 1) / 2 * logs - density), np.array([nu * by_nu, 1 - (nu + 1) * share])

    middle = max(float(np.sqrt(np.median(squared))) / 0.7, 1e-6)
    limits = [(np.log(FEWEST_DEGREES), np.log(MOST_DEGREES)), (np.log(middle) - 5, np.log(middle) + 5)]
    best = minimize(unlikely, [np.log(6.0), np.log(middle)], jac=True, method="L-BFGS-B", bounds=limits)
    return Tail(float(np.exp(best.x[0])), max(float(np.exp(best.x[1])), 1.0))
