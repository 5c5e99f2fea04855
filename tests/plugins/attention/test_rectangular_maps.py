"""Maps of n queries and m keys: each formula against one written out cell by cell, and against brute force."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from gausslens_attention.maths.band_plus_sparse import apart, cells, offsets, places, project
from gausslens_attention.maths.costs import counted
from gausslens_attention.maths.kernels import (
    elu,
    features_and_flops,
    kernel_map,
    least_squares,
    least_squares_pattern,
    linear,
    quadratic,
    taylor2,
)
from gausslens_attention.maths.lowrank import (
    fitted,
    gaussian,
    linformer,
    linformer_pattern,
    scalars,
    sketch_error,
    sketched,
    split,
    truncated,
)
from gausslens_attention.maths.lowrank import flops as lowrank_flops
from gausslens_attention.maths.map_families import band, diagonal, kept_cells, within
from gausslens_attention.maths.masks import attend, bigbird, bigbird_cells, longformer, mask_of_keys, masked, window
from gausslens_attention.maths.measures import FLOOR, Oracles, baselines, cumulative_map_spectrum, measured
from gausslens_attention.maths.rare_tokens import rare_tokens
from gausslens_attention.maths.widths import distances

N = st.integers(1, 6)
SHAPES = [(1, 1), (1, 4), (4, 1), (2, 3), (3, 2), (2, 5), (5, 2), (3, 3)]


def maps_of(n: int, m: int, heads: int = 2, seed: int = 0, sharp: float = 1.5) -> np.ndarray:
    """Row-stochastic maps [head, n, m]."""
    weights = np.exp(sharp * np.random.default_rng(seed).normal(size=(heads, n, m)))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def nearest(n: int, m: int) -> list[int]:
    """The key nearest to i (m - 1) / (n - 1), of two the later; of one query that nearest to the middle."""
    found = []
    for i in range(n):
        at = Fraction(i * (m - 1), n - 1) if n > 1 else Fraction(m - 1, 2)
        found.append(min(range(m), key=lambda j: (abs(j - at), -j)))
    return found


def banded(n: int, m: int, width: int) -> np.ndarray:
    made = np.zeros((n, m), dtype=bool)
    for i, place in enumerate(nearest(n, m)):
        for j in range(m):
            made[i, j] = abs(place - j) <= width
    return made


@given(n=st.integers(1, 40), m=st.integers(1, 40))
def test_queries_stand_on_the_stretched_diagonal(n: int, m: int) -> None:
    place = places(n, m)
    assert place.tolist() == nearest(n, m)
    assert (np.diff(place) >= 0).all()
    assert n == 1 or (place[0], place[-1]) == (0, m - 1)
    np.testing.assert_array_equal(places(n, n), np.arange(n))
    np.testing.assert_array_equal(offsets(n, n), offsets(n))


@given(n=N, m=N, width=st.integers(0, 7))
def test_cells_of_a_band_are_counted(n: int, m: int, width: int) -> None:
    inside = banded(n, m, width)
    np.testing.assert_array_equal(offsets(n, m) <= width, inside)
    assert cells(n, width, m=m) == inside.sum()
    assert (offsets(n, m) == 0).sum(axis=1).tolist() == [1] * n
    w = min(width, n - 1)
    assert cells(n, width) == n * (2 * w + 1) - w * (w + 1)
    assert cells(n, width, causal=True) == n * (w + 1) - w * (w + 1) // 2
    assert cells(n, m, m=m) == n * m


@pytest.mark.parametrize("epsilon", [None, 0.3])
@pytest.mark.parametrize("budget", [0, 1, 3])
@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_the_projection_is_the_best_of_all_supports(n: int, m: int, budget: int, epsilon: float | None) -> None:
    H = np.random.default_rng(n * 10 + m).normal(size=(n, m))
    for width in range(m):
        outside = np.abs(H[~banded(n, m, width)])
        saved = outside if epsilon is None else np.minimum(outside, epsilon)
        k = min(budget, len(outside))
        best = outside.sum() - max(sum(chosen) for chosen in itertools.combinations(saved, k))
        X, distance = project(H, width, budget, epsilon)
        assert X.shape == (n, m)
        assert distance == pytest.approx(best, abs=1e-9)
        assert np.abs(H - X).sum() == pytest.approx(best, abs=1e-12)
        assert np.count_nonzero(X[~banded(n, m, width)]) <= budget


@pytest.mark.parametrize(("n", "m", "width", "budget"), [(2, 3, 0, 1), (3, 2, 0, 1), (1, 4, 1, 1), (2, 4, 0, 2)])
def test_the_stochastic_projection_is_the_best_of_all_linear_programmes(
    n: int, m: int, width: int, budget: int
) -> None:
    for H in (maps_of(n, m)[0], np.random.default_rng(1).normal(0.3, 0.5, (n, m))):
        outside, size = np.argwhere(~banded(n, m, width)), n * m
        best = np.inf
        for chosen in itertools.combinations(range(len(outside)), min(budget, len(outside))):
            room = banded(n, m, width)
            room[tuple(outside[list(chosen)].T)] = True
            eye = np.eye(size)
            rows = np.hstack([np.kron(np.eye(n), np.ones((1, m))), np.zeros((n, size))])
            found = linprog(
                np.repeat([0.0, 1.0], size),
                A_ub=np.block([[eye, -eye], [-eye, -eye]]),
                b_ub=np.concatenate([H.ravel(), -H.ravel()]),
                A_eq=rows,
                b_eq=np.ones(n),
                bounds=[(0.0, None if free else 0.0) for free in room.ravel()] + [(0.0, None)] * size,
            )
            best = min(best, found.fun)
        X, distance = project(H, width, budget, stochastic=True)
        assert distance == pytest.approx(best, abs=1e-9)
        np.testing.assert_allclose(X.sum(axis=1), 1.0, atol=1e-12)


@given(n=N, m=N, epsilon=st.sampled_from([None, 0.2]), stochastic=st.booleans(), seed=st.integers(0, 9))
@settings(deadline=None)
def test_all_widths_at_once_are_those_one_by_one(
    n: int, m: int, epsilon: float | None, stochastic: bool, seed: int
) -> None:
    H, budgets = maps_of(n, m, seed=seed), [0, 1, 2, 40]
    found = distances(H, budgets, epsilon if not stochastic else None, stochastic)
    assert found.shape == (2, m, 4)
    for w, (b, budget) in itertools.product(range(m), enumerate(budgets)):
        one = project(H, w, budget, epsilon if not stochastic else None, stochastic)[1]
        np.testing.assert_allclose(found[:, w, b], one, atol=1e-12)


def best_beside(H: np.ndarray, supports: list[np.ndarray], budget: int) -> float:
    """The most mass on a support and ``budget`` other cells."""
    return max(float(H[s].sum() + np.sort(H[~s])[::-1][:budget].sum()) for s in supports)


@pytest.mark.parametrize("budget", [0, 1, 3])
@pytest.mark.parametrize(("n", "m"), [*SHAPES, (4, 6), (6, 4)])
def test_diagonals_are_the_best_of_all(n: int, m: int, budget: int) -> None:
    H = maps_of(n, m, 4, seed=3)
    found = diagonal(H, budget)
    place = np.array(nearest(n, m))
    lines = {d: place[:, None] - np.arange(m) == d for d in range(-m, m + 1)}
    for one, support, captured, offset in zip(H, found.support, found.captured, found.parameter, strict=True):
        assert captured == pytest.approx(best_beside(one, list(lines.values()), budget), abs=1e-12)
        assert support[lines[int(offset)]].all()
        assert (support & ~lines[int(offset)]).sum() <= budget


@pytest.mark.parametrize(("n", "m", "windows", "budget"), [
    *((n, m, k, b) for n, m in [(1, 3), (3, 1), (2, 3), (3, 2), (3, 4), (4, 2)] for k, b in [(0, 1), (1, 0), (2, 1)])
])  # fmt: skip
def test_rare_token_members_are_the_best_of_all(n: int, m: int, windows: int, budget: int) -> None:
    place = nearest(n, m)
    supports = []
    for states in itertools.product(range(m + 1), repeat=n):  # m: the row's own key
        opened = sum(s < m and (i == 0 or states[i - 1] != s) for i, s in enumerate(states))
        if opened <= windows:
            support = np.zeros((n, m), dtype=bool)
            support[np.arange(n), [place[i] if s == m else s for i, s in enumerate(states)]] = True
            supports.append(support)
    for H in maps_of(n, m, 5, seed=windows):
        found = rare_tokens(H, windows, budget)
        assert found.captured == pytest.approx(best_beside(H, supports, budget), abs=1e-12)
        assert H[found.support].sum() == pytest.approx(float(found.captured), abs=1e-12)
        assert found.support.sum() <= n + budget
        own = np.asarray(found.own)
        assert found.column[own].tolist() == [place[i] for i in np.flatnonzero(own)]


@given(n=N, m=N, scalars_=st.integers(2, 30), seed=st.integers(0, 9))
@settings(deadline=None)
def test_families_are_compared_at_equal_storage(n: int, m: int, scalars_: int, seed: int) -> None:
    maps = maps_of(n, m, seed=seed)
    line, near, rare = within(maps, max(scalars_, n + 1), causal=False)
    for head, H in enumerate(maps):
        best = max(
            np.sort(H[banded(n, m, w)])[::-1][: kept_cells(n, w, max(scalars_, n + 1), False, m)].sum()
            for w in range(m)
            if kept_cells(n, w, max(scalars_, n + 1), False, m) > 0
        )
        assert near.captured[head] == pytest.approx(best, abs=1e-12)
        assert line.support.shape == rare.support.shape == (2, n, m)
        w = int(near.parameter[head])
        assert band(H, w, int(near.support[head].sum())).captured == pytest.approx(near.captured[head])
        assert not (near.support[head] & ~banded(n, m, w)).any()


@given(n=N, m=N, width=st.integers(0, 4), count=st.integers(0, 3), dilation=st.integers(1, 3), random=st.integers(0, 3))
def test_masks_keep_what_they_say(n: int, m: int, width: int, count: int, dilation: int, random: int) -> None:
    place = nearest(n, m)
    for i, j in itertools.product(range(n), range(m)):
        behind = place[i] - j
        seen = abs(behind) <= width * dilation and behind % dilation == 0
        assert window(n, width, dilation=dilation, m=m)[i, j] == seen
        seen = abs(behind) <= width or i < count or j < count
        assert longformer(n, width, count, m=m)[i, j] == seen
    plain = longformer(n, width, count, m=m)
    made = bigbird(n, width, count, random, np.random.default_rng(0), m=m)
    assert made.shape == (n, m)
    assert (made >= plain).all()
    for i in range(n):
        more = 0 if i < count else min(random, int((~plain[i]).sum()))
        assert made[i].sum() - plain[i].sum() == more
    assert made.sum() == bigbird_cells(n, width, count, random, m=m)
    assert bigbird(n, width, count, random, np.random.default_rng(0), True).sum() == bigbird_cells(
        n, width, count, random, True
    )


@given(n=N, m=N, keys=st.integers(2, 8))
def test_masks_of_so_many_keys(n: int, m: int, keys: int) -> None:
    P = maps_of(n, m)
    for kind in ("window", "dilated", "longformer", "bigbird", "top-k"):
        mask, placed = mask_of_keys(kind, keys, P, False, 1, 2, [np.random.default_rng(i) for i in range(2)])
        assert mask.shape[-2:] == (n, m)
        rows = np.broadcast_to(mask, P.shape)[:, 1:] if kind in ("longformer", "bigbird") else mask
        assert (rows.sum(axis=-1) <= keys).all()
        assert placed == (min(keys, m) * n if kind == "top-k" else placed)
        kept = masked(P, mask)
        for head, i in itertools.product(range(2), range(n)):
            row = np.where(np.broadcast_to(mask, P.shape)[head, i], P[head, i], 0.0)
            if row.sum() > 0:
                np.testing.assert_allclose(kept[head, i], row / row.sum(), atol=1e-14)


@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_attention_over_cells_is_the_masked_softmax(n: int, m: int) -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, length, d, generator=draw, dtype=torch.float64) for length, d in ((n, 3), (m, 3), (m, 5)))
    mask = torch.from_numpy(longformer(n, 1, 1, m=m))
    scores = (q @ k.transpose(-1, -2)).masked_fill(~mask, -torch.inf)
    found = attend(q, k, v, *mask.nonzero(as_tuple=True), 1.0)
    torch.testing.assert_close(found, scores.softmax(-1) @ v)


@given(n=N, m=N, seed=st.integers(0, 9))
@settings(deadline=None)
def test_measures_are_those_written_out(n: int, m: int, seed: int) -> None:
    P, X = maps_of(n, m, seed=seed), maps_of(n, m, seed=seed + 100) - 0.05
    V = np.random.default_rng(seed).normal(size=(2, m, 3))
    found = measured(P, X, V)
    for h in range(2):
        total, divergence = 0.0, 0.0
        for i in range(n):
            near = np.clip(X[h, i], 0, None)
            near = near / near.sum() if near.sum() > 0 else np.full(m, 1 / m)
            near = (1 - FLOOR) * near + FLOOR / m
            total += sum(abs(P[h, i, j] - X[h, i, j]) for j in range(m))
            divergence += sum(P[h, i, j] * np.log(P[h, i, j] / near[j]) for j in range(m)) / n
        assert found["distance"][h] == pytest.approx(total)
        assert found["distance_per_row"][h] == pytest.approx(total / n)
        assert found["distance_per_cell"][h] == pytest.approx(total / n / m)
        assert found["kl"][h] == pytest.approx(divergence)
        error = np.linalg.norm((P[h] - X[h]) @ V[h]) / np.linalg.norm(P[h] @ V[h])
        assert found["output_error"][h] == pytest.approx(error)
    zero, uniform, own, past = baselines(n, m)
    place = nearest(n, m)
    for i in range(n):
        assert not zero[i].any()
        np.testing.assert_array_equal(uniform[i], 1.0 / m)
        np.testing.assert_array_equal(own[i], np.arange(m) == place[i])
        np.testing.assert_allclose(past[i], (np.arange(m) <= place[i]) / (place[i] + 1))


@given(n=N, m=N, count=st.integers(0, 40))
@settings(deadline=None)
def test_oracles_of_rectangular_maps(n: int, m: int, count: int) -> None:
    P = maps_of(n, m)
    u, s, vt = np.linalg.svd(P, full_matrices=False)
    oracles = Oracles(P, (u, s, vt))
    for h in range(2):
        falling = np.sort(P[h].ravel())[::-1]
        assert oracles.entries(count)[h] == pytest.approx(falling[count:].sum(), abs=1e-12)
        near = (u[h, :, :count] * s[h, :count]) @ vt[h, :count]
        assert oracles.rank(count)[h] == pytest.approx(np.abs(P[h] - near).sum(), abs=1e-12)
    # One cell of each row at least, then the largest of the others; twice what is left, as rows sum to one.
    spare = min(max(count, n), n * m) - n
    for h in range(2):
        first = P[h].max(axis=1).sum()
        rest = np.sort(np.sort(P[h], axis=1)[:, :-1].ravel())[::-1][:spare].sum()
        assert oracles.stochastic(count)[h] == pytest.approx(2 * (n - first - rest), abs=1e-9)
    told = cumulative_map_spectrum(P, 8)
    np.testing.assert_allclose(told["singular"][:, : min(n, m)], s, atol=1e-12)
    assert np.isnan(told["singular"][:, min(n, m) :]).all()
    assert (told["rank"] == [np.linalg.matrix_rank(p, tol=1e-6) for p in P]).all()


@pytest.mark.parametrize(("n", "m"), [(3, 6), (6, 3), (1, 4), (4, 1)])
def test_low_rank_of_rectangular_maps(n: int, m: int) -> None:
    P, full = maps_of(n, m), min(n, m)
    np.testing.assert_allclose(truncated(P, [full])[0], P, atol=1e-12)
    low, sparse = split(P, 1, 2)
    assert np.linalg.matrix_rank(low[0]) <= 1
    assert (np.count_nonzero(sparse, axis=(1, 2)) <= 2).all()
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, length, 3, generator=draw, dtype=torch.float64) for length in (n, m, m))
    S = (q @ k.transpose(-1, -2)).numpy()
    E = gaussian(2, m, np.random.default_rng(0))
    by_map = linformer_pattern(S, E, E) @ v.numpy()
    np.testing.assert_allclose(by_map, linformer(q, k, v, torch.from_numpy(E), torch.from_numpy(E), 1.0), atol=1e-12)
    exact = torch.from_numpy(S).softmax(-1).numpy()
    np.testing.assert_allclose(linformer_pattern(S, np.eye(m), np.eye(m)), exact, atol=1e-12)
    assert [x.shape for x in fitted(P, S, 1)] == [(2, 1, m), (2, 1, m)]
    # Two factors of n and m rows, and the products of both with values.
    assert scalars(n, 2, m) == n * 2 + 2 * m
    with counted() as cost:
        torch.ones(n, 2) @ (torch.ones(2, m) @ torch.ones(m, 5))
    assert cost.flops == lowrank_flops(n, 5, 2, m)


def test_the_error_of_a_sketch_of_a_rectangular_map() -> None:
    """Mean of 4000 draws within five standard errors of the exact expectation."""
    P, V = maps_of(4, 9)[0], np.random.default_rng(2).normal(size=(9, 3))
    rng = np.random.default_rng(3)
    each = [(((sketched(P, gaussian(5, 9, rng)) - P) @ V) ** 2).sum() for _ in range(4000)]
    assert abs(np.mean(each) - sketch_error(P, V, 5)) < 5 * np.std(each) / 4000**0.5


@pytest.mark.parametrize(("n", "m"), [(3, 6), (6, 3), (1, 4), (4, 1)])
def test_kernels_of_other_keys_are_linear(n: int, m: int) -> None:
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, length, 4, generator=draw, dtype=torch.float64) for length in (n, m, m))
    for features in (elu, taylor2):
        phi_q, phi_k = features(q, True), features(k, False)
        by_map = quadratic(phi_q, phi_k, causal=False)
        assert by_map.shape == (2, n, m)
        torch.testing.assert_close(by_map.sum(-1), torch.ones(2, n, dtype=torch.float64))
        torch.testing.assert_close(linear(phi_q, phi_k, v, causal=False), by_map @ v)
    torch.testing.assert_close(kernel_map("elu", q, k, 1.0, False, 1.0), quadratic(elu(q, True), elu(k, False), False))
    by_rows = least_squares_pattern(q, k, 1.0, causal=False)
    torch.testing.assert_close(least_squares(q, k, v, 1.0, causal=False), by_rows @ v)
    solved = torch.linalg.solve(k.transpose(-1, -2) @ k + torch.eye(4), k.transpose(-1, -2) @ v)
    torch.testing.assert_close(by_rows @ v, q @ solved)


@pytest.mark.parametrize(("n", "m"), [(200, 500), (500, 200), (300, 300)])
def test_operations_of_kernels_of_other_keys(n: int, m: int) -> None:
    """Within 5 % of what torch does: what is left out is of lower order."""
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(length, 16, generator=draw, dtype=torch.float64) for length in (n, m, m))
    with counted() as cost:
        linear(elu(q, True), elu(k, False), v, causal=False)
    assert features_and_flops("elu", n, 16, 16, False, m)[1] == pytest.approx(cost.flops, rel=0.05)
    with counted() as cost:
        least_squares(q, k, v, 1.0, causal=False)
    assert features_and_flops("least-squares", n, 16, 16, False, m)[1] == pytest.approx(cost.flops, rel=0.05)


def test_signed_offsets_are_not_to_be_written_to() -> None:
    assert apart(3, 5)[0, 4] == -4
    with pytest.raises(ValueError, match="read-only"):
        apart(3, 5)[0, 0] = 1
