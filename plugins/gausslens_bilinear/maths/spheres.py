"""Vectors on hyperspheres under bilinear forms: what of their angle reaches the form. Pure numpy, usable alone.

x and y have lengths l1 and l2 in n dimensions, and cosine k. Either the vectors are random and C is given, or C is
random (``s2``: entry variance) and the vectors are given; what holds in one case does not hold in the other. Published
claims that these formulas replace are from Wertich (2024), 6.3.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]


def coordinate_moments(n: int, length: float) -> dict[str, float]:
    """Of a vector uniform on the sphere: E x_i^2, E x_i^4, Cov(x_i, x_j) = 0, Cov(x_i^2, x_j^2).

    (6.36 gives -l^2/(n(n-1)) for the covariance of coordinates; it is the squares that are correlated.)
    """
    square = length**2
    return {
        "square": square / n,
        "fourth": 3 * square**2 / (n * (n + 2)),
        "covariance": 0.0,
        "covariance_of_squares": -2 * square**2 / (n**2 * (n + 2)),
    }


def product_moments(n: int, cosine: ArrayLike) -> tuple[Floats, Floats]:
    """E (v_l w_l)^2 and E (v_l w_m)^2, l != m, of unit vectors at this cosine that are turned at random.

    (1 + 2 k^2)/(n(n+2)), and the rest shared by the n(n-1) other pairs. Var of the sum of v_l w_l over its n places, if
    they were independent, would be n times the first less k^2/n. (6.45 has k^2 and 1/n^2.)
    """
    k = np.asarray(cosine, dtype=np.float64)
    diagonal = (1 + 2 * k**2) / (n + 2)
    return diagonal / n, (1 - diagonal) / (n * (n - 1))


def form_moments(
    C: ArrayLike, cosine: ArrayLike, length_x: float = 1.0, length_y: float = 1.0
) -> tuple[Floats, Floats]:
    """Mean and variance of x^T C y for a given C [n, n], the pair turned at random at this cosine.

    Mean k l1 l2 Tr(C)/n. Second moment, of unit vectors: k^2 a + (1 - k^2)(|C|_F^2/n - a)/(n - 1) with
    a = (Tr(C)^2 + Tr(C^2) + |C|_F^2)/(n(n+2)).
    """
    form = np.asarray(C, dtype=np.float64)
    trace, square = np.trace(form), np.trace(form @ form)
    return traced_moments(len(form), float(trace), float(square), float((form**2).sum()), cosine, length_x, length_y)


def traced_moments(
    n: int,
    trace: float,
    trace_of_square: float,
    squared_norm: float,
    cosine: ArrayLike,
    length_x: float = 1.0,
    length_y: float = 1.0,
) -> tuple[Floats, Floats]:
    """``form_moments`` from n, Tr C, Tr C^2 and |C|_F^2, which factors of C give without forming it."""
    k = np.asarray(cosine, dtype=np.float64)
    aligned = (trace**2 + trace_of_square + squared_norm) / (n * (n + 2))
    across = (squared_norm / n - aligned) / (n - 1)
    scale = length_x * length_y
    mean = k * trace / n
    second = k**2 * aligned + (1 - k**2) * across
    return scale * mean, scale**2 * (second - mean**2)


def angle_share(
    n: int,
    trace: ArrayLike,
    trace_of_square: ArrayLike,
    squared_norm: ArrayLike,
    mean_cosine: float,
    cosine_variance: float,
    weights: ArrayLike = (1.0,),
    biases: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike] = (0.0, 0.0, 0.0, 0.0),
) -> float:
    """The share of the variance of x^T C y that the angle explains: the squared correlation of cosine and form.

    Pairs have cosines of this mean and variance and are turned at random otherwise. C is one of several, of these
    ``weights``, as the forms of a rotary head at its lags; each is told by Tr C, Tr C^2 and |C|_F^2. With one,

        (Tr C/n)^2 Var(k) / ((Tr C/n)^2 Var(k) + E_k Var(form | k)).

    For an untied random C it is about Var(k)/n, so that nothing is left of the angle; for C = 1 it is 1. NaN for C = 0.

    ``biases`` are |u|^2, |v|^2, u^T v and c of what is added to the form, u^T x + v^T y + c: variance that no angle
    tells, (|u|^2 + |v|^2 + 2 k u^T v)/n, and that of c over the forms. (The form is even in (x, y), u^T x is odd.)
    """
    p = np.asarray(weights, dtype=np.float64) / np.sum(weights)
    t, t2, norm, of_x, of_y, mixed, c = (
        np.broadcast_to(np.asarray(a, dtype=np.float64), p.shape)
        for a in (trace, trace_of_square, squared_norm, *biases)
    )
    square = mean_cosine**2 + cosine_variance
    aligned = (t**2 + t2 + norm) / (n * (n + 2))
    mean = mean_cosine * t / n + c
    second = square * aligned + (1 - square) * (norm / n - aligned) / (n - 1) + 2 * c * mean - c**2
    added = (of_x + of_y + 2 * mean_cosine * mixed) / n
    whole = float(p @ (second + added)) - float(p @ mean) ** 2
    explained = cosine_variance * (float(p @ t) / n) ** 2
    return explained / whole if whole > 0 else float("nan")


def random_form_variance(
    x: ArrayLike, y: ArrayLike, s2: float, others: tuple[ArrayLike, ArrayLike] | None = None
) -> float:
    """Variance of x^T C y over a C of independent entries: s2 |x|^2 |y|^2, at every angle between x and y.

    With ``others`` = (v, w), the covariance of x^T C y and v^T C w: s2 <x, v><y, w>. So angles between queries, and
    between keys, matter, and that of a query with a key never. (6.48 has k^2/n + (n-1)/n^2; 6.42 drops covariances.)
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    c, d = (a, b) if others is None else (np.asarray(o, dtype=np.float64) for o in others)
    return float(s2 * (a @ c) * (b @ d))


def random_product_moments(
    x: ArrayLike, y: ArrayLike, inner: int, variance_q: float, variance_k: float, tied: bool = False
) -> tuple[float, float]:
    """Mean and variance of x^T W_Q W_K^T y over random W_Q, W_K with this inner width h.

    Untied: 0 and h s_q s_k |x|^2 |y|^2, with excess kurtosis 6/h. Tied, W_K = W_Q: h s <x, y> and h s^2 (|x|^2 |y|^2 +
    <x, y>^2). Only tying lets the angle through. Attention scales the form by 1/sqrt(h); with LayerNorm |x|^2 = d, and
    with entries of variance 1/d the logits have variance 1.
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    lengths, inside = float((a @ a) * (b @ b)), float(a @ b)
    if tied:
        return inner * variance_q * inside, inner * variance_q**2 * (lengths + inside**2)
    return 0.0, inner * variance_q * variance_k * lengths


def sphere_form_bound(C: ArrayLike, x: ArrayLike, y: ArrayLike) -> tuple[float, float]:
    """Two bounds on |x^T C y|: |C| |x| |y|, and |Tr C/n| |<x, y>| + |C - (Tr C/n) 1| |x| |y|, in the operator norm.

    (6.49 multiplies the first by the cosine of x and y, and so is no bound.)
    """
    form, a, b = (np.asarray(z, dtype=np.float64) for z in (C, x, y))
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    part = float(np.trace(form)) / len(form)
    rest = np.linalg.norm(form - part * np.eye(len(form)), 2)
    return float(np.linalg.norm(form, 2)) * lengths, float(abs(part) * abs(a @ b) + rest * lengths)


# The operator norm of a product of two independent square noises of entry variance 1/n goes to sqrt(27/4) = 2.598.
PRODUCT_NORM = float(np.sqrt(27 / 4))
