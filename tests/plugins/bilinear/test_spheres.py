"""Hyperspheres and random forms: each formula against draws or an identity, beside the published one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gausslens_bilinear.maths import spheres


def pairs(rng: np.random.Generator, draws: int, n: int, k: float) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors at cosine k, turned at random."""
    v, u = rng.normal(size=(2, draws, n))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    u -= (u * v).sum(axis=1, keepdims=True) * v
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    return v, k * v + np.sqrt(1 - k**2) * u


def test_coordinates(judge: Any, rng: Any) -> None:
    n, length = 7, 2.0
    x = length * pairs(rng, 400_000, n, 0)[0]
    right = spheres.coordinate_moments(n, length)
    judge.mean(x[:, 0] ** 2, right["square"])
    judge.mean(x[:, 0] ** 4, right["fourth"])
    judge.mean(x[:, 0] * x[:, 1], right["covariance"], -(length**2) / (n * (n - 1)))
    squares = x**2 - right["square"]
    judge.mean(squares[:, 0] * squares[:, 1], right["covariance_of_squares"])


@pytest.mark.parametrize("k", [-0.6, 0.0, 0.5, 0.8, 1.0])
def test_pairs_at_an_angle(k: float, judge: Any, rng: Any) -> None:
    n, l1, l2 = 7, 1.5, 2.0
    v, w = pairs(rng, 300_000, n, k)
    judge.mean(l1 * v[:, 0] * l2 * w[:, 0], k * l1 * l2 / n)
    judge.mean(v[:, 0] * w[:, 1], 0.0)
    same, other = spheres.product_moments(n, k)
    judge.mean((v[:, 0] * w[:, 0]) ** 2, same)
    judge.mean((v[:, 0] * w[:, 1]) ** 2, other, None if k in (0.0,) else 1 / n**2)
    judge(((v * w).var(axis=0)).sum(), 0.004, (1 + 2 * k**2) / (n + 2) - k**2 / n, k**2)
    C = rng.normal(size=(n, n))
    values = l1 * l2 * ((v @ C) * w).sum(axis=1)
    mean, variance = spheres.form_moments(C, k, l1, l2)
    judge.mean(values, mean)
    judge.variance(values, variance)


@pytest.mark.parametrize("k", [0.0, 0.5, 1.0])
def test_random_forms_do_not_know_the_angle(k: float, judge: Any, rng: Any) -> None:
    n, draws = 16, 60_000
    x, y = (one[0] for one in pairs(rng, 1, n, k))
    C = rng.normal(0, 1 / np.sqrt(n), (draws, n, n))
    values = np.einsum("i,dij,j->d", x, C, y)
    judge.variance(values, spheres.random_form_variance(x, y, 1 / n), k**2 / n + (n - 1) / n**2 if k else None)
    # Within the published formula, too, the angle is not what counts once k > 1/n: k^2/n > (n-1)/n^2 needs k near 1.
    assert 0.5**2 / n < (n - 1) / n**2


def test_mixtures_keep_covariances(judge: Any, rng: Any) -> None:
    n, draws = 12, 60_000
    x, y = rng.normal(size=(2, 3, n)) / np.sqrt(n)
    x[1], y[1] = 0.9 * x[0] + 0.1 * x[1], 0.9 * y[0] + 0.1 * y[1]
    C = rng.normal(0, 1 / np.sqrt(n), (draws, n, n))
    lam, mu = np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.3, 0.1])
    mixed = np.einsum("i,dij,j->d", lam @ x, C, mu @ y)
    terms = sum(
        (lam[i] * mu[j]) ** 2 * spheres.random_form_variance(x[i], y[j], 1 / n) for i in range(3) for j in range(3)
    )
    judge.variance(mixed, spheres.random_form_variance(lam @ x, mu @ y, 1 / n), terms)
    first, second = np.einsum("i,dij,j->d", x[0], C, y[0]), np.einsum("i,dij,j->d", x[1], C, y[1])
    judge.mean(first * second, spheres.random_form_variance(x[0], y[0], 1 / n, (x[1], y[1])))


@pytest.mark.parametrize("tied", [False, True])
def test_only_tied_weights_let_the_angle_through(tied: bool, judge: Any, rng: Any) -> None:
    n, h, draws = 20, 5, 40_000
    x, y = (3 * one[0] for one in pairs(rng, 1, n, 0.6))
    s_q, s_k = 0.4, 0.4 if tied else 0.7
    W_Q = rng.normal(0, np.sqrt(s_q), (draws, n, h))
    W_K = W_Q if tied else rng.normal(0, np.sqrt(s_k), (draws, n, h))
    values = ((x @ W_Q) * (y @ W_K)).sum(axis=1)
    mean, variance = spheres.random_product_moments(x, y, h, s_q, s_k, tied)
    judge.mean(values, mean)
    judge.variance(values, variance)
    if not tied:
        judge.mean((values / np.sqrt(variance)) ** 4, 3 + 6 / h, 3.0)


@pytest.mark.parametrize("k", [0.0, 0.6])
def test_norms_of_queries_and_keys_make_forms_bounded_and_light_tailed(k: float, judge: Any, rng: Any) -> None:
    """Of random untied weights q and k, both of length sqrt(h), are independent on spheres, whatever x and y are."""
    n, h, draws = 20, 8, 60_000
    x, y = (3 * one[0] for one in pairs(rng, 1, n, k))
    W_Q, W_K = rng.normal(0, [[[0.4]], [[0.7]]], (draws, 2, n, h)).swapaxes(0, 1)
    q, key = (np.sqrt(h) * one / np.linalg.norm(one, axis=1, keepdims=True) for one in (x @ W_Q, y @ W_K))
    values = (q * key).sum(axis=1) / np.sqrt(h)
    assert abs(values).max() <= np.sqrt(h)
    judge.mean(values, 0.0, np.sqrt(h) * k if k else None)
    judge.variance(values, 1.0)
    # Without norms it is 3 + 6/h: norms turn the sign, and no angle gets through either way.
    judge.mean(values**4, 3 * h / (h + 2), 3 + 6 / h)


def test_the_share_of_the_angle(judge: Any, rng: Any) -> None:
    """For a given C the share is the squared correlation of cosine and form; for random untied ones about Var(k)/n."""
    n, draws = 10, 20_000
    cosines = rng.uniform(-1, 1, 40)
    C = rng.normal(size=(n, n)) + 0.5 * np.eye(n)
    drawn = [pairs(rng, draws, n, k) for k in cosines]
    form = np.concatenate([((v @ C) * w).sum(axis=1) for v, w in drawn])
    found = np.corrcoef(np.repeat(cosines, draws), form)[0, 1] ** 2
    known = (float(np.trace(C)), float(np.trace(C @ C)), float((C**2).sum()))
    assert found == pytest.approx(spheres.angle_share(n, *known, cosines.mean(), cosines.var()), rel=0.03)
    assert spheres.angle_share(n, n, n, n, cosines.mean(), cosines.var()) == pytest.approx(1)
    n = 200
    shares = []
    for _ in range(40):
        C = rng.normal(size=(n, n))
        known = (float(np.trace(C)), float(np.trace(C @ C)), float((C**2).sum()))
        shares.append(spheres.angle_share(n, *known, cosines.mean(), cosines.var()))
    # "Angular information is preserved": it would be a share near 1.
    judge.mean(np.array(shares), cosines.var() / n, 1.0)
    assert np.isnan(spheres.angle_share(n, 0, 0, 0, 0.1, 0.2))
    # Over random C the mean over the data, k Tr(C)/n, has variance k^2 s2 / n per unit of |x|^2 |y|^2.
    means = [spheres.form_moments(rng.normal(0, 1 / np.sqrt(20), (20, 20)), 0.5)[0] for _ in range(20_000)]
    judge.variance(np.array(means), 0.5**2 / 20**2)


@pytest.mark.parametrize("n", [64, 256])
def test_bounds(n: int, rng: Any) -> None:
    A, B = rng.normal(0, 1 / np.sqrt(n), (2, n, n))
    C = A @ B.T
    v, w = rng.normal(size=(2, 20_000, n))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    w /= np.linalg.norm(w, axis=1, keepdims=True)
    forms, cosines = np.abs(((v @ C) * w).sum(axis=1)), np.abs((v * w).sum(axis=1))
    for x, y, found in zip(v[:50], w[:50], forms[:50], strict=True):
        plain, aware = spheres.sphere_form_bound(C, x, y)
        assert found <= plain * (1 + 1e-12)
        assert found <= aware * (1 + 1e-12)
    # With the cosine and the published factor |W_q| |W_k| = 4 it is broken by one pair in six.
    broken = (forms > 4 * cosines).mean()
    assert broken == pytest.approx(2 / np.pi * np.arctan(0.25), abs=0.02)


def test_a_diagonal_form_meets_the_angle_aware_bound(rng: Any) -> None:
    x, y = rng.normal(size=(2, 9))
    plain, aware = spheres.sphere_form_bound(3 * np.eye(9), x, y)
    assert aware == pytest.approx(3 * abs(x @ y))
    assert plain == pytest.approx(3 * np.linalg.norm(x) * np.linalg.norm(y))


def test_the_norm_of_a_product_of_noise(rng: Any) -> None:
    n = 500
    A, B = rng.normal(0, 1 / np.sqrt(n), (2, n, n))
    assert np.linalg.norm(A.T @ B, 2) == pytest.approx(spheres.PRODUCT_NORM, rel=0.02)
    assert spheres.PRODUCT_NORM < 0.7 * 4


@pytest.mark.parametrize("apart", [0.0, 0.6])
def test_what_biases_add_to_a_form_no_angle_tells(apart: float, judge: Any, rng: Any) -> None:
    """Pairs turned at random at cosines of two values, under one of two forms with biases, as at two lags."""
    n, draws, p = 6, 200_000, np.array([0.3, 0.7])
    C, u, v = rng.normal(size=(2, n, n)), rng.normal(size=(2, n)), rng.normal(size=(2, n))
    c = np.array([0.4, -0.8])
    x, w = pairs(rng, draws, n, 0)
    k = apart * rng.choice([-1.0, 1.0], draws) + 0.2
    y = k[:, None] * x + np.sqrt(1 - k**2)[:, None] * w
    which = (rng.random(draws) < p[1]).astype(int)
    form = np.einsum("sn,snm,sm->s", x, C[which], y) + (u[which] * x).sum(1) + (v[which] * y).sum(1) + c[which]
    numbers = np.trace(C, axis1=1, axis2=2), np.trace(C @ C, axis1=1, axis2=2), (C**2).sum((1, 2))
    biases = (u**2).sum(1), (v**2).sum(1), (u * v).sum(1), c
    spread = apart**2 if apart else 1e-12
    found = spheres.angle_share(n, *numbers, 0.2, spread, p, biases)
    # The whole variance, which the share has below it, is measured to some sqrt((kurtosis + 2)/N), .5 %.
    explained = spread * (p @ numbers[0] / n) ** 2
    judge.variance(form, explained / found)
    if apart:
        measured = np.corrcoef(k, form)[0, 1] ** 2
        assert measured == pytest.approx(found, abs=4 * 2 * np.sqrt(found / draws))
        assert spheres.angle_share(n, *numbers, 0.2, spread, p) > 1.3 * found
