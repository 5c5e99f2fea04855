"""What the squared singular values of pure noise look like, for one Gaussian matrix and for a product. Pure numpy.

Let A be p x q Gaussian with p <= q, c = p/q, mean squared singular value 1. The squared singular values of a product of
m such matrices that share the side p (A_1 A_2^T, written as cores) have the S-transform (1 + c z)^-m: free
multiplication multiplies S-transforms (Voiculescu 1987; m = 1 is Marchenko and Pastur 1967). With w(t) the moment
generating function at t = 1/x that is

    t (1 + w) (1 + c w)^m = w,    density f(x) = |Im w| / (pi x)

between x(w-) and x(w+), where x(w) = (1 + w)(1 + c w)^m / w has its extrema, m c w^2 + (m - 1) c w - 1 = 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NODES = 4096


def edges(c: float, factors: int = 1) -> tuple[float, float]:
    """Between which the squared singular values lie, for mean 1; one matrix: (1 -+ sqrt c)^2."""
    m = factors
    root = np.sqrt(((m - 1) * c) ** 2 + 4 * m * c)
    found = []
    for w in ((-(m - 1) * c - root) / (2 * m * c), (-(m - 1) * c + root) / (2 * m * c)):
        found.append(float((1 + w) * (1 + c * w) ** m / w))
    return max(found[0], 0.0), found[1]


def density(x: Floats, c: float, factors: int = 1) -> Floats:
    """f(x) inside the edges."""
    product = np.array([1.0, 1.0])
    for _ in range(factors):
        product = np.convolve(product, [1.0, c])
    t = 1 / np.asarray(x, dtype=np.float64)
    coefficients = t[:, None] * product
    coefficients[:, 1] -= 1
    monic = coefficients / coefficients[:, -1:]
    # The roots of each polynomial are the eigenvalues of its companion matrix.
    companion = np.zeros((len(t), factors + 1, factors + 1))
    companion[:, 1:, :-1] = np.eye(factors)
    companion[:, :, -1] = -monic[:, :-1]
    w = np.linalg.eigvals(companion)
    found: Floats = np.abs(w.imag).max(axis=1) * t / np.pi
    return found


def expected(count: int, c: float, factors: int = 1) -> Floats:
    """The ``count`` squared singular values that the law expects, largest first: its quantiles at (i - 1/2)/count.

    The distribution is summed over x = a + (b - a) (1 - cos theta)/2, which tames the density at both edges.
    """
    a, b = edges(c, factors)
    theta = (np.arange(NODES) + 0.5) * np.pi / NODES
    x = a + (b - a) * (1 - np.cos(theta)) / 2
    mass = density(x, c, factors) * np.sin(theta)
    distribution = np.concatenate([[0.0], np.cumsum(mass)])
    at = a + (b - a) * (1 - np.cos(np.arange(NODES + 1) * np.pi / NODES)) / 2
    shares = (np.arange(count, 0, -1) - 0.5) / count
    found: Floats = np.interp(shares, distribution / distribution[-1], at)
    return found
