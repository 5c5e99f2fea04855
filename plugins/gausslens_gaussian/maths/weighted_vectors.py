"""A few vectors with weights, as the embeddings of the words that may follow a word. Pure numpy.

With weights lambda_i that sum to one and vectors v_i:

    second moment   M = sum lambda_i v_i v_i^T         trace sum lambda_i |v_i|^2, rank at most k
    covariance      M - mu mu^T,  mu = sum lambda_i v_i   rank at most k - 1
    Gram matrix     G_ij = sqrt(lambda_i lambda_j) <v_i, v_j>   has the non-zero eigenvalues of M

so spectra of k vectors cost k^3, not d^3. Two unit vectors of weight l and cosine a have l (1 + a) and l (1 - a).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.maths.moments import Floats

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def mean(vectors: ArrayLike, weights: ArrayLike) -> Floats:
    """sum lambda_i v_i of vectors [k, d]."""
    found: Floats = _shares(weights) @ np.asarray(vectors, dtype=np.float64)
    return found


def second_moment(vectors: ArrayLike, weights: ArrayLike) -> Floats:
    """sum lambda_i v_i v_i^T."""
    rows = _rooted(vectors, weights)
    found: Floats = rows.T @ rows
    return found


def covariance(vectors: ArrayLike, weights: ArrayLike) -> Floats:
    """sum lambda_i (v_i - mu)(v_i - mu)^T."""
    return second_moment(np.asarray(vectors, dtype=np.float64) - mean(vectors, weights), weights)


def gram(vectors: ArrayLike, weights: ArrayLike) -> Floats:
    """sqrt(lambda_i lambda_j) <v_i, v_j>; of the vectors less their mean it has the covariance's eigenvalues."""
    rows = _rooted(vectors, weights)
    found: Floats = rows @ rows.T
    return found


def spectrum(vectors: ArrayLike, weights: ArrayLike) -> Floats:
    """The eigenvalues of the covariance that may be above zero, largest first, from the Gram matrix of k vectors."""
    centred = np.asarray(vectors, dtype=np.float64) - mean(vectors, weights)
    return np.clip(np.linalg.eigvalsh(gram(centred, weights))[::-1], 0.0, None)


def repulsion(cosines: ArrayLike) -> float:
    """Variance of the eigenvalues of a k x k Gram matrix of unit vectors: (1/k) sum over i != j of cos_ij^2.

    Equal eigenvalues repel exactly as far as the vectors are not orthogonal.
    """
    C = np.asarray(cosines, dtype=np.float64)
    return float(((C**2).sum() - (np.diag(C) ** 2).sum()) / len(C))


def _shares(weights: ArrayLike) -> Floats:
    shares = np.asarray(weights, dtype=np.float64)
    total = shares.sum()
    if shares.ndim != 1 or (shares < 0).any() or not total > 0:
        raise ValueError("weights are a list of numbers, none below zero, not all zero")
    found: Floats = shares / total
    return found


def _rooted(vectors: ArrayLike, weights: ArrayLike) -> Floats:
    rows: Floats = np.sqrt(_shares(weights))[:, None] * np.asarray(vectors, dtype=np.float64)
    return rows
