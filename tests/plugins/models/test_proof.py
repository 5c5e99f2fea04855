"""The parity proof holds for every family; runners are the model's own eager attention bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gausslens import Twin
from gausslens_models.engine import TransformersEngine
from gausslens_models.pretrained import PretrainedModel
from gausslens_models.proof import eager_answer, proof_prompt

Opens = Callable[[str], PretrainedModel]


def test_it_holds(which: str, opened: Opens) -> None:
    model = opened(which)
    findings = TransformersEngine().prove(model)
    assert [f for f in findings if not f.holds] == []
    told = {f.what for f in findings}
    assert {"logits" if model.headed else "final hidden state"} < told
    for layer in model.info.layers:
        if "pattern" not in model.info.lacking.get(layer, {}):
            whats = ("q", "k", "v", "scores", "pattern", "z", "attn_out")
            assert {f"{what} of layer {layer} from weights" for what in whats} < told
            assert f"pattern of layer {layer}" in told


def test_runners_are_eager_attention_bit_for_bit(which: str, opened: Opens) -> None:
    model = opened(which)
    ids, mask = proof_prompt(model)
    final, patterns = eager_answer(model.module, ids, mask)
    having = [n for n in model.info.layers if "pattern" not in model.info.lacking.get(n, {})]
    sites = ("pattern", "logits") if model.headed else ("pattern",)
    found = TransformersEngine().runner(Twin(model)).forward(ids.numpy(), sites=sites, mask=mask.numpy())
    if model.headed:
        assert torch.equal(found["logits"][mask], final[mask])
    for layer, pattern in zip(having, patterns, strict=True):
        assert torch.equal(found[layer, "pattern"].transpose(1, 2)[mask], pattern.transpose(1, 2)[mask])
