"""Singular values of matrices and of products of two, eigenvalues of covariances, and what they say. Pure numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

# Below this share of the largest, a value taken from the Gram matrix has lost its digits: take the singular values.
GRAM_TRUST = 1e-9


def squared_singular_values(matrices: ArrayLike) -> Floats:
    """Squared singular values of matrices [..., n, m], largest first, in float64.

    They are the eigenvalues of the small Gram matrix A A^T, which costs a fifth of a singular value decomposition. The
    error is eps times the largest, so where the smallest is under 1e-9 of it, the decomposition is taken instead.
    """
    A = np.asarray(matrices, dtype=np.float64)
    if A.shape[-2] > A.shape[-1]:
        A = np.swapaxes(A, -1, -2)
    if not np.swapaxes(A, -1, -2).flags.c_contiguous:  # either order of memory gives the same product, with no copy
        A = np.ascontiguousarray(A)
    values: Floats = np.linalg.eigvalsh(A @ np.swapaxes(A, -1, -2))[..., ::-1].astype(np.float64)
    if (values[..., -1] > GRAM_TRUST * values[..., 0]).all():
        return values
    singular: Floats = np.linalg.svd(A, compute_uv=False).astype(np.float64)
    return singular**2


def product_squared_singular_values(A: ArrayLike, B: ArrayLike) -> Floats:
    """Those of A B^T, A [..., n, h] and B [..., m, h], that need not be 0: min(n, h, m) of them, largest first.

    With A = Q R and B = P S (Q, P orthonormal) they are those of the small R S^T: A B^T [n, m] is never formed.
    """
    R, S = (np.asarray(np.linalg.qr(np.asarray(X, dtype=np.float64), mode="r")) for X in (A, B))
    singular: Floats = np.linalg.svd(R @ np.swapaxes(S, -1, -2), compute_uv=False).astype(np.float64)
    return singular**2


def product_eigenvalues(A: ArrayLike, B: ArrayLike) -> NDArray[np.complex128]:
    """The eigenvalues of the square A B^T that need not be 0: those of B^T A [h, h], largest in modulus first.

    A B^T and B^T A have the same eigenvalues but for zeros (Sylvester 1883).
    """
    small = np.swapaxes(np.asarray(B, dtype=np.float64), -1, -2) @ np.asarray(A, dtype=np.float64)
    values = np.linalg.eigvals(small).astype(np.complex128)
    # Conjugates have equal moduli: the sign of the imaginary part orders them.
    order = np.lexsort((-values.imag, -values.real, -np.round(np.abs(values), 12)), axis=-1)
    return np.take_along_axis(values, order, axis=-1)


def principal_cosines(A: ArrayLike, B: ArrayLike) -> Floats:
    """Cosines of the principal angles between the column spaces of A [..., n, h] and B [..., n, k], largest first.

    The singular values of Q^T P, with orthonormal bases Q and P of the two (Bjorck and Golub 1973).
    """
    Q, P = (np.linalg.qr(np.asarray(X, dtype=np.float64)).Q for X in (A, B))
    cosines: Floats = np.linalg.svd(np.swapaxes(Q, -1, -2) @ P, compute_uv=False)
    return np.clip(cosines, 0.0, 1.0)


def effective_rank(squared: ArrayLike) -> Floats:
    """exp(-sum p_i log p_i), p_i the shares of squared singular values, or of a covariance's eigenvalues, in their sum.

    Roy and Vetterli (2007), on energies. d for a sphere of d dimensions, 1 for a line, 0 where all are zero.
    """
    values = np.asarray(squared, dtype=np.float64)
    total = values.sum(axis=-1)
    p = values / np.where(total > 0, total, 1.0)[..., None]
    return np.where(total > 0, np.exp(-(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1)), 0.0)


def spectrum(covariance: ArrayLike) -> Floats:
    """Eigenvalues lambda_1 >= ... >= lambda_d of a covariance [..., d, d]; those below zero by rounding are zero.

    Sigma = sum lambda_i u_i u_i^T: the variances along the principal directions u_i (Pearson 1901).
    """
    return np.clip(np.linalg.eigvalsh(np.asarray(covariance, dtype=np.float64)), 0.0, None)[..., ::-1]


def tolerance(eigenvalues: ArrayLike) -> Floats:
    """Below this an eigenvalue is rounding: d eps lambda_max, for each spectrum on the last axis.

    eps is that of float64. It is the rule of numpy's and MATLAB's matrix rank (Press et al., Numerical Recipes, 2007).
    """
    values = np.asarray(eigenvalues, dtype=np.float64)
    bound: Floats = values.shape[-1] * np.finfo(np.float64).eps * values.max(axis=-1)
    return bound


def rank(eigenvalues: ArrayLike) -> NDArray[np.int64]:
    """How many eigenvalues are more than rounding: #{i : lambda_i > ``tolerance``}, the numerical rank."""
    values = np.asarray(eigenvalues, dtype=np.float64)
    return np.asarray((values > tolerance(values)[..., None]).sum(axis=-1), dtype=np.int64)


def anisotropy(eigenvalues: ArrayLike) -> Floats:
    """lambda_max / trace, the share of the trace that the largest eigenvalue holds.

    1/d for a sphere, 1 for a line, 0 if all are zero (Razzhigaev et al. 2024, on centred vectors).
    """
    values = np.asarray(eigenvalues, dtype=np.float64)
    total = values.sum(axis=-1)
    return np.where(total > 0, values.max(axis=-1) / np.where(total > 0, total, 1.0), 0.0)


def support_entropy(eigenvalues: ArrayLike) -> Floats:
    """Entropy in nats of a Gaussian within its support: 1/2 sum log(2 pi e lambda_i) over the ``rank`` directions.

    That of a Gaussian of these variances (Cover and Thomas 2006, theorem 8.4.1), in the subspace that it fills.
    With full rank it is the differential entropy 1/2 log((2 pi e)^d det Sigma). With less, that is minus infinity, and
    this is the entropy of the Gaussian in the subspace it fills: compare it only where the ranks are equal. 0 where the
    covariance is zero: a point fills no direction.
    """
    values = np.asarray(eigenvalues, dtype=np.float64)
    seen = values > tolerance(values)[..., None]
    logs = np.log(2 * np.pi * np.e * np.where(seen, values, 1.0))
    result: Floats = 0.5 * np.where(seen, logs, 0.0).sum(axis=-1)
    return result
