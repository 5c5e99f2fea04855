"""Attention as a mixture of jointly Gaussian tokens (G22, G23), and the uniform-mixture hypothesis (L3 to L5)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens_gaussian.maths.collapse_measures import cosine, diameter, rates, relative_diameter
from gausslens_gaussian.maths.information import entropy, mutual_information
from gausslens_gaussian.maths.mixing import mixed, mixed_by_many

seeds = st.integers(0, 2**32 - 1)
N, D = 3, 2


def joint(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(N * D, 2 * N * D))
    return rng.normal(size=(N, D)), (A @ A.T / (2 * N * D)).reshape(N, D, N, D)


def draw(rng: np.random.Generator, mean: np.ndarray, cov: np.ndarray, n: int) -> np.ndarray:
    return rng.multivariate_normal(mean.ravel(), cov.reshape(N * D, N * D), n).reshape(n, N, D)


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def within(found: np.ndarray, samples: np.ndarray, deviations: float = 4.5) -> bool:
    """Whether a mean and covariance [k, k] are those of samples [n, k] within so many standard errors."""
    centred = samples - samples.mean(axis=0)
    products = centred[:, :, None] * centred[:, None, :]
    return bool(
        (np.abs(products.mean(axis=0) - found) < deviations * products.std(axis=0) / np.sqrt(len(samples))).all()
    )


def test_g22_a_fixed_mixture_is_the_kronecker_product() -> None:
    mean, cov = joint(0)
    A = softmax(np.random.default_rng(1).normal(size=(N, N)))
    centre, spread = mixed(mean, cov, A)
    kron = np.kron(A, np.eye(D))
    np.testing.assert_allclose(spread.reshape(N * D, -1), kron @ cov.reshape(N * D, -1) @ kron.T, atol=1e-12)
    # Blocks, with A[k, i] the weight that query k gives to key i: the first index is the query's.
    block = sum(A[0, i] * A[2, j] * cov[i, :, j] for i in range(N) for j in range(N))
    np.testing.assert_allclose(spread[0, :, 2], block, atol=1e-12)
    x = draw(np.random.default_rng(2), mean, cov, 100_000)
    z = np.einsum("ij,njd->nid", A, x)
    assert within(spread.reshape(N * D, -1), z.reshape(-1, N * D))
    np.testing.assert_allclose(z.mean(axis=0), centre, atol=0.02)
    # With the index turned round, as published, it is another matrix.
    turned = mixed(mean, cov, A.T)[1]
    assert not within(turned.reshape(N * D, -1), z.reshape(-1, N * D))


def test_g22_entropy_and_information_after_a_mixture() -> None:
    mean, cov = joint(3)
    A = softmax(np.random.default_rng(4).normal(size=(N, N)))
    spread = mixed(mean, cov, A)[1].reshape(N * D, N * D)
    before = cov.reshape(N * D, N * D)
    assert entropy(spread) == pytest.approx(entropy(before) + D * np.linalg.slogdet(A)[1])
    equal = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    same = mixed(mean, cov, equal)[1]
    # Two equal rows: one token determines the other.
    assert mutual_information(same[:2][:, :, :2].reshape(2 * D, 2 * D), D) == np.inf
    assert entropy(same.reshape(N * D, N * D)) == -np.inf


def test_g22_patterns_that_are_drawn_apart_from_the_tokens() -> None:
    """Each sample has a pattern of its own; the moments are exact, and the law is not Gaussian any more."""
    mean, cov = joint(5)
    rng = np.random.default_rng(6)
    n = 100_000
    x = draw(rng, mean, cov, n)
    patterns = softmax(2 * rng.normal(size=(n, N, N)))
    z = np.einsum("nij,njd->nid", patterns, x).reshape(n, N * D)
    A_mean = patterns.mean(axis=0)
    A_cov = np.cov(patterns.reshape(n, -1).T, bias=True).reshape(N, N, N, N)
    spread = mixed_by_many(mean, cov, A_mean, A_cov)[1].reshape(N * D, N * D)
    assert within(spread, z)
    assert not within(mixed(mean, cov, A_mean)[1].reshape(N * D, N * D), z)
    centred = z[:, 0] - z[:, 0].mean()
    kurtosis = (centred**4).mean() / (centred**2).mean() ** 2 - 3
    assert kurtosis > 10 * np.sqrt(24 / n)


def test_g22_a_pattern_that_follows_the_tokens_breaks_the_prediction() -> None:
    mean, cov = joint(7)
    rng = np.random.default_rng(8)
    x = draw(rng, mean, cov, 50_000)
    patterns = softmax(2 * np.einsum("nid,njd->nij", x, x))
    z = np.einsum("nij,njd->nid", patterns, x).reshape(-1, N * D)
    A_cov = np.cov(patterns.reshape(len(x), -1).T, bias=True).reshape(N, N, N, N)
    spread = mixed_by_many(mean, cov, patterns.mean(axis=0), A_cov)[1]
    assert not within(spread.reshape(N * D, -1), z, deviations=20)


def test_g23_a_linear_combination_is_gaussian_and_no_mixture_distribution() -> None:
    mean, cov = joint(9)
    mean = mean * 5
    rng = np.random.default_rng(10)
    weights = np.array([0.5, 0.3, 0.2])
    z = np.einsum("j,njd->nd", weights, draw(rng, mean, cov, 200_000))
    centred = (z - z.mean(axis=0)) / z.std(axis=0)
    # The sd of a kurtosis of so many Gaussian numbers is sqrt(24 / n) = 0.011.
    assert np.abs((centred**4).mean(axis=0) - 3).max() < 4 * np.sqrt(24 / len(z))
    own = mixed(mean, cov, weights[None])[1][0, :, 0]
    of_mixture = sum(w * cov[i, :, i] for i, w in enumerate(weights))
    centres = np.cov(mean.T, aweights=weights, bias=True)
    assert within(own, z)
    assert not within(of_mixture + centres, z)


@given(seed=seeds, n=st.integers(2, 8), beta=st.floats(0.0, 3.0))
def test_l3_mixing_contracts_by_at_most_the_difference_of_rows(seed: int, n: int, beta: float) -> None:
    """diam(A X) <= delta(A) diam(X), delta half the largest 1-norm between rows, <= 1 - exp(-2 beta)."""
    rng = np.random.default_rng(seed)
    A = softmax(rng.uniform(-beta, beta, (n, n)))
    X = rng.normal(size=(n, 3))
    delta = np.abs(A[:, None] - A[None]).sum(axis=-1).max() / 2
    assert delta <= 1 - np.exp(-2 * beta) + 1e-12
    assert diameter(A @ X) <= delta * diameter(X) + 1e-9


def test_l3_bounded_weights_alone_do_not_collapse_tokens() -> None:
    """The hypothesis as published: norms of at most 2 and no residual stream make all tokens equal. They do not."""
    x = 5 * np.eye(4)
    for _ in range(30):
        x = softmax(x @ x.T) @ x * 2  # W = 2 I
        x = 5 * x / np.linalg.norm(x, axis=1, keepdims=True)
    assert relative_diameter(x) == pytest.approx(np.sqrt(2), abs=1e-6)


def test_l3_bounded_logits_and_tokens_do() -> None:
    rng = np.random.default_rng(11)
    x = rng.normal(size=(16, 8))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    found = [diameter(x)]
    for _ in range(3):
        x = softmax(x @ x.T / np.sqrt(8)) @ x
        found.append(diameter(x))
    assert found[1] < 0.3 * found[0]
    assert found[3] < 1e-3 * found[0]


def test_l4_with_a_residual_stream_the_collapse_is_geometric() -> None:
    """Per layer (1 - b) / sqrt((1 - b)^2 + b^2 v^2), 0.707 at b = 1/2, v = 1: tokens differ by their streams alone."""
    rng = np.random.default_rng(12)
    d, n, b = 400, 24, 0.5
    x = rng.normal(size=(n, d))
    found = []
    for _ in range(12):
        # Attention that is uniform, a random value map of gain one.
        W = rng.normal(size=(d, d)) / np.sqrt(d)
        x = (1 - b) * x + b * np.repeat((x @ W).mean(axis=0)[None], n, axis=0)
        # The common part grows to the length of the whole: normed as a layer norm does.
        x = x / np.sqrt((x**2).sum(axis=1).mean() / d)
        found.append(relative_diameter(x))
    late = np.array(found[4:])
    assert np.exp(-rates(late)[0]) == pytest.approx(0.707, abs=0.05)


def test_l5_random_normed_tokens_lack_half_a_nat_of_uniform_attention() -> None:
    """With a norm before attention logits have variance 1: entropy log n - 1/2, near uniform but not uniform."""
    rng = np.random.default_rng(13)
    n, d, h = 1024, 128, 64
    x = rng.normal(size=(n, d))
    x *= np.sqrt(d) / np.linalg.norm(x, axis=1, keepdims=True)
    q, k = (x @ rng.normal(size=(d, h)) / np.sqrt(d) for _ in range(2))
    p = softmax(q @ k.T / np.sqrt(h))
    deficit = np.log(n) + (p * np.log(p)).sum(axis=1).mean()
    assert deficit == pytest.approx(0.5, abs=0.06)


def test_diameters_cosines_and_rates() -> None:
    assert diameter([[0.0, 0.0], [3.0, 4.0], [1.0, 1.0]]) == pytest.approx(5)
    assert relative_diameter(np.eye(3)) == pytest.approx(np.sqrt(2))
    assert relative_diameter(np.zeros((3, 2))) == 0
    assert relative_diameter(1e6 + np.array([[0.0], [1e-4]])) == pytest.approx(1e-10, rel=1e-5)
    assert cosine(np.eye(4)) == pytest.approx(0)
    assert cosine([[1.0, 0.0], [2.0, 0.0], [0.0, 0.0]]) == pytest.approx(1)
    assert cosine([[1.0, 0.0], [-1.0, 0.0]]) == pytest.approx(-1)
    np.testing.assert_allclose(rates(np.exp(-0.3 * np.arange(6))), [0.3])
    np.testing.assert_allclose(rates([[1.0, 0.5, 0.25, 0.0], [1.0, 1.0, 1.0, 1.0]]), [np.log(2), 0], atol=1e-12)
    assert np.isnan(rates([[1.0, 0.0]]))


@given(seed=seeds)
def test_cosine_is_the_mean_over_pairs(seed: int) -> None:
    X = np.random.default_rng(seed).normal(size=(5, 3))
    units = X / np.linalg.norm(X, axis=1, keepdims=True)
    pairs = [units[i] @ units[j] for i in range(5) for j in range(5) if i != j]
    assert cosine(X) == pytest.approx(np.mean(pairs))
