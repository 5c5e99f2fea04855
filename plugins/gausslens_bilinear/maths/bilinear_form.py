"""What the bilinear form x^T C y does to Gaussian x and y: its mean, variance, cumulants and generating function.

Pure numpy, usable alone. C is a matrix [n, m], or a pair of factors (A [n, h], B [m, h]) with C = A B^T, which is never
formed: x^T A B^T y = (A^T x)^T (B^T y), so the moments of x and y are carried to h dimensions first. W_Q and W_K
[d_model, d_head] of a head are such a pair. All arrays may have leading dimensions, as heads, which broadcast.

Cov(x, y) is written cov_xy [n, m]. Formulas: Mathai and Provost, "Quadratic Forms in Random Variables" (1992), for
z^T M z with z = (x, y) and M = 1/2 [[0, C], [C^T, 0]].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]
Form: TypeAlias = ArrayLike | tuple[ArrayLike, ArrayLike]
# Of n eigenvalues, those nearer to a number than n times this share of the largest may be that number.
_ROUNDING = 10 * float(np.finfo(np.float64).eps)


def mean(C: Form, mean_x: ArrayLike, mean_y: ArrayLike, cov_yx: ArrayLike | None = None) -> Floats:
    """E x^T C y = mean_x^T C mean_y + Tr(C Cov(y, x)), for any distribution; without cov_yx, of uncorrelated x, y.

    (Wertich 2024, 6.2, has Cov(x, y) in the trace, which is another number unless C or the covariance is symmetric.)
    """
    x, y, across = _vector(mean_x), _vector(mean_y), None if cov_yx is None else _matrix(cov_yx)
    if isinstance(C, tuple):
        A, B = map(_matrix, C)
        x, y = _times(_turned(A), x), _times(_turned(B), y)
        found = _dot(x, y)
        return found if across is None else found + _trace(_turned(B) @ across @ A)
    form = _matrix(C)
    found = _dot(x, _times(form, y))
    return found if across is None else found + _trace(form @ across)


def variance(
    C: Form,
    mean_x: ArrayLike,
    mean_y: ArrayLike,
    cov_xx: ArrayLike,
    cov_yy: ArrayLike,
    cov_xy: ArrayLike | None = None,
) -> Floats:
    """Var x^T C y of jointly Gaussian x and y; without cov_xy, of independent ones (then for any distribution).

    Tr(C Syy C^T Sxx) + Tr(C Syx C Syx) + my^T C^T Sxx C my + mx^T C Syy C^T mx + 2 my^T C^T Sxy C^T mx.
    """
    x, y, xx, yy = _vector(mean_x), _vector(mean_y), _matrix(cov_xx), _matrix(cov_yy)
    xy = None if cov_xy is None else _matrix(cov_xy)
    if isinstance(C, tuple):
        A, B = map(_matrix, C)
        x, y, xx, yy = _times(_turned(A), x), _times(_turned(B), y), _turned(A) @ xx @ A, _turned(B) @ yy @ B
        xy = None if xy is None else _turned(A) @ xy @ B
        # From here on C is the unit matrix.
        found = _trace(yy @ xx) + _dot(y, _times(xx, y)) + _dot(x, _times(yy, x))
        return found if xy is None else found + _trace(xy @ xy) + 2 * _dot(y, _times(xy, x))
    form = _matrix(C)
    Cy, Cx = _times(form, y), _times(_turned(form), x)
    found = _trace(form @ yy @ _turned(form) @ xx) + _dot(Cy, _times(xx, Cy)) + _dot(Cx, _times(yy, Cx))
    if xy is None:
        return found
    mixed = form @ _turned(xy)
    return found + _trace(mixed @ mixed) + 2 * _dot(Cy, _times(xy, Cx))


def cumulants(C: Form, mean: ArrayLike, cov: ArrayLike, order: int = 4) -> Floats:
    """The first cumulants [..., order] of x^T C y, where z = (x, y) is Gaussian with this mean and covariance.

    kappa_r = 2^(r-1) (r-1)! Tr((M S)^r) + 2^(r-1) r! m^T M (S M)^(r-1) m. Of independent centred x and y the odd ones
    are 0 and kappa_4 = 6 Tr((C Syy C^T Sxx)^2). S may be singular: x^T C x is the case y = x.
    """
    if order < 1:
        raise ValueError("the first cumulant is of order 1")
    M, m, S = _joint(C, mean, cov)
    MS, Mm = M @ S, _times(M, m)
    power, vector, found = MS, Mm, []
    for r in range(1, order + 1):
        # vector is M (S M)^(r-1) m = (M S)^(r-1) M m
        found.append(2 ** (r - 1) * (math.factorial(r - 1) * _trace(power) + math.factorial(r) * _dot(m, vector)))
        power, vector = MS @ power, _times(MS, vector)
    return np.stack(found, axis=-1)


def generating_function(C: Form, mean: ArrayLike, cov: ArrayLike, t: float = 1.0) -> Floats:
    """log E exp(t x^T C y) = -1/2 log det(1 - 2 t M S) + t m^T (1 - 2 t M S)^-1 M m; inf where there is no mean.

    At t = 1 it is the mean of exp(logit): infinite as soon as an eigenvalue of 2 M S reaches 1 (independent, centred:
    as soon as the largest singular value of Sxx^(1/2) C Syy^(1/2) does). One that is below it by
    rounding alone has reached it.
    """
    M, m, S = _joint(C, mean, cov)
    root = _root(S)
    # 2 M S has the eigenvalues of the symmetric 2 S^(1/2) M S^(1/2).
    values, vectors = np.linalg.eigh(2 * t * root @ M @ root)
    carried = _times(_turned(vectors), _times(root @ M, m))
    with np.errstate(invalid="ignore", divide="ignore"):
        # m^T (1 - 2tMS)^-1 M m = m^T M m + 2 t (S^(1/2) M m)^T (1 - 2 t S^(1/2) M S^(1/2))^-1 S^(1/2) M m
        quadratic = _dot(m, _times(M, m)) + 2 * t * (carried**2 / (1 - values)).sum(axis=-1)
        found = -0.5 * np.log(1 - values).sum(axis=-1) + t * quadratic
    rounding = _ROUNDING * values.shape[-1] * np.abs(values).max(axis=-1, initial=1.0)
    return np.where(1 - values.max(axis=-1, initial=0.0) > rounding, found, np.inf)


def shape(cumulants: ArrayLike) -> tuple[Floats, Floats]:
    """Skewness and excess kurtosis from the first four cumulants [..., 4]; NaN where the variance is 0."""
    k = np.asarray(cumulants, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return k[..., 2] / k[..., 1] ** 1.5, k[..., 3] / k[..., 1] ** 2


def independent_kurtosis(C: Form, cov_xx: ArrayLike, cov_yy: ArrayLike) -> Floats:
    """Excess kurtosis 6 Tr(K^2) / Tr(K)^2, K = C Syy C^T Sxx, of independent centred x and y: how far from normal.

    6/n for an orthogonal C, 12/n for one of independent entries, 18/n for a product of two such, 6 for rank one. Given
    x the form is exactly normal, with mean x^T C my and variance x^T C Syy C^T x.
    """
    if isinstance(C, tuple):
        A, B = map(_matrix, C)
        K = (_turned(B) @ _matrix(cov_yy) @ B) @ (_turned(A) @ _matrix(cov_xx) @ A)
    else:
        K = _matrix(C) @ _matrix(cov_yy) @ _turned(_matrix(C)) @ _matrix(cov_xx)
    return 6 * _trace(K @ K) / _trace(K) ** 2


def joint(blocks: Sequence[Sequence[ArrayLike]]) -> Floats:
    """[[Sxx, Sxy], [Syx, Syy]] as one matrix, leading dimensions broadcast."""
    arrays = [[_matrix(b) for b in row] for row in blocks]
    lead = np.broadcast_shapes(*(b.shape[:-2] for row in arrays for b in row))
    wide = [[np.broadcast_to(b, lead + b.shape[-2:]) for b in row] for row in arrays]
    return np.concatenate([np.concatenate(row, axis=-1) for row in wide], axis=-2)


def _joint(C: Form, mean: ArrayLike, cov: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """M, m and S; for factors, in the h + h dimensions of A^T x and B^T y."""
    m, S = _vector(mean), _matrix(cov)
    if not isinstance(C, tuple):
        form = _matrix(C)
        return _symmetric(form, form.shape[-2], form.shape[-1]), m, S
    A, B = map(_matrix, C)
    n, h = A.shape[-2], A.shape[-1]
    m = np.concatenate([_times(_turned(A), m[..., :n]), _times(_turned(B), m[..., n:])], axis=-1)
    xy = _turned(A) @ S[..., :n, n:] @ B
    xx, yy = _turned(A) @ S[..., :n, :n] @ A, _turned(B) @ S[..., n:, n:] @ B
    return _symmetric(np.eye(h), h, h), m, joint([[xx, xy], [_turned(xy), yy]])


def _symmetric(C: Floats, n: int, m: int) -> Floats:
    M: Floats = np.zeros((*C.shape[:-2], n + m, n + m))
    M[..., :n, n:], M[..., n:, :n] = C / 2, _turned(C) / 2
    return M


def _root(S: Floats) -> Floats:
    values, vectors = np.linalg.eigh(S)
    found: Floats = (vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]) @ _turned(vectors)
    return found


def _matrix(X: ArrayLike) -> Floats:
    return np.asarray(X, dtype=np.float64)


_vector = _matrix


def _turned(X: Floats) -> Floats:
    return np.swapaxes(X, -1, -2)


def _times(X: Floats, v: Floats) -> Floats:
    found: Floats = (X @ v[..., None])[..., 0]
    return found


def _dot(v: Floats, w: Floats) -> Floats:
    return np.asarray((v * w).sum(axis=-1))


def _trace(X: Floats) -> Floats:
    return np.asarray(np.trace(X, axis1=-2, axis2=-1))
