"""Information between Gaussians, in nats. Pure numpy, float64, usable alone.

A covariance may be rank-deficient. Nothing is regularised in silence; every quantity takes the value of its definition:

- ``entropy`` is minus infinity;
- ``kl`` is plus infinity unless p and q fill the same subspace (and then it is that of the subspace);
- ``cross_entropy`` is plus infinity where p leaves the support of q, else minus infinity;
- ``jensen_shannon`` is log 2, its maximum, unless p and q fill the same subspace: Gaussians of different supports are
  mutually singular;
- ``mutual_information`` is plus infinity where a direction of one part determines one of the other; a constant part
  has none; ``canonical_correlations`` are those within the supports;
- ``frechet`` is finite always.

An eigenvalue below d eps lambda_max counts as zero (``gausslens.maths.spectra.tolerance``): it is rounding. A
covariance with values that are not finite is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gausslens.maths.moments import Floats
from gausslens.maths.spectra import tolerance

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class Estimated(NamedTuple):
    """A number found by Monte Carlo, and its standard error."""

    value: float
    standard_error: float


class Axes(NamedTuple):
    """Variances and mean of p in the axes in which q is standard and p diagonal."""

    ratios: Floats
    shift: Floats


def entropy(cov: ArrayLike) -> float:
    """Differential entropy 1/2 log((2 pi e)^d det Sigma); minus infinity where Sigma is singular."""
    values = np.linalg.eigvalsh(_square(cov))
    if values[0] <= tolerance(values):
        return -np.inf
    return float(0.5 * np.log(2 * np.pi * np.e * values).sum())


def gaussian_kl(mean_p: ArrayLike, cov_p: ArrayLike, mean_q: ArrayLike, cov_q: ArrayLike) -> float:
    """Kullback-Leibler divergence D(p||q) = 1/2 [Tr(Sq^-1 Sp) - r + d^T Sq^-1 d + log(det Sq / det Sp)], d = mq - mp.

    r is the dimension. Where the covariances are singular, p and q are compared within the support of q if p has the
    same support (r is then its dimension); otherwise no density of p by q exists and the divergence is infinite.
    """
    return kl_in_axes(in_axes_of(mean_p, cov_p, mean_q, cov_q))


def kl_in_axes(axes: Axes | None) -> float:
    """The same, of what ``in_axes_of`` found."""
    if axes is None:
        return np.inf
    ratios, shift = axes
    # The ratios give trace and determinants together, with no cancellation of large logarithms.
    return float(0.5 * ((ratios - 1 - np.log(ratios)).sum() + (shift**2).sum()))


def in_axes_of(mean_p: ArrayLike, cov_p: ArrayLike, mean_q: ArrayLike, cov_q: ArrayLike) -> Axes | None:
    """Variances and mean of p in the axes in which q is standard and p diagonal; None where the supports differ."""
    Sp, Sq = _square(cov_p), _square(cov_q)
    values, vectors = np.linalg.eigh(Sq)
    seen = values > tolerance(values)
    delta = (np.asarray(mean_p, dtype=np.float64) - np.asarray(mean_q, dtype=np.float64)) @ vectors
    inside = vectors.T @ Sp @ vectors
    if _outside(inside, delta, seen, Sp, values):
        return None
    scale = np.sqrt(values[seen])
    ratios, axes = np.linalg.eigh(inside[np.ix_(seen, seen)] / scale[:, None] / scale[None, :])
    if len(ratios) and ratios[0] <= tolerance(ratios):
        return None
    return Axes(ratios, (delta[seen] / scale) @ axes)


def jensen_shannon(
    mean_p: ArrayLike,
    cov_p: ArrayLike,
    mean_q: ArrayLike,
    cov_q: ArrayLike,
    draws: int = 10_000,
    rng: np.random.Generator | None = None,
) -> Estimated:
    """Jensen-Shannon divergence 1/2 D(p||m) + 1/2 D(q||m), m = (p + q) / 2, by Monte Carlo, with its standard error.

    m is a mixture, not a Gaussian, so there is no closed form. ``draws`` of p and as many of q are taken where both
    covariances are diagonal; log p/m = log 2 - log(1 + q/p) is bounded, so the error is at most log 2 / sqrt(draws).
    0 <= value <= min(log 2, (KL + KL') / 4) up to that error; its root is a metric.
    """
    return jensen_shannon_in_axes(in_axes_of(mean_p, cov_p, mean_q, cov_q), draws, rng)


def jensen_shannon_in_axes(axes: Axes | None, draws: int = 10_000, rng: np.random.Generator | None = None) -> Estimated:
    """The same, of what ``in_axes_of`` found."""
    if draws < 2:
        raise ValueError(f"a standard error needs 2 draws or more, not {draws}")
    if axes is None:
        return Estimated(float(np.log(2)), 0.0)
    ratios, shift = axes
    generator = rng or np.random.default_rng(0)
    of_q = generator.standard_normal((draws, len(ratios)))
    of_p = shift + np.sqrt(ratios) * generator.standard_normal((draws, len(ratios)))

    def log_ratio(z: Floats) -> Floats:
        """log p(z) / q(z), where q is standard and p has this shift and these variances."""
        terms: Floats = 0.5 * (z**2 - (z - shift) ** 2 / ratios - np.log(ratios))
        return np.asarray(terms.sum(axis=-1), dtype=np.float64)

    seen = [np.log(2) - np.logaddexp(0, -log_ratio(of_p)), np.log(2) - np.logaddexp(0, log_ratio(of_q))]
    value = sum(float(s.mean()) for s in seen) / 2
    error = np.sqrt(sum(float(s.var(ddof=1)) for s in seen) / draws) / 2
    return Estimated(value, float(error))


def cross_entropy(mean_p: ArrayLike, cov_p: ArrayLike, mean_q: ArrayLike, cov_q: ArrayLike) -> float:
    """H(p, q) = 1/2 [log((2 pi)^d det Sq) + Tr(Sq^-1 Sp) + d^T Sq^-1 d], d = mq - mp; note 2 pi, not 2 pi e.

    Sp may be singular. Where Sq is: plus infinity if p leaves the support of q, minus infinity if it does not.
    """
    Sp, Sq = _square(cov_p), _square(cov_q)
    values, vectors = np.linalg.eigh(Sq)
    seen = values > tolerance(values)
    delta = (np.asarray(mean_q, dtype=np.float64) - np.asarray(mean_p, dtype=np.float64)) @ vectors
    inside = vectors.T @ Sp @ vectors
    if not seen.all():
        return np.inf if _outside(inside, delta, seen, Sp, values) else -np.inf
    spread = np.diag(inside)
    return float(0.5 * (np.log(2 * np.pi * values) + (spread + delta**2) / values).sum())


def frechet_distance(mean_p: ArrayLike, cov_p: ArrayLike, mean_q: ArrayLike, cov_q: ArrayLike) -> float:
    """Frechet (2-Wasserstein) distance: its square is |mp - mq|^2 + Tr(Sp) + Tr(Sq) - 2 Tr((Sp^1/2 Sq Sp^1/2)^1/2).

    Finite for any covariances, singular ones too (Dowson and Landau 1982).
    """
    Sp, Sq = _square(cov_p), _square(cov_q)
    delta = np.asarray(mean_p, dtype=np.float64) - np.asarray(mean_q, dtype=np.float64)
    # Singular values of Sp^1/2 Sq^1/2 are the roots of the eigenvalues of Sp^1/2 Sq Sp^1/2, with twice the digits.
    overlap = np.linalg.svd(_root(Sp) @ _root(Sq), compute_uv=False).sum()
    square = float(delta @ delta + np.trace(Sp) + np.trace(Sq) - 2 * overlap)
    return float(np.sqrt(max(square, 0.0)))


def canonical_correlations(cov: ArrayLike, split: int) -> Floats:
    """Canonical correlations of x = the first ``split`` coordinates and y = the others, largest first.

    They are the singular values of Sx^-1/2 Sxy Sy^-1/2, each inverse root taken within its support.
    """
    return _canonical(cov, split)[0]


def mutual_information(cov: ArrayLike, split: int) -> float:
    """I(x; y) = 1/2 log(det Sx det Sy / det S) = -1/2 sum log(1 - rho_k^2), rho the canonical correlations.

    Unchanged by any invertible maps of x and of y. Infinite where some direction of x determines one of y, which is
    where 1 - rho is below the rounding error of rho.
    """
    rho, error = _canonical(cov, split)
    if rho[0] >= 1 - error:
        return np.inf
    return float(-0.5 * np.log1p(-(rho**2)).sum())


def mapped_gaussian(mean: ArrayLike, cov: ArrayLike, L: ArrayLike) -> tuple[Floats, Floats]:
    """The Gaussian of Lx: mean L mu, covariance L Sigma L^T. L may be rectangular.

    For square invertible L entropy and cross-entropy grow by ``log_abs_det(L)``, divergences stay; mutual
    information stays even where x and y are mapped by different ones. With fewer rows than columns, as every W_Q with
    d_head < d_model, divergences and mutual information can only fall.
    """
    A = np.asarray(L, dtype=np.float64)
    spread: Floats = A @ _square(cov) @ A.T
    return A @ np.asarray(mean, dtype=np.float64), (spread + spread.T) / 2


def log_abs_det(L: ArrayLike) -> float:
    """log |det L| = sum of the logarithms of the singular values: what a linear map adds to an entropy."""
    values = np.linalg.svd(np.asarray(L, dtype=np.float64), compute_uv=False)
    return -np.inf if values[-1] <= tolerance(values) else float(np.log(values).sum())


def _canonical(cov: ArrayLike, split: int) -> tuple[Floats, float]:
    """Canonical correlations, and how far from 1 rounding may have moved one that is 1."""
    S = _square(cov)
    if not 0 < split < len(S):
        raise ValueError(f"split must be between 1 and {len(S) - 1}, not {split}")
    # Correlations are those of the coordinates in any units: equal units condition the roots best.
    units = np.sqrt(np.diag(S))
    units[units == 0] = 1.0
    S = S / units[:, None] / units[None, :]
    (x, least_x), (y, least_y) = (_inverse_root(block) for block in (S[:split, :split], S[split:, split:]))
    rho = np.linalg.svd(x @ S[:split, split:] @ y, compute_uv=False)
    error = 8 * len(S) * np.finfo(np.float64).eps * (1 + len(S) / np.sqrt(least_x * least_y))
    return np.clip(rho, 0.0, 1.0), min(float(error), 1.0)


def _square(cov: ArrayLike) -> Floats:
    S = np.asarray(cov, dtype=np.float64)
    if S.ndim != 2 or S.shape[0] != S.shape[1] or not len(S):
        raise ValueError(f"a covariance is a square matrix, this has shape {S.shape}")
    if not np.isfinite(S).all():
        raise ValueError("this covariance holds values that are not finite")
    return (S + S.T) / 2


def _outside(inside: Floats, delta: Floats, seen: NDArray[np.bool_], Sp: Floats, values: Floats) -> bool:
    """Whether p leaves the support of q: by its spread, or by its mean. ``inside`` and ``delta`` are in q's axes."""
    if seen.all():
        return False
    slack = len(values) * np.finfo(np.float64).eps * max(float(np.trace(Sp)), float(values[-1]), float(delta @ delta))
    left = np.concatenate([np.diag(inside)[~seen], delta[~seen] ** 2])
    return bool(left.max() > slack)


def _root(S: Floats) -> Floats:
    values, vectors = np.linalg.eigh(S)
    root: Floats = (vectors * np.sqrt(np.clip(values, 0.0, None))) @ vectors.T
    return root


def _inverse_root(S: Floats) -> tuple[Floats, float]:
    """S^-1/2 within the support of S, and the least eigenvalue there (1 where there is none)."""
    values, vectors = np.linalg.eigh(S)
    seen = values > tolerance(values)
    inverse: Floats = (vectors[:, seen] / np.sqrt(values[seen])) @ vectors[:, seen].T
    return inverse, float(values[seen].min(initial=1.0))
