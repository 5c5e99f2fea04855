"""Jensen-Shannon divergence of Gaussians: a mixture stands in it, so only Monte Carlo and quadrature find it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from gausslens_gaussian.maths.information import gaussian_kl, jensen_shannon

seeds = st.integers(0, 2**32 - 1)


def gaussian(rng: np.random.Generator, d: int) -> tuple[np.ndarray, np.ndarray]:
    A = rng.normal(size=(d, 2 * d))
    return rng.normal(size=d), A @ A.T / (2 * d)


def by_quadrature(mean: float, sd: float) -> float:
    """Of N(mean, sd^2) and N(0, 1)."""
    p, q = norm(mean, sd), norm()

    def integrand(x: float) -> float:
        a, b = p.pdf(x), q.pdf(x)
        m = (a + b) / 2
        return (a * np.log(a / m) if a else 0.0) / 2 + (b * np.log(b / m) if b else 0.0) / 2

    return float(quad(integrand, -40, 40, points=[-5, 0, mean, 5], limit=400)[0])


@pytest.mark.parametrize(("mean", "sd"), [(1.0, 1.0), (0.3, 2.0), (3.0, 0.5), (0.0, 1.0)])
def test_it_is_the_integral(mean: float, sd: float) -> None:
    rng = np.random.default_rng(0)
    found = jensen_shannon([mean], [[sd**2]], [0.0], [[1.0]], draws=200_000, rng=rng)
    assert abs(found.value - by_quadrature(mean, sd)) <= 3 * found.standard_error + 1e-12
    assert found.standard_error < 0.002


def test_equal_gaussians_are_zero_apart_without_error() -> None:
    mean, cov = gaussian(np.random.default_rng(1), 5)
    found = jensen_shannon(mean, cov, mean, cov, draws=100)
    assert found.value == pytest.approx(0.0, abs=1e-12)
    assert found.standard_error < 1e-12


@given(seed=seeds, d=st.integers(1, 6))
def test_it_lies_between_zero_and_its_bounds(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    (mp, Sp), (mq, Sq) = gaussian(rng, d), gaussian(rng, d)
    value, error = jensen_shannon(mp, Sp, mq, Sq, draws=2000, rng=rng)
    # Five standard errors: hypothesis looks for the worst of many.
    assert (
        -5 * error
        <= value
        <= min(np.log(2), (gaussian_kl(mp, Sp, mq, Sq) + gaussian_kl(mq, Sq, mp, Sp)) / 4) + 5 * error + 1e-12
    )


def test_the_standard_error_is_the_spread_of_repetitions() -> None:
    rng = np.random.default_rng(2)
    (mp, Sp), (mq, Sq) = gaussian(rng, 3), gaussian(rng, 3)
    many = [jensen_shannon(mp, Sp, mq, Sq, draws=400, rng=rng) for _ in range(400)]
    spread = np.std([m.value for m in many], ddof=1)
    # The sd of a standard deviation of 400 numbers is 3.5 %.
    assert np.mean([m.standard_error for m in many]) == pytest.approx(spread, rel=4 * 0.036)


def test_the_mean_of_p_and_q_is_a_mixture_and_no_gaussian() -> None:
    """Taking m to be the Gaussian of the mixture's moments, which has a closed form, gives another number."""
    mean, cov = np.array([3.0]), np.array([[1.0]])
    of_moments = (gaussian_kl(mean, cov, mean / 2, cov + 2.25) + gaussian_kl(-mean * 0, cov, mean / 2, cov + 2.25)) / 2
    found = jensen_shannon(mean, cov, 0 * mean, cov, draws=200_000, rng=np.random.default_rng(3))
    assert abs(found.value - by_quadrature(3.0, 1.0)) < 3 * found.standard_error
    assert abs(of_moments - found.value) > 20 * found.standard_error


def test_its_root_is_a_metric() -> None:
    rng = np.random.default_rng(4)
    gaussians = [gaussian(rng, 2) for _ in range(6)]
    root = {
        (i, j): np.sqrt(max(jensen_shannon(*gaussians[i], *gaussians[j], draws=20_000, rng=rng).value, 0))
        for i, j in itertools.permutations(range(6), 2)
    }
    # A root has error of at most 0.0035 / (2 root) here; 0.02 is more than four of these.
    assert all(root[i, k] <= root[i, j] + root[j, k] + 0.02 for i, j, k in itertools.permutations(range(6), 3))


def test_linear_maps_leave_it() -> None:
    rng = np.random.default_rng(5)
    (mp, Sp), (mq, Sq) = gaussian(rng, 3), gaussian(rng, 3)
    L = rng.normal(size=(3, 3))
    before = jensen_shannon(mp, Sp, mq, Sq, 50_000, rng)
    after = jensen_shannon(L @ mp, L @ Sp @ L.T, L @ mq, L @ Sq @ L.T, 50_000, rng)
    assert abs(before.value - after.value) < 3 * np.hypot(before.standard_error, after.standard_error)


def test_gaussians_of_different_supports_have_nothing_in_common() -> None:
    flat, full, zero = np.diag([1.0, 0.0]), np.eye(2), np.zeros(2)
    assert jensen_shannon(zero, flat, zero, full) == (pytest.approx(np.log(2)), 0.0)
    assert jensen_shannon(zero, full, zero, flat) == (pytest.approx(np.log(2)), 0.0)
    assert jensen_shannon([0.0, 1.0], flat, zero, flat)[0] == pytest.approx(np.log(2))
    within = jensen_shannon([1.0, 0.0], flat, zero, flat, 1000, np.random.default_rng(6))
    assert within == jensen_shannon([1.0], [[1.0]], [0.0], [[1.0]], 1000, np.random.default_rng(6))


def test_one_draw_has_no_standard_error() -> None:
    with pytest.raises(ValueError, match="2 draws or more"):
        jensen_shannon([0.0], [[1.0]], [0.0], [[1.0]], draws=1)
