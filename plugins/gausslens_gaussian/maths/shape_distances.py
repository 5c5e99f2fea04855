"""Distances between covariances that do not saturate: of scale, of shape, and of what a rotation cannot undo.

Divergences of plain covariances grow with the dimension and with the ratio of the traces until they say nothing. Here
both covariances are scaled to trace 1 first, P = Sp / Tr Sp and Q = Sq / Tr Sq, so that size is one number and shape
another. What so few vectors would give where nothing differs is drawn (``of_equals``). Pure numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gausslens.maths.moments import Floats

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Shapes(NamedTuple):
    """How far two covariances are apart when both have trace 1; all are 0 for covariances that differ in scale alone.

    - ``shape``: the Bures distance, sqrt(2 - 2 Tr (P^1/2 Q P^1/2)^1/2), from 0 to sqrt(2) (no direction in common). It
      is the Frechet distance of the two, and the least |X - Y R| of roots X X^T = P, Y Y^T = Q over rotations R
      (Procrustes; Bhatia, Jain and Lim 2019);
    - ``spectrum``: the least that ``shape`` becomes when Q is rotated, sqrt(sum (sqrt p_i - sqrt q_i)^2) of the sorted
      eigenvalues: 0 for covariances that differ by scale and rotation;
    - ``divergence``: (D(p||q) + D(q||p)) / 2d = (Tr A^-1 B + Tr B^-1 A - 2d) / 4d, of the covariances A and B of trace
      1 shrunken by ``oas``, in nats for each dimension: finite for any number of vectors.
    """

    shape: float
    spectrum: float
    divergence: float


class _Axes(NamedTuple):
    values: Floats
    vectors: Floats


def shape_distances(cov_p: ArrayLike, cov_q: ArrayLike, count_p: float, count_q: float) -> Shapes:
    """All of ``Shapes``, of the covariances of ``count_p`` and ``count_q`` vectors; NaN where one of them is zero."""
    p, q = _axes(unit_trace(cov_p)), _axes(unit_trace(cov_q))
    if not np.isfinite([p.values, q.values]).all():
        return Shapes(float("nan"), float("nan"), float("nan"))
    across = p.vectors.T @ q.vectors
    p_roots, q_roots = np.sqrt(p.values), np.sqrt(q.values)
    # Singular values of P^1/2 Q^1/2, in the axes of both.
    overlap = np.linalg.svd(p_roots[:, None] * across * q_roots, compute_uv=False).sum()
    d = len(p.values)
    a, b = _shrunken(p.values, oas(p.values, count_p)), _shrunken(q.values, oas(q.values, count_q))
    cosines = across**2
    both = float((1 / a) @ cosines @ b + a @ cosines @ (1 / b))
    return Shapes(
        float(np.sqrt(max(2 - 2 * overlap, 0.0))),
        float(np.linalg.norm(p_roots - q_roots)),
        max(both - 2 * d, 0.0) / (4 * d),
    )


def correlation_distance(cov_p: ArrayLike, cov_q: ArrayLike) -> float:
    """The Bures distance of the correlation matrices over d, from 0 to sqrt(2): blind to each coordinate's own scale.

    So a few coordinates of large variance do not own it. Coordinates without variance are correlated with none.
    """
    p, q = (_axes(correlations(cov) / len(np.asarray(cov))) for cov in (cov_p, cov_q))
    roots = np.sqrt(p.values)[:, None] * (p.vectors.T @ q.vectors) * np.sqrt(q.values)
    overlap = np.linalg.svd(roots, compute_uv=False).sum()
    return float(np.sqrt(max(p.values.sum() + q.values.sum() - 2 * overlap, 0.0)))


def scale_log_ratio(cov_p: ArrayLike, cov_q: ArrayLike) -> float:
    """log sqrt(Tr Sp / Tr Sq): how many times wider p is than q, in nats; 0 for equal traces, NaN where one is 0."""
    p, q = (float(np.trace(np.asarray(cov))) for cov in (cov_p, cov_q))
    return float(0.5 * np.log(p / q)) if p > 0 and q > 0 else float("nan")


def mean_shift(
    mean_p: ArrayLike, cov_p: ArrayLike, mean_q: ArrayLike, cov_q: ArrayLike, count_p: float, count_q: float
) -> float:
    """|mp / sqrt(Tr Sp) - mq / sqrt(Tr Sq)|^2 - 1/n_p - 1/n_q: squared distance of means, each in its own unit.

    The mean of n vectors scatters by Tr S / n, which is subtracted: so means that are equal give 0 on average.
    """
    if min(np.trace(np.asarray(cov)) for cov in (cov_p, cov_q)) <= 0:
        return float("nan")  # without spread there is no unit
    p, q = (np.asarray(m) / np.sqrt(np.trace(np.asarray(c))) for m, c in ((mean_p, cov_p), (mean_q, cov_q)))
    return float(((p - q) ** 2).sum() - 1 / count_p - 1 / count_q)


def covariance_cosine(cov_p: ArrayLike, cov_q: ArrayLike, count_p: float, count_q: float) -> float:
    """Tr(Sp Sq) / sqrt(Tr Sp^2 Tr Sq^2), each of the three unbiased for Gaussian vectors: 1 for equal shapes.

    With nu = n - 1, E Tr S^2 = (nu + 1)/nu Tr Sigma^2 + Tr^2 Sigma / nu, so Tr Sigma^2 is estimated by nu^2 / ((nu - 1)
    (nu + 2)) (Tr S^2 - Tr^2 S / nu) (Srivastava 2005); so it holds with fewer vectors than dimensions too. It may come
    out a little above 1. NaN where an estimate is not positive, or where there are fewer than three vectors.
    """
    P, Q = np.asarray(cov_p, dtype=np.float64), np.asarray(cov_q, dtype=np.float64)
    squares = _square_trace(P, count_p) * _square_trace(Q, count_q)
    return float((P * Q).sum() / np.sqrt(squares)) if squares > 0 else float("nan")


def oas(eigenvalues: ArrayLike, count: float) -> float:
    """How far a covariance of these eigenvalues goes towards its mean eigenvalue: from 0, not at all, to 1.

        rho = [(1 - 2/d) Tr S^2 + Tr^2 S] / [(nu + 1 - 2/d) (Tr S^2 - Tr^2 S / d)],  at most 1,  nu = n - 1

    The oracle approximating shrinkage of Chen, Wiesel, Eldar and Hero (2010) for Gaussian vectors. Unlike that of
    Ledoit and Wolf (2004) it needs no fourth moments, only S and n. Of heavy tails it shrinks too little.
    """
    values = np.asarray(eigenvalues, dtype=np.float64)
    d, nu = len(values), count - 1
    squares, square = float((values**2).sum()), float(values.sum()) ** 2
    apart = (nu + 1 - 2 / d) * (squares - square / d)
    return min(1.0, ((1 - 2 / d) * squares + square) / apart) if apart > 1e-12 * square else 1.0


class OfEquals(NamedTuple):
    """What equal Gaussians give on average, at so many vectors: the floor under a distance that is not corrected."""

    shape: float
    spectrum: float
    divergence: float
    correlation: float


def of_equals(
    cov_p: ArrayLike, cov_q: ArrayLike, count_p: float, count_q: float, pairs: int, rng: np.random.Generator
) -> OfEquals:
    """Means over ``pairs`` of sample covariances of one Gaussian: the pooled one of trace 1, or it shrunken by ``oas``.

    A pooled spectrum is wider than the true one and a shrunken one narrower; the larger mean of the two is taken, so
    that the floor is not too low. Wishart matrices stand for vectors. Where d is large one pair is as good as many:
    above 128 dimensions there are 512 / d, at least one. All vectors count as independent; tokens of one prompt are
    not, and the true floor is higher.
    """
    pooled = (count_p * unit_trace(cov_p) + count_q * unit_trace(cov_q)) / (count_p + count_q)
    axes = _axes(pooled)
    if not np.isfinite(axes.values).all():
        return OfEquals(*[float("nan")] * 4)
    means = []
    for values in (axes.values, _shrunken(axes.values, oas(axes.values, count_p + count_q - 1))):
        root = np.sqrt(values)[:, None] * axes.vectors.T
        found = []
        for _ in range(max(1, min(pairs, 512 // len(values)))):
            P, Q = (root.T @ wishart(len(root), round(count) - 1, rng) @ root for count in (count_p, count_q))
            found.append((*shape_distances(P, Q, count_p, count_q), correlation_distance(P, Q)))
        means.append(np.mean(found, axis=0))
    return OfEquals(*np.maximum(*means).tolist())


def wishart(d: int, degrees: int, rng: np.random.Generator) -> Floats:
    """T T^T / nu, the unbiased sample covariance of standard Gaussian vectors with ``degrees`` nu of freedom.

    T is triangular with the roots of chi-squared numbers of nu, nu - 1, ... degrees on its diagonal and standard normal
    numbers below (Bartlett 1933); with fewer degrees than dimensions it is d x nu, all normal.
    """
    if degrees < d:
        T = rng.standard_normal((d, degrees))
    else:
        T = np.tril(rng.standard_normal((d, d)), -1)
        T[np.arange(d), np.arange(d)] = np.sqrt(rng.chisquare(degrees - np.arange(d)))
    found: Floats = T @ T.T / degrees
    return found


def unit_trace(cov: ArrayLike) -> Floats:
    """S / Tr S; all NaN where S is zero: it has no shape."""
    S = np.asarray(cov, dtype=np.float64)
    trace = np.trace(S)
    found: Floats = (S + S.T) / (2 * trace) if trace > 0 else np.full_like(S, np.nan)
    return found


def correlations(cov: ArrayLike) -> Floats:
    """The correlation matrix; 1 on the diagonal, 0 elsewhere for a coordinate without variance."""
    S = np.asarray(cov, dtype=np.float64)
    spread = np.sqrt(np.diag(S))
    units = np.where(spread > 0, spread, 1.0)
    R: Floats = (S + S.T) / 2 / units[:, None] / units
    R[np.arange(len(R)), np.arange(len(R))] = 1.0
    return R


def _axes(cov: Floats) -> _Axes:
    """Eigenvalues, largest first and none below zero, and eigenvectors as columns; all NaN of a matrix of NaN."""
    if not np.isfinite(cov).all():
        return _Axes(np.full(len(cov), np.nan), np.full_like(cov, np.nan))
    values, vectors = np.linalg.eigh(cov)
    return _Axes(np.clip(values[::-1], 0.0, None), vectors[:, ::-1])


def _shrunken(values: Floats, rho: float) -> Floats:
    found: Floats = (1 - rho) * values + rho * values.mean()
    return found


def _square_trace(S: Floats, count: float) -> float:
    nu = count - 1
    if nu <= 1:
        return float("nan")
    return float(nu**2 / ((nu - 1) * (nu + 2)) * ((S * S).sum() - np.trace(S) ** 2 / nu))
