"""A model over several devices: what of a layer stands on two is handed out on one, and the proof compares it.

There are none here, and neither transformers nor accelerate is tried: the model runs on the CPU, and what it gives out,
its tensors and its own answer stand on devices of the tests, layer by layer, as accelerate's hooks leave them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from other_device import COPIES, OnDevice, Uploads

from gausslens import Batch, ModelSpec, Request, Tokens, Twin
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.capture.forward_pass import Capture, Captured
from gausslens_models.loading import eager_answer as eager
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.parameters import TransformersParameters

SITES = ("resid_pre", "q", "pattern", "v", "resid_post")


class SpreadCapture(Capture):
    """Layers stand on two devices, by turns; what goes into one comes from where the one before it stands."""

    def __init__(
        self, model: Any, wanted: Mapping[int, Any], done: Callable[[int, Captured], None], *more: Any, **named: Any
    ) -> None:
        def placed(layer: int, captured: Captured) -> None:
            arrays = {
                site: OnDevice.of(array, f"layer {layer}: {site}", of_layer(layer - (site == "resid_pre")))
                for site, array in captured.arrays.items()
            }
            done(layer, replace(captured, arrays=arrays))

        super().__init__(model, wanted, placed, *more, **named)

    def run(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        return {name: OnDevice.of(array, name) for name, array in super().run(*arguments, **named).items()}


def of_layer(layer: int | None) -> int:
    return max(layer or 0, 0) % 2


@pytest.fixture
def spread(directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], PretrainedModel]:
    def opened(name: str) -> PretrainedModel:
        model = open_pretrained(ModelSpec(str(directory(name)), TransformersParameters()))
        tensor, own = model.tensor, eager.eager_answer

        def answer(asked: Any) -> eager.Answer:
            found = own(asked)
            layers = [n for n in model.info.layers if "pattern" not in model.info.lacking.get(n, {})]

            def by_layer(each: Any) -> Any:
                return [
                    tuple(OnDevice.of(a, "eager", of_layer(n)) for n, a in zip(layers, one, strict=True))
                    for one in each
                ]

            final, noise = ([OnDevice.of(a, "eager") for a in one] for one in (found.final, found.final_noise))
            return replace(
                found, final=final, final_noise=noise, patterns=by_layer(found.patterns), moved=by_layer(found.moved)
            )

        monkeypatch.setattr(
            model, "tensor", lambda layer, name: OnDevice.of(tensor(layer, name), name, of_layer(layer))
        )
        monkeypatch.setattr(eager, "eager_answer", answer)
        return model

    COPIES.of.clear()
    monkeypatch.setattr(COPIES, "float64", False)  # nor is any asked of them
    monkeypatch.setattr(TransformersEngine, "capture", SpreadCapture)
    return opened


@pytest.mark.parametrize("name", ["llama-tied", "gpt2", "bloom", "bert-masked"])
def test_the_proof_compares_what_stands_on_several_devices(
    name: str, spread: Callable[[str], PretrainedModel], directory: Callable[[str], Path], monkeypatch: Any
) -> None:
    found = TransformersEngine().prove(spread(name))
    assert len(COPIES.of) > 10
    monkeypatch.undo()
    here = TransformersEngine().prove(open_pretrained(ModelSpec(str(directory(name)), TransformersParameters())))
    assert found == here
    assert [f for f in found if not f.holds] == []


def test_a_batch_stands_on_one_device(spread: Callable[[str], PretrainedModel], prompts: Tokens) -> None:
    model = spread("llama-tied")
    seen: dict[int | None, Batch] = {}
    with Uploads():
        shard = np.arange(len(prompts))
        TransformersEngine().run(
            Twin(model), prompts, shard, Request((*SITES, "logits")), lambda b: seen.update({b.layer: b})
        )
        for layer, batch in seen.items():
            devices = {array.device for array in (*batch.arrays.values(), batch.text, batch.mask, batch.key_mask)}
            assert devices == {torch.device("cuda", of_layer(layer))}, layer
            if layer is not None:
                assert batch["resid_pre"][batch.text].shape[-1] == model.info.d_model
    assert len(seen) == model.info.n_layers + 1
