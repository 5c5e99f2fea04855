"""Softmax of Gaussian logits: each formula against draws, brute force or an identity, beside the published one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import hyp0f1

from gausslens_bilinear.maths import softmax as sm
from gausslens_bilinear.maths.slerp import js, kl, kl_nearly_flat, kl_on_arc, phase, slerp

MILLION = 1_000_000


def sphere(rng: np.random.Generator, draws: int, n: int, length: float = 1.0) -> np.ndarray:
    v = rng.normal(size=(draws, n))
    return length * v / np.linalg.norm(v, axis=1, keepdims=True)


@pytest.mark.parametrize(("mu", "s2"), [(0.8, 0.5), (0.0, 0.3), (-1.0, 1.0)])
def test_log_normal_moments(mu: float, s2: float, judge: Any, rng: Any) -> None:
    x = np.exp(rng.normal(mu, np.sqrt(s2), MILLION))
    mean, variance = sm.lognormal_moments(mu, s2)
    judge.mean(x, mean, None if mu == 0 else np.exp((mu + s2) / 2))
    judge.variance(x, variance)


@pytest.mark.parametrize("s", [0.1, 0.01])
def test_log_normal_expansions(s: float, judge: Any) -> None:
    mean, variance = sm.lognormal_moments(0.0, s)
    judge(mean, s**3 / 24, 1 + s / 2 + s**2 / 8, 1 + s + s**2 / 8 + 1)  # "1 + 1/m" is a slip
    judge(variance, 2 * s**3 / 3, s + 3 * s**2 / 2)


def test_ratios_of_probabilities(judge: Any, rng: Any) -> None:
    mu, sd, rho = np.array([1.0, 0.4]), np.array([0.8, 1.1]), 0.5
    S = np.array([[sd[0] ** 2, rho * sd[0] * sd[1]], [rho * sd[0] * sd[1], sd[1] ** 2]])
    x = rng.multivariate_normal(mu, S, MILLION)
    p = sm.softmax(x)
    mean, variance = sm.ratio_moments(mu, S, 0, 1)
    v = S[0, 0] + S[1, 1] - 2 * S[0, 1]
    judge.mean(p[:, 0] / p[:, 1], mean, np.exp((mu[0] - mu[1] + v) / 2))
    judge.variance(p[:, 0] / p[:, 1], variance)
    # The covariance is rho s_i s_j; rho / (s_i s_j) gives another ratio.
    wrong = np.array([[S[0, 0], rho / (sd[0] * sd[1])], [rho / (sd[0] * sd[1]), S[1, 1]]])
    judge.mean(p[:, 0] / p[:, 1], mean, sm.ratio_moments(mu, wrong, 0, 1)[0])
    # Both ratios exceed 1, so a ratio above 1 separates nothing.
    even = np.zeros(2)
    assert min(sm.ratio_moments(even, S, 0, 1)[0], sm.ratio_moments(even, S, 1, 0)[0]) > 1


@pytest.mark.parametrize(("n", "length"), [(6, 2.0), (20, 3.0)])
def test_ratios_on_a_sphere(n: int, length: float, judge: Any, rng: Any) -> None:
    v = sphere(rng, 400_000, n, length)
    r = np.exp(v[:, 0] - v[:, 1])
    mean, variance = sm.sphere_ratio_moments(n, length)
    judge.mean(r, mean, np.exp(length / n))
    judge.variance(r, variance)


def test_many_dimensions_make_the_sphere_gaussian(judge: Any) -> None:
    n, length = 5000, 3.0
    s = length**2 / n
    mean, variance = sm.sphere_ratio_moments(n, length)
    judge(mean, s / n, np.exp(s), np.exp(length / n))
    judge(variance, 10 * s / n, np.expm1(2 * s) * np.exp(2 * s))
    assert np.expm1(2 * s) * np.exp(2 * s) == pytest.approx(2 * s + 6 * s**2, rel=s**2 * 10)
    assert float(hyp0f1(n / 2, length**2 / 2)) == mean


@pytest.mark.parametrize("s2", [0.25, 1.0, 2.0])
def test_entropy_and_concentration_of_a_row(s2: float, judge: Any, rng: Any) -> None:
    n = 4096
    x = rng.normal(0, np.sqrt(s2), (400, n))
    H = sm.entropy(x)
    # Fluctuations of the log of a sum of n terms shift the mean entropy by about (exp(s2) - 1)/2n (1 + s2).
    finite = np.expm1(s2) * (1 + s2) / n + 4 * H.std() / np.sqrt(len(H))
    assert abs(H.mean() - sm.row_entropy(n, s2)) < finite
    # ... and not log n, which holds only where the logits hardly vary.
    assert np.log(n) - H.mean() > 8 * finite
    concentration = (sm.softmax(x) ** 2).sum(axis=1)
    assert concentration.mean() == pytest.approx(
        float(sm.softmax_row_concentration(n, s2)), rel=0.02 + 3 * np.exp(2 * s2) / n
    )


@pytest.mark.parametrize(("n", "s2"), [(1, 2.0), (8, 0.5), (24, 1.25), (90, 9.0), (30, 16.0), (300, 40.0), (4000, 1.0)])
def test_entropy_and_concentration_of_any_row(n: int, s2: float, judge: Any, rng: Any) -> None:
    x = rng.normal(0, np.sqrt(s2), (3000, n))
    H, C = sm.softmax_row_moments(n, s2)
    measured = sm.entropy(x), (sm.softmax(x) ** 2).sum(axis=1)
    for values, right in zip(measured, (H, C), strict=True):
        judge(values.mean(), values.std() / np.sqrt(len(values)) + 3e-4, float(right))


def test_long_rows_have_the_asymptotic_moments() -> None:
    H, C = sm.softmax_row_moments([1e5, 1e6], [1.0, 1.0])
    np.testing.assert_allclose(H, sm.row_entropy([1e5, 1e6], 1.0), atol=1e-3)
    np.testing.assert_allclose(C, sm.softmax_row_concentration([1e5, 1e6], 1.0), rtol=2e-3)


def test_a_row_freezes(rng: Any) -> None:
    n = 1000
    x = rng.normal(0, np.sqrt(8 * np.log(n)), (200, n))
    assert sm.row_entropy(n, 8 * np.log(n)) == 0
    assert sm.entropy(x).mean() < 0.15 * np.log(n)
    assert sm.softmax_row_concentration(n, 100.0) == 1


def test_initial_attention_is_not_flat(judge: Any, rng: Any) -> None:
    """LayerNorm, Xavier's variance 1/d and 1/sqrt(d_k) give logits of variance 1, not 1/n: half a nat below log n."""
    d, h, n, draws = 256, 64, 512, 24
    ratios, variances, entropies, peaks = [], [], [], []
    for _ in range(draws):
        x = sphere(rng, n, d, np.sqrt(d))
        W_Q, W_K = rng.normal(0, 1 / np.sqrt(d), (2, d, h))
        logits = (x[:16] @ W_Q) @ (x @ W_K).T / np.sqrt(h)
        variances.append(logits.var())
        entropies.append(np.log(n) - sm.entropy(logits).mean())
        peaks.append(n * sm.softmax(logits).max(axis=1).mean())
        ratios.append(np.exp(logits[:, 0] - logits[:, 1]).mean())
    judge.mean(np.array(variances), 1.0, 1 / n)
    deficit = np.log(n) - sm.row_entropy(n, 1.0)
    assert np.mean(entropies) == pytest.approx(float(deficit), abs=0.06)
    assert deficit == pytest.approx(0.5)
    assert np.mean(peaks) > 8
    assert np.mean(ratios) == pytest.approx(np.e, rel=0.25)


@pytest.mark.parametrize("seed", range(3))
def test_gradients(seed: int, judge: Any) -> None:
    rng = np.random.default_rng(seed)
    x, q, h = rng.normal(size=5), rng.dirichlet(np.ones(5)), 1e-5

    def loss(z: np.ndarray) -> float:
        return float(-(q * np.log(sm.softmax(z))).sum())

    numeric = np.array([(loss(x + h * e) - loss(x - h * e)) / (2 * h) for e in np.eye(5)])
    judge.exactly(numeric, sm.cross_entropy_gradient(q, x), -q * (1 - sm.softmax(x)), off=1e-8)
    slope = (sm.entropy((2 + h) * x) - sm.entropy((2 - h) * x)) / (2 * h)
    judge.exactly(slope, sm.entropy_slope(x, 2.0), off=1e-7)
    assert sm.entropy_slope(x, 2.0) <= 0
    assert sm.entropy(0 * x) == pytest.approx(np.log(5))
    assert sm.entropy(1e4 * x) == pytest.approx(0, abs=1e-9)


@given(seed=st.integers(0, 2**31), n=st.integers(2, 40), length=st.floats(0.01, 20))
def test_softmax_on_a_sphere_is_two_to_one_and_not_onto(seed: int, n: int, length: float) -> None:
    v = sphere(np.random.default_rng(seed), 1, n, length)[0]
    twin = v - 2 * v.mean()
    assert np.linalg.norm(twin) == pytest.approx(length)
    np.testing.assert_allclose(sm.softmax(twin), sm.softmax(v), atol=1e-12)
    p = sm.softmax(v)
    assert p.max() / p.min() <= sm.largest_ratio(length) * (1 + 1e-9)
    np.testing.assert_allclose(sm.softmax(np.zeros(n)), 1 / n)


def test_the_largest_probability_on_a_small_sphere() -> None:
    v = np.array([2.0, -1, -1]) / np.sqrt(6)
    assert sm.softmax(v).max() == pytest.approx(0.62986, abs=1e-5)


def test_lengths_of_random_vectors_and_their_sums(judge: Any, rng: Any) -> None:
    n = 30
    v, w = sphere(rng, 200_000, n), sphere(rng, 200_000, n)
    inside = (v * w).sum(axis=1)
    judge.mean(inside, 0.0)
    judge.variance(inside, 1 / n)
    judge.mean(((v + w) ** 2).sum(axis=1), 2.0, 1.0)
    # Weights of length 1 keep the length of a sum in expectation, and of orthogonal vectors exactly.
    lam = np.array([0.6, 0.8])
    judge.mean(((lam[0] * v + lam[1] * w) ** 2).sum(axis=1), 1.0)
    assert (np.linalg.norm(lam[0] * v + lam[1] * w, axis=1)).std() > 0.05


def test_expansions_of_mixed_exponentials(judge: Any) -> None:
    lam, v = np.array([0.4, 0.3, 0.2, 0.1]), 0.01 * np.array([1.0, -2.0, 0.5, 1.5])
    exact = np.exp((lam * v).sum())
    published = 2 * 3 + float(sm.mixed_exponential(lam, v))
    judge(exact, 1e-6, sm.mixed_exponential(lam, v), published)
    for one in v:
        assert np.exp(0.3 * one) == pytest.approx(float(sm.scaled_exponential(0.3, one)), abs=abs(one) ** 3)


def test_the_cross_term(judge: Any, rng: Any) -> None:
    n, length = 10, 1.0
    for lam in (np.full(n, 1 / n), np.array([0.5, 0.5] + [0.0] * (n - 2)), rng.dirichlet(np.ones(n))):
        s2 = rng.uniform(0.5, 1.5, n) * length**2 / n
        v = rng.normal(size=(400_000, n)) * np.sqrt(s2)
        x = lam * v
        cross = (x.sum(axis=1) ** 2 - (x**2).sum(axis=1)) / 2
        judge.variance(cross, sm.mixed_exponential_cross_variance(lam, s2))
    # The published bound is broken by two equal weights, as is the claim that uniform weights are the largest.
    half = np.array([0.5, 0.5] + [0.0] * (n - 2))
    bound = (n**2 - n) * n**-4.0 * 2 * length**2 / n**2
    assert sm.mixed_exponential_cross_variance(half, np.full(n, length**2 / n)) > bound
    ones = np.ones(3)
    assert sm.mixed_exponential_cross_variance([0.5, 0.5, 0], ones) == pytest.approx(1 / 16)
    assert sm.mixed_exponential_cross_variance(ones / 3, ones) == pytest.approx(1 / 27)
    largest = max(sm.mixed_exponential_cross_variance(rng.dirichlet(np.ones(3)), ones) for _ in range(2000))
    assert largest <= 1 / 16


def test_the_log_of_a_sum(judge: Any, rng: Any) -> None:
    """Fenton and Wilkinson match mean and variance of the sum itself."""
    n, s2 = 50, 0.8
    total = np.exp(rng.normal(0, np.sqrt(s2), (200_000, n))).sum(axis=1)
    mean, variance = sm.lognormal_moments(*sm.log_sum_moments(n, s2))
    judge.mean(total, mean)
    judge.variance(total, variance)


def test_scaling_spectra_is_a_temperature(judge: Any, rng: Any) -> None:
    A, B, x, y = (rng.normal(size=s) for s in ((6, 3), (6, 3), (8, 6), (8, 6)))
    logits, scaled = (x @ A) @ (y @ B).T, (x @ (1.7 * A)) @ (y @ (1.7 * B)).T
    judge.exactly(scaled, logits / sm.temperature(1.7), logits * 1.7)
    judge.exactly(scaled.var(), 1.7**4 * logits.var())


@given(seed=st.integers(0, 2**31), n=st.integers(2, 30), t=st.floats(0, 1))
def test_slerp_stays_on_the_sphere(seed: int, n: int, t: float) -> None:
    rng = np.random.default_rng(seed)
    v, w = sphere(rng, 2, n)
    if abs(v @ w) > 1 - 1e-6:
        return
    found = slerp(v, w, t)
    assert np.linalg.norm(found) == pytest.approx(1, abs=1e-9)
    assert found @ v == pytest.approx(np.cos(t * np.arccos(v @ w)), abs=1e-7)


def test_slerp_with_the_other_sign_misses_its_start(rng: Any) -> None:
    v, w = sphere(rng, 2, 5)
    angle = np.arccos(v @ w)
    np.testing.assert_allclose(slerp(v, w, [0.0, 1.0]), [v, w], atol=1e-12)
    published = (np.sin((0 - 1) * angle) * v + 0 * w) / np.sin(angle)
    np.testing.assert_allclose(published, -v, atol=1e-12)
    with pytest.raises(ValueError, match="no one arc"):
        slerp(v, v, 0.5)


def _orthogonal(rng: np.random.Generator, n: int, centred: bool) -> tuple[np.ndarray, np.ndarray]:
    M = rng.normal(size=(n, 2))
    Q = np.linalg.qr(M - M.mean(axis=0) if centred else M)[0]
    return Q[:, 0], Q[:, 1]


@pytest.mark.parametrize("n", [10, 100, 1000])
def test_divergence_along_an_arc_is_a_cosine_only_nearly(n: int, rng: Any) -> None:
    t, length = np.linspace(0, 1, 21), 1.0
    v, w = _orthogonal(rng, n, centred=True)
    points = length * slerp(v, w, t)
    found = kl(length * w, points)
    scale = length / np.sqrt(n)
    assert np.abs(found - kl_nearly_flat(length * w, points)).max() < 3 * scale**3
    np.testing.assert_allclose(kl_on_arc(n, length, t), kl_nearly_flat(length * w, points), rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(js(length * w, points), found / 4, atol=scale**3)
    # If the cosine were exact it would have to be KL(0)(1 - sin(pi t/2)): it is not.
    assert 1e-6 < _residual(found, t) < 2 / np.sqrt(n)
    # Nor is it for the Jensen-Shannon divergence, whose middle is the mixture and no point of the arc.
    assert 1e-6 < _residual(js(length * w, points), t) < 2 / np.sqrt(n)


def _residual(found: np.ndarray, t: np.ndarray) -> float:
    """How far from a cosine with the same ends, as a share of the range."""
    return float(np.abs(found - found[0] * (1 - np.sin(np.pi * t / 2))).max() / np.ptp(found))


def test_what_breaks_the_cosine_is_not_length_but_length_over_the_root_of_n(rng: Any) -> None:
    t = np.linspace(0, 1, 21)
    residuals = {}
    for n, length in ((10, 1.0), (4000, 5.0)):
        pairs = [_orthogonal(rng, n, centred=True) for _ in range(20)]
        residuals[length] = np.mean([_residual(kl(length * w, length * slerp(v, w, t)), t) for v, w in pairs])
    assert residuals[5.0] < residuals[1.0] / 3


def test_means_add_harmonics_even_for_short_vectors(rng: Any) -> None:
    n, t, length = 12, np.linspace(0, 1, 21), 1e-3
    residuals = []
    for centred in (True, False):
        v, w = _orthogonal(rng, n, centred)
        found = kl(length * w, length * slerp(v, w, t))
        residuals.append(_residual(found, t))
    assert residuals[0] < 1e-3 < residuals[1]


@given(x=st.floats(-3, 3), y=st.floats(-3, 3), a=st.floats(-4, 4))
def test_the_phase_is_that_of_the_sum_of_sines(x: float, y: float, a: float) -> None:
    amplitude, angle = phase(x, y)
    assert np.cos(a) * y + np.sin(a) * x == pytest.approx(float(amplitude * np.cos(a - angle)), abs=1e-12)


def test_the_published_phase_is_another() -> None:
    for x, y in ((0.5, 0.8), (0.5, -0.8)):
        amplitude, _ = phase(x, y)
        published = np.arctan(-x / y)
        assert abs(np.cos(0.3) * y + np.sin(0.3) * x - amplitude * np.cos(0.3 - published)) > 0.1
