"""How alike the tokens of a prompt are, and how fast they become so: one prompt's vectors [token, d], of numpy.

``diameter``, ``relative_diameter`` and ``cosine`` take vectors of a device too, and reduce them there.

A row-stochastic A cannot widen a set of tokens: diam(A X) <= delta(A) diam(X), and delta(A) <= 1 - exp(-2 beta) where
no logit is beyond +-beta. Tokens collapse where the product of that and the gain of the value map stays below one;
a residual stream, or attention that stays diagonal, keeps them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.maths.moments import Floats
from gausslens.maths.on_device import Vectors, in_numpy

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# Diameters below this, relative to the length of the vectors, are rounding.
FLOOR = 1e-12


def diameter(vectors: ArrayLike | Vectors) -> Floats:
    """The largest distance between two of the vectors [..., token, d]."""
    if isinstance(vectors, Vectors):
        about = vectors.centred
        size = about.square().sum(dim=-1)
        between = size[..., :, None] + size[..., None, :] - 2 * about @ about.mT
        largest: Floats = in_numpy(between.flatten(-2).amax(dim=-1).clamp_min(0.0))
        return np.sqrt(largest)
    X = np.asarray(vectors, dtype=np.float64)
    # About their mean, so that tokens that are nearly one lose no digits.
    X = X - X.mean(axis=-2, keepdims=True)
    squares = (X**2).sum(axis=-1)
    apart = squares[..., :, None] + squares[..., None, :] - 2 * X @ np.swapaxes(X, -1, -2)
    found: Floats = np.sqrt(np.clip(apart.max(axis=(-1, -2)), 0.0, None))
    return found


def relative_diameter(vectors: ArrayLike | Vectors) -> float:
    """Diameter over the root mean square length: 0 for equal tokens, about sqrt(2) for orthogonal ones; no units."""
    if isinstance(vectors, Vectors):
        length = np.sqrt((vectors.lengths() ** 2).mean())
        return float(diameter(vectors) / length) if length > 0 else 0.0
    X = np.asarray(vectors, dtype=np.float64)
    length = np.sqrt((X**2).sum() / len(X))
    return float(diameter(X) / length) if length > 0 else 0.0


def cosine(vectors: ArrayLike | Vectors) -> float:
    """Mean cosine of all pairs: (|sum of unit vectors|^2 - k) / (k (k - 1)); vectors of no length are left out."""
    if isinstance(vectors, Vectors):
        total, k = vectors.sum_of_units()
    else:
        X = np.asarray(vectors, dtype=np.float64)
        lengths = np.linalg.norm(X, axis=1)
        units = X[lengths > 0] / lengths[lengths > 0, None]
        total, k = units.sum(axis=0), len(units)
    return float(((total**2).sum() - k) / (k * (k - 1))) if k > 1 else 1.0


def rates(diameters: ArrayLike) -> Floats:
    """How fast each row [row, layer] of diameters falls, in nats per layer: minus the least-squares slope of its log.

    Layers at or below rounding are left out; NaN in a row with fewer than two others.
    """
    found = []
    for row in np.atleast_2d(np.asarray(diameters, dtype=np.float64)):
        seen = np.flatnonzero(row > FLOOR)
        centred = seen - seen.mean() if len(seen) > 1 else np.zeros(1)
        found.append(-(centred @ np.log(row[seen])) / (centred @ centred) if len(seen) > 1 else np.nan)
    return np.array(found)
