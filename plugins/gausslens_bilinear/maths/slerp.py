"""Spherical interpolation between logits, and how far its distributions are from the end's. Pure numpy, usable alone.

Published claims that these formulas replace are from Wertich (2024), chapter 5.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

Floats: TypeAlias = NDArray[np.float64]


def slerp(v: ArrayLike, w: ArrayLike, t: ArrayLike) -> Floats:
    """The unit vectors on the arc from v (t = 0) to w (t = 1): (sin((1-t) a) v + sin(t a) w)/sin(a), cos a = <v, w>.

    (One place of the source has sin((t-1) a), of the other sign.) v and w [n] are unit vectors, t any shape.
    """
    start, end = np.asarray(v, dtype=np.float64), np.asarray(w, dtype=np.float64)
    at = np.asarray(t, dtype=np.float64)[..., None]
    angle = np.arccos(np.clip(start @ end, -1.0, 1.0))
    if np.sin(angle) < 1e-12:
        raise ValueError("there is no one arc between vectors that are equal or opposite")
    return np.asarray((np.sin((1 - at) * angle) * start + np.sin(at * angle) * end) / np.sin(angle))


def kl(logits: ArrayLike, others: ArrayLike) -> Floats:
    """KL(softmax(x) || softmax(y)), along the last axis."""
    x, y = _log_softmax(logits), _log_softmax(others)
    return np.asarray((np.exp(x) * (x - y)).sum(axis=-1))


def js(logits: ArrayLike, others: ArrayLike) -> Floats:
    """Jensen-Shannon divergence: of each from the mixture (p + q)/2, which no logits on the arc give."""
    x, y = _log_softmax(logits), _log_softmax(others)
    middle = np.log((np.exp(x) + np.exp(y)) / 2)
    return np.asarray(((np.exp(x) * (x - middle)).sum(axis=-1) + (np.exp(y) * (y - middle)).sum(axis=-1)) / 2)


def kl_nearly_flat(logits: ArrayLike, others: ArrayLike) -> Floats:
    """KL to leading order where both are nearly flat: half the variance, over the n places, of x - y.

    The error is of third order in the logits. The Jensen-Shannon divergence is a quarter of it.
    """
    difference = np.asarray(logits, dtype=np.float64) - np.asarray(others, dtype=np.float64)
    return np.asarray(difference.var(axis=-1) / 2)


def kl_on_arc(n: int, length: float, t: ArrayLike) -> Floats:
    """KL(softmax(l w) || softmax(l v(t))) for orthogonal unit vectors of mean 0: (l^2/n)(1 - sin(pi t/2)), nearly.

    The scale of its error is l/sqrt(n), and means of v and w add second harmonics of relative size 1/n even as l goes
    to 0. So the cosine that the source conjectures to be exact is the leading order of large n, and no more.
    """
    return length**2 / n * (1 - np.sin(np.pi * np.asarray(t, dtype=np.float64) / 2))


def cosine_misfit(t: ArrayLike, curve: ArrayLike) -> Floats:
    """How far curves [..., t] are from the nearest a cos(pi t/2 + b) + c: the largest gap over the curve's range.

    The nearest in least squares: the family is linear in cos(pi t/2), sin(pi t/2) and 1.
    """
    at, values = np.asarray(t, dtype=np.float64), np.asarray(curve, dtype=np.float64)
    basis = np.stack([np.cos(np.pi * at / 2), np.sin(np.pi * at / 2), np.ones_like(at)])
    Q = np.linalg.qr(basis.T).Q
    left = values - values @ Q @ Q.T
    return np.asarray(np.abs(left).max(axis=-1) / (values.max(axis=-1) - values.min(axis=-1)))


def phase(v: ArrayLike, w: ArrayLike) -> tuple[Floats, Floats]:
    """Amplitude and phase with cos(a) w + sin(a) v = A cos(a - phase), in each coordinate: hypot and atan2(v, w).

    (5.13 has arctan(-v/w), of the other sign, and in the wrong quadrant where w < 0.)
    """
    x, y = np.asarray(v, dtype=np.float64), np.asarray(w, dtype=np.float64)
    return np.hypot(x, y), np.arctan2(x, y)


def _log_softmax(logits: ArrayLike) -> Floats:
    x = np.asarray(logits, dtype=np.float64)
    found: Floats = x - logsumexp(x, axis=-1, keepdims=True)
    return found
