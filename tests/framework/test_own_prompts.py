"""runner.tokenise: a forward analysis that reads prompts of its own says ``texts``: its key has the tokenizer then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xarray as xr

from gausslens import Analysis, ModelError, Part, Prompt, Twin, hookimpl
from gausslens.contract.errors import RunFailed
from gausslens.testing import TinyEngine, TinyModel, check_forward

OTHER = "another prompt"


class Counterfactual:
    """How much likelier the last token of each prompt is there than after another prompt."""

    def __init__(self, parameters: Any, context: Any) -> None:
        pass

    def run(self, runner: Any, prompts: Any) -> xr.Dataset:
        other = runner.tokenise([Prompt((Part(OTHER),))])
        there = runner.forward(other.ids[0][None])["logits"][0, -1].log_softmax(-1)
        found = []
        for ids in prompts.ids:
            here = runner.forward(ids[None])["logits"][0, -2].log_softmax(-1)
            found.append(float(here[ids[-1]] - there[ids[-1]]))
        return xr.Dataset({"gain": ("prompt", np.array(found), {"long_name": "gain", "units": "nat"})})


READS = Analysis(
    name="own.prompts",
    version=1,
    shape="forward",
    summary="Reads a prompt of its own.",
    analysis=f"{__name__}:Counterfactual",
    texts=True,
)


class Plugin:
    def __init__(self, texts: bool) -> None:
        self.texts = texts

    @hookimpl
    def analyses(self) -> list[Analysis]:
        return [replace(READS, texts=self.texts)]


def test_it_is_what_the_model_makes_of_these_prompts() -> None:
    model = TinyModel()
    runner = TinyEngine().runner(Twin(model))
    prompts = [Prompt((Part(OTHER),)), Prompt(ids=(1, 2, 3))]
    assert runner.tokenise(prompts).digest() == model.tokenise(prompts).digest()
    assert check_forward(READS)["gain"].shape == (5,)


def test_without_texts_it_is_refused() -> None:
    with pytest.raises(ModelError, match=r"own\.prompts makes tokens of prompts of its own.*must say\s+texts=True"):
        check_forward(replace(READS, texts=False))


def test_a_run_refuses_it_too(gausslens_run: Any) -> None:
    study = {"prompts": {"source": "text", "text": ["One.", "Two."]}, "analyses": [{"use": "own.prompts"}]}
    with pytest.raises(RunFailed, match="texts=True"):
        gausslens_run(study, "models", own=Plugin(False))
    found = gausslens_run(study, "models", own=Plugin(True))
    assert np.isfinite(found["trained", "own.prompts"]["gain"]).all()
