"""Distances, divergences and oracles."""

from __future__ import annotations

import numpy as np
import pytest

from gausslens_attention.maths.band_plus_sparse import cells, project
from gausslens_attention.maths.lowrank import truncated
from gausslens_attention.maths.measures import BASELINES, FLOOR, Oracles, baselines, divergence, entropy, measured

from .maps import softmax_maps

P = softmax_maps(12, heads=3, causal=True, sharp=2.0)
V = np.random.default_rng(0).normal(size=(3, 12, 4))


def test_measures_of_a_map_against_itself_and_against_nothing() -> None:
    same = measured(P, P, V)
    assert all(np.allclose(same[name], 0) for name in ("distance", "distance_per_row", "output_error"))
    assert (np.abs(same["kl"]) < 2 * FLOOR).all()
    nothing = measured(P, np.zeros_like(P), V)
    np.testing.assert_allclose(nothing["distance"], 12)
    np.testing.assert_allclose(nothing["distance_per_row"], 1)
    np.testing.assert_allclose(nothing["distance_per_cell"], 1 / 12)
    np.testing.assert_allclose(nothing["output_error"], 1)


def test_divergence_is_that_of_rows() -> None:
    other = softmax_maps(12, heads=3, causal=False, seed=5)
    mixed = (1 - FLOOR) * other + FLOOR / 12
    expected = np.where(P > 0, P * np.log(np.where(P > 0, P, 1) / mixed), 0).sum(-1).mean(-1)
    np.testing.assert_allclose(divergence(P, other), expected)
    np.testing.assert_allclose(divergence(P, 3 * other), expected)
    np.testing.assert_allclose(divergence(np.eye(3), np.zeros((3, 3))), np.log(3))
    assert divergence(np.eye(3), np.roll(np.eye(3), 1, axis=1)) == pytest.approx(np.log(3 / FLOOR))


def test_entropy_tells_soft_from_hard() -> None:
    past = np.tril(np.ones((6, 6)))
    assert entropy(past / past.sum(1, keepdims=True)) == pytest.approx(1)
    assert entropy(np.eye(6)) == pytest.approx(0)
    hard, soft = (entropy(softmax_maps(30, sharp=s))[0] for s in (5.0, 0.2))
    assert hard < 0.4 < 0.95 < soft


def test_trivial_approximations() -> None:
    made = dict(zip(BASELINES, baselines(5), strict=True))
    assert not made["zero"].any()
    np.testing.assert_allclose(made["uniform"], 0.2)
    np.testing.assert_array_equal(made["identity"], np.eye(5))
    np.testing.assert_allclose(made["causal mean"][3], [0.25, 0.25, 0.25, 0.25, 0])


def test_no_band_is_nearer_than_as_many_of_the_largest_cells() -> None:
    oracles = Oracles(P)
    for width in range(12):
        for budget in (0, 3, 20):
            _, distance = project(P, width, budget)
            entries = cells(12, width, causal=True) + budget
            assert (oracles.entries(entries) <= distance + 1e-12).all()
    flat = -np.sort(-P.reshape(3, -1), axis=1)
    np.testing.assert_allclose(oracles.entries(17.9), 12 - flat[:, :17].sum(axis=1))
    np.testing.assert_allclose(oracles.entries(10_000), 0, atol=1e-12)


def test_the_oracle_of_a_rank_is_the_truncated_decomposition() -> None:
    oracles = Oracles(P, np.linalg.svd(P, full_matrices=False))
    for rank in (0, 1, 5, 12, 99):
        near = truncated(P, [min(rank, 12)])[0]
        np.testing.assert_allclose(oracles.rank(rank + 0.5), np.abs(P - near).sum((-1, -2)), atol=1e-12)
