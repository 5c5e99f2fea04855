"""What softmax makes of Gaussian logits: log-normal moments, ratios, entropy, temperature. Pure numpy, usable alone.

Entropies are in nats. Published claims that these formulas replace are from Wertich (2024), chapters 5 and 8.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import hyp0f1, logsumexp

Floats: TypeAlias = NDArray[np.float64]


def softmax(logits: ArrayLike) -> Floats:
    """exp(x_i) / sum_j exp(x_j) along the last axis."""
    x = np.asarray(logits, dtype=np.float64)
    p: Floats = np.exp(x - logsumexp(x, axis=-1, keepdims=True))
    return p


def entropy(logits: ArrayLike) -> Floats:
    """Entropy of softmax(x): log sum exp(x) - sum p x. From 0 to log n, which all vectors c (1, ..., 1) have."""
    x = np.asarray(logits, dtype=np.float64)
    total = logsumexp(x, axis=-1)
    return np.asarray(total - (softmax(x) * x).sum(axis=-1))


def lognormal_moments(mean: ArrayLike, variance: ArrayLike) -> tuple[Floats, Floats]:
    """Mean exp(mu + s2/2) and variance (exp(s2) - 1) exp(2 mu + s2) of exp(X), X normal.

    (5.1 has exp((mu + s2)/2), which agrees where mu = 0 alone.) With s = s2 small and mu = 0 they are
    1 + s/2 + s^2/8 and s + 3 s^2/2.
    """
    mu, s2 = np.asarray(mean, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    return np.exp(mu + s2 / 2), np.expm1(s2) * np.exp(2 * mu + s2)


def ratio_moments(mean: ArrayLike, cov: ArrayLike, i: int, j: int) -> tuple[Floats, Floats]:
    """Mean and variance of p_i / p_j = exp(x_i - x_j) for jointly Gaussian logits: log-normal with

    mu_i - mu_j and v = s_ii + s_jj - 2 s_ij. (5.20 has exp((mu_i - mu_j + v)/2).) A mean above 1 does not say that i
    is the likelier: E p_i/p_j and E p_j/p_i both exceed 1 where the logits have equal means.
    """
    mu, S = np.asarray(mean, dtype=np.float64), np.asarray(cov, dtype=np.float64)
    return lognormal_moments(mu[..., i] - mu[..., j], S[..., i, i] + S[..., j, j] - 2 * S[..., i, j])


def sphere_ratio_moments(n: int, length: float) -> tuple[float, float]:
    """Mean and variance of p_i / p_j for logits uniform on a sphere of this radius in n dimensions, exactly.

    x_i - x_j is sqrt(2) l times a coordinate of the unit sphere, whence E = 0F1(; n/2; l^2/2) and E of the square =
    0F1(; n/2; 2 l^2). For large n the coordinates are Gaussian of variance s = l^2/n (not l/n): E = exp(s), and the
    variance is (exp(2s) - 1) exp(2s), about 2 s + 6 s^2.
    """
    first, second = (float(hyp0f1(n / 2, c * length**2)) for c in (0.5, 2.0))
    return first, second - first**2


def largest_ratio(length: float) -> float:
    """exp(sqrt(2) l): the largest p_i / p_j that any logits of this length have. So not all distributions are reached.

    Those that are, are reached twice: v and v - 2 mean(v) (1, ..., 1) have equal length and equal softmax.
    """
    return float(np.exp(np.sqrt(2) * length))


def row_entropy(keys: ArrayLike, variance: ArrayLike) -> Floats:
    """Expected entropy of softmax over so many independent Gaussian logits of this variance: log n - s2/2.

    By the moments of sums of log-normals; it holds while s2 < 2 log n. Beyond, a few largest logits own the row
    (Derrida's random energy model), and the entropy per log n is 0.
    """
    n, s2 = np.asarray(keys, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    return np.maximum(np.log(n) - s2 / 2, 0.0)


def softmax_row_concentration(keys: ArrayLike, variance: ArrayLike) -> Floats:
    """Expected sum of the squared probabilities of such a row: exp(s2)/n, and never above 1. (1/n: flat.)"""
    n, s2 = np.asarray(keys, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    return np.asarray(np.exp(np.minimum(s2 - np.log(n), 0.0)))


def softmax_row_moments(keys: ArrayLike, variance: ArrayLike) -> tuple[Floats, Floats]:
    """Expected entropy and sum of squared probabilities of softmax over n independent Gaussian logits, any n and s2.

    Of ``row_entropy`` and ``row_concentration`` these are what holds where n is not large beside exp(s2). With Z = sum
    exp(x_i) and phi(t) = E exp(-t exp(x)), integrals over log t give both:

        E log Z = int (exp(-t) - phi^n) dt/t,    C = E sum p^2 = n int t E[exp(2x - t exp(x))] phi^(n-1) dt,

    and as E x_i p_i = s2 E (p_i - p_i^2) for Gaussians, H = E log Z - s2 (1 - C). Accurate to 1e-3 nats up to s2 = 50.
    """
    n, s2 = np.broadcast_arrays(np.asarray(keys, dtype=np.float64), np.asarray(variance, dtype=np.float64))
    x = np.linspace(-8.5, 8.5, 341)
    weights = np.exp(-(x**2) / 2)
    weights /= weights.sum()
    entropies, squares = np.empty(n.shape), np.empty(n.shape)
    for place in np.ndindex(n.shape):
        count, spread = n[place], np.sqrt(s2[place])
        log_t = np.arange(-np.log(count) - 9 * spread - 25, 9 * spread + 5, 0.15)
        grown = np.minimum(log_t[:, None] + spread * x[None, :], 700.0)
        held = weights * np.exp(-np.exp(grown))
        phi, second = held.sum(axis=1), (np.exp(2 * grown) * held).sum(axis=1)
        log_z = 0.15 * (np.exp(-np.exp(np.minimum(log_t, 700.0))) - phi**count).sum()
        squares[place] = min(1.0, 0.15 * count * (second * phi ** (count - 1)).sum())
        entropies[place] = max(0.0, log_z - s2[place] * (1 - squares[place]))
    return entropies, squares


def log_sum_moments(n: int, variance: float) -> tuple[float, float]:
    """Mean and variance of log sum exp(x_i) of n independent centred Gaussians, by Fenton and Wilkinson's match.

    The sum is taken to be log-normal with the right mean n exp(s2/2) and variance: s_Z^2 = log(1 + (exp(s2) - 1)/n).
    """
    spread = float(np.log1p(np.expm1(variance) / n))
    return float(np.log(n) + variance / 2 - spread / 2), spread


def cross_entropy_gradient(target: ArrayLike, logits: ArrayLike) -> Floats:
    """d H(q, softmax(x)) / dx = p - q, by the whole chain: every p_k depends on x_j.

    (The chain over k = j alone, as printed in 5.2, would give -q_j (1 - p_j).)
    """
    return softmax(logits) - np.asarray(target, dtype=np.float64)


def entropy_slope(logits: ArrayLike, sharpness: float) -> Floats:
    """dH(softmax(a v))/da = -a Var_p(v): entropy falls as logits are scaled up, to one-hot, and is log n at a = 0."""
    v = np.asarray(logits, dtype=np.float64)
    p = softmax(sharpness * v)
    centred = v - (p * v).sum(axis=-1, keepdims=True)
    return np.asarray(-sharpness * (p * centred**2).sum(axis=-1))


def temperature(spectrum_factor: float) -> float:
    """1/a^2: what scaling the singular values of W_Q and of W_K by a does. Logit variance grows by a^4."""
    return 1 / spectrum_factor**2


def scaled_exponential(weight: ArrayLike, value: ArrayLike) -> Floats:
    """exp(w v) to second order in v: w exp(v) + 1 - w + (w^2 - w) v^2 / 2."""
    w, v = np.asarray(weight, dtype=np.float64), np.asarray(value, dtype=np.float64)
    return w * np.exp(v) + 1 - w + (w**2 - w) * v**2 / 2


def mixed_exponential(weights: ArrayLike, values: ArrayLike) -> Floats:
    """exp(sum w_i v_i) to second order: -(n - 1) + sum exp(w_i v_i) + sum over i < j of w_i w_j v_i v_j.

    (5.2 has + (n - 1), which is wrong by 2 (n - 1) at v = 0.)
    """
    x = np.asarray(weights, dtype=np.float64) * np.asarray(values, dtype=np.float64)
    cross = (x.sum(axis=-1) ** 2 - (x**2).sum(axis=-1)) / 2
    return np.asarray(np.exp(x).sum(axis=-1) - (x.shape[-1] - 1) + cross)


def mixed_exponential_cross_variance(weights: ArrayLike, variances: ArrayLike) -> Floats:
    """Variance of the cross term of ``mixed_exponential`` for independent centred Gaussians v_i.

    Sum over i < j of w_i^2 w_j^2 s_i^2 s_j^2. Of weights that sum to 1 it is not the uniform ones that make it largest
    but (1/2, 1/2, 0, ...), with sum w_i^2 w_j^2 = 1/16.
    """
    x = np.asarray(weights, dtype=np.float64) ** 2 * np.asarray(variances, dtype=np.float64)
    return np.asarray((x.sum(axis=-1) ** 2 - (x**2).sum(axis=-1)) / 2)
