"""Information between Gaussians, in nats. Pure numpy, float64, usable alone.

A covariance may be rank-deficient. Nothing is regularised in silence; every quantity takes the value of its definition:
an entropy is then minus infinity, a divergence plus infinity unless the supports fit, and mutual information plus
infinity where a direction of one part is determined by the other. An eigenvalue below d eps lambda_max counts as zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .covariance import Floats, tolerance

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# Below this distance from 1 a canonical correlation is 1: rounding of a whitened product of float64 matrices.
_CERTAIN = 1e-12


def entropy(cov: ArrayLike) -> float:
    """Differential entropy 1/2 log((2 pi e)^d det Sigma); minus infinity where Sigma is singular."""
    values = np.linalg.eigvalsh(_square(cov))
    if values[0] <= tolerance(values):
        return -np.inf
    return float(0.5 * np.log(2 * np.pi * np.e * values).sum())


def kl(mean_p: ArrayLike, cov_p: ArrayLike, mean_q: ArrayLike, cov_q: ArrayLike) -> float:
    """Kullback-Leibler divergence D(p||q) = 1/2 [Tr(Sq^-1 Sp) - r + d^T Sq^-1 d + log(det Sq / det Sp)], d = mq - mp.

    r is the dimension. Where the covariances are singular, p and q are compared within the support of q if p has the
    same support (r is then its dimension); otherwise no density of p by q exists and the divergence is infinite.
    """
    Sp, Sq = _square(cov_p), _square(cov_q)
    values, vectors = np.linalg.eigh(Sq)
    seen = values > tolerance(values)
    delta = (np.asarray(mean_q, dtype=np.float64) - np.asarray(mean_p, dtype=np.float64)) @ vectors
    inside = vectors.T @ Sp @ vectors
    scale = np.sqrt(values[seen])
    white = inside[np.ix_(seen, seen)] / scale[:, None] / scale[None, :]
    ratios = np.linalg.eigvalsh(white) if len(scale) else np.zeros(0)
    if _outside(inside, delta, seen, Sp, values) or (len(ratios) and ratios[0] <= tolerance(ratios)):
        return np.inf
    # eigenvalues of Sq^-1/2 Sp Sq^-1/2 give trace and determinants together, with no cancellation of large logs
    mahalanobis = float(((delta[seen] / scale) ** 2).sum())
    return float(0.5 * ((ratios - 1 - np.log(ratios)).sum() + mahalanobis))


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


def frechet(mean_p: ArrayLike, cov_p: ArrayLike, mean_q: ArrayLike, cov_q: ArrayLike) -> float:
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
    S = _square(cov)
    if not 0 < split < len(S):
        raise ValueError(f"split must be between 1 and {len(S) - 1}, not {split}")
    between = _inverse_root(S[:split, :split]) @ S[:split, split:] @ _inverse_root(S[split:, split:])
    return np.clip(np.linalg.svd(between, compute_uv=False), 0.0, 1.0)


def mutual_information(cov: ArrayLike, split: int) -> float:
    """I(x; y) = 1/2 log(det Sx det Sy / det S) = -1/2 sum log(1 - rho_k^2), rho the canonical correlations.

    Unchanged by any invertible maps of x and of y. Infinite where some direction of x determines one of y.
    """
    rho = canonical_correlations(cov, split)
    if rho[0] >= 1 - _CERTAIN:
        return np.inf
    return float(-0.5 * np.log1p(-(rho**2)).sum())


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


def _inverse_root(S: Floats) -> Floats:
    values, vectors = np.linalg.eigh(S)
    seen = values > tolerance(values)
    inverse: Floats = (vectors[:, seen] / np.sqrt(values[seen])) @ vectors[:, seen].T
    return inverse
