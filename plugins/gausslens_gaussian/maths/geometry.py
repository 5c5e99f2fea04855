"""The shapes that covariances have: ellipsoids, their axes and volumes, and angles between subspaces. Pure numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

from gausslens.maths.moments import Floats
from gausslens.maths.spectra import tolerance

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def semi_axes(cov: ArrayLike, level: float = 1.0) -> tuple[Floats, Floats]:
    """Lengths, longest first, and directions (rows) of the semi-axes of {x : x^T Sigma^-1 x <= level}.

    The lengths are sqrt(level lambda_i), lambda_i the eigenvalues of Sigma; of n centred samples with singular values
    sigma_i they are sigma_i sqrt(level / (n - 1)).
    """
    values, vectors = np.linalg.eigh(np.asarray(cov, dtype=np.float64))
    return np.sqrt(level * np.clip(values[::-1], 0.0, None)), vectors.T[::-1]


def log_volume(cov: ArrayLike, level: float = 1.0) -> float:
    """log of the volume of {x : x^T Sigma^-1 x <= level} = (pi level)^(d/2) / Gamma(d/2 + 1) sqrt(det Sigma).

    It grows with sqrt(det Sigma); minus infinity where Sigma is singular.
    """
    values = np.linalg.eigvalsh(np.asarray(cov, dtype=np.float64))
    if values[0] <= tolerance(values):
        return -np.inf
    d = len(values)
    return float(0.5 * d * np.log(np.pi * level) - gammaln(d / 2 + 1) + 0.5 * np.log(values).sum())


def leading(cov: ArrayLike, count: int) -> Floats:
    """The ``count`` leading eigenvectors of a covariance [..., d, d] as rows; their signs mean nothing."""
    vectors = np.linalg.eigh(np.asarray(cov, dtype=np.float64))[1][..., ::-1][..., :count]
    found: Floats = np.swapaxes(vectors, -1, -2)
    return found


def random_projection(width: int, dims: int, rng: np.random.Generator) -> Floats:
    """Orthonormal rows [dims, width], uniform among all such: the Q of a Gaussian matrix (Stewart 1980).

    All of the space where it is no wider than ``dims``.
    """
    if dims >= width:
        return np.eye(width)
    found: Floats = np.linalg.qr(rng.standard_normal((width, dims)))[0].T
    return found


def principal_angles(first: ArrayLike, second: ArrayLike) -> Floats:
    """Angles in radians between the subspaces that two sets of orthonormal rows span, smallest first.

    By sines where the angle is small and cosines where it is large (Bjorck and Golub 1973), so that equal subspaces
    give zero to rounding. They do not depend on the basis within a subspace, so near-equal eigenvalues do no harm as
    long as they are on the same side of the cut.
    """
    A, B = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    cosines = np.clip(np.linalg.svd(A @ B.T, compute_uv=False), 0.0, 1.0)
    sines = np.sort(np.clip(np.linalg.svd(B - (B @ A.T) @ A, compute_uv=False), 0.0, 1.0))[: len(cosines)]
    found: Floats = np.where(cosines**2 > 0.5, np.arcsin(sines), np.arccos(cosines))
    return found
