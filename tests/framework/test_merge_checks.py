"""check_stream on states: those that share memory or want all prompts are caught, those that do not pass."""

from __future__ import annotations

import types
from dataclasses import replace
from typing import Any

import numpy as np
import probe_analyses
import probes
import pytest
import torch
import xarray as xr

import gausslens
from gausslens import Context
from gausslens.contract.reference import resolve
from gausslens.testing import check_stream
from gausslens.testing.merge_checks import difference


class TakesWhatItIsGiven(probe_analyses.MeanSquare):
    """Empty states keep the other's arrays and add to them."""

    def merge(self, other: Any) -> None:
        for layer, total in other.total.items():
            if layer in self.total:
                self.total[layer] += total
            else:
                self.total[layer] = total
            self.count[layer] = self.count.get(layer, 0) + other.count[layer]


class TakesTheDict(probe_analyses.MeanSquare):
    """An empty state becomes the other: what the other takes in later, it has too."""

    def merge(self, other: Any) -> None:
        if not self.total:
            self.total, self.count = other.total, other.count
        else:
            super().merge(other)


class EmptiesTheOther(probe_analyses.MeanSquare):
    def merge(self, other: Any) -> None:
        super().merge(other)
        other.total.clear()
        other.count.clear()


class KeepsTheOthers(probe_analyses.MeanSquare):
    """A list inside an object inside the state is what is shared."""

    def __init__(self, parameters: Any, context: Context) -> None:
        super().__init__(parameters, context)
        self.inner = types.SimpleNamespace(rows=[[]])

    def update(self, batch: Any) -> None:
        super().update(batch)
        self.inner.rows[-1].append(torch.tensor([torch.nan, batch.layer]))

    def merge(self, other: Any) -> None:
        super().merge(other)
        self.inner.rows += other.inner.rows


class AveragesWithEmptyOnes(probe_analyses.MeanSquare):
    """Associative, and of states that all saw something right: the share of states whose mean is high."""

    def __init__(self, parameters: Any, context: Context) -> None:
        super().__init__(parameters, context)
        self.layers = context.model.layers
        self.least = dict.fromkeys(self.layers, 0.0)

    def update(self, batch: Any) -> None:
        kept = batch.numpy("q")[batch.text.numpy()]
        self.least[batch.layer] = min(self.least[batch.layer] or np.inf, float(np.abs(kept).max(-1).min()))

    def merge(self, other: Any) -> None:
        self.least = {layer: min(self.least[layer], other.least[layer]) for layer in self.layers}

    def result(self) -> xr.Dataset:
        attrs = {"long_name": "least of the largest", "units": "1"}
        return xr.Dataset({"least": ("layer", list(self.least.values()), attrs)}, coords={"layer": list(self.layers)})


class WantsAllPrompts(probe_analyses.MeanSquare):
    """Values by prompt; ``what`` says what becomes of those that were not seen."""

    what = "fail"

    def __init__(self, parameters: Any, context: Context) -> None:
        super().__init__(parameters, context)
        self.names = context.tokens.names
        self.by_prompt: dict[int, float] = {}

    def update(self, batch: Any) -> None:
        super().update(batch)
        for row, prompt in enumerate(batch.prompts if batch.layer == 0 else ()):
            self.by_prompt[int(prompt)] = float(batch["q"][row][batch.text[row]].double().square().mean())

    def merge(self, other: Any) -> None:
        super().merge(other)
        self.by_prompt |= other.by_prompt

    def result(self) -> xr.Dataset:
        every = range(len(self.names))
        lacking = [p for p in every if p not in self.by_prompt]
        if lacking and self.what == "refuse":
            raise gausslens.GausslensError("prompts are missing")
        if lacking and self.what == "lose":
            return super().result()
        other = {"nan": np.nan, "zero": 0.0}
        seen = {p: other[self.what] for p in lacking if self.what in other} | self.by_prompt
        values = [seen[p] for p in every]
        found = super().result().assign(each=("prompt", values, {"long_name": "of each prompt", "units": "1"}))
        return found.assign_coords(prompt=list(self.names))


class RefusesWithoutThem(WantsAllPrompts):
    what = "refuse"


class LosesTheVariable(WantsAllPrompts):
    what = "lose"


class FillsWithZeros(WantsAllPrompts):
    what = "zero"


class FillsWithNaN(WantsAllPrompts):
    what = "nan"


class ShowsOnlyTheSeen(WantsAllPrompts):
    def result(self) -> xr.Dataset:
        seen = sorted(self.by_prompt)
        values = ("prompt", [self.by_prompt[p] for p in seen], {"long_name": "of each prompt", "units": "1"})
        return (
            probe_analyses.MeanSquare.result(self)
            .assign(each=values)
            .assign_coords(prompt=[self.names[p] for p in seen])
        )


class HasACellForEachPrompt(WantsAllPrompts):
    def result(self) -> xr.Dataset:
        values = ("rank", sorted(self.by_prompt.values()), {"long_name": "ranked", "units": "1"})
        return probe_analyses.MeanSquare.result(self).assign(each=values)


class NeedsAllInTheSecondPass(probe_analyses.Spread):
    """Where all prompts were seen in the first pass alone, it fails."""

    def end_pass(self, index: int) -> None:
        self.wanted = dict(self.count)
        super().end_pass(index)

    def result(self) -> xr.Dataset:
        assert self.count == self.wanted
        return super().result()


@pytest.mark.parametrize("made", [FillsWithNaN, ShowsOnlyTheSeen])
def test_streams_that_leave_out_prompts_not_seen_pass(made: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_analyses, "Wrong", made, raising=False)
    resolve.cache_clear()
    check_stream(replace(probes.POWER, analysis="probe_analyses:Wrong"))


def test_states_are_merged_by_key_as_copies() -> None:
    class Union(set[int]):
        def merge(self, other: set[int]) -> None:
            self.update(other)

    mine, theirs = {0: Union({1}), 1: Union({2})}, {1: Union({3}), 2: Union({4})}
    gausslens.merge_each(mine, theirs)
    assert mine == {0: {1}, 1: {2, 3}, 2: {4}}
    mine[2].add(5)
    assert theirs == {1: {3}, 2: {4}}


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (TakesWhatItIsGiven, r"merge\(\) into an empty state shares memory .*that was merged changes.*total\[0\]"),
        (TakesTheDict, r"merge\(\) into an empty state shares memory .*total"),
        (EmptiesTheOther, r"merge\(\) into an empty state changes the state that it takes in: total"),
        (KeepsTheOthers, r"shares memory .*inner\.rows\[0\]"),
        (AveragesWithEmptyOnes, "merging with a fresh empty state, as self or as other, changes the result"),
        (WantsAllPrompts, r"fails where a state has not seen prompt '0' \(KeyError: 0\): it may be asked of fewer"),
        (RefusesWithoutThem, r"refuses whichever prompt a state has not seen \(prompts are missing\)"),
        (LosesTheVariable, "with prompt '0' left out the result has other variables: each"),
        (FillsWithZeros, "with prompt '0' left out each still holds numbers of it: give NaN"),
        (HasACellForEachPrompt, "with prompt '0' left out each has other cells along rank"),
    ],
)
def test_states_that_share_or_want_all_prompts_are_caught(
    made: type, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_analyses, "Wrong", made, raising=False)
    resolve.cache_clear()
    with pytest.raises(AssertionError, match=said):
        check_stream(replace(probes.POWER, analysis="probe_analyses:Wrong"))


def test_an_analysis_that_wants_both_passes_of_the_same_prompts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_analyses, "Wrong", NeedsAllInTheSecondPass, raising=False)
    resolve.cache_clear()
    with pytest.raises(AssertionError, match="fails where a state has not seen prompt '0'"):
        check_stream(replace(probes.SPREAD, analysis="probe_analyses:Wrong"))


def test_two_states_differ_where_they_hold_other_things() -> None:
    def state() -> Any:
        made = types.SimpleNamespace(layers={0: [np.array([1.0, np.nan])]}, table=torch.tensor([1, 2]), name="a")
        made.itself = made
        return made

    assert difference(state(), state()) is None
    for path, change in {
        "layers[0][0]": lambda one: one.layers[0][0].__setitem__(0, 2.0),
        "layers": lambda one: one.layers.update({1: []}),
        "layers[0]": lambda one: one.layers[0].append(1),
        "table": lambda one: one.table.add_(1),
        "name": lambda one: setattr(one, "name", "b"),
    }.items():
        other = state()
        change(other)
        assert difference(state(), other) == path
