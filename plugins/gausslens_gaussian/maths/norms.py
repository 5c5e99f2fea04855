"""A Gaussian pushed through the norm that stands before attention: exact mean and covariance. Pure numpy.

RMSNorm is x / sqrt(|x|^2 / d + eps); LayerNorm is the same of x less the mean of its coordinates. It is not linear, so
what comes out is not Gaussian, but its first two moments are one-dimensional integrals: with 1/s = int exp(-t s) dt and
1/sqrt(s) = int exp(-t s) / sqrt(pi t) dt, t from 0 to infinity, and x tilted by exp(-t |x|^2) Gaussian again,

    E[x / sqrt(|x|^2 + c)]   = int Z(t) m(t) / sqrt(pi t) dt
    E[x x^T / (|x|^2 + c)]   = int Z(t) [C(t) + m(t) m(t)^T] dt
    m = (I + 2 t Sigma)^-1 mu,  C = (I + 2 t Sigma)^-1 Sigma,  Z = exp(-t c - t mu^T m) / sqrt det(I + 2 t Sigma)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.maths.moments import Floats

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# The integrals run over log t, where the integrand is smooth and dies on both sides: the trapezoidal rule is exact to
# rounding at this step.
_REACH, _STEP = 80.0, 0.2


def through_norm(mean: ArrayLike, cov: ArrayLike, epsilon: float = 0.0, centred: bool = False) -> tuple[Floats, Floats]:
    """Mean and covariance of the norm of N(mean, cov); ``centred`` for LayerNorm. Zero where all of it is zero."""
    mu, S = np.asarray(mean, dtype=np.float64), np.asarray(cov, dtype=np.float64)
    if centred:
        mu = mu - mu.mean()
        S = S - S.mean(axis=0)
        S = S - S.mean(axis=1)[:, None]
    d = len(mu)
    values, vectors = np.linalg.eigh((S + S.T) / 2)
    values = np.clip(values, 0.0, None)
    typical = float(values.sum() + mu @ mu)
    if typical == 0:
        return np.zeros(d), np.zeros((d, d))
    u = np.arange(-_REACH, _REACH, _STEP)
    t = np.exp(u) / typical
    along = vectors.T @ mu
    widths = 1 + 2 * t[:, None] * values
    m = along / widths
    log_z = -t * (d * epsilon) - t * (m @ along) - 0.5 * np.log(widths).sum(axis=1)
    # dt = t du; factors of d turn |x|^2 into its mean over coordinates.
    weight = np.exp(log_z) * t * _STEP
    first = np.sqrt(d) * ((weight / np.sqrt(np.pi * t)) @ m)
    second = d * ((m * weight[:, None]).T @ m + np.diag(weight @ (values / widths)))
    spread: Floats = vectors @ (second - np.outer(first, first)) @ vectors.T
    return vectors @ first, (spread + spread.T) / 2
