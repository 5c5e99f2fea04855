"""What a finite sample does to the information of a fitted Gaussian, and how to undo it. Pure numpy and scipy.

The scatter matrix of n Gaussian vectors of dimension d is Wishart with nu = n - 1 degrees of freedom, and

    E log det S = log det Sigma + sum_i psi((nu - i) / 2) + d log(2 / nu),   i = 0 ... d - 1

whatever Sigma is: so plug-in entropies are too low and plug-in mutual information too high by a known amount, large
where n is not much more than d (2.1 nats for independent 64 + 64 dimensions at n = 1,024). All here is exact for
Gaussian samples that are independent; tokens of one prompt are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import digamma, gammainc, polygamma

from gausslens.maths.moments import Floats

from .information import Axes, in_axes_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# Fewer samples for each dimension than this and a mutual information is refused.
_ENOUGH = 2


def log_det_bias(count: int, dimensions: int) -> float:
    """E log det S - log det Sigma for the unbiased covariance S of ``count`` Gaussian vectors; -inf if count <= d."""
    nu = count - 1
    if dimensions > nu:
        return -np.inf
    steps = (nu - np.arange(dimensions)) / 2
    return float((digamma(steps) - np.log(nu / 2)).sum())


def log_det_variance(count: int, dimensions: int) -> float:
    """Var log det S = sum psi'((nu - i) / 2): what one sample's entropy scatters by, times four."""
    nu = count - 1
    if dimensions > nu:
        return np.inf
    return float(polygamma(1, (nu - np.arange(dimensions)) / 2).sum())


def entropy_bias(count: int, dimensions: int) -> float:
    """What to subtract from the plug-in entropy 1/2 log det(2 pi e S): half the bias of the log-determinant."""
    return 0.5 * log_det_bias(count, dimensions)


def information_bias(count: int, dx: int, dy: int) -> float:
    """What to subtract from the plug-in mutual information of dx and dy dimensions; about dx dy / 2n."""
    biases = (log_det_bias(count, d) for d in (dx, dy, dx + dy))
    of_x, of_y, of_both = biases
    return 0.5 * (of_x + of_y - of_both) if np.isfinite(of_both) else np.inf


def kl_of_equals(count_p: int, count_q: int, d: int) -> float:
    """E D(p||q) of Gaussians fitted to ``count_p`` and ``count_q`` vectors of one Gaussian of d dimensions.

        1/2 [d nu / (nu - d - 1) (1 + 1/n_p + 1/n_q) - d + b(n_q) - b(n_p)],  nu = n_q - 1

    with b the bias of the log-determinant: E S^-1 = nu / (nu - d - 1) Sigma^-1 (Muirhead 1982, 3.2.12). Infinite where
    q has no more than d + 2 vectors, or p no more than d: such a divergence says nothing.
    """
    nu = count_q - 1
    if nu <= d + 1 or count_p <= d:
        return np.inf
    logs = log_det_bias(count_q, d) - log_det_bias(count_p, d)
    return float(0.5 * (d * nu / (nu - d - 1) * (1 + 1 / count_p + 1 / count_q) - d + logs))


def corrected_kl(
    mean_p: ArrayLike, cov_p: ArrayLike, mean_q: ArrayLike, cov_q: ArrayLike, count_p: int, count_q: int
) -> float:
    """D(p||q) without its bias: from means and unbiased covariances of independent Gaussian vectors, unbiased itself.

        1/2 [c (1 - 1/n_p) Tr(Sq^-1 Sp) - d + c D' Sq^-1 D - d/n_q + log det Sq - b(n_q) - log det Sp + b(n_p)]

    with c = (nu - d - 1) / nu, nu = n_q - 1 (see ``kl_of_equals``). So its mean is exactly D(p||q), 0 for equal
    Gaussians, and it may come out below zero. Of fits that share vectors (a model and its twin read the same tokens)
    too much is subtracted. NaN where there are too few vectors; infinite where the supports differ.
    """
    return corrected_kl_in_axes(in_axes_of(mean_p, cov_p, mean_q, cov_q), len(np.asarray(mean_p)), count_p, count_q)


def corrected_kl_in_axes(axes: Axes | None, width: int, count_p: int, count_q: int) -> float:
    """The same, of what ``in_axes_of`` found of vectors so wide."""
    d = width if axes is None else len(axes.ratios)
    nu = count_q - 1
    if nu <= d + 1 or count_p <= d:
        return np.nan
    if axes is None:
        return np.inf
    ratios, shift = axes
    c = (nu - d - 1) / nu
    trace = c * (1 - 1 / count_p) * ratios.sum() + c * (shift**2).sum() - d - d / count_q
    logs = log_det_bias(count_p, d) - log_det_bias(count_q, d) - np.log(ratios).sum()
    return float(0.5 * (trace + logs))


def needed(dx: int, dy: int) -> int:
    """How many samples the mutual information of dx and dy dimensions needs: two for each dimension of both, and one.

    Below it the smallest eigenvalues of the joint covariance fall under a tenth of their true size, and the correction
    becomes larger than most of what is corrected.
    """
    return _ENOUGH * (dx + dy) + 1


@dataclass(frozen=True)
class Information:
    """A mutual information found from samples, in nats.

    ``value`` is corrected (it may be a little below zero), ``plugin`` is not; ``low`` and ``high`` bound a 95 %
    interval and ``standard_error`` is that of ``value``; ``p`` is the share of permutations that give as much (None:
    none were made).
    """

    value: float
    plugin: float
    standard_error: float
    low: float
    high: float
    p: float | None = None


class TooFewSamples(ValueError):
    """A mutual information that would be noise; the message says how many samples it needs."""


def whitened(samples: Floats) -> Floats:
    """Orthonormal columns that span the centred samples [n, d]: directions without spread are left out."""
    centred = samples - samples.mean(axis=0)
    spread = centred.std(axis=0)
    centred = centred / np.where(spread > 0, spread, 1.0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    seen = values > len(samples) * np.finfo(np.float64).eps * values.max(initial=0.0)
    columns: Floats = left[:, seen]
    return columns


def information_of_samples(
    x: Floats, y: Floats, permutations: int = 0, rng: np.random.Generator | None = None
) -> Information:
    """I(x; y) from paired samples x [n, dx] and y [n, dy], as if jointly Gaussian.

    The bias is subtracted exactly (see above). The interval inverts a gamma distribution of the plug-in value, which is
    its exact law for weak dependence (chi-squared); its variance at I is that of independence plus sum rho_k^2 /
    (nu - max(dx, dy)), the correlations scaled to I. Permuting the pairs gives p without any assumption of normality.
    Directions without spread carry no information and are left out.
    """
    return information_of_whitened(whitened(x), whitened(y), permutations, rng)


def information_of_whitened(
    x: Floats, y: Floats, permutations: int = 0, rng: np.random.Generator | None = None
) -> Information:
    """The same, of samples that are ``whitened`` already: where many pairs of few blocks are asked for."""
    n, dx, dy = len(x), x.shape[1], y.shape[1]
    if n < needed(dx, dy):
        raise TooFewSamples(f"mutual information of {dx} and {dy} dimensions needs {needed(dx, dy)} samples, not {n}")
    if not dx or not dy:
        return Information(0.0, 0.0, 0.0, 0.0, 0.0, 1.0 if permutations else None)
    squares = np.linalg.svd(x.T @ y, compute_uv=False) ** 2
    plugin = _information(squares)
    p = None
    if permutations:
        generator = rng or np.random.default_rng(0)
        orders = (generator.permutation(n) for _ in range(permutations))
        as_much = sum(_information(np.linalg.svd(x.T @ y[o], compute_uv=False) ** 2) >= plugin for o in orders)
        p = (1 + as_much) / (1 + permutations)
    if not np.isfinite(plugin):
        return Information(np.inf, np.inf, np.nan, np.inf, np.inf, p)
    law = _Law(n, dx, dy, plugin, float(squares.sum()))
    return Information(law.value, plugin, law.standard_error, law.quantile(0.975), law.quantile(0.025), p)


def _information(squares: NDArray[np.floating[Any]]) -> float:
    """-1/2 sum log(1 - rho^2); infinite where a correlation is 1 but for rounding."""
    if squares.max() >= 1 - 1e-12:
        return np.inf
    return float(-0.5 * np.log1p(-squares).sum())


class _Law:
    """The law of the plug-in value for each true value: gamma, with the mean and variance of that value."""

    def __init__(self, count: int, dx: int, dy: int, plugin: float, squares: float) -> None:
        nu, wide = count - 1, max(dx, dy)
        self.plugin = plugin
        self.bias = information_bias(count, dx, dy)
        # Exact without dependence; log det of the joint is that of x and y plus an independent term.
        self.floor = 0.25 * (
            log_det_variance(count, dx + dy) - log_det_variance(count, dx) - log_det_variance(count, dy)
        )
        narrow = min(dx, dy)
        # Sum of squared correlations, adjusted as R^2 is for the number of regressors.
        self.squares = max(0.0, narrow - (narrow - squares) * nu / (nu - wide))
        self.slope = 1 / (nu - wide)
        self.value = plugin - self.bias
        self.pairs = self._pairs()
        self.standard_error = float(np.sqrt(self.floor + self.slope * self.squares))

    def _pairs(self) -> float:
        """m such that m equal correlations have this information and this sum of squares; infinite if weak."""
        if not 0 < self.squares < 2 * self.value:
            return np.inf
        low, high = np.log(self.squares), np.log(self.squares) + 40.0
        for _ in range(60):
            middle = (low + high) / 2
            m = np.exp(middle)
            low, high = (middle, high) if -m * np.expm1(-2 * self.value / m) < self.squares else (low, middle)
        return float(np.exp(low))

    def quantile(self, tail: float) -> float:
        """The true value under which the plug-in value lies at this quantile of its law."""
        low, high = -self.bias, self.plugin + 40 * self.standard_error
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self._below(middle) > tail else (low, middle)
        return float((low + high) / 2)

    def _below(self, value: float) -> float:
        m, positive = self.pairs, max(value, 0.0)
        squares = 2 * positive if np.isinf(m) else -m * np.expm1(-2 * positive / m)
        mean, variance = value + self.bias, self.floor + self.slope * squares
        return float(gammainc(mean**2 / variance, self.plugin * mean / variance))
