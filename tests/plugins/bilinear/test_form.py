"""The bilinear form of Gaussians: formulas against draws, factors against full matrices, published claims beside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens_bilinear.maths import bilinear_form as form

DRAWS = 1_000_000


def planted(rng: np.random.Generator, n: int, m: int, centred: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of a dependent z = (x, y)."""
    L = rng.normal(size=(n + m, n + m)) / np.sqrt(n + m)
    return np.zeros(n + m) if centred else 0.7 * rng.normal(size=n + m), L @ L.T


def parts(mean: np.ndarray, S: np.ndarray, n: int) -> tuple[np.ndarray, ...]:
    """mean_x, mean_y, Sxx, Syy, Sxy."""
    return mean[:n], mean[n:], S[:n, :n], S[n:, n:], S[:n, n:]


def drawn(rng: np.random.Generator, C: np.ndarray, mean: np.ndarray, S: np.ndarray) -> np.ndarray:
    z = rng.multivariate_normal(mean, S, DRAWS, method="cholesky")
    n = C.shape[0]
    return ((z[:, :n] @ C) * z[:, n:]).sum(axis=1)


@pytest.mark.parametrize("seed", [0, 1])
def test_mean_and_variance_of_dependent_vectors(seed: int, judge: Any) -> None:
    rng = np.random.default_rng(seed)
    C = rng.normal(size=(4, 4))
    mean, S = planted(rng, 4, 4)
    mx, my, xx, yy, xy = parts(mean, S, 4)
    values = drawn(rng, C, mean, S)
    right = form.mean(C, mx, my, xy.T)
    judge.mean(values, right, mx @ C @ my + np.trace(C @ xy))
    independent = form.variance(C, mx, my, xx, yy)
    judge.variance(values, form.variance(C, mx, my, xx, yy, xy), independent)
    np.testing.assert_allclose(form.cumulants(C, mean, S)[:2], [right, form.variance(C, mx, my, xx, yy, xy)], rtol=1e-9)


def test_the_transposed_covariance_is_another_number() -> None:
    C, Syx = np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0, 0.5], [1.5, 0.0]])
    zero = np.zeros(2)
    assert form.mean(C, zero, zero, Syx) == pytest.approx(1.5)
    assert np.trace(C @ Syx.T) == pytest.approx(0.5)


def test_independent_vectors_of_any_shape(judge: Any, rng: Any) -> None:
    """The variance holds for any distribution, as uniform noise here, if x and y are independent."""
    n, m = 5, 3
    C, A, B = rng.normal(size=(n, m)), rng.normal(size=(n, n)), rng.normal(size=(m, m))
    mx, my = rng.normal(size=n), rng.normal(size=m)
    x = mx + rng.uniform(-np.sqrt(3), np.sqrt(3), (DRAWS, n)) @ A.T
    y = my + rng.uniform(-np.sqrt(3), np.sqrt(3), (DRAWS, m)) @ B.T
    values = ((x @ C) * y).sum(axis=1)
    judge.mean(values, form.mean(C, mx, my))
    judge.variance(values, form.variance(C, mx, my, A @ A.T, B @ B.T))
    # Frobenius: unit covariances, and diagonal ones.
    zero_n, zero_m = np.zeros(n), np.zeros(m)
    sx, sy = rng.uniform(0.5, 2, n), rng.uniform(0.5, 2, m)
    judge.exactly(form.variance(C, zero_n, zero_m, np.eye(n), np.eye(m)), (C**2).sum())
    judge.exactly(form.variance(C, zero_n, zero_m, np.diag(sx), np.diag(sy)), (sx[:, None] * sy * C**2).sum())


def test_dependence_that_the_independent_formula_misses(judge: Any) -> None:
    """C = 1, S = 1, Sxy = rho: 1 + rho^2 per dimension."""
    zero, one, rho = np.zeros(6), np.eye(6), 0.6
    judge.exactly(
        form.variance(one, zero, zero, one, one, rho * one), 6 * 1.36, form.variance(one, zero, zero, one, one)
    )


def test_self_pairs_see_the_symmetric_part(judge: Any, rng: Any) -> None:
    A, B = rng.normal(size=(2, 3, 4))
    C = A.T @ B
    mean, S = planted(rng, 4, 0)
    x = rng.multivariate_normal(mean, S, DRAWS)
    values = ((x @ A.T) * (x @ B.T)).sum(axis=1)
    both, twice = np.concatenate([mean, mean]), form.joint([[S, S], [S, S]])
    half = (C + C.T) / 2
    judge.mean(values, np.trace(C @ S) + mean @ C @ mean)
    right = 2 * np.trace(half @ S @ half @ S) + 4 * mean @ half @ S @ half @ mean
    judge.variance(values, right)
    for one in (C, half, (A.T, B.T)):
        judge.exactly(form.cumulants(one, both, twice)[:2], [np.trace(C @ S) + mean @ C @ mean, right])
        judge.exactly(form.variance(one, mean, mean, S, S, S), right)


@pytest.mark.parametrize("centred", [False, True])
def test_third_and_fourth_cumulants(centred: bool, judge: Any) -> None:
    rng = np.random.default_rng(7)
    C = rng.normal(size=(3, 3))
    mean, S = planted(rng, 3, 3, centred)
    values = drawn(rng, C, mean, S)
    k = form.cumulants(C, mean, S)
    centre = values - values.mean()
    for power, right in ((3, k[2]), (4, k[3] + 3 * k[1] ** 2)):
        judge.mean(centre**power, right)
    skewness, kurtosis = form.shape(k)
    assert skewness == pytest.approx(k[2] / k[1] ** 1.5)
    assert kurtosis == pytest.approx(k[3] / k[1] ** 2)


@given(seed=st.integers(0, 2**31), t=st.floats(0.1, 0.9))
def test_cumulants_are_derivatives_of_the_generating_function(seed: int, t: float) -> None:
    rng = np.random.default_rng(seed)
    C = rng.normal(size=(2, 3))
    mean, S = planted(rng, 2, 3)
    k = form.cumulants(C, mean, S, 6)
    M = np.zeros((5, 5))
    M[:2, 2:], M[2:, :2] = C / 2, C.T / 2
    radius = 1 / np.abs(np.linalg.eigvals(2 * M @ S)).max()
    t *= 0.02 * radius
    series = sum(k[r - 1] * t**r / float(np.prod(np.arange(1, r + 1))) for r in range(1, 7))
    assert form.generating_function(C, mean, S, t) == pytest.approx(series, rel=1e-6, abs=1e-9 * abs(k[0] * t) + 1e-15)


def test_the_mean_of_exp_logit(judge: Any, rng: Any) -> None:
    s = np.array([0.6, 0.3, 0.2])
    u, v = (np.linalg.qr(rng.normal(size=(3, 3)))[0] for _ in range(2))
    C, zero, one = u * s @ v.T, np.zeros(6), np.eye(6)
    exact = np.exp(form.generating_function(C, zero, one))
    judge.exactly(exact, np.prod((1 - s**2) ** -0.5), np.exp((s**2).sum() / 2))  # not log-normal
    values = drawn(rng, C * 0.7, zero, one)
    judge.mean(np.exp(values), np.exp(form.generating_function(C * 0.7, zero, one)))
    assert form.generating_function(C / 0.6, zero, one) == np.inf
    assert np.isfinite(form.generating_function(C / 0.61, zero, one))


def test_forms_are_normal_given_the_query_and_nearly_so_where_the_rank_is_large(judge: Any, rng: Any) -> None:
    n = 400
    orthogonal = np.linalg.qr(rng.normal(size=(n, n)))[0]
    ginibre = rng.normal(size=(n, n))
    product = rng.normal(size=(n, n)).T @ rng.normal(size=(n, n))
    one = np.eye(n)
    for C, right, off in ((orthogonal, 6, 1e-9), (ginibre, 12, 0.1), (product, 18, 0.3)):
        assert n * form.independent_kurtosis(C, one, one) == pytest.approx(right, abs=off)
    rank_one = np.outer(rng.normal(size=n), rng.normal(size=n))
    assert form.independent_kurtosis(rank_one, one, one) == pytest.approx(6)
    S = np.diag(rng.uniform(0.2, 2, n))
    full = form.joint([[S, 0 * S], [0 * S, one]])
    k = form.cumulants(ginibre, np.zeros(2 * n), full)
    assert k[3] / k[1] ** 2 == pytest.approx(float(form.independent_kurtosis(ginibre, S, one)))
    assert np.abs(k[[0, 2]]).max() < 1e-9 * k[1] ** 1.5
    # A spiked spectrum is far from normal at the same size.
    s = np.ones(256)
    s[:2] = 16
    assert form.independent_kurtosis(np.diag(s), np.eye(256), np.eye(256)) > 20 * 6 / 256
    # Given the query it is exactly normal.
    x, my, B = rng.normal(size=3), rng.normal(size=3), rng.normal(size=(3, 3))
    C = rng.normal(size=(3, 3))
    values = (my + rng.normal(size=(DRAWS, 3)) @ B.T) @ (C.T @ x)
    judge.mean(values, x @ C @ my)
    judge.variance(values, x @ C @ B @ B.T @ C.T @ x)
    judge.mean(((values - values.mean()) / values.std()) ** 4, 3.0)


def test_products_of_normals_are_no_chi_squares(judge: Any, rng: Any) -> None:
    x, y = rng.normal(size=(2, DRAWS))
    judge.mean((x * y) ** 3, 0.0, np.sqrt(8))  # chi-squared of one degree has skewness sqrt 8
    judge.mean((x * y) ** 4, 9.0)  # product-normal: excess kurtosis 6
    entries = np.einsum("dij,dij->dj", *rng.normal(size=(2, 50_000, 8, 1)))[:, 0]
    judge.mean((entries / np.sqrt(8)) ** 3, 0.0)
    k = form.cumulants(np.eye(1), np.zeros(2), np.eye(2))
    np.testing.assert_allclose(k, [0, 1, 0, 6], atol=1e-12)


def test_what_the_trace_says_of_the_columns(judge: Any) -> None:
    one, half = np.eye(4), np.diag([1.0, 1, -1, -1])
    # Tr(A^T B) = 0 does not make columns orthogonal: here all are parallel or opposite.
    assert np.trace(one.T @ half) == 0
    assert np.abs((one * half).sum(axis=0)).min() == 1
    # Aligned columns make the mean of the form large, orthogonal ones make it 0.
    S, zero = np.diag([4.0, 3, 2, 1]), np.zeros(4)
    judge.exactly(
        form.mean(one.T @ one, zero, zero, S), 10.0, form.mean(one.T @ np.roll(one, 1, axis=1), zero, zero, S)
    )
    # Orthogonal A, B with Tr(A^T B) = n are equal.
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    assert np.trace(Q.T @ Q) == pytest.approx(4)
    # Squared column lengths sum to the squared singular values; one by one they are others.
    A = np.random.default_rng(1).normal(size=(4, 4))
    lengths, values = np.sort((A**2).sum(axis=0)), np.sort(np.linalg.svd(A, compute_uv=False) ** 2)
    judge.exactly(lengths.sum(), values.sum())
    assert np.abs(lengths - values).max() > 0.1


def test_a_token_does_not_attend_to_itself_by_chance(judge: Any, rng: Any) -> None:
    """Over untied random C the self score has mean 0 and the variance of any other pair; scaling finds the argmax."""
    n, draws = 64, 4000
    x, y = (v / np.linalg.norm(v) for v in rng.normal(size=(2, n)))
    C = rng.normal(0, 1 / np.sqrt(n), (draws, n, n))
    for pair in (x, y):
        values = np.einsum("i,dij,j->d", x, C, pair)
        judge.mean(values, 0.0, 1.0 if pair is x else None)
        judge.variance(values, 1 / n)
    keys = np.vstack([x, rng.normal(size=(15, n)) / np.sqrt(n)])
    picks = (np.einsum("i,dij,kj->dk", x, C, keys) * 1e6).argmax(axis=1)
    assert (picks == 0).mean() < 0.2


@given(seed=st.integers(0, 2**31), n=st.integers(1, 7), m=st.integers(1, 7), h=st.integers(1, 4))
def test_factors_and_full_matrices_agree(seed: int, n: int, m: int, h: int) -> None:
    rng = np.random.default_rng(seed)
    A, B = rng.normal(size=(2, n, h)), rng.normal(size=(2, m, h))
    mean, S = zip(*(planted(rng, n, m) for _ in range(2)), strict=True)
    z, S = np.stack(mean), np.stack(S)
    C = A @ np.swapaxes(B, -1, -2)
    mx, my, xx, yy, xy = z[:, :n], z[:, n:], S[:, :n, :n], S[:, n:, n:], S[:, :n, n:]
    yx = np.swapaxes(xy, -1, -2)
    pairs = [
        (form.mean((A, B), mx, my, yx), form.mean(C, mx, my, yx)),
        (form.variance((A, B), mx, my, xx, yy, xy), form.variance(C, mx, my, xx, yy, xy)),
        (form.variance((A, B), mx, my, xx, yy), form.variance(C, mx, my, xx, yy)),
        (form.cumulants((A, B), z, S), form.cumulants(C, z, S)),
        (form.independent_kurtosis((A, B), xx, yy), form.independent_kurtosis(C, xx, yy)),
        (form.generating_function((A, B), z, S, 1e-3), form.generating_function(C, z, S, 1e-3)),
    ]
    for found, wanted in pairs:
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-10 * np.abs(wanted).max())


def test_there_is_no_cumulant_of_order_0() -> None:
    with pytest.raises(ValueError, match="order 1"):
        form.cumulants(np.eye(1), np.zeros(2), np.eye(2), 0)
