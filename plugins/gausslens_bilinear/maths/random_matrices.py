"""Lengths, sums and traces of random matrices: exact moments, for any shape. Pure numpy, usable alone.

Entries are independent with mean 0 and the variance given; where fourth moments enter, Gaussian. Published claims that
these formulas replace are from Wertich (2024), 2.5 and 6.2.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

Floats: TypeAlias = NDArray[np.float64]

# E of a singular value of a square Gaussian matrix is 8/(3 pi) sqrt(n) sigma, the mean of the quarter circle.
QUARTER_CIRCLE_MEAN = 8 / (3 * np.pi)


def xavier(rows: int, columns: int) -> float:
    """Entry variance 2/(rows + columns) of Glorot's initialisation."""
    return 2 / (rows + columns)


def mapped_length(rows: int, variance: float) -> float:
    """E |A v| for a unit vector v: sigma sqrt(2) Gamma((n+1)/2) / Gamma(n/2), about sigma sqrt(n).

    E |A v|^2 = n sigma^2. (The source has n sigma^2 for the length itself.)
    """
    return float(np.sqrt(2 * variance) * np.exp(gammaln((rows + 1) / 2) - gammaln(rows / 2)))


def sum_of_squares(rows: int, columns: int, variance: float) -> tuple[float, float]:
    """Mean n m s2 and variance 2 n m s2^2 of the sum of the squared singular values."""
    return rows * columns * variance, 2 * rows * columns * variance**2


def sum_of_fourth_powers(rows: int, columns: int, variance: float) -> float:
    """E of the sum of sigma^4: n m (n + m + 1) s2^2."""
    return rows * columns * (rows + columns + 1) * variance**2


def smallest_gap(n: int, variance: float) -> float:
    """Expected smallest distance between neighbouring singular values of a square matrix, about 1.8 sigma/n."""
    return 1.8 * float(np.sqrt(variance)) / n


def quarter_circle(n: int, variance: float, singular: ArrayLike) -> Floats:
    """Density sqrt(4 n s2 - s^2) / (pi n s2) of the singular values of a large square Gaussian matrix.

    It is not that of symmetric matrices alone, nor approximate: it is the law of Marchenko and Pastur of a square, in
    the variable s. (Symmetric matrices have semicircle eigenvalues.)
    """
    s = np.asarray(singular, dtype=np.float64)
    inside = (s >= 0) & (s**2 <= 4 * n * variance)
    return np.where(inside, np.sqrt(np.maximum(4 * n * variance - s**2, 0)) / (np.pi * n * variance), 0.0)


def trace_of_product(rows: int, columns: int, variance_a: float, variance_b: float) -> tuple[float, float, float]:
    """Mean 0, variance n m s2_a s2_b and excess kurtosis 6/(n m) of Tr(A^T B), A and B independent.

    The trace is symmetric about 0: it is no chi-squared variable.
    """
    return 0.0, rows * columns * variance_a * variance_b, 6 / (rows * columns)


def rotated_trace_variance(squared_a: ArrayLike, squared_b: ArrayLike, rows: int, columns: int) -> Floats:
    """Variance (sum sigma_a^2)(sum sigma_b^2)/(n m) of Tr(A^T B) whose spectra are kept and singular vectors random.

    Only the sums matter: neither the order of the spectra nor the angle between them. (6.34 has the sum of the products
    over n, which on sorted spectra of untouched noise is twice too large.) Its mean is 0.
    """
    a, b = (np.asarray(s, dtype=np.float64).sum(axis=-1) for s in (squared_a, squared_b))
    return np.asarray(a * b / (rows * columns))


def rotated_form_variance(squared: ArrayLike, dimension: int) -> Floats:
    """Variance sum sigma^2 / d of Tr(C Q), Q a random rotation: of Tr C where what reads and what writes are unrelated.

    For a head's C = W_Q W_K^T it depends on C alone, not on how C is factored.
    """
    return np.asarray(np.asarray(squared, dtype=np.float64).sum(axis=-1) / dimension)


def half_aligned_trace(singular_a: ArrayLike, singular_b: ArrayLike) -> Floats:
    """E Tr(A^T B) = (sum sigma_a)(sum sigma_b)/n for square A, B whose left singular vectors are turned like the right.

    With U_a^T U_b = V_a^T V_b = W the trace is sum sigma_ai sigma_bj W_ij^2, and W is random. Of two noises it is
    (8/(3 pi))^2 n^2 s2 = 0.72 n^2 s2. (6.29 has n^2 s2, which takes W = 1, in order; the best that the left vectors
    alone can reach is ``best_trace``.)
    """
    a, b = (np.asarray(s, dtype=np.float64) for s in (singular_a, singular_b))
    return np.asarray(a.sum(axis=-1) * b.sum(axis=-1) / a.shape[-1])


def best_trace(singular_a: ArrayLike, singular_b: ArrayLike, rotation: ArrayLike) -> float:
    """The largest Tr(A^T B) over all left singular vectors, the right ones being apart by W: |D_B W D_A|_*."""
    a, b, W = (np.asarray(s, dtype=np.float64) for s in (singular_a, singular_b, rotation))
    return float(np.linalg.svd(b[:, None] * W * a[None, :], compute_uv=False).sum())
