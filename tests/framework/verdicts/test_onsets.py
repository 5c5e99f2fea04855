"""When a structure appears: planted trajectories are found where they begin, and the null's own twins begin nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from gausslens.maths.trainings import onsets as onsets_of_draws
from gausslens.runs.compare import against
from gausslens.verdicts import LATER, NEVER, PASSES, START, Onset, onset_sentences, onsets, statistics

STEPS = (0, 10, 100, 1000, 10000)
DRAWS = 8
CELLS = (3, 4)
# Of each kind of trajectory what is added at each step.
PLANTED = {
    (0, 1): [0, 0, 30, 30, 30],
    (1, 2): [0, 0, 0, -30, -30],
    (2, 0): [30, 30, 30, 30, 30],
    (2, 3): [0, 30, 30, 0, 0],
    (1, 0): [0, 0, 30, -30, 30],
}


def dataset(values: dict[str, np.ndarray], se: float | None = None) -> xr.Dataset:
    made = xr.Dataset(
        {name: (("layer", "head"), array, {"long_name": f"the {name}"}) for name, array in values.items()},
        coords={"layer": range(CELLS[0]), "head": range(CELLS[1])},
    )
    if se is not None:
        rng = np.random.default_rng(7)
        apart = rng.normal(0, se / 3, (10, *CELLS))
        for name in values:
            made[f"{name}_without"] = (
                ("left_out", "layer", "head"),
                made[name].values + apart,
                {"against": 0, "of": name},
            )
            made[f"{name}_se"] = (("layer", "head"), np.full(CELLS, se), {"against": 0, "of": name})
    return made


def found(
    seed: int,
    planted: dict[Any, Any],
    variables: int = 1,
    own_null: bool = True,
    se: float | None = None,
    **changes: Any,
) -> tuple[list[Onset], dict[int, Any]]:
    """The onsets of a training whose cells are normal about 0, but for what is planted in the first variable."""
    rng = np.random.default_rng(seed)
    names = [f"v{i}" for i in range(variables)]
    steps = changes.get("steps", STEPS)
    scale = np.exp if changes.get("positive") else np.asarray
    fixed = [dataset({n: scale(rng.normal(size=CELLS)) for n in names}, se and 0.0) for _ in range(DRAWS)]
    each, held = {}, {}
    for step in steps:
        values = {n: rng.normal(size=CELLS) for n in names}
        for cell, shifts in planted.items():
            values["v0"][cell] += shifts[STEPS.index(step)]
        model = dataset({n: scale(v) for n, v in values.items()}, se)
        null = fixed
        if own_null:
            null = [dataset({n: scale(rng.normal(size=CELLS)) for n in names}, se and 0.0) for _ in range(DRAWS)]
        each[(("step", step),)] = against(model, null)
        held[step] = (model["v0"].values, np.stack([draw["v0"].values for draw in null]))
    stacked = xr.concat(list(each.values()), dim=xr.DataArray(list(steps), dims="step", name="step"))
    judged = statistics({("training", "label", "chance"): stacked})
    return onsets(judged, {"training": "step"}, lambda *_: each), held


def kinds(one: Onset) -> dict[tuple[int, ...], str]:
    return {cell: str(one.kind[cell]) for cell in np.ndindex(*CELLS)}


@pytest.mark.parametrize("own_null", [True, False])
@pytest.mark.parametrize("steps", [STEPS, STEPS[::-1]], ids=["in order", "backwards"])
def test_planted_trajectories_are_told_by_kind_step_and_side(own_null: bool, steps: tuple[int, ...]) -> None:
    (one,), _ = found(0, PLANTED, own_null=own_null, steps=steps)
    told = kinds(one)
    assert {cell: told[cell] for cell in PLANTED} == {
        (0, 1): LATER,
        (1, 2): LATER,
        (2, 0): START,
        (2, 3): PASSES,
        (1, 0): LATER,
    }
    # Of some twenty calls of single steps one may be false (q of 5 %); an onset none has.
    others = [kind for cell, kind in told.items() if cell not in PLANTED]
    assert others.count(NEVER) >= len(others) - 1
    assert set(others) <= {NEVER, PASSES}
    assert [one.step[cell] for cell in ((0, 1), (1, 2), (2, 0), (1, 0))] == [100, 1000, 0, 10000]
    assert [one.direction[cell] for cell in ((0, 1), (1, 2), (2, 0), (2, 3))] == [1, -1, 1, 0]
    assert (one.low[0, 1], one.high[0, 1]) == (10, 100)
    assert (one.low[1, 2], one.high[1, 2]) == (100, 1000)
    assert one.low[2, 0] == -np.inf
    assert one.cells()[:3] == [(0, 1), (1, 2), (1, 0)]
    assert one.place((0, 1)) == {"layer": 0, "head": 1}
    np.testing.assert_array_equal(one.steps, STEPS)


@pytest.mark.parametrize("own_null", [True, False])
def test_the_null_s_own_twins_have_an_onset_in_five_per_cent_of_studies_at_most(own_null: bool) -> None:
    """Of all statistics and cells together; 3 standard errors."""
    runs = 80
    any_found = [
        any((one.kind == LATER).any() or (one.kind == START).any() for one in found(seed, {}, 3, own_null)[0])
        for seed in range(runs)
    ]
    assert np.mean(any_found) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs)


def test_beside_cells_that_appear_few_others_do() -> None:
    """One in twenty of the cells that are called, and of the null's cells: 3 standard errors of 40 studies."""
    lucky = []
    for seed in range(40):
        (one,), _ = found(seed, dict.fromkeys(((0, 0), (0, 1), (1, 1), (2, 2)), PLANTED[0, 1]))
        assert all(one.step[cell] <= 100 for cell in ((0, 0), (0, 1), (1, 1), (2, 2)))
        called = np.isin(one.kind, (LATER, START))
        lucky.append((called.sum() - 4) / called.sum())
    assert np.mean(lucky) <= 0.05 + 3 * np.std(lucky, ddof=1) / np.sqrt(40)


@pytest.mark.parametrize("positive", [False, True])
def test_stored_comparisons_tell_what_the_draws_themselves_do(positive: bool) -> None:
    """The p of values that are moved by their errors is told from the tail; of the onsets it makes no difference."""
    rise = {(0, 1): [0, 2, 6, 30, 30], (1, 2): [0, 5, 9, 12, 15], (2, 0): [0, 0, 30, 30, 30]}
    rise = {cell: [x / 6 for x in shifts] for cell, shifts in rise.items()} if positive else rise
    differing = 0
    for seed in range(6):
        (one,), held = found(seed, rise, own_null=True, se=1.0, positive=positive)
        x, draws = (np.stack([held[step][i] for step in STEPS], axis=-3) for i in (0, 1))
        error = one.statistic.column("difference_se") * 2.262157 / 1.96  # Student's t of 10 groups in place of 1.96
        direct = onsets_of_draws(STEPS, x, draws, error, unlike=(0, 1))
        if not one.statistic.selected:
            assert (one.kind == NEVER).all()
            continue
        np.testing.assert_array_equal(one.step, direct.step)
        np.testing.assert_array_equal(one.low, direct.low)
        differing += int((~np.isclose(one.high, direct.high, equal_nan=True)).sum())
    assert differing <= 1


def test_an_interval_holds_the_planted_step() -> None:
    """A rise over three steps, with errors over prompts: its middle lies within the interval."""
    held = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        begins = int(rng.integers(1, 4))
        shifts = [0.0 if i < begins else 20.0 for i in range(5)]
        (one,), _ = found(seed, {(1, 1): shifts, (0, 0): shifts}, se=2.0)
        held += [one.low[cell] < STEPS[begins] <= one.high[cell] for cell in ((1, 1), (0, 0))]
    assert np.mean(held) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 40)


def test_sentences_say_what_comes_first_and_what_else_there_is() -> None:
    made, _ = found(0, PLANTED)
    (said,) = onset_sentences(made, {})
    assert said == (
        "Along step, of 12 numbers of training (each cell of each statistic) 3 come to stay beyond chance, first the "
        "v0 at layer 0, head 1 (in label), from step 100 on (after 10, by 100 at the latest); 1 beyond it from the "
        "first step on, 1 beyond it at some, not at the last, 7 never for sure."
    )
    nothing, _ = found(1, {})
    (said,) = onset_sentences(nothing, {})
    assert said == (
        "Along step, of 12 numbers of training (each cell of each statistic) none comes to stay beyond chance: 12 "
        "never for sure."
    )
    assert onset_sentences([], {}) == []


def test_what_the_null_keeps_has_no_onset() -> None:
    constant = dataset({"v": np.ones(CELLS)})
    each = {(("step", step),): against(constant, [constant] * DRAWS) for step in STEPS}
    stacked = xr.concat(list(each.values()), dim=xr.DataArray(list(STEPS), dims="step", name="step"))
    made = onsets(statistics({("training", "label", "chance"): stacked}), {"training": "step"}, lambda *_: each)
    assert (made[0].kind == NEVER).all()
    assert onset_sentences(made, {}) == []
