"""A model whose biases make scores above 1,000 is as healthy as any: it is proved in every type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from gausslens import ModelSpec, Twin
from gausslens_models.capture.bridge_engine import BridgeEngine
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.bridge import open_bridge
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.parameters import TransformersParameters


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2 with q and k biases as trained ones have them: near 1,500 in the scores of some heads, 5 in others."""
    path = tmp_path_factory.mktemp("loud")
    torch.manual_seed(3)
    config = transformers.Qwen2Config(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    model = transformers.Qwen2ForCausalLM(config)
    for parameter in model.parameters():
        parameter.data += 0.15 * torch.randn(parameter.shape)
    for layer in model.model.layers[:2]:
        bias = 28.0 * torch.randn(16)
        layer.self_attn.k_proj.bias.data[:16] += bias
        layer.self_attn.q_proj.bias.data[:16] += bias / 2 + 4 * torch.randn(16)
    model.save_pretrained(path)
    return path


def opened(path: Path, dtype: str) -> PretrainedModel:
    return open_pretrained(ModelSpec(str(path), TransformersParameters(), dtype=dtype))


def test_its_scores_are_large(loud: Path) -> None:
    ids = np.arange(3, 40)[None]
    found = TransformersEngine().runner(Twin(opened(loud, "float32"))).forward(ids, sites=("scores",))
    largest = [float(found[layer, "scores"][found[layer, "scores"].isfinite()].abs().max()) for layer in range(4)]
    assert max(largest) > 1000
    assert min(largest) < 100


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "float16"])
def test_it_is_proved(dtype: str, loud: Path) -> None:
    findings = TransformersEngine().prove(opened(loud, dtype))
    assert [f for f in findings if not f.holds] == []
    assert len(findings) > 60


def test_it_is_proved_through_the_bridge(loud: Path) -> None:
    findings = BridgeEngine().prove(open_bridge(ModelSpec(str(loud), TransformersParameters())))
    assert [f for f in findings if not f.holds] == []


def _no_bias(model: PretrainedModel) -> None:
    model.module.model.layers[0].self_attn.q_proj.bias.data[:16] = 0


def _another_weight(model: PretrainedModel) -> None:
    weight = model.module.model.layers[3].self_attn.k_proj.weight.data
    weight[:16] = weight[16:].clone()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("change", [_no_bias, _another_weight])
def test_what_is_wrong_in_it_is_found(
    change: Callable[[PretrainedModel], None], dtype: str, loud: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tensors as we read them are those of the files, its module is another: a wrong bias or weight is seen."""
    model = opened(loud, dtype)
    files: dict[Any, torch.Tensor] = {
        (layer, name): model.tensor(layer, name).clone() for layer in (None, 0, 1, 2, 3) for name in model.names(layer)
    }
    change(model)
    monkeypatch.setattr(model, "tensor", lambda layer, name: files[layer, name])
    wrong = [f for f in TransformersEngine().prove(model) if not f.holds]
    assert wrong
    if dtype == "float32":
        assert all("from weights" in f.what for f in wrong)
