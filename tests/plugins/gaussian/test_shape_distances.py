"""Distances of scale and shape, what few vectors do to them, and divergences corrected for it: known answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import orthogonal_procrustes, sqrtm

from gausslens_gaussian.maths.information import gaussian_kl
from gausslens_gaussian.maths.information_from_samples import corrected_kl, kl_of_equals
from gausslens_gaussian.maths.shape_distances import (
    correlation_distance,
    correlations,
    covariance_cosine,
    mean_shift,
    oas,
    of_equals,
    scale_log_ratio,
    shape_distances,
    unit_trace,
    wishart,
)

Pair = tuple[np.ndarray, np.ndarray]


def covariance(d: int, rng: np.random.Generator, spread: float = 1.0) -> np.ndarray:
    """Random axes, log-normal eigenvalues."""
    Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return np.asarray((Q * np.exp(spread * rng.normal(size=d))) @ Q.T)


def rotated(S: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    Q = np.linalg.qr(rng.normal(size=S.shape))[0]
    return np.asarray(Q @ S @ Q.T)


def fitted(S: np.ndarray, n: int, rng: np.random.Generator, mean: float = 0.0) -> Pair:
    X = rng.normal(size=(n, len(S))) @ np.linalg.cholesky(S).T + mean
    return X.mean(axis=0), np.atleast_2d(np.cov(X.T))


def mean_and_error(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))


def test_scale_alone_is_seen_by_the_scale_alone() -> None:
    rng = np.random.default_rng(0)
    S, mean = covariance(7, rng), rng.normal(size=7)
    found = shape_distances(9 * S, S, 50, 50)
    # Roots of rounding errors: sqrt(7 eps) = 4e-8.
    np.testing.assert_allclose(found, 0, atol=2e-7)
    assert correlation_distance(9 * S, S) == pytest.approx(0, abs=2e-7)
    assert scale_log_ratio(9 * S, S) == pytest.approx(np.log(3))
    assert mean_shift(3 * mean, 9 * S, mean, S, 50, 50) == pytest.approx(-2 / 50)
    # Where the plain divergence says only that they differ.
    assert gaussian_kl(mean, 1e8 * S, mean, S) > 1e8


def test_a_rotation_is_seen_by_the_shape_and_not_by_the_spectrum() -> None:
    rng = np.random.default_rng(1)
    S = covariance(7, rng)
    found = shape_distances(rotated(S, rng), S, 50, 50)
    assert found.shape > 0.1
    assert found.divergence > 0.05
    assert found.spectrum == pytest.approx(0, abs=1e-7)


def test_the_shape_is_what_procrustes_finds() -> None:
    rng = np.random.default_rng(2)
    P, Q = (unit_trace(covariance(5, rng)) for _ in range(2))
    X, Y = np.linalg.cholesky(P), np.linalg.cholesky(Q)
    best = np.linalg.norm(X - Y @ orthogonal_procrustes(Y, X)[0])
    found = shape_distances(P, Q, 90, 90)
    assert found.shape == pytest.approx(best, rel=1e-9)
    root = sqrtm(P)
    assert found.shape**2 == pytest.approx(2 - 2 * np.trace(sqrtm(root @ Q @ root)).real, rel=1e-9)


def test_the_spectrum_is_the_least_shape_over_rotations() -> None:
    rng = np.random.default_rng(3)
    P, Q = covariance(2, rng), covariance(2, rng)
    turns = [np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]) for a in np.linspace(0, np.pi, 2001)]
    least = min(shape_distances(P, R @ Q @ R.T, 9, 9).shape for R in turns)
    # The grid is 0.0016 wide, and the least is quadratic.
    assert shape_distances(P, Q, 9, 9).spectrum == pytest.approx(least, abs=1e-5)


def test_the_shrunken_divergence_is_that_of_its_definition() -> None:
    rng = np.random.default_rng(4)
    matrices = [unit_trace(covariance(6, rng)) for _ in range(2)]
    A, B = ((1 - r) * S + r * np.eye(6) / 6 for S in matrices for r in [oas(np.linalg.eigvalsh(S), 15)])
    zero = np.zeros(6)
    exact = (gaussian_kl(zero, A, zero, B) + gaussian_kl(zero, B, zero, A)) / 12
    assert shape_distances(*matrices, 15, 15).divergence == pytest.approx(exact, rel=1e-9)


def test_one_dimension_has_a_scale_and_no_shape() -> None:
    found = shape_distances([[4.0]], [[9.0]], 10, 20)
    np.testing.assert_allclose(found, 0, atol=1e-12)
    assert scale_log_ratio([[4.0]], [[9.0]]) == pytest.approx(np.log(2 / 3))
    assert mean_shift([2.0], [[4.0]], [6.0], [[9.0]], 10, 20) == pytest.approx(1 - 0.1 - 0.05)


def test_a_covariance_of_nothing_has_no_shape() -> None:
    assert np.isnan(shape_distances(np.zeros((3, 3)), np.eye(3), 9, 9)).all()
    assert np.isnan(of_equals(np.zeros((3, 3)), np.eye(3), 9, 9, 1, np.random.default_rng(0))).all()


def test_no_direction_in_common_is_as_far_as_it_gets() -> None:
    found = shape_distances(np.diag([1.0, 0, 0]), np.diag([0, 2.0, 0]), 9, 9)
    assert found.shape == pytest.approx(np.sqrt(2))
    assert found.spectrum == pytest.approx(0)


def test_correlations_do_not_see_the_scale_of_a_coordinate() -> None:
    rng = np.random.default_rng(5)
    S, units = covariance(5, rng), np.array([1e3, 1, 1, 1e-2, 1])
    massive = units[:, None] * S * units
    assert correlation_distance(massive, S) == pytest.approx(0, abs=1e-6)
    assert shape_distances(massive, S, 9, 9).shape > 0.5
    np.testing.assert_array_equal(correlations(np.diag([2.0, 0.0])), np.eye(2))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), st.integers(0, 10_000))
def test_the_shape_is_a_metric_and_at_least_that_of_the_spectra(d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    S = [covariance(d, rng, 2.0) for _ in range(3)]
    ab, bc, ac, ba = (shape_distances(S[i], S[j], 20, 30) for i, j in ((0, 1), (1, 2), (0, 2), (1, 0)))
    assert 0 <= ab.spectrum <= ab.shape + 1e-7
    assert ab.shape <= np.sqrt(2) + 1e-9
    assert ac.shape <= ab.shape + bc.shape + 1e-7
    assert ac.spectrum <= ab.spectrum + bc.spectrum + 1e-7
    assert (ba.shape, ba.spectrum) == pytest.approx((ab.shape, ab.spectrum), abs=1e-7)
    assert ab.divergence >= 0


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.integers(3, 60), st.integers(0, 10_000))
def test_the_shrinkage_is_where_its_iteration_ends(d: int, n: int, seed: int) -> None:
    """Chen et al. 2010, (15): shrink by the oracle's formula with the last estimate in place of the truth."""
    rng = np.random.default_rng(seed)
    S, nu = fitted(covariance(d, rng), n, rng)[1], n - 1
    rho, mu = 0.5, np.trace(S) / d
    for _ in range(20_000):
        estimate = (1 - rho) * S + rho * mu * np.eye(d)
        product, square, before = np.trace(estimate @ S), np.trace(estimate) ** 2, rho
        rho = ((1 - 2 / d) * product + square) / ((nu + 1 - 2 / d) * product + (1 - nu / d) * square)
        if abs(rho - before) < 1e-9:
            break
    assert oas(np.linalg.eigvalsh(S), n) == pytest.approx(min(rho, 1.0), abs=2e-3)


def test_of_a_sphere_all_is_shrunken_and_of_many_vectors_nothing() -> None:
    rng = np.random.default_rng(6)
    assert oas(np.linalg.eigvalsh(fitted(np.eye(30), 20, rng)[1]), 20) > 0.9
    assert oas(np.linalg.eigvalsh(covariance(30, rng)), 100_000) < 1e-3
    assert oas([2.0, 2.0], 5) == 1.0


@pytest.mark.parametrize(("d", "degrees"), [(3, 8), (5, 3), (1, 4)])
def test_wishart_matrices_have_their_moments(d: int, degrees: int) -> None:
    rng, many = np.random.default_rng(7), 20_000
    drawn = np.stack([wishart(d, degrees, rng) for _ in range(many)])
    # An entry's variance is 1/nu off the diagonal and 2/nu on it; 5 standard errors for up to 25 entries.
    np.testing.assert_allclose(drawn.mean(axis=0), np.eye(d), atol=5 * np.sqrt(2 / degrees / many))
    variances = (1 + np.eye(d)) / degrees
    # Kurtosis of a chi-squared number is 3 + 12/nu, so the error of a variance is sqrt((2 + 12/nu) / many) of it.
    np.testing.assert_allclose(drawn.var(axis=0) / variances, 1, atol=5 * np.sqrt((2 + 12 / degrees) * 2 / many))
    assert np.linalg.matrix_rank(drawn[0]) == min(d, degrees)


@pytest.mark.parametrize(("d", "count_p", "count_q"), [(1, 12, 20), (4, 14, 20), (10, 30, 24)])
def test_divergences_are_corrected_for_the_number_of_vectors(d: int, count_p: int, count_q: int) -> None:
    """The corrected one is unbiased, 0 for equal Gaussians; what equal ones give is what is found."""
    rng = np.random.default_rng(d)
    P, Q = covariance(d, rng, 0.5), covariance(d, rng, 0.5)
    true = gaussian_kl(np.full(d, 0.3), P, np.zeros(d), Q)
    apart, equal, plain = [], [], []
    for _ in range(2000):
        p, q, other = fitted(P, count_p, rng, 0.3), fitted(Q, count_q, rng), fitted(Q, count_p, rng)
        apart.append(corrected_kl(*p, *q, count_p, count_q))
        equal.append(corrected_kl(*other, *q, count_p, count_q))
        plain.append(gaussian_kl(*other, *q))
    for values, expected in ((apart, true), (equal, 0.0), (plain, kl_of_equals(count_p, count_q, d))):
        mean, error = mean_and_error(values)
        assert abs(mean - expected) < 4 * error
    assert np.mean(plain) > 20 * abs(np.mean(equal))


def test_one_dimension_is_corrected_by_its_closed_form() -> None:
    """E 1/s^2 = nu / (nu - 2) / sigma^2 and E log s^2 = log sigma^2 + psi(nu/2) - log(nu/2)."""
    from scipy.special import digamma

    n, m, s, t = 9, 14, 2.0, 3.0
    bias = [digamma((k - 1) / 2) - np.log((k - 1) / 2) for k in (n, m)]
    exact = 0.5 * (11 / 13 * (1 - 1 / n) * s / t - 1 + 11 / 13 * 0.25 / t - 1 / m + np.log(t / s) - bias[1] + bias[0])
    assert corrected_kl([0.5], [[s]], [0.0], [[t]], n, m) == pytest.approx(exact)
    equals = 0.5 * (13 / 11 * (1 + 1 / n + 1 / m) - 1 + bias[1] - bias[0])
    assert kl_of_equals(n, m, 1) == pytest.approx(equals)


def test_too_few_vectors_are_told_and_many_change_nothing() -> None:
    rng = np.random.default_rng(8)
    P, Q = covariance(5, rng), covariance(5, rng)
    zero = np.zeros(5)
    assert np.isnan(corrected_kl(zero, P, zero, Q, 30, 7))
    assert kl_of_equals(30, 7, 5) == kl_of_equals(5, 30, 5) == np.inf
    assert corrected_kl(zero, P, zero, Q, 10**9, 10**9) == pytest.approx(gaussian_kl(zero, P, zero, Q), rel=1e-6)
    assert kl_of_equals(10**9, 10**9, 5) == pytest.approx(0, abs=1e-6)
    assert corrected_kl(zero, P, zero, np.diag([1.0, 1, 1, 1, 0]), 99, 99) == np.inf


@pytest.mark.parametrize("n", [8, 40])
def test_the_cosine_is_one_for_equal_shapes_with_fewer_vectors_than_dimensions_too(n: int) -> None:
    rng = np.random.default_rng(9)
    S = np.diag(1 / np.arange(1, 21))
    products, squares, cosines = [], [], []
    for _ in range(3000):
        P, Q = fitted(4 * S, n, rng)[1], fitted(S, n, rng)[1]
        products.append(float((P * Q).sum()))
        squares.append(float(np.trace(P @ P)) / covariance_cosine(P, P, n, n))  # the estimate of Tr Sigma^2
        cosines.append(covariance_cosine(P, Q, n, n))
    for values, expected in ((products, 4 * (S * S).sum()), (squares, 16 * (S * S).sum())):
        mean, error = mean_and_error(values)
        assert abs(mean - expected) < 4 * error
    # A ratio of unbiased numbers: off by the order of 1/n.
    assert np.nanmean(cosines) == pytest.approx(1, abs=1.5 / n)
    assert np.isnan(covariance_cosine(S, S, 2, 2))


def test_means_that_are_equal_are_not_apart() -> None:
    rng, S = np.random.default_rng(10), np.diag(np.arange(1.0, 9))
    values = []
    for _ in range(3000):
        p, q = fitted(S, 200, rng), fitted(4 * S, 100, rng)
        values.append(mean_shift(*p, *q, 200, 100))
    mean, error = mean_and_error(values)
    assert abs(mean) < 4 * error


@pytest.mark.parametrize(("d", "n"), [(8, 40), (40, 80), (40, 400), (40, 24)])
@pytest.mark.parametrize("decay", [0.0, 4.0])
def test_what_equal_gaussians_give_is_what_is_drawn_for_them(d: int, n: int, decay: float) -> None:
    """Within a fifth where there are two vectors for each dimension; not below where there are fewer."""
    rng, S = np.random.default_rng(11), np.diag(np.exp(-decay * np.arange(d) / d))
    found, floor = [], []
    for _ in range(20):
        P, Q = fitted(S, n, rng)[1], fitted(S, n, rng)[1]
        found.append((*shape_distances(P, Q, n, n), correlation_distance(P, Q)))
        floor.append(of_equals(P, Q, n, n, 4, rng))
    real, drawn = np.mean(found, axis=0), np.mean(floor, axis=0)
    error = np.hypot(np.std(found, axis=0), np.std(floor, axis=0)) / np.sqrt(20)
    # Correlations of few vectors with a steep spectrum come out up to a tenth lower.
    assert (drawn > 0.9 * real - 4 * error).all()
    if n >= 2 * d:
        assert drawn[0] == pytest.approx(real[0], rel=0.2)
        assert drawn[3] == pytest.approx(real[3], rel=0.2)
