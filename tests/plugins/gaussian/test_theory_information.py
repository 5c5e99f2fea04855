"""The information theory of Gaussians, claim by claim: what holds, and what was published and does not.

Numbered as in the theory notes of the project: G1 to G10. Where a published formula is wrong, the test shows that it
misses a Monte Carlo or exact value that the right one meets.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from gausslens_gaussian.maths.information import (
    canonical_correlations,
    cross_entropy,
    entropy,
    gaussian_kl,
    jensen_shannon,
    log_abs_det,
    mapped_gaussian,
    mutual_information,
)

DRAWS = 100_000


def gaussian(rng: np.random.Generator, d: int) -> tuple[np.ndarray, np.ndarray]:
    A = rng.normal(size=(d, 2 * d))
    return rng.normal(size=d), A @ A.T / (2 * d)


def estimated(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def test_g1_entropy(rng: np.random.Generator) -> None:
    mean, cov = gaussian(rng, 4)
    p = multivariate_normal(mean, cov)
    found, error = estimated(-p.logpdf(p.rvs(DRAWS, random_state=rng)))
    assert abs(entropy(cov) - found) < 3 * error
    assert entropy(cov) == pytest.approx(p.entropy())


def test_g2_cross_entropy_as_published_is_too_large_by_half_the_dimension(rng: np.random.Generator) -> None:
    (mp, Sp), (mq, Sq) = gaussian(rng, 4), gaussian(rng, 4)
    p, q = multivariate_normal(mp, Sp), multivariate_normal(mq, Sq)
    found, error = estimated(-q.logpdf(p.rvs(DRAWS, random_state=rng)))
    delta = mq - mp
    published = (
        0.5 * np.linalg.slogdet(2 * np.pi * np.e * Sq)[1]
        + 0.5 * np.trace(np.linalg.solve(Sq, Sp))
        + 0.5 * delta @ np.linalg.solve(Sq, delta)
    )
    right = cross_entropy(mp, Sp, mq, Sq)
    assert abs(right - found) < 3 * error
    assert published - right == pytest.approx(4 / 2)
    # With it, a distribution would differ from itself.
    assert cross_entropy(mp, Sp, mp, Sp) - entropy(Sp) == pytest.approx(0, abs=1e-12)
    # The determinant term alone is not H(q), but H(q) - d / 2.
    assert 0.5 * np.linalg.slogdet(2 * np.pi * Sq)[1] == pytest.approx(entropy(Sq) - 4 / 2)


def test_g3_kl_is_cross_entropy_less_entropy(rng: np.random.Generator) -> None:
    (mp, Sp), (mq, Sq) = gaussian(rng, 5), gaussian(rng, 5)
    p, q = multivariate_normal(mp, Sp), multivariate_normal(mq, Sq)
    x = p.rvs(DRAWS, random_state=rng)
    found, error = estimated(p.logpdf(x) - q.logpdf(x))
    assert abs(gaussian_kl(mp, Sp, mq, Sq) - found) < 3 * error
    assert gaussian_kl(mp, Sp, mq, Sq) == pytest.approx(cross_entropy(mp, Sp, mq, Sq) - entropy(Sp))
    assert gaussian_kl(mp, Sp, mp, Sp) == pytest.approx(0, abs=1e-12)
    assert gaussian_kl(mp + 1e-3, Sp, mp, Sp) > 0


def test_g4_jensen_shannon_against_a_mixture_sampled_whole(rng: np.random.Generator) -> None:
    (mp, Sp), (mq, Sq) = gaussian(rng, 3), gaussian(rng, 3)
    p, q = multivariate_normal(mp, Sp), multivariate_normal(mq, Sq)
    sides = []
    for one, other in ((p, q), (q, p)):
        x = one.rvs(DRAWS, random_state=rng)
        mixture = np.logaddexp(one.logpdf(x), other.logpdf(x)) - np.log(2)
        sides.append(estimated(one.logpdf(x) - mixture))
    value = sum(s[0] for s in sides) / 2
    error = np.hypot(sides[0][1], sides[1][1]) / 2
    found = jensen_shannon(mp, Sp, mq, Sq, DRAWS, rng)
    assert abs(found.value - value) < 3 * np.hypot(error, found.standard_error)


def test_g5_mutual_information_is_of_canonical_correlations(rng: np.random.Generator) -> None:
    mean, cov = gaussian(rng, 5)
    joint = multivariate_normal(mean, cov)
    x, y = multivariate_normal(mean[:2], cov[:2, :2]), multivariate_normal(mean[2:], cov[2:, 2:])
    z = joint.rvs(DRAWS, random_state=rng)
    found, error = estimated(joint.logpdf(z) - x.logpdf(z[:, :2]) - y.logpdf(z[:, 2:]))
    assert abs(mutual_information(cov, 2) - found) < 3 * error
    rho = canonical_correlations(cov, 2)
    assert mutual_information(cov, 2) == pytest.approx(-0.5 * np.log(1 - rho**2).sum())


def test_g6_a_small_determinant_of_the_block_between_is_not_little_information() -> None:
    def joint(diagonal: list[float]) -> np.ndarray:
        between = np.diag(diagonal)
        return np.block([[np.eye(2), between], [between, np.eye(2)]])

    strong, weak = joint([0.99, 0.0]), joint([0.3, 0.3])
    assert np.linalg.det(strong[:2, 2:]) == pytest.approx(0)
    assert np.linalg.det(weak[:2, 2:]) == pytest.approx(0.09)
    # Published: the smaller determinant has the smaller information.
    assert mutual_information(strong, 2) == pytest.approx(1.959, abs=1e-3)
    assert mutual_information(weak, 2) == pytest.approx(0.094, abs=1e-3)


def test_g7_a_linear_map_adds_the_log_of_its_absolute_determinant(rng: np.random.Generator) -> None:
    mean, cov = gaussian(rng, 4)
    L = rng.normal(size=(4, 4))
    assert entropy(mapped_gaussian(mean, cov, L)[1]) == pytest.approx(entropy(cov) + log_abs_det(L))
    assert log_abs_det(L) == pytest.approx(np.linalg.slogdet(L)[1])
    # Growth is for |det L| > 1: a reflection that doubles has det -16 and grows the entropy too.
    reflected = np.diag([-2.0, 2.0, 2.0, 2.0])
    assert np.linalg.det(reflected) < 1
    assert entropy(mapped_gaussian(mean, cov, reflected)[1]) > entropy(cov)
    assert log_abs_det(np.diag([1.0, 0.0])) == -np.inf


def test_g8_mutual_information_under_maps(rng: np.random.Generator) -> None:
    mean, cov = gaussian(rng, 6)
    L1, L2 = rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    zero = np.zeros((3, 3))
    before = mutual_information(cov, 3)
    for first, second in ((L1, L1), (L1, L2)):
        both = np.block([[first, zero], [zero, second]])
        image = mapped_gaussian(mean, cov, both)[1]
        assert mutual_information(image, 3) == pytest.approx(before)
        growth = np.linalg.det(first) ** 2 * np.linalg.det(second) ** 2
        assert np.linalg.det(image) == pytest.approx(growth * np.linalg.det(cov))
    # det(L)^4 is for one L on both sides.
    assert np.linalg.det(mapped_gaussian(mean, cov, np.block([[L1, zero], [zero, L1]]))[1]) == pytest.approx(
        np.linalg.det(L1) ** 4 * np.linalg.det(cov)
    )
    # Rows fewer than dimensions, as in every W_Q: only less or equal.
    narrow = np.block([[L1[:2], zero[:2]], [zero[:2], L1[:2]]])
    assert mutual_information(mapped_gaussian(mean, cov, narrow)[1], 2) < 0.9 * before


def test_g9_kl_is_invariant_and_entropies_are_not(rng: np.random.Generator) -> None:
    (mp, Sp), (mq, Sq) = gaussian(rng, 4), gaussian(rng, 4)
    L = rng.normal(size=(4, 4))
    p, q = mapped_gaussian(mp, Sp, L), mapped_gaussian(mq, Sq, L)
    assert gaussian_kl(*p, *q) == pytest.approx(gaussian_kl(mp, Sp, mq, Sq), rel=1e-9)
    assert cross_entropy(*p, *q) == pytest.approx(cross_entropy(mp, Sp, mq, Sq) + log_abs_det(L))
    assert abs(log_abs_det(L)) > 0.1
    rows = L[:2]
    assert gaussian_kl(*mapped_gaussian(mp, Sp, rows), *mapped_gaussian(mq, Sq, rows)) <= gaussian_kl(mp, Sp, mq, Sq)


def test_g10_a_map_of_every_position_maps_every_block(rng: np.random.Generator) -> None:
    n, d = 3, 2
    mean, cov = gaussian(rng, n * d)
    L = rng.normal(size=(4, d))
    image = mapped_gaussian(mean, cov, np.kron(np.eye(n), L))[1].reshape(n, 4, n, 4)
    blocks = cov.reshape(n, d, n, d)
    for i in range(n):
        for j in range(n):
            np.testing.assert_allclose(image[i, :, j], L @ blocks[i, :, j] @ L.T, atol=1e-12)
