"""The real models: the same proofs, on weights that were trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gausslens import ModelSpec, Part, Prompt, Request, Twin
from gausslens_models.capture.bridge_engine import BridgeEngine
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.bridge import open_bridge
from gausslens_models.loading.pretrained import open_pretrained
from gausslens_models.loading.weights import open_weights
from gausslens_models.parameters import TransformersParameters, WeightsParameters

pytestmark = pytest.mark.real_model
NAMES = ("smollm2", "minilm")
TEXT = "red green blue grey red green blue grey red green blue grey red green"


def spec(directory: Path, name: str) -> ModelSpec:
    return ModelSpec(str(directory / name), TransformersParameters())


@pytest.mark.parametrize("name", NAMES)
def test_the_proof_holds(name: str, real_models: Path) -> None:
    findings = TransformersEngine().prove(open_pretrained(spec(real_models, name)))
    assert [f for f in findings if not f.holds] == []


def test_the_proof_holds_through_the_bridge(real_models: Path) -> None:
    findings = BridgeEngine().prove(open_bridge(spec(real_models, "smollm2")))
    assert [f for f in findings if not f.holds] == []


@pytest.mark.parametrize("name", NAMES)
def test_weights_from_files_are_the_loaded_models(name: str, real_models: Path) -> None:
    files = open_weights(ModelSpec(str(real_models / name), WeightsParameters()))
    model = open_pretrained(spec(real_models, name))
    assert model.module is not None
    for layer in (None, 0, model.info.n_layers - 1):
        assert files.names(layer) == model.names(layer)
        for tensor in files.names(layer):
            assert torch.equal(files.tensor(layer, tensor), model.tensor(layer, tensor))


def test_beginning_of_text_is_the_tokenizers_own(real_models: Path) -> None:
    plain = open_pretrained(spec(real_models, "smollm2")).tokenise([Prompt((Part(TEXT),))])
    assert plain.text[0].all()
    framed = open_pretrained(spec(real_models, "minilm")).tokenise([Prompt((Part(TEXT),))])
    assert framed.text[0].tolist() == [False, *[True] * (len(framed.ids[0]) - 2), False]
    assert framed.pieces[0][0] == "[CLS]"


def test_replacement_twins_and_generation(real_models: Path) -> None:
    model = open_pretrained(spec(real_models, "smollm2"))
    ids = model.tokenise([Prompt((Part(TEXT),))]).ids[0][None]
    runner = TransformersEngine().runner(Twin(model))
    plain = runner.forward(ids)["logits"]
    assert torch.equal(runner.forward(ids, replace=lambda layer, s, p, v: p)["logits"], plain)
    followed = runner.generate(ids, 3)[0]
    assert runner.decode(followed[:1]).strip() == "blue"
    ids_two = np.concatenate([ids[0], followed[:2]])[None]
    assert int(runner.forward(ids_two)["logits"][0, -1].argmax()) == followed[2]


def test_patterns_of_a_long_text_in_blocks(real_models: Path) -> None:
    """2,048 tokens: scores of a layer are 151 MB, made in blocks; rows sum to one, none looks ahead."""
    model = open_pretrained(spec(real_models, "smollm2"))
    ids = np.random.default_rng(0).integers(10, 49_000, size=2048)
    tokens = model.tokenise([Prompt(ids=tuple(map(int, ids)))])
    rows = 0

    def sink(batch: object) -> None:
        nonlocal rows
        pattern = batch["pattern"]  # type: ignore[index]
        start, n = batch.rows, pattern.shape[2]  # type: ignore[attr-defined]
        assert n <= 256
        assert torch.allclose(pattern.sum(-1), torch.ones(()), atol=1e-4)
        assert float(pattern[..., start + n :].abs().sum()) == 0
        rows += n

    TransformersEngine().run(Twin(model), tokens, np.array([0]), Request(("pattern",), layers=(0,), rows=256), sink)
    assert rows == 2048
