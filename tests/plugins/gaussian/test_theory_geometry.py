"""The geometry of covariances, claim by claim (G11 to G21): ellipsoids, singular values, norms, weighted sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens.maths.moments import RunningMoments
from gausslens.maths.spectra import rank, spectrum
from gausslens_gaussian.maths import weighted_vectors
from gausslens_gaussian.maths.geometry import leading, log_volume, principal_angles, semi_axes
from gausslens_gaussian.maths.norms import through_norm

seeds = st.integers(0, 2**32 - 1)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(12)


def test_g11_the_volume_of_an_ellipsoid_grows_with_the_determinant(rng: np.random.Generator) -> None:
    cov = np.diag([4.0, 1.0, 0.25])
    box = 2 * np.sqrt(np.diag(cov))
    x = rng.uniform(-1, 1, (400_000, 3)) * box / 2
    inside = (x**2 / np.diag(cov)).sum(axis=1) <= 1
    volume = box.prod()
    error = volume * np.sqrt(inside.mean() * (1 - inside.mean()) / len(x))
    assert abs(np.exp(log_volume(cov)) - volume * inside.mean()) < 3 * error
    assert np.exp(log_volume(cov)) == pytest.approx(4.189, abs=1e-3)
    # Published: the product of 1 / sigma_i, which falls as the determinant grows.
    assert log_volume(4 * cov) > log_volume(cov)
    assert log_volume(cov, level=2.0) == pytest.approx(log_volume(cov) + 1.5 * np.log(2))
    assert log_volume(np.diag([1.0, 0.0])) == -np.inf


def test_g12_semi_axes_are_singular_values_over_the_root_of_n_less_1(rng: np.random.Generator) -> None:
    X = rng.normal(size=(50, 3)) @ rng.normal(size=(3, 3)) + 4.0
    state = RunningMoments()
    state.add(X)
    sigma = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
    lengths, axes = semi_axes(state.covariance)
    np.testing.assert_allclose(lengths, sigma / np.sqrt(49))
    np.testing.assert_allclose(spectrum(state.covariance), sigma**2 / 49)
    # Published: the length is the singular value itself, seven times too long here.
    assert sigma[0] / lengths[0] == pytest.approx(7)
    np.testing.assert_allclose((axes @ np.linalg.inv(state.covariance) * axes).sum(axis=1) * lengths**2, 1)


def test_g12_dividing_by_n_less_1_is_unbiased_and_by_n_is_not(rng: np.random.Generator) -> None:
    found = []
    for _ in range(4000):
        state = RunningMoments()
        state.add(rng.normal(size=(5, 2)))
        found.append(np.diag(state.covariance))
    # Var of a sample variance of 5: 2 / 4; 8,000 of them.
    error = np.sqrt(0.5 / 8000)
    assert abs(np.mean(found) - 1) < 3 * error
    assert abs(np.mean(found) * 4 / 5 - 1) > 10 * error


def test_g13_left_vectors_are_of_x_xt_and_right_ones_of_xt_x(rng: np.random.Generator) -> None:
    X = rng.normal(size=(4, 6))
    U, D, Vt = np.linalg.svd(X, full_matrices=False)
    np.testing.assert_allclose(X @ X.T @ U, U * D**2, atol=1e-12)
    np.testing.assert_allclose(X.T @ X @ Vt.T, Vt.T * D**2, atol=1e-12)


def test_g14_singular_values_are_not_absolute_eigenvalues_unless_normal(rng: np.random.Generator) -> None:
    A = rng.normal(size=(200, 200)) / np.sqrt(200)
    sigma = np.linalg.svd(A, compute_uv=False)
    # The largest eigenvalue is near 1, the largest singular value near 2.
    assert np.abs(np.linalg.eigvals(A)).max() < 1.3
    assert sigma[0] > 1.8
    np.testing.assert_allclose(np.sqrt(np.linalg.eigvalsh(A.T @ A)[::-1]), sigma, atol=1e-8)
    normal = A + A.T
    magnitudes = np.sort(np.abs(np.linalg.eigvalsh(normal)))[::-1]
    np.testing.assert_allclose(magnitudes, np.linalg.svd(normal, compute_uv=False), atol=1e-10)


def test_g15_a_covariance_has_at_most_one_rank_less_than_samples(rng: np.random.Generator) -> None:
    for n, d in ((4, 10), (30, 10)):
        state = RunningMoments()
        state.add(rng.normal(size=(n, d)))
        assert rank(spectrum(state.covariance)) == min(d, n - 1)


def test_g16_a_norm_sets_the_length_to_root_d_and_makes_nothing_standard() -> None:
    rng = np.random.default_rng(13)
    x = rng.exponential(size=(20_000, 16))
    centred = x - x.mean(axis=1, keepdims=True)
    h = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True))
    np.testing.assert_allclose(np.linalg.norm(h, axis=1), np.sqrt(16))  # not 1
    kurtosis = ((h[:, 0] - h[:, 0].mean()) ** 4).mean() / h[:, 0].var() ** 2 - 3
    # Of a Gaussian the sd would be sqrt(24 / n) = 0.035; these are far from one.
    assert kurtosis > 0.5
    # The covariance is not the identity either: one direction is lost.
    _, cov = through_norm(np.ones(16), np.eye(16), centred=True)
    assert rank(spectrum(cov)) == 15


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("d", [3, 12])
def test_g16_a_gaussian_through_a_norm_has_these_moments(centred: bool, d: int) -> None:
    rng = np.random.default_rng(14)
    L, mean, n = rng.normal(size=(d, d)), rng.normal(size=d), 300_000
    x = rng.standard_normal((n, d)) @ L.T + mean
    if centred:
        x -= x.mean(axis=1, keepdims=True)
    h = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 0.1)
    found_mean, found = through_norm(mean, L @ L.T, epsilon=0.1, centred=centred)
    errors = h.std(axis=0) / np.sqrt(n)
    assert (np.abs(h.mean(axis=0) - found_mean) < 4 * errors + 1e-12).all()
    products = (h - found_mean)[:, :, None] * (h - found_mean)[:, None, :]
    assert (np.abs(products.mean(axis=0) - found) < 4.5 * products.std(axis=0) / np.sqrt(n) + 1e-12).all()


@given(seed=seeds, d=st.integers(1, 8), scale=st.sampled_from([1e-6, 1.0, 1e5]))
def test_a_norm_without_epsilon_leaves_the_mean_square_at_one(seed: int, d: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(d, d)) * scale
    mean, cov = through_norm(rng.normal(size=d) * scale, A @ A.T)
    assert (np.trace(cov) + mean @ mean) / d == pytest.approx(1, rel=1e-9)


def test_a_norm_of_nothing_is_nothing() -> None:
    mean, cov = through_norm(np.zeros(3), np.zeros((3, 3)))
    assert not mean.any()
    assert not cov.any()


def test_g17_the_root_of_d_is_the_spread_of_a_product_not_the_root_of_a_length(rng: np.random.Generator) -> None:
    q, k = rng.standard_normal((2, 100_000, 64))
    length = np.linalg.norm(q, axis=1).mean()
    spread = (q * k).sum(axis=1).std()
    assert length == pytest.approx(8, rel=0.01)
    assert spread == pytest.approx(8, rel=0.02)
    # Published: the factor is the root of the expected length.
    assert np.sqrt(length) == pytest.approx(2.83, abs=0.02)


def test_g18_the_second_moment_has_weights_once_and_the_covariance_loses_the_mean(rng: np.random.Generator) -> None:
    vectors = rng.normal(size=(3, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    weights = np.array([0.5, 0.3, 0.2])
    drawn = vectors[rng.choice(3, 100_000, p=weights)]
    empirical = drawn.T @ drawn / len(drawn)
    moment = weighted_vectors.second_moment(vectors, weights)
    # Entries are at most one in size, so their standard error is below 1 / sqrt(n).
    assert np.abs(moment - empirical).max() < 4 / np.sqrt(len(drawn))
    squared = np.einsum("i,ia,ib->ab", weights**2, vectors, vectors)
    assert np.abs(squared - empirical).max() > 20 / np.sqrt(len(drawn))
    assert np.trace(moment) == pytest.approx(1)
    covariance = weighted_vectors.covariance(vectors, weights)
    assert np.abs(covariance - np.cov(drawn.T)).max() < 4 / np.sqrt(len(drawn))
    assert rank(spectrum(moment)) == 3
    assert rank(np.where(spectrum(covariance) > 1e-14, spectrum(covariance), 0)) == 2


@given(seed=seeds, k=st.integers(1, 6), d=st.integers(1, 6))
def test_g18_the_gram_matrix_has_the_same_spectrum(seed: int, k: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, weights = rng.normal(size=(k, d)), rng.random(k) + 0.1
    shares = weights / weights.sum()
    gram = weighted_vectors.gram(vectors, weights)
    np.testing.assert_allclose(gram, np.sqrt(np.outer(shares, shares)) * (vectors @ vectors.T), atol=1e-12)
    full = np.zeros(max(k, d))
    full[:d] = np.linalg.eigvalsh(weighted_vectors.second_moment(vectors, weights))[::-1]
    short = np.zeros(max(k, d))
    short[:k] = np.linalg.eigvalsh(gram)[::-1]
    np.testing.assert_allclose(short, np.sort(full)[::-1], atol=1e-10)
    np.testing.assert_allclose(
        np.pad(weighted_vectors.spectrum(vectors, weights), (0, max(d - k, 0)))[: min(k, d)],
        np.linalg.eigvalsh(weighted_vectors.covariance(vectors, weights))[::-1][: min(k, d)],
        atol=1e-10,
    )


def test_g19_and_g20_eigenvalues_of_two_vectors() -> None:
    first, second, cosine = 0.4, 0.7, 0.5
    u, v = np.array([1.0, 0.0]), np.array([cosine, np.sqrt(1 - cosine**2)])

    def eigenvalues(a: float, b: float) -> np.ndarray:
        return np.linalg.eigvalsh(a**2 * np.outer(u, u) + b**2 * np.outer(v, v))

    total = first**2 + second**2
    root = np.sqrt(total**2 - 4 * first**2 * second**2 * (1 - cosine**2))
    np.testing.assert_allclose(eigenvalues(first, second), [(total - root) / 2, (total + root) / 2])
    # Equal ones: the square of lambda times 1 -+ alpha; published without the square.
    np.testing.assert_allclose(eigenvalues(0.4, 0.4), [0.08, 0.24])
    np.testing.assert_allclose(eigenvalues(0.4, 0.4), 0.4**2 * np.array([1 - cosine, 1 + cosine]))
    # As weights of a set: lambda is the weight itself.
    np.testing.assert_allclose(np.linalg.eigvalsh(weighted_vectors.second_moment([u, v], [1, 1])), [0.25, 0.75])


@given(seed=seeds, k=st.integers(2, 8))
def test_g21_eigenvalues_repel_by_the_squared_cosines(seed: int, k: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(k, 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    assert np.linalg.eigvalsh(cosines).var() == pytest.approx(weighted_vectors.repulsion(cosines), abs=1e-12)


@pytest.mark.parametrize("weights", [[1.0, -0.1], [0.0, 0.0], [[1.0]]])
def test_what_are_no_weights_is_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights are"):
        weighted_vectors.mean(np.eye(2), weights)


def test_principal_angles_of_planted_subspaces() -> None:
    angles = np.array([1e-9, 0.3, 1.2])
    A = np.eye(3, 6)
    B = np.hstack([np.diag(np.cos(angles)), np.diag(np.sin(angles))])
    np.testing.assert_allclose(principal_angles(A, B), angles, rtol=1e-6)
    rng = np.random.default_rng(15)
    turn, frame = np.linalg.qr(rng.normal(size=(3, 3)))[0], np.linalg.qr(rng.normal(size=(6, 6)))[0]
    np.testing.assert_allclose(principal_angles(A @ frame, turn @ B @ frame), angles, atol=1e-12)


def test_a_subspace_of_equal_eigenvalues_does_not_depend_on_its_basis() -> None:
    """A degenerate pair has no directions of its own, but a subspace."""
    frame = np.linalg.qr(np.random.default_rng(16).normal(size=(5, 5)))[0]
    cov = frame @ np.diag([3.0, 3.0, 1.0, 0.5, 0.1]) @ frame.T
    nudged = cov + 1e-12 * np.random.default_rng(17).normal(size=(5, 5))
    assert principal_angles(leading(cov, 2), leading((nudged + nudged.T) / 2, 2)).max() < 1e-9
