"""A head's two circuits, C = W_Q W_K^T and C = W_V W_O, by their factors, and how heads compose. Pure numpy.

Rows are stacked as heads: factors are [..., d_model, d_head]. C [d_model, d_model] is never formed. All that is here
depends on C alone and not on how it is factored, so that W_Q -> W_Q A, W_K -> W_K A^-T changes nothing. Circuits and
composition: Elhage et al., "A Mathematical Framework for Transformer Circuits" (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gausslens.maths.spectra import Floats, product_eigenvalues

from .random_matrices import rotated_form_variance

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Circuit:
    """What A B^T holds, for each head, of factors of ``inner`` columns; as many components, or ``dimension`` if fewer.

    ``squared`` singular values and ``eigenvalues``, largest first; ``cosines`` of the principal angles between the
    column spaces of A and B (what is read on one side and on the other); ``leading_cosine`` of the leading left and
    right singular vectors, which says whether the strongest direction matches itself (+) or its opposite (-).
    ``triangles`` are R of A = Q R and S of B = P S, which ``wrote`` and ``read`` take.
    """

    dimension: int
    inner: int
    squared: Floats
    eigenvalues: NDArray[np.complex128]
    cosines: Floats
    leading_cosine: Floats
    triangles: tuple[Floats, Floats]

    @property
    def norm(self) -> Floats:
        """|C|_F."""
        return np.asarray(np.sqrt(self.squared.sum(axis=-1)))

    @property
    def trace(self) -> Floats:
        """Tr C, the sum of the eigenvalues."""
        return np.asarray(self.eigenvalues.real.sum(axis=-1))

    @property
    def trace_z(self) -> Floats:
        """Tr C / (|C|_F / sqrt d): against a random rotation between what A and what B read."""
        return _over(self.trace, np.sqrt(rotated_form_variance(self.squared, self.dimension)))

    @property
    def positive_share(self) -> Floats:
        """The share of sum |eigenvalue| that lies at positive real part; of the opposite, 1 less this."""
        sizes = np.abs(self.eigenvalues)
        return _over(np.where(self.eigenvalues.real > 0, sizes, 0.0).sum(axis=-1), sizes.sum(axis=-1))

    @property
    def leading_gap(self) -> Floats:
        """1 - sigma_2/sigma_1: near 0 the leading singular vectors, and their cosine, are what rounding makes them."""
        second = self.squared[..., 1] if self.squared.shape[-1] > 1 else np.zeros(self.squared.shape[:-1])
        return 1 - np.sqrt(_over(second, self.squared[..., 0]))

    @property
    def balance(self) -> Floats:
        """Tr C / sum |eigenvalue|, from -1 to 1: near 1, all is matched with, or copied to, itself."""
        return _over(self.trace, np.abs(self.eigenvalues).sum(axis=-1))

    @property
    def symmetric_share(self) -> Floats:
        """|(C + C^T)/2|_F^2 / |C|_F^2 = (1 + Tr(C^2)/|C|_F^2)/2: what of C a token's score with itself can see."""
        square = (self.eigenvalues**2).real.sum(axis=-1)
        return (1 + _over(square, self.squared.sum(axis=-1))) / 2

    @property
    def alignment(self) -> Floats:
        """The mean squared cosine of the principal angles."""
        return np.asarray((self.cosines**2).mean(axis=-1))

    @property
    def alignment_z(self) -> Floats:
        """That, against random subspaces of the same dimensions."""
        p = self.cosines.shape[-1]
        mean, variance = overlap_moments(self.dimension, p, p)
        return _over(self.alignment * p - mean, np.full(self.alignment.shape, np.sqrt(variance)))


def circuit(A: ArrayLike, B: ArrayLike) -> Circuit:
    """The circuit A B^T of factors [..., d, h]."""
    left, right = (np.asarray(X, dtype=np.float64) for X in (A, B))
    (Q, R), (P, S) = np.linalg.qr(left), np.linalg.qr(right)
    U, singular, Vt = np.linalg.svd(R @ np.swapaxes(S, -1, -2))
    across = np.swapaxes(Q, -1, -2) @ P
    cosines = np.clip(np.linalg.svd(across, compute_uv=False), 0.0, 1.0)
    leading = (U[..., None, :, 0] @ across @ Vt[..., 0, :, None])[..., 0, 0]
    d, h = left.shape[-2:]
    eigenvalues = product_eigenvalues(left, right)[..., : min(d, h)]
    return Circuit(d, h, singular**2, eigenvalues, cosines, leading, (R, S))


def overlap_moments(dimension: int, first: int, second: int) -> tuple[float, float]:
    """Mean p q/n and variance of the sum of squared cosines between random subspaces of p and q dimensions in n.

    A projection less its mean p/n is a traceless symmetric matrix, which rotations carry over all of them alike:
    variance 2 p(n-p) q(n-q) / (n^2 (n-1)(n+2)).
    """
    n, p, q = dimension, first, second
    return p * q / n, 2 * p * (n - p) * q * (n - q) / (n**2 * max(n - 1, 1) * (n + 2))


def wrote(triangle: ArrayLike, W_O: ArrayLike) -> Floats:
    """R W_O [..., h, d] with W_V = Q R: what a head writes, for norms of its products with what reads it."""
    return np.asarray(triangle, dtype=np.float64) @ np.asarray(W_O, dtype=np.float64)


def read(A: ArrayLike, triangle: ArrayLike) -> Floats:
    """A S^T [..., d, h] with B = P S: the circuit A B^T up to a rotation on its far side, as products' norms see it."""
    return np.asarray(A, dtype=np.float64) @ np.swapaxes(np.asarray(triangle, dtype=np.float64), -1, -2)


def composition(writers: ArrayLike, readers: ArrayLike) -> Floats:
    """|C_1 C_2|_F / (|C_1|_F |C_2|_F) for each reader and writer [reader, writer], heads from ``wrote`` and ``read``.

    C_1 = W_V W_O of the earlier head. C_2 is W_Q W_K^T of the later (Q-composition), its transpose (K), or W_V W_O (V).
    """
    first, second = np.asarray(writers, dtype=np.float64), np.asarray(readers, dtype=np.float64)
    (n, i, d), (m, _, j) = first.shape, second.shape
    product = first.reshape(n * i, d) @ second.transpose(1, 0, 2).reshape(d, m * j)
    squares = np.square(product).reshape(n, i, m, j).sum(axis=(1, 3)).T
    norms = ((second**2).sum(axis=(1, 2))[:, None] * (first**2).sum(axis=(1, 2))[None, :]) ** 0.5
    return _over(np.sqrt(squares), norms)


def composition_z(found: ArrayLike, dimension: int, writers: ArrayLike, readers: ArrayLike) -> Floats:
    """Composition against chance: heads of the same shapes and spectra, turned at random against each other.

    Then |C_1 C_2|^2 / (|C_1|^2 |C_2|^2) has mean 1/d, and variance 2/((d-1)(d+2)) (s_1 - 1/d)(s_2 - 1/d) with s the sum
    of sigma^4 over the squared sum of sigma^2; both exactly. ``writers`` and ``readers`` are squared singular values.
    """
    d = dimension
    spreads = [
        (square**2).sum(axis=-1) / np.maximum(square.sum(axis=-1) ** 2, np.finfo(np.float64).tiny) - 1 / d
        for square in (np.asarray(writers, dtype=np.float64), np.asarray(readers, dtype=np.float64))
    ]
    variance = 2 / (max(d - 1, 1) * (d + 2)) * np.maximum(spreads[1][:, None] * spreads[0][None, :], 0.0)
    return _over(np.asarray(found, dtype=np.float64) ** 2 - 1 / d, np.sqrt(variance))


def _over(numerator: Floats, denominator: Floats) -> Floats:
    """The ratio; NaN where there is nothing to compare with."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(denominator > 0, numerator / np.where(denominator > 0, denominator, 1.0), np.nan)
