"""Entropy, divergences and mutual information of Gaussians: against Monte Carlo, and against exact identities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from gausslens_gaussian.maths.information import (
    canonical_correlations,
    cross_entropy,
    entropy,
    frechet_distance,
    gaussian_kl,
    mutual_information,
)

DRAWS = 200_000


def covariance(rng: np.random.Generator, d: int) -> np.ndarray:
    A = rng.normal(size=(d, 3 * d))
    return A @ A.T / (3 * d)


def estimated(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard error."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)


seeds = st.integers(0, 2**32 - 1)
dimensions = st.integers(1, 6)


def test_entropy_is_minus_the_mean_log_density(rng: np.random.Generator) -> None:
    S = covariance(rng, 4)
    p = multivariate_normal(np.zeros(4), S)
    mean, error = estimated(-p.logpdf(p.rvs(DRAWS, random_state=rng)))
    assert abs(entropy(S) - mean) < 3 * error


def test_cross_entropy_has_2_pi_and_not_2_pi_e(rng: np.random.Generator) -> None:
    Sp, Sq, shift = covariance(rng, 4), covariance(rng, 4), rng.normal(size=4)
    p, q = multivariate_normal(shift, Sp), multivariate_normal(np.zeros(4), Sq)
    mean, error = estimated(-q.logpdf(p.rvs(DRAWS, random_state=rng)))
    right = cross_entropy(shift, Sp, np.zeros(4), Sq)
    assert abs(right - mean) < 3 * error
    # With 2 pi e in the determinant, as published, it is too large by d / 2, and KL(p || p) would be d / 2.
    assert abs(right + 4 / 2 - mean) > 100 * error


def test_kl_is_the_mean_log_ratio(rng: np.random.Generator) -> None:
    Sp, Sq, mp, mq = covariance(rng, 3), covariance(rng, 3), rng.normal(size=3), rng.normal(size=3)
    p, q = multivariate_normal(mp, Sp), multivariate_normal(mq, Sq)
    x = p.rvs(DRAWS, random_state=rng)
    mean, error = estimated(p.logpdf(x) - q.logpdf(x))
    assert abs(gaussian_kl(mp, Sp, mq, Sq) - mean) < 3 * error


@given(seed=seeds, d=dimensions)
def test_kl_is_cross_entropy_minus_entropy_and_zero_for_equals(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    Sp, Sq, mp, mq = covariance(rng, d), covariance(rng, d), rng.normal(size=d), rng.normal(size=d)
    assert gaussian_kl(mp, Sp, mq, Sq) == pytest.approx(cross_entropy(mp, Sp, mq, Sq) - entropy(Sp), rel=1e-7, abs=1e-7)
    assert gaussian_kl(mp, Sp, mp, Sp) == pytest.approx(0, abs=1e-9)
    assert gaussian_kl(mp, Sp, mq, Sq) >= 0


@given(seed=seeds, d=dimensions)
def test_linear_maps_leave_kl_and_move_entropies_by_log_det(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    Sp, Sq, mp, mq = covariance(rng, d), covariance(rng, d), rng.normal(size=d), rng.normal(size=d)
    L = rng.normal(size=(d, d)) + 2 * np.eye(d)
    if np.linalg.cond(L) > 1e4:
        return
    mapped = (L @ mp, L @ Sp @ L.T, L @ mq, L @ Sq @ L.T)
    logdet = np.linalg.slogdet(L)[1]
    assert gaussian_kl(*mapped) == pytest.approx(gaussian_kl(mp, Sp, mq, Sq), rel=1e-5, abs=1e-6)
    assert entropy(mapped[1]) == pytest.approx(entropy(Sp) + logdet, rel=1e-6, abs=1e-6)
    assert cross_entropy(*mapped) == pytest.approx(cross_entropy(mp, Sp, mq, Sq) + logdet, rel=1e-5, abs=1e-6)


def test_mutual_information_is_the_mean_log_ratio_of_densities(rng: np.random.Generator) -> None:
    S = covariance(rng, 5)
    joint = multivariate_normal(np.zeros(5), S)
    x, y = multivariate_normal(np.zeros(2), S[:2, :2]), multivariate_normal(np.zeros(3), S[2:, 2:])
    z = joint.rvs(DRAWS, random_state=rng)
    mean, error = estimated(joint.logpdf(z) - x.logpdf(z[:, :2]) - y.logpdf(z[:, 2:]))
    assert abs(mutual_information(S, 2) - mean) < 3 * error


@given(seed=seeds, d=st.integers(2, 7), data=st.data())
def test_mutual_information_is_of_determinants_entropies_and_divergence(seed: int, d: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    split = data.draw(st.integers(1, d - 1))
    S = covariance(rng, d)
    Sx, Sy = S[:split, :split], S[split:, split:]
    logdets = [np.linalg.slogdet(block)[1] for block in (Sx, Sy, S)]
    found = mutual_information(S, split)
    assert found == pytest.approx((logdets[0] + logdets[1] - logdets[2]) / 2, rel=1e-6, abs=1e-8)
    assert found == pytest.approx(entropy(Sx) + entropy(Sy) - entropy(S), rel=1e-6, abs=1e-8)
    apart = np.zeros_like(S)
    apart[:split, :split], apart[split:, split:] = Sx, Sy
    zero = np.zeros(d)
    assert found == pytest.approx(gaussian_kl(zero, S, zero, apart), rel=1e-6, abs=1e-8)


@given(seed=seeds)
def test_different_maps_of_the_parts_leave_mutual_information_and_fewer_rows_lower_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    S = covariance(rng, 6)
    Lx, Ly = (rng.normal(size=(3, 3)) + 2 * np.eye(3) for _ in range(2))
    if max(np.linalg.cond(Lx), np.linalg.cond(Ly)) > 1e3:
        return
    both = np.block([[Lx, np.zeros((3, 3))], [np.zeros((3, 3)), Ly]])
    before = mutual_information(S, 3)
    assert mutual_information(both @ S @ both.T, 3) == pytest.approx(before, rel=1e-5, abs=1e-7)
    rows = both[[0, 1, 3, 4]]
    assert mutual_information(rows @ S @ rows.T, 2) <= before + 1e-9


def test_a_planted_correlation_is_recovered() -> None:
    planted = np.array([0.9, 0.5, 0.1])
    S = np.block([[np.eye(3), np.diag(planted)], [np.diag(planted), np.eye(3)]])
    np.testing.assert_allclose(canonical_correlations(S, 3), planted, atol=1e-12)
    assert mutual_information(S, 3) == pytest.approx(-0.5 * np.log(1 - planted**2).sum())


def test_small_determinants_are_not_small_information() -> None:
    """Mutual information follows the canonical correlations, not det of the block between."""
    strong = np.array([[1, 0, 0.99, 0], [0, 1, 0, 0], [0.99, 0, 1, 0], [0, 0, 0, 1]])
    weak = np.array([[1, 0, 0.3, 0], [0, 1, 0, 0.3], [0.3, 0, 1, 0], [0, 0.3, 0, 1]])
    assert np.linalg.det(strong[:2, 2:]) < np.linalg.det(weak[:2, 2:])
    assert mutual_information(strong, 2) == pytest.approx(1.959, abs=1e-3)
    assert mutual_information(weak, 2) == pytest.approx(0.094, abs=1e-3)


class TestSingular:
    flat = np.diag([1.0, 2.0, 0.0])
    full = np.diag([1.0, 2.0, 3.0])
    zero = np.zeros(3)

    def test_a_singular_gaussian_has_no_entropy(self) -> None:
        assert entropy(self.flat) == -np.inf

    def test_kl_is_infinite_unless_the_supports_are_equal(self) -> None:
        assert gaussian_kl(self.zero, self.full, self.zero, self.flat) == np.inf
        assert gaussian_kl(self.zero, self.flat, self.zero, self.full) == np.inf
        assert gaussian_kl(np.array([0, 0, 1.0]), self.flat, self.zero, self.flat) == np.inf

    def test_kl_within_a_common_support_is_that_of_the_subspace(self) -> None:
        other, shift = np.diag([2.0, 1.0, 0.0]), np.array([1.0, -1.0, 0.0])
        inside = gaussian_kl(shift[:2], other[:2, :2], self.zero[:2], self.flat[:2, :2])
        assert gaussian_kl(shift, other, self.zero, self.flat) == pytest.approx(inside)

    def test_kl_within_a_common_support_in_any_frame(self, rng: np.random.Generator) -> None:
        frame = np.linalg.qr(rng.normal(size=(8, 3)))[0]
        Sp, Sq, shift = covariance(rng, 3), covariance(rng, 3), rng.normal(size=3)
        found = gaussian_kl(frame @ shift, frame @ Sp @ frame.T, np.zeros(8), frame @ Sq @ frame.T)
        assert found == pytest.approx(gaussian_kl(shift, Sp, self.zero, Sq), rel=1e-9)

    def test_cross_entropy_says_on_which_side(self) -> None:
        assert cross_entropy(self.zero, self.full, self.zero, self.flat) == np.inf
        assert cross_entropy(self.zero, self.flat, self.zero, self.flat) == -np.inf
        assert np.isfinite(cross_entropy(self.zero, self.flat, self.zero, self.full))

    def test_a_copy_has_infinite_information(self) -> None:
        assert mutual_information(np.ones((2, 2)), 1) == np.inf

    def test_a_constant_part_has_none(self) -> None:
        S = np.diag([1.0, 2.0, 0.0])
        assert mutual_information(S, 2) == 0

    def test_the_frechet_distance_stays_finite(self) -> None:
        assert frechet_distance(self.zero, self.flat, self.zero, self.full) == pytest.approx(np.sqrt(3.0))


def test_frechet_of_commuting_covariances_has_a_closed_form() -> None:
    p, q = np.array([4.0, 1.0, 9.0]), np.array([1.0, 1.0, 16.0])
    shift = np.array([3.0, 0.0, 4.0])
    expected = np.sqrt(25.0 + ((np.sqrt(p) - np.sqrt(q)) ** 2).sum())
    assert frechet_distance(shift, np.diag(p), np.zeros(3), np.diag(q)) == pytest.approx(expected)


@given(seed=seeds, d=dimensions)
def test_frechet_is_a_metric(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    means, covs = rng.normal(size=(3, d)), [covariance(rng, d) for _ in range(3)]

    def apart(i: int, j: int) -> float:
        return frechet_distance(means[i], covs[i], means[j], covs[j])

    assert apart(0, 0) == pytest.approx(0, abs=1e-6)
    assert apart(0, 1) == pytest.approx(apart(1, 0), rel=1e-9, abs=1e-7)
    assert apart(0, 2) <= apart(0, 1) + apart(1, 2) + 1e-7


@pytest.mark.parametrize("wrong", [np.ones(3), np.ones((2, 3)), np.full((2, 2), np.nan), np.zeros((0, 0))])
def test_what_is_no_covariance_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="covariance"):
        entropy(wrong)


@pytest.mark.parametrize("split", [0, 2, -1])
def test_a_split_leaves_something_on_both_sides(split: int) -> None:
    with pytest.raises(ValueError, match="split must be between 1 and 1"):
        mutual_information(np.eye(2), split)
