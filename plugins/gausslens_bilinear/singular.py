"""Squared singular values of weight matrices, and what they say. Pure numpy."""

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
    A = np.ascontiguousarray(A)
    values: Floats = np.linalg.eigvalsh(A @ np.swapaxes(A, -1, -2))[..., ::-1].astype(np.float64)
    if (values[..., -1] > GRAM_TRUST * values[..., 0]).all():
        return values
    singular: Floats = np.linalg.svd(A, compute_uv=False).astype(np.float64)
    return singular**2


def effective_rank(squared: ArrayLike) -> Floats:
    """exp(-sum p_i log p_i), p_i the shares of the squared singular values; 0 for a matrix of zeros."""
    values = np.asarray(squared, dtype=np.float64)
    total = values.sum(axis=-1)
    p = values / np.where(total > 0, total, 1.0)[..., None]
    return np.where(total > 0, np.exp(-(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1)), 0.0)
