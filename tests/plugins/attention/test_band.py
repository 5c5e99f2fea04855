"""The nearest band plus sparse error against brute force over all supports, and against a linear programme."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from gausslens_attention.maths.band_plus_sparse import cells, offsets, project
from gausslens_attention.maths.random_search import random_search
from gausslens_attention.maths.widths import distances

from .maps import any_maps, softmax_maps


def brute_force(H: np.ndarray, width: int, budget: int, epsilon: float | None) -> float:
    """The least distance over all places of the errors; on each cell the nearest value is what it may hold."""
    outside = np.argwhere(offsets(len(H)) > width)
    total = sum(abs(H[tuple(cell)]) for cell in outside)
    saved = [min(abs(H[tuple(cell)]), np.inf if epsilon is None else epsilon) for cell in outside]
    k = min(budget, len(outside))
    return float(total - max(sum(chosen) for chosen in itertools.combinations(saved, k)))


@pytest.mark.parametrize("epsilon", [None, 0.3])
@pytest.mark.parametrize("budget", [0, 1, 3])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_projection_is_the_best_of_all_supports(n: int, budget: int, epsilon: float | None) -> None:
    for seed in range(5):
        H = np.random.default_rng(seed).normal(size=(n, n))
        for width in range(n):
            X, distance = project(H, width, budget, epsilon)
            assert distance == pytest.approx(brute_force(H, width, budget, epsilon), abs=1e-9)
            assert np.abs(H - X).sum() == pytest.approx(distance, abs=1e-12)
            errors = X[offsets(n) > width]
            assert np.count_nonzero(errors) <= budget
            assert epsilon is None or np.abs(errors).max(initial=0.0) <= epsilon + 1e-15


def programme(H: np.ndarray, room: np.ndarray) -> float:
    """min sum |h - x| over x >= 0 with rows that sum to one and x <= room, as a linear programme."""
    n = len(H)
    size = n * n
    eye = np.eye(size)
    below = np.block([[eye, -eye], [-eye, -eye]])
    rows = np.hstack([np.kron(np.eye(n), np.ones((1, n))), np.zeros((n, size))])
    bounds = [(0.0, None if np.isinf(r) else r) for r in room.ravel()] + [(0.0, None)] * size
    cost = np.concatenate([np.zeros(size), np.ones(size)])
    limits = np.concatenate([H.ravel(), -H.ravel()])
    found = linprog(cost, A_ub=below, b_ub=limits, A_eq=rows, b_eq=np.ones(n), bounds=bounds, method="highs")
    assert found.success
    return float(found.fun)


@pytest.mark.parametrize("epsilon", [None, 0.15])
@pytest.mark.parametrize("kind", ["stochastic", "any"])
@pytest.mark.parametrize(("n", "width", "budget"), [(1, 0, 1), (2, 0, 1), (3, 0, 2), (3, 1, 1), (4, 1, 2)])
def test_the_stochastic_projection_is_the_best_of_all_linear_programmes(
    n: int, width: int, budget: int, kind: str, epsilon: float | None
) -> None:
    for seed in range(2):
        H = softmax_maps(n, seed=seed)[0]
        H = H if kind == "stochastic" else np.random.default_rng(seed).normal(0.3, 0.5, (n, n))
        inside = offsets(n) <= width
        outside = np.argwhere(~inside)
        best = np.inf
        for chosen in itertools.combinations(range(len(outside)), min(budget, len(outside))):
            room = np.where(inside, np.inf, 0.0)
            for place in chosen:
                room[tuple(outside[place])] = np.inf if epsilon is None else epsilon
            best = min(best, programme(H, room))
        X, distance = project(H, width, budget, epsilon, stochastic=True)
        assert distance == pytest.approx(best, abs=1e-9)
        assert np.abs(H - X).sum() == pytest.approx(best, abs=1e-9)
        assert X.min() >= 0
        np.testing.assert_allclose(X.sum(axis=1), 1.0, atol=1e-12)
        assert np.count_nonzero(X[~inside] > 1e-15) <= budget
        assert epsilon is None or X[~inside].max(initial=0.0) <= epsilon + 1e-12


def test_a_stochastic_map_is_twice_as_far_from_stochastic_members() -> None:
    H = softmax_maps(8, heads=3)
    for width, budget in itertools.product(range(8), (0, 2, 9)):
        free, bound = project(H, width, budget)[1], project(H, width, budget, stochastic=True)[1]
        np.testing.assert_allclose(bound, 2 * free, atol=1e-12)


@given(H=any_maps(), budget=st.integers(0, 60), epsilon=st.sampled_from([None, 0.1, 0.7]), stochastic=st.booleans())
def test_distances_never_grow(H: np.ndarray, budget: int, epsilon: float | None, stochastic: bool) -> None:
    widths = list(range(len(H)))
    _, few = project(H, widths, budget, epsilon, stochastic)
    _, more = project(H, widths, budget + 1, epsilon, stochastic)
    assert (np.diff(few) <= 1e-12).all()
    assert (more <= few + 1e-12).all()


@given(H=any_maps(), width=st.integers(0, 7))
def test_a_band_is_its_own_projection(H: np.ndarray, width: int) -> None:
    band = np.where(offsets(len(H)) <= width, H, 0.0)
    X, distance = project(band, width)
    np.testing.assert_array_equal(X, band)
    assert distance == 0


@given(n=st.integers(1, 9), width=st.integers(0, 9), seed=st.integers(0, 99))
def test_a_stochastic_band_is_its_own_stochastic_projection(n: int, width: int, seed: int) -> None:
    band = np.where(offsets(n) <= width, softmax_maps(n, seed=seed)[0], 0.0)
    band /= band.sum(axis=1, keepdims=True)
    X, distance = project(band, width, stochastic=True)
    np.testing.assert_allclose(X, band, atol=1e-15)
    assert distance == pytest.approx(0, abs=1e-13)


@given(H=any_maps(5), width=st.integers(0, 4), budget=st.integers(0, 6), epsilon=st.sampled_from([None, 0.25]))
def test_a_bounded_band_leaves_what_is_beyond_its_bounds(
    H: np.ndarray, width: int, budget: int, epsilon: float | None
) -> None:
    X, distance = project(H, width, budget, epsilon, bounded=True)
    rest = np.where(offsets(len(H)) <= width, np.abs(H - np.clip(H, 0, 1)), np.abs(H))
    saved = np.sort(np.minimum(rest, np.inf if epsilon is None else epsilon), axis=None)[::-1][:budget]
    assert distance == pytest.approx(rest.sum() - saved.sum(), abs=1e-9)
    assert np.abs(H - X).sum() == pytest.approx(distance, abs=1e-12)


@settings(max_examples=60)
@given(
    H=any_maps(9),
    budgets=st.lists(st.integers(0, 90), min_size=1, max_size=4),
    epsilon=st.sampled_from([None, 0.2]),
    stochastic=st.booleans(),
)
def test_all_widths_at_once_are_those_one_by_one(
    H: np.ndarray, budgets: list[int], epsilon: float | None, stochastic: bool
) -> None:
    found = distances(H, budgets, epsilon, stochastic)
    single = [[project(H, w, k, epsilon, stochastic)[1] for k in budgets] for w in range(len(H))]
    np.testing.assert_allclose(found, single, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_all_widths_at_once_of_many_heads_and_layers(causal: bool, dtype: type) -> None:
    maps = softmax_maps(40, heads=12, causal=causal, sharp=3.0).reshape(2, 6, 40, 40).astype(dtype)
    budgets = [0, 1, 17, 130, 600, 1600]
    for stochastic in (False, True):
        found = distances(maps, budgets, stochastic=stochastic)
        assert found.shape == (2, 6, 40, 6)
        single = np.stack([project(maps, list(range(40)), k, stochastic=stochastic)[1] for k in budgets], axis=-1)
        # float32 rows sum to one to their rounding.
        np.testing.assert_allclose(found, np.moveaxis(single, 0, -2), atol=1e-9 if dtype is np.float64 else 1e-5)


def test_many_widths_come_along_an_axis_in_front() -> None:
    H = softmax_maps(6, heads=4).reshape(2, 2, 6, 6)
    X, distance = project(H, [0, 3, 5], budget=2)
    assert X.shape == (3, 2, 2, 6, 6)
    assert distance.shape == (3, 2, 2)
    for i, width in enumerate((0, 3, 5)):
        alone, apart = project(H, width, budget=2)
        np.testing.assert_array_equal(distance[i], apart)
        np.testing.assert_array_equal(np.abs(H - X[i]).sum((-1, -2)), np.abs(H - alone).sum((-1, -2)))


@pytest.mark.parametrize("causal", [False, True])
def test_the_cells_of_a_band_are_counted(causal: bool) -> None:
    for n in range(1, 9):
        seen = np.tril(np.ones((n, n), dtype=bool)) if causal else np.ones((n, n), dtype=bool)
        for width in range(n + 2):
            assert cells(n, width, causal) == int(((offsets(n) <= width) & seen).sum())
    assert cells(16, 3) == 16 * 7 - 3 * 4  # n (2w + 1) - w (w + 1), the dimension of the source


def test_no_band_is_nearer_than_the_exact_one_with_as_many_errors() -> None:
    """The source draws a band of width 3 and 16 errors; its best of many draws is far from the exact one."""
    maps = softmax_maps(16, heads=6, sharp=2.0)
    found = random_search(maps, np.random.default_rng(0), width=3, draws=10, steps=3)
    assert found.draws == 3**3 * 3 * 10
    _, exact = project(maps, 3, budget=16, stochastic=True)
    assert (exact < found.distance).all()
