"""Trainings beside each other and over their steps: ranks, planted variances, planted onsets, misplaced checkpoints."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gausslens.maths.resampling import delete_group_error
from gausslens.maths.trainings import (
    Component,
    Onsets,
    crossed_components,
    matched_by_rank,
    onsets,
    out_of_line,
    variance_components,
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(2026)


# Heads of other seeds


@st.composite
def values_and_draws(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=4))
    numbers = st.one_of(st.integers(-3, 3).map(float), st.just(np.nan), st.floats(-9, 9))
    x = draw(hnp.arrays(float, shape, elements=numbers))
    m = draw(st.integers(1, 3))
    others = draw(hnp.arrays(float, (m, *shape), elements=numbers))
    axes = draw(st.lists(st.integers(-len(shape), len(shape) - 1), min_size=1, unique_by=lambda a: a % len(shape)))
    return x, others, tuple(axes)


@given(values_and_draws())
def test_matched_draws_hold_the_same_numbers_in_the_model_s_order(
    case: tuple[np.ndarray, np.ndarray, tuple[int, ...]],
) -> None:
    x, others, axes = case
    found = matched_by_rank(x, others, axes)
    which = sorted(a % x.ndim for a in axes)
    rest = [a for a in range(x.ndim) if a not in which]
    for draw in range(len(others)):
        for place in np.ndindex(*(x.shape[a] for a in rest)):
            at: list[int | slice] = [slice(None)] * x.ndim
            for axis, index in zip(rest, place, strict=True):
                at[axis] = index
            mine, theirs, matched = (a[tuple(at)].ravel() for a in (x, others[draw], found.draws[draw]))
            order = np.argsort(mine, kind="stable")
            np.testing.assert_array_equal(matched[order], np.sort(theirs, kind="stable"))
            where = found.places[draw][tuple(at)].ravel()
            assert sorted(where) == list(range(len(mine)))
            np.testing.assert_array_equal(theirs[where], matched)
    again = matched_by_rank(x, found.draws, axes)
    np.testing.assert_array_equal(again.draws, found.draws)
    np.testing.assert_array_equal(matched_by_rank(x, x[None], axes).draws[0], x)


def test_companions_go_where_their_draw_went(rng: np.random.Generator) -> None:
    x, others = rng.normal(size=(2, 3, 5)), rng.normal(size=(4, 2, 3, 5))
    without = others[:, None] + 1e-3 * rng.normal(size=(4, 6, 2, 3, 5))  # draw, group, layer, head, ...
    for axes in ((1,), (0, 1), (2, 0), (-1,)):
        found = matched_by_rank(x, others, axes)
        for draw in range(4):
            np.testing.assert_array_equal(found.companion(others[draw], draw), found.draws[draw])
            moved = found.companion(without[draw], draw)
            assert moved.shape == (6, 2, 3, 5)
            assert np.abs(moved - found.draws[draw]).max() < 0.01
            np.testing.assert_array_equal(np.sort(moved.ravel()), np.sort(without[draw].ravel()))
    for wrong in (np.zeros(5), np.zeros((2, 3, 4))):
        with pytest.raises(ValueError, match="are not"):
            found.companion(wrong, 0)
    with pytest.raises(ValueError, match="are not"):
        matched_by_rank(x, others[0], (0,))
    for axes in ((), (0, 0), (0, -3)):
        with pytest.raises(ValueError, match="none, or named twice"):
            matched_by_rank(x, others, axes)


def test_permuted_heads_make_no_difference_once_matched(rng: np.random.Generator) -> None:
    x, others = rng.normal(size=(3, 8)), rng.normal(size=(5, 3, 8))
    shuffled = rng.permuted(others, axis=2)
    assert (shuffled != others).any()
    np.testing.assert_array_equal(matched_by_rank(x, others, (1,)).draws, matched_by_rank(x, shuffled, (1,)).draws)


# What seeds give

VARIANCES = {"data": 1.0, "init": 0.5, "interaction": 0.25}


def effects(rng: np.random.Generator, variance: float, alike: float, *shape: int, cells: int = 12) -> np.ndarray:
    """Normal effects [*shape, cells]; cells of one training are correlated by ``alike``."""
    shared, own = rng.standard_normal((*shape, 1)), rng.standard_normal((*shape, cells))
    return np.sqrt(variance) * (np.sqrt(alike) * shared + np.sqrt(1 - alike) * own)


def one_way(rng: np.random.Generator, k: int, alike: float) -> dict[str, Component]:
    def both(a: int, b: int) -> np.ndarray:
        data, init = effects(rng, VARIANCES["data"], alike, a), effects(rng, VARIANCES["init"], alike, b)
        return data + init + effects(rng, VARIANCES["interaction"], alike, k)

    return variance_components(both(k, 1), both(1, k), both(k, k))


def covered(found: list[dict[str, Component]], truth: dict[str, float]) -> dict[str, float]:
    return {n: float(np.mean([f[n].low <= t <= f[n].high for f in found])) for n, t in truth.items()}


@pytest.mark.parametrize(("k", "alike"), [(3, 0.0), (3, 0.5), (3, 1.0), (8, 0.5)])
def test_planted_components_are_recovered_within_their_errors(rng: np.random.Generator, k: int, alike: float) -> None:
    repetitions = 200
    found = [one_way(rng, k, alike) for _ in range(repetitions)]
    d, n, i = VARIANCES.values()
    truth = {
        "data": d + i, "init": n + i, "both": d + n + i, "data_alone": d, "init_alone": n, "interaction": i,
    }  # fmt: skip
    for name, value in truth.items():
        estimates = np.array([f[name].value for f in found])
        assert abs(estimates.mean() - value) < 4 * estimates.std() / np.sqrt(repetitions)
        # Of errors of few, correlated numbers no more can be asked than that they are of the right size.
        typical = np.sqrt(np.mean([f[name].error ** 2 for f in found]))
        assert 0.75 < typical / estimates.std() < 2.2
    # 88 % and more, but for 3 standard errors of 200 repetitions.
    assert min(covered(found, truth).values()) > 0.88 - 3 * np.sqrt(0.88 * 0.12 / repetitions)
    theory = np.sqrt(np.mean([f["both"].error_if_independent ** 2 for f in found]))
    spread = np.std([f["both"].value for f in found])
    assert (theory > 0.8 * spread) == (alike == 0)


@pytest.mark.parametrize(("a", "b", "alike"), [(3, 3, 0.3), (3, 3, 1.0), (6, 4, 0.3)])
def test_planted_components_of_a_crossed_design(rng: np.random.Generator, a: int, b: int, alike: float) -> None:
    repetitions, found = 200, []
    for _ in range(repetitions):
        y = 7 + effects(rng, 1.0, alike, a, 1) + effects(rng, 0.5, alike, 1, b) + effects(rng, 0.25, alike, a, b)
        found.append(crossed_components(y))
    truth = {**VARIANCES, "total": 1.75}
    for name, value in truth.items():
        estimates = np.array([f[name].value for f in found])
        assert abs(estimates.mean() - value) < 4 * estimates.std() / np.sqrt(repetitions)
    assert min(covered(found, truth).values()) > 0.91 - 3 * np.sqrt(0.91 * 0.09 / repetitions)


def test_crossed_mean_squares_by_hand() -> None:
    """Two by two, one cell: contrasts of the four numbers."""
    found = crossed_components(np.array([[1.0, 2.0], [4.0, 9.0]])[..., None])
    data, init, both = (4 + 9 - 1 - 2) / 2, (2 + 9 - 1 - 4) / 2, (1 + 9 - 2 - 4) / 2
    assert found["interaction"].value == pytest.approx(both**2)
    assert found["data"].value == pytest.approx((data**2 - both**2) / 2)
    assert found["init"].value == pytest.approx((init**2 - both**2) / 2)
    assert math.isnan(found["data"].error)  # one seed left says nothing
    assert found["data"].error_if_independent == pytest.approx(np.sqrt(2 / 3 * (data**4 + both**4)) / 2)


def test_negative_estimates_are_told_and_kept() -> None:
    y = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])[..., None]
    found = crossed_components(y)
    assert found["interaction"].value > 0
    assert found["data"].value < 0
    assert found["data"].negative
    assert not found["interaction"].negative
    same = np.ones((3, 4))
    none = variance_components(same, same, same)
    assert all((c.value, c.error, c.low, c.high) == (0, 0, 0, 0) for c in none.values())


def test_trainings_in_two_groups_are_left_out_of_both(rng: np.random.Generator) -> None:
    data, init, both = rng.normal(size=(3, 4, 20))
    init[0] = data[0]  # the training of the seeds that the others share
    apart = variance_components(data, init, both)
    names = {"data": ["base", 1, 2], "init": ["base", 3, 4]}
    shared = variance_components(data, init, both, {**names, "both": [5, 6, 7]} | {n: [*v, n] for n, v in names.items()}
                                 | {"both": [5, 6, 7, 8]})  # fmt: skip
    assert shared["data"].error == pytest.approx(apart["data"].error)
    assert shared["interaction"].value == apart["interaction"].value
    assert shared["interaction"].error != apart["interaction"].error
    data[1, 3] = np.nan
    less = variance_components(data, init, both)
    assert less["both"].value == pytest.approx(both[:, np.arange(20) != 3].var(axis=0, ddof=1).mean())
    for wrong in ({"data": data[:1]}, {"init": init[:, :3]}, {"trainings": {"data": ["a"]}}):
        with pytest.raises(ValueError, match=r"2 trainings|other cells|1 names of 4"):
            variance_components(**{"data": data, "init": init, "both": both, **wrong})
    two = variance_components(data[:2], init[:2], both[:2])
    assert math.isnan(two["data"].error)
    assert two["data"].low < two["data"].value < two["data"].high
    assert two["interaction"].low < two["interaction"].high


# When does it appear

STEPS = np.r_[0, 2.0 ** np.arange(9)]


def drawn(rng: np.random.Generator, law: str, *shape: int) -> np.ndarray:
    found = rng.standard_normal(shape)
    return found if law == "normal" else np.exp(0.6 * found)


@pytest.mark.parametrize("law", ["normal", "skewed"])
@pytest.mark.parametrize("held", [True, False])
def test_a_trajectory_of_the_null_has_no_onset(rng: np.random.Generator, law: str, held: bool) -> None:
    """In 5 % of studies at most any cell has one, whether the trajectory stands still or is drawn at each step."""
    studies, false = 120, 0
    for number in range(studies):
        null = drawn(rng, law, 8, 16) if number % 2 else drawn(rng, law, 8, len(STEPS), 16)
        x = drawn(rng, law, 1 if held else len(STEPS), 16)
        false += not onsets(STEPS, np.broadcast_to(x, (len(STEPS), 16)), null).never.all()
    assert false / studies <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / studies)


def planted(rng: np.random.Generator, size: float, error: float, ramp: bool) -> tuple[Onsets, np.ndarray]:
    """24 cells, 8 of which depart at a step of their own, beside a null that has the same errors over prompts."""
    cells, n = 24, len(STEPS)
    null = rng.standard_normal((8, cells)) + error * rng.standard_normal((8, cells))
    at = np.where(np.arange(cells) < 8, rng.integers(1, n - 2, cells), n)
    side = rng.choice([-1, 1], cells)
    since = np.arange(n)[:, None] - at
    rise = np.clip((since + 1) / 2, 0, 1) if ramp else since >= 0
    x = rng.standard_normal(cells) + side * size * rise + 0.2 * rng.standard_normal((n, cells))
    x += error * rng.standard_normal((n, cells))
    found = onsets(STEPS, x, null, se=np.full((n, cells), error) if error else None)
    right = found.direction[:8] == side[:8]
    assert right[~found.never[:8]].all()
    return found, at


@pytest.mark.parametrize(("size", "error", "ramp"), [(9.0, 0.0, False), (9.0, 0.7, False), (16.0, 0.7, True)])
def test_planted_onsets_are_found_within_their_intervals(
    rng: np.random.Generator, size: float, error: float, ramp: bool
) -> None:
    seen = inside = exact = false = called = 0
    studies = 40
    for _ in range(studies):
        found, at = planted(rng, size, error, ramp)
        seen += int((~found.never[:8]).sum())
        true = STEPS[at[:8]]
        inside += int(((found.low[:8] < true) & (true <= found.high[:8])).sum())
        exact += int((found.step[:8] == true).sum())
        false += int((~found.never[8:]).sum())
        called += int((~found.never).sum())
        assert (found.low[~found.never] < found.step[~found.never]).all()
        assert (found.step[~found.never] <= found.high[~found.never]).all()
    assert seen > 0.95 * 8 * studies
    assert inside / seen > 0.95 - 3 * np.sqrt(0.05 * 0.95 / seen)
    assert exact / seen > (0.7 if ramp else 0.9)
    # False cells among the called: 5 %, and 3 standard errors, cells of one study being alike.
    assert false / called < 0.05 + 3 * np.sqrt(0.05 / studies) / np.sqrt(8)


def test_what_comes_and_goes_has_not_stayed(rng: np.random.Generator) -> None:
    null = rng.standard_normal((12, 10))
    x = np.zeros((10, 10))
    x[3:, 0] = 20
    x[3:6, 1] = 20  # gone again
    x[3:, 2] = 20
    x[6, 2] = 0  # a lapse
    x[3:6, 3], x[6:, 3] = -20, 20  # other side
    x[:, 4] = 20  # from the beginning
    x[-1, 5] = 20  # at the end alone: may be too few to tell
    found = onsets(STEPS, x, null)
    assert found.step[[0, 2, 3, 4]].tolist() == [STEPS[3], STEPS[7], STEPS[6], STEPS[0]]
    assert found.low[[0, 4]].tolist() == [STEPS[2], -np.inf]
    assert found.never[[1, 6, 7, 8, 9]].all()
    assert np.isnan(found.step[1])
    assert found.direction[[0, 1, 3]].tolist() == [1, 0, 1]
    told = np.diff(found.q, axis=0)
    assert (told[:, [0, 1, 2, 3, 4]] <= 1e-12).all()  # the longer it must have stayed, the less sure
    lenient = onsets(STEPS, x, null, lapses=1)
    assert lenient.step[[0, 2]].tolist() == [STEPS[3], STEPS[3]]
    assert lenient.never[1]
    assert lenient.step[3] == STEPS[6]


def test_errors_over_prompts_widen_the_interval(rng: np.random.Generator) -> None:
    null = rng.standard_normal((12, 6))
    x = np.zeros((10, 6))
    x[4:, 0], x[5:, 0] = 6, 20
    without = x + 0.6 * rng.standard_normal((10, *x.shape))
    se = delete_group_error(without)
    assert 0.5 < se.mean() < 6
    plain, wide = onsets(STEPS, x, null), onsets(STEPS, x, null, se=se)
    assert plain.step[0] == wide.step[0] == plain.high[0] == STEPS[4]
    assert wide.high[0] >= plain.high[0]
    assert wide.low[0] <= plain.low[0]
    hopeless = onsets(STEPS, x, null, se=np.full_like(x, 50.0))
    assert (hopeless.low[0], hopeless.high[0]) == (-np.inf, np.inf)
    missing = x.copy()
    missing[:, 1] = np.nan
    assert onsets(STEPS, missing, null).never[1]
    assert onsets(STEPS, x, null[:3]).never.all()  # so few draws tell nothing
    for wrong in ((STEPS[::-1], x, null), (STEPS[1:], x, null), (STEPS, x, null[:, :3])):
        with pytest.raises(ValueError, match=r"steps must rise|are neither"):
            onsets(*wrong)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(0, 2))
def test_onsets_of_cells_in_any_order(seed: int, lapses: int) -> None:
    rng = np.random.default_rng(seed)
    x, null = rng.normal(size=(5, 6)) * 3, rng.normal(size=(6, 6))
    x[2:, :3] += 30
    order = rng.permutation(6)
    one, other = (
        onsets(STEPS[:5], x, null, lapses=lapses),
        onsets(STEPS[:5], x[:, order], null[:, order], lapses=lapses),
    )
    np.testing.assert_array_equal(one.step[order], other.step)
    shaped = onsets(STEPS[:5], x.reshape(5, 2, 3), null.reshape(6, 2, 3), lapses=lapses)
    np.testing.assert_array_equal(shaped.step.ravel(), one.step)


# Checkpoints that lie where they should not

GRIDS = {
    "doubling": [0, *(2**i for i in range(10))],
    "even": list(range(0, 1001, 100)),
    "tenfold": [0, 1, 10, 100, 1000],
    "dense at the end": [0, 10, 100, 200, 400, 600, 800, 900, 1000],
}


def distances(weights: np.ndarray) -> np.ndarray:
    return np.sqrt(((weights[:, None] - weights[None]) ** 2).sum(axis=-1))


def trajectory(rng: np.random.Generator, steps: list[int], kind: str) -> np.ndarray:
    size = 1500
    ahead = rng.standard_normal(size) / np.sqrt(size)
    since = np.diff([0, *steps])[:, None]
    walk = np.cumsum(np.sqrt(since) * rng.standard_normal((len(steps), size)), axis=0) / np.sqrt(size)
    grown = np.asarray(steps, float)[:, None]
    noise = rng.standard_normal((len(steps), size)) / np.sqrt(size)
    cosine = 1 + np.cos(np.pi * grown / grown.max())
    return {
        "walk": walk,
        "drift": 0.3 * walk + grown**0.7 * ahead,
        "noise": noise,
        "settles": np.log1p(grown) * ahead / 2 + noise * cosine,
    }[kind]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("kind", ["walk", "drift", "noise", "settles"])
def test_ordinary_trajectories_are_in_line(rng: np.random.Generator, grid: str, kind: str) -> None:
    for _ in range(5):
        d = distances(trajectory(rng, GRIDS[grid], kind))
        assert (out_of_line(d).steps, out_of_line(d).equal) == ((), ())
        near = np.abs(np.subtract.outer(range(len(d)), range(len(d)))) <= 2
        assert out_of_line(np.where(near, d, np.nan)).steps == ()


def trained(optimiser: str, schedule: str, steps: list[int]) -> np.ndarray:
    """Weights of a small network at some of its steps."""
    torch.manual_seed(len(optimiser) + len(schedule))
    net, task = (
        torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 3)) for width in (40, 16)
    )
    made = {"sgd": (torch.optim.SGD, 0.05), "adamw": (torch.optim.AdamW, 3e-3)}[optimiser]
    stepping = made[0](net.parameters(), lr=made[1])
    found = []
    for step in range(steps[-1] + 1):
        if step in steps:
            found.append(torch.cat([p.detach().ravel() for p in net.parameters()]).double().numpy().copy())
        if schedule == "cosine":
            stepping.param_groups[0]["lr"] = made[1] * (1 + math.cos(math.pi * step / steps[-1])) / 2
        x = torch.randn(16, 8)
        loss = ((net(x) - task(x).detach() - 0.2 * torch.randn(16, 3)) ** 2).mean()
        stepping.zero_grad()
        loss.backward()
        stepping.step()
    return np.array(found)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_real_trainings_are_in_line_and_their_swaps_are_not(optimiser: str, schedule: str) -> None:
    for steps in ([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 400], list(range(0, 401, 50))):
        weights = trained(optimiser, schedule, steps)
        assert out_of_line(distances(weights)).steps == ()
    weights = trained(optimiser, schedule, [0, 1, 2, 4, 8, 16, 32, 64, 128])
    told = []
    for i, j in combinations(range(8), 2):
        swapped = weights.copy()
        swapped[[i, j]] = swapped[[j, i]]
        found = out_of_line(distances(swapped))
        assert found.steps, (i, j)
        told.append(found.swapped == (i, j))
    assert np.mean(told) > 0.8


# In 1500 dimensions a walk's step of 1 is lost beside one of 900: their product is random, 60 / sqrt(1500).
SWAPPED = [(kind, grid) for kind in ("walk", "drift") for grid in GRIDS if (kind, grid) != ("walk", "tenfold")]


@pytest.mark.parametrize(("kind", "grid"), SWAPPED)
def test_swapped_and_duplicated_steps_are_found(rng: np.random.Generator, grid: str, kind: str) -> None:
    steps = GRIDS[grid]
    n = len(steps)
    weights = trajectory(rng, steps, kind)
    exact = []
    for i, j in combinations(range(n), 2):
        swapped = weights.copy()
        swapped[[i, j]] = swapped[[j, i]]
        found = out_of_line(distances(swapped))
        # A training that settles looks like a swap of its last two, and backward looks like forward.
        if (i, j) not in ((n - 2, n - 1), (0, n - 1)) and (kind == "drift" or (i > 0 and j < n - 1)):
            assert {i, j} & set(found.steps), (i, j)
            assert found.steps == (i, j) or kind == "walk" or j == n - 1, (i, j)
            exact.append(found.swapped == (i, j))
        assert found.equal == ()
    assert np.mean(exact) > 0.8
    for i, j in combinations(range(n), 2):
        copied = weights.copy()
        copied[j] = copied[i]
        found = out_of_line(distances(copied))
        assert found.equal == ((i, j),)
        if kind == "drift" and i + 2 < j < n - 1:
            assert found.steps == (j,)
        away = weights.copy()
        away[i] = away[j]
        if kind == "drift" and 0 < i < j - 2:
            assert out_of_line(distances(away)).steps == (i,)


def test_neighbours_and_next_neighbours_are_enough_for_neighbours(rng: np.random.Generator) -> None:
    weights = trajectory(rng, GRIDS["doubling"], "drift")
    n = len(weights)
    near = np.abs(np.subtract.outer(range(n), range(n))) <= 2
    for i in range(1, n - 2):
        swapped = weights.copy()
        swapped[[i, i + 1]] = swapped[[i + 1, i]]
        assert out_of_line(np.where(near, distances(swapped), np.nan)).swapped == (i, i + 1)
    away = weights.copy()
    away[4] += 5 * rng.standard_normal(away.shape[1])
    assert out_of_line(np.where(near, distances(away), np.nan)).steps == (4,)


def test_one_step_astray_and_what_has_no_order(rng: np.random.Generator) -> None:
    weights = trajectory(rng, GRIDS["even"], "drift")
    moved = weights[[0, 1, 7, 2, 3, 4, 5, 6, 8, 9, 10]]
    found = out_of_line(distances(moved))
    assert (found.steps, found.swapped) == ((2,), None)
    many = weights[[0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8]]
    assert len(out_of_line(distances(many)).steps) > 2
    for n in (0, 1, 2):
        assert out_of_line(distances(weights[:n])).steps == ()
    assert out_of_line(np.zeros((2, 2))).equal == ((0, 1),)
    for wrong in (np.zeros(3), np.zeros((2, 3)), -np.ones((2, 2))):
        with pytest.raises(ValueError, match="square matrix"):
            out_of_line(wrong)


@settings(max_examples=50)
@given(
    hnp.arrays(float, st.integers(0, 7).map(lambda n: (n, n)), elements=st.one_of(st.floats(0, 1e6), st.just(np.nan)))
)
def test_any_distances_at_all(d: np.ndarray) -> None:
    found = out_of_line(d)
    assert set(found.steps) <= set(range(len(d)))
    assert all(0 <= i < j < len(d) for i, j in found.equal)
