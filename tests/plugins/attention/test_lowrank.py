"""Truncated decompositions, random projections, Linformer, and low rank plus sparse."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gausslens_attention.maths.lowrank import (
    fitted,
    gaussian,
    linformer,
    linformer_pattern,
    linformer_weights,
    sketch_error,
    sketched,
    split,
    truncated,
)

from .maps import softmax_maps


def test_truncation_leaves_the_singular_values_beyond_the_rank() -> None:
    P = softmax_maps(9, heads=4, sharp=2.0)
    values = np.linalg.svd(P, compute_uv=False)
    for rank, X in zip((0, 1, 4, 9), truncated(P, [0, 1, 4, 9]), strict=True):
        left = np.sqrt((values[:, rank:] ** 2).sum(axis=1))
        np.testing.assert_allclose(np.linalg.norm(P - X, axis=(1, 2)), left, atol=1e-12)
        assert np.linalg.matrix_rank(X, tol=1e-9).max(initial=0) <= rank


def test_the_error_of_a_sketch_is_the_one_that_is_predicted() -> None:
    """E|P R'R w - P w|^2 = (|P|^2 |w|^2 + |P w|^2) / k; for a centred w about n / k times |P w|^2, whatever P is."""
    n, rank, draws = 24, 8, 4000
    rng = np.random.default_rng(0)
    w = rng.normal(size=(n, 1))
    w -= w.mean()
    for P in (softmax_maps(n)[0], np.eye(n)):
        errors = [((sketched(P, gaussian(rank, n, rng)) @ w - P @ w) ** 2).sum() for _ in range(draws)]
        expected = float(sketch_error(P, w, rank))
        standard_error = np.std(errors) / np.sqrt(draws)
        assert abs(np.mean(errors) - expected) < 4 * standard_error
    assert float(sketch_error(np.eye(n), w, rank)) == pytest.approx((n + 1) / rank * (w**2).sum())


def test_linformer_with_identities_is_exact() -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 12, 5, generator=draw, dtype=torch.float64) for _ in range(3))
    eye = torch.eye(12, dtype=torch.float64)
    exact = (q @ k.transpose(-1, -2) * 0.4).softmax(-1) @ v
    torch.testing.assert_close(linformer(q, k, v, eye, eye, 0.4), exact, rtol=0, atol=1e-14)


def test_linformer_applies_the_map_that_it_is_said_to() -> None:
    rng = np.random.default_rng(1)
    q, k, v = rng.normal(size=(3, 2, 12, 5))
    E, F = gaussian(4, 12, rng), gaussian(4, 12, rng)
    pattern = linformer_pattern(0.4 * q @ k.swapaxes(-1, -2), E, F)
    made = linformer(*map(torch.from_numpy, (q, k, v, E, F)), 0.4).numpy()
    np.testing.assert_allclose(pattern @ v, made, atol=1e-12)


def test_fitted_projections_are_better_than_random_ones_and_as_good_as_their_weights_allow() -> None:
    rng = np.random.default_rng(2)
    scores = 2 * rng.normal(size=(3, 16, 16))
    P = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    E, F = fitted(P, scores, 6)
    near = linformer_pattern(scores, E, F)
    drawn = gaussian(6, 16, rng)
    assert (
        np.linalg.norm(P - near, axis=(1, 2)) < np.linalg.norm(P - linformer_pattern(scores, drawn, drawn), axis=(1, 2))
    ).all()
    # What is left lies outside the span of the weights.
    weights = linformer_weights(scores, E)
    np.testing.assert_allclose(weights.swapaxes(-1, -2) @ (P - near), 0.0, atol=1e-9)


def test_low_rank_plus_sparse_is_recovered_and_never_gets_worse() -> None:
    rng = np.random.default_rng(3)
    low = 0.5 * rng.normal(size=(2, 20, 2)) @ rng.normal(size=(2, 2, 20))
    sparse = np.zeros((2, 400))
    for one in sparse:
        one[rng.choice(400, 10, replace=False)] = 20.0
    P = low + sparse.reshape(2, 20, 20)
    L, S = split(P, 2, 10, rounds=60)
    np.testing.assert_allclose(L, low, atol=1e-6)
    np.testing.assert_allclose(S, sparse.reshape(2, 20, 20), atol=1e-6)
    maps = softmax_maps(20, heads=2, sharp=2.0)
    errors = [np.linalg.norm(maps - sum(split(maps, 3, 30, rounds=r)), axis=(1, 2)) for r in range(8)]
    assert (np.diff(errors, axis=0) <= 1e-12).all()
    assert all((S != 0).sum(axis=(1, 2)).max() <= 30 for _, S in [split(maps, 3, 30)])


def test_an_oracle_is_met_where_the_map_is_of_its_form() -> None:
    rng = np.random.default_rng(4)
    weights = rng.random((10, 3))
    P = (weights / weights.sum(axis=1, keepdims=True)) @ softmax_maps(10)[0][:3]
    np.testing.assert_allclose(truncated(P, [3])[0], P, atol=1e-12)
