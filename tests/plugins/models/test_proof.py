"""The parity proof holds for every family; runners are the model's own eager attention bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gausslens import ModelSpec, Twin
from gausslens.maths.rotary import Rotation
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.eager_answer import eager_answer, proof_prompt
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.parameters import TransformersParameters

Opens = Callable[[str], PretrainedModel]


@pytest.mark.parametrize("pairs", [False, True])
def test_turning_in_torch_is_the_rotation(pairs: bool) -> None:
    """And so is the scaling; dimensions beyond the turned ones stay, and without frequencies all do."""
    rotation = Rotation(6, (1.0, 0.3), 1.5, pairs)
    x = torch.randn(2, 5, 3, 6, generator=torch.Generator().manual_seed(0))
    turned = rotation.turned(x, torch.arange(5)).numpy()
    for position in range(5):
        expected = x.numpy()[:, position] * rotation.scales @ rotation.matrix(position).T
        np.testing.assert_allclose(turned[:, position], expected, atol=1e-6)
    # Undoing divides by the scaling, as content is what the weights gave.
    np.testing.assert_allclose(rotation.undone(turned), x.numpy(), atol=1e-6)
    assert Rotation(6).turned(x, torch.arange(5)) is x


def test_it_holds(family_of_all: str, opened: Opens) -> None:
    model = opened(family_of_all)
    findings = TransformersEngine().prove(model)
    assert [f for f in findings if not f.holds] == []
    told = {f.what for f in findings}
    assert {"logits" if model.headed else "final hidden state"} < told
    for layer in model.info.layers:
        if "pattern" not in model.info.lacking.get(layer, {}):
            whats = ("q", "k", "v", "scores", "pattern", "z", "attn_out")
            assert {f"{what} of layer {layer} from weights" for what in whats} < told
            assert f"pattern of layer {layer}" in told


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["gpt2", "llama-tied", "gemma2", "bert-masked"])
def test_it_holds_in_other_types(name: str, dtype: str, directory: Callable[[str], Path]) -> None:
    model = open_pretrained(ModelSpec(str(directory(name)), TransformersParameters(), dtype=dtype))
    assert [f for f in TransformersEngine().prove(model) if not f.holds] == []


def test_runners_are_eager_attention_bit_for_bit(which: str, opened: Opens) -> None:
    model = opened(which)
    ids, mask = proof_prompt(model)
    answer = eager_answer(model)
    having = [n for n in model.info.layers if "pattern" not in model.info.lacking.get(n, {})]
    sites = ("pattern", "logits") if model.headed else ("pattern",)
    for row in range(len(ids)):
        found = TransformersEngine().runner(Twin(model)).forward(ids[row][mask[row]].numpy()[None], sites=sites)
        if model.headed:
            assert torch.equal(found["logits"][0], answer.final[row])
        for layer, patterns in answer.of_layers(having).items():
            assert torch.equal(found[layer, "pattern"][0], patterns[row])
