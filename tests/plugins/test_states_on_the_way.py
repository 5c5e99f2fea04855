"""Each of our stream analyses, stopped after each shard and taken up from a file: the same bits as undisturbed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from gausslens import Analysis, Context, Part, Prompt, Tokens, Twin
from gausslens.contract.reference import resolve
from gausslens.measuring.on_the_way import Merged, OnTheWay, read_reached, write_reached
from gausslens.measuring.passes import Job, run_passes
from gausslens.runs.requests import offers_state
from gausslens.store import Store
from gausslens.testing import TinyEngine
from gausslens_bilinear.parameters import LogitsParameters
from gausslens_gaussian.parameters import JointParameters, MomentsParameters
from gausslens_models.parameters import AttentionMapParameters, LossParameters

from .test_prompts_left_out import ALL, CASES, MODEL, TEXTS

STATES: dict[str, Any] = {
    **CASES,
    "attention.pooling (all)": None,
    "bilinear.logits": LogitsParameters(lags=(1, 3), sample=40),
    "gaussian.moments (embed)": MomentsParameters(site="embed", robust=True, covariance=True),
    "gaussian.joint (heads)": JointParameters(site="v", window=3, dims=2, reduce="pca", permutations=0),
    "model.attention (maps)": AttentionMapParameters(maps="heads"),
    "model.attention (none)": AttentionMapParameters(maps="none"),
    "model.loss (segments)": LossParameters(segments=["text"]),
}
# What it saw is in the part that it writes, and no one goes on with the part of a killed run.
WITHOUT = {"model.capture"}
GROUPS = 3


class Relay(OnTheWay):
    """After each shard all that is left of a job is a file, and a fresh instance goes on from it."""

    def __init__(self, store: Path) -> None:
        super().__init__(Store(store).create().writer, 0.0)
        self.relayed, self.sizes = 0, [0]

    def commit(self, jobs: Sequence[Job], index: int, shards: int, merged: Merged, agreed: Any) -> None:
        for job in jobs:
            assert job.error is None, job.error
            before = list(merged[job.name].values())
            write_reached(self.writer, job.name, job.reached(index, shards, merged[job.name]), "here")
            path = self.writer.root / "progress" / job.name
            self.sizes.append(path.stat().st_size)
            job.go_on(read_reached(path, "here"))
            states: Any = merged[job.name]
            states.update(job.restored)
            assert not any(state is old for state in states.values() for old in before)
            self.relayed += 1


def run(analysis: Analysis, parameters: Any, way: OnTheWay | None, groups: int | None) -> list[xr.Dataset]:
    """The result of all prompts, or of each group of them."""
    texts = TEXTS * (3 if analysis.name == "gaussian.joint" else 1)
    tokens = MODEL.tokenise([Prompt((Part(text),), name=f"{n}") for n, text in enumerate(texts)])
    context = Context(MODEL.info, 0, tokens)

    def made() -> Any:
        return resolve(analysis.analysis)(parameters or resolve(analysis.parameters)(), context)

    state = made()
    assert offers_state(state)
    job = Job(
        *("key", analysis.name, state, state.request(), MODEL.info),
        row_blocks=analysis.row_blocks,
        shared=(context, context.model, tokens),
        made=made,
        can_commit=True,
    )
    for _ in run_passes(TinyEngine(), Twin(MODEL), tokens, [job], groups=groups, way=way):
        pass
    assert job.error is None, job.error
    return [found.result() for found in job.groups] if groups else [job.state.result()]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Tokens.shards
    monkeypatch.setattr(Tokens, "shards", lambda self, size=48, among=None: real(self, size, among))
    monkeypatch.setattr("gausslens.measuring.feed.ROW_BLOCK", 8)


def test_every_stream_analysis_is_here() -> None:
    assert {name.split()[0] for name in STATES} | WITHOUT == set(ALL)
    assert all(ALL[name].bulk for name in WITHOUT)


@pytest.mark.parametrize("groups", [None, GROUPS])
@pytest.mark.parametrize("name", STATES)
def test_stopped_after_each_shard_it_comes_to_the_same_bits(name: str, groups: int | None, tmp_path: Path) -> None:
    analysis, parameters = ALL[name.split()[0]], STATES[name]
    whole = run(analysis, parameters, None, groups)
    way = Relay(tmp_path / "store")
    found = run(analysis, parameters, way, groups)
    assert way.relayed >= 5
    assert max(way.sizes) > 500
    assert len(found) == len(whole) == (groups or 1)
    for one, wanted in zip(found, whole, strict=True):
        xr.testing.assert_identical(one, wanted)
        for place, variable in wanted.variables.items():
            if variable.dtype != "O":
                assert one.variables[place].values.tobytes() == np.asarray(variable.values).tobytes()
