"""Vectors of a vocabulary: entropies of their softmax, cosines, and nearest rows. Numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def softmax_entropy(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """Entropy in nats of softmax(v) for each row v: H = log Z - sum v e^v / Z, with Z = sum e^v."""
    shifted = vectors.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    weights = np.exp(shifted)
    z = weights.sum(axis=1)
    found: NDArray[np.float64] = np.log(z) - (weights * shifted).sum(axis=1) / z
    return found


def random_entropy(
    norms: NDArray[np.float64], d: int, draws: int, generator: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and spread of the softmax entropy of vectors of these lengths with uniform directions.

    For logits of variance s2 = norm^2 / d it is log d - s2 / 2, as long as s2 is well below 2 log d.
    """
    directions = generator.standard_normal((draws, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    found = np.array([softmax_entropy(norm * directions) for norm in norms])
    return found.mean(axis=1), found.std(axis=1, ddof=1)


def mean_cosine(vectors: NDArray[Any], norms: NDArray[np.float64]) -> np.float64:
    """Mean cosine over pairs of different rows, in one pass: (|sum of unit vectors|^2 - n) / (n (n - 1)).

    Rows of zeros have no direction and are left out; NaN with fewer than two others.
    """
    used = norms > 0
    n = int(used.sum())
    if n < 2:
        return np.float64(np.nan)
    total = (vectors[used] / norms[used, None]).sum(axis=0, dtype=np.float64)
    return np.float64((total @ total - n) / (n * (n - 1)))


def nearest(
    vectors: NDArray[Any], norms: NDArray[np.float64], chosen: NDArray[np.int64], most: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each chosen row the rows of largest cosine, itself left out, largest first; ties by number."""
    unit = vectors / np.where(norms > 0, norms, 1)[:, None].astype(vectors.dtype)
    near = np.empty((len(chosen), most), dtype=np.int64)
    cosine = np.empty((len(chosen), most))
    for place, number in enumerate(chosen):
        found = unit @ unit[number]
        found[number] = -np.inf
        near[place] = np.argsort(-found, kind="stable")[:most]
        cosine[place] = found[near[place]]
    return near, cosine
