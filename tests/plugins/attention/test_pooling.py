"""Scoring functions fitted to scores that are known."""

from __future__ import annotations

import numpy as np
import pytest

from gausslens_attention.maths.scoring_functions import explained, fit_additive, fit_dot, fit_multiplicative

RNG = np.random.default_rng(0)
Q, K = RNG.normal(size=(2, 30, 4))
CAUSAL = np.tril(np.ones((30, 30), dtype=bool))


def test_scaled_dot_products_are_found() -> None:
    found = fit_dot(Q, K, 0.5 * Q @ K.T + 1.0, CAUSAL)
    assert found.explained == pytest.approx(1)
    assert found.numbers == 2
    np.testing.assert_allclose(found.score(K, Q), 0.5 * K @ Q.T + 1.0)


def test_a_bilinear_form_is_found_and_a_dot_product_does_not_suffice() -> None:
    W = RNG.normal(size=(4, 3))
    scores = Q @ W @ K[:, :3].T - 2.0
    found = fit_multiplicative(Q, K[:, :3], np.where(CAUSAL, scores, -np.inf))
    assert found.explained == pytest.approx(1)
    assert found.numbers == 13
    np.testing.assert_allclose(found.score(Q, K[:, :3]), scores, atol=1e-6)
    assert fit_dot(Q[:, :3], K[:, :3], scores).explained < 0.9


def test_additive_scores_are_found_and_a_bilinear_form_does_not_suffice() -> None:
    W1, W2, u = RNG.normal(size=(2, 4)), RNG.normal(size=(2, 4)), np.array([2.0, -1.0])
    scores = np.tanh((Q @ W1.T)[:, None] + (K @ W2.T)[None] + 0.3) @ u
    bilinear = fit_multiplicative(Q, K, scores)
    found = fit_additive(Q, K, scores, hidden=8, steps=300)
    assert found.explained > 0.99 > 0.9 > bilinear.explained
    again = fit_additive(Q, K, scores, hidden=8, steps=300)
    np.testing.assert_array_equal(found.score(Q, K), again.score(Q, K))
    assert found.numbers == 8 * (4 + 4 + 2) + 1


def test_noise_is_not_explained_by_few_numbers() -> None:
    noise = RNG.normal(size=(30, 30))
    assert abs(fit_dot(Q, K, noise).explained) < 4 / 30
    assert fit_dot(Q, K, np.ones((30, 30))).explained == 1
    half = np.random.default_rng(1).random((30, 30)) < 0.5
    bilinear = fit_multiplicative(Q, K, noise, half)
    assert bilinear.explained > 0
    assert explained(bilinear.score, Q, K, noise, ~half) < 0
    with pytest.raises(ValueError, match="every cell is masked"):
        fit_dot(Q, K, noise, np.zeros((30, 30)))
