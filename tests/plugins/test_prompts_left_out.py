"""What a state that lacks prompts gives is what a run on the other prompts alone gives, for every stream analysis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

import gausslens_attention.plugin as of_attention
import gausslens_bilinear.plugin as of_bilinear
import gausslens_gaussian.plugin as of_gaussian
import gausslens_models.plugin as of_models
from gausslens import Context, Part, Prompt, Twin
from gausslens.contract.reference import resolve
from gausslens.measuring.passes import Job, run_passes
from gausslens.testing import TinyEngine, TinyModel
from gausslens.testing.stream_checks import sharded
from gausslens_attention.parameters import (
    BandParameters,
    KernelParameters,
    LowRankParameters,
    MaskParameters,
    MembersParameters,
    PoolingParameters,
    RolesParameters,
)
from gausslens_gaussian.parameters import JointParameters, MomentsParameters
from gausslens_models.parameters import AttentionMapParameters, LossParameters

TEXTS = (
    *("The quick brown fox", "jumps over a log", "the lazy dog, twice", "a b a b a b", "nine men in a boat"),
    *("one more of these", "and the last but", "some of the words", "what is left, then", "nothing at all"),
)
MODEL = TinyModel()
ALL = {
    analysis.name: analysis
    for plugin in (of_attention, of_bilinear, of_gaussian, of_models)
    for analysis in plugin.analyses()
    if analysis.shape == "stream"
}
# What they hold cannot be had without prompts: large arrays are in the store, and the halves of bilinear.logits are
# drawn from all prompts (check_stream looks at its states).
WITHOUT = {"model.capture", "bilinear.logits"}
CASES = {
    "attention.band": BandParameters(w=[0, 2], budget=[3]),
    "attention.lowrank": LowRankParameters(rank=[1, 3]),
    "attention.masks": MaskParameters(keys=[3]),
    "attention.kernels": KernelParameters(features=[8]),
    "attention.roles": RolesParameters(directions=4),
    "attention.members": MembersParameters(w=[1], windows=[1], draws=2, steps=2, repeats=2),
    "attention.pooling": PoolingParameters(directions=1, hidden=1, steps=2, functions=["dot", "multiplicative"]),
    "bilinear.head-roles": None,
    "gaussian.moments": MomentsParameters(site="v", robust=True, principal=3),
    "gaussian.moments (sketch)": MomentsParameters(sketch=8, keep=4, robust=True),
    "gaussian.joint": JointParameters(window=3, dims=2, reduce="pca", permutations=0),
    "gaussian.joint (windows)": JointParameters(window=2, every=2, dims=2, reduce="random", permutations=0),
    "model.attention": AttentionMapParameters(level="word"),
    "model.loss": LossParameters(),
}


def result(name: str, prompts: list[Prompt], seen: list[int], segments: dict[str, Any] | None = None) -> xr.Dataset:
    """Of these prompts as context, some of which are seen, each a shard of its own."""
    analysis, tokens = ALL[name.split()[0]], MODEL.tokenise(prompts)
    parameters = segments or CASES[name] or resolve(analysis.parameters)()
    context = Context(MODEL.info, 0, tokens)
    state = resolve(analysis.analysis)(parameters, context)
    job = Job(name, name, state, state.request(), MODEL.info, row_blocks=analysis.row_blocks, shared=(context,))
    cut = sharded(tokens, [np.array([prompt]) for prompt in seen])
    for _ in run_passes(TinyEngine(), Twin(MODEL), cut, [job]):
        pass
    if job.error:
        raise job.error
    return job.state.result()


def test_every_stream_analysis_is_here() -> None:
    assert {name.split()[0] for name in CASES} | WITHOUT == set(ALL)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("left", [0, 3])
def test_it_is_a_run_on_the_others_alone(name: str, left: int) -> None:
    prompts = [Prompt((Part(text),), name=text) for text in TEXTS]
    others = [place for place in range(len(prompts)) if place != left]
    lacking = result(name, prompts, others)
    alone = result(name, [prompts[place] for place in others], list(range(len(others))))
    assert set(lacking.data_vars) == set(alone.data_vars)
    compared = 0
    for key, variable in alone.data_vars.items():
        found = lacking[key]
        if "prompt" in variable.dims:
            assert bool(np.isnan(found.isel(prompt=left)).all()) or found.dtype.kind != "f"
            found = found.isel(prompt=others)
        if found.shape == variable.shape:  # maps are as wide as the longest prompt of all
            xr.testing.assert_allclose(found.drop_vars(found.coords), variable.drop_vars(variable.coords), rtol=1e-9)
            compared += 1
        else:
            assert {"prompt", "position", "query", "key"} & set(variable.dims)
    assert compared >= len(alone.data_vars) - 1


@pytest.mark.parametrize(
    ("name", "parameters", "wanted"),
    [
        ("model.loss", LossParameters(segments=["text", "rare"]), "segment_mean_loss"),
        ("model.attention", AttentionMapParameters(), "between"),
    ],
)
def test_a_segment_of_prompts_not_seen_stays_and_is_missing(name: str, parameters: Any, wanted: str) -> None:
    """The cells of the result do not depend on which prompts were seen."""
    prompts = [
        Prompt((Part("some text"),)),
        Prompt((Part("words "), Part("of a kind", "rare"))),
        Prompt((Part("end"),)),
    ]
    whole, lacking = (result(name, prompts, seen, parameters)[wanted] for seen in ([0, 1, 2], [0, 2]))
    dim = "segment" if name == "model.loss" else "query_segment"
    assert lacking[dim].equals(whole[dim])
    assert "rare" in whole[dim].values
    assert not np.isnan(whole).any()
    assert np.isnan(lacking.sel({dim: "rare"})).all()
    assert not np.isnan(lacking.drop_sel({dim: "rare"})).any()
