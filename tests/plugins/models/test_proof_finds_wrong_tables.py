"""A wrong table is caught by the proof, never by the reader: each way to read a tensor or a fact wrongly is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gausslens import ModelSpec
from gausslens_models.capture.bridge_engine import BridgeEngine
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.bridge import open_bridge
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.parameters import TransformersParameters

Reading = Callable[[torch.Tensor], torch.Tensor]


def turned_head_by_head(weight: torch.Tensor) -> torch.Tensor:
    """W_O [head, d_head, d_model] as it would be if the checkpoint had stored it the other way round."""
    heads, d_head, d_model = weight.shape
    return weight.reshape(heads * d_head, d_model).T.reshape(heads, d_head, d_model)


def one_later(table: torch.Tensor) -> torch.Tensor:
    """A table read one row too far."""
    return table.roll(-1, 0)


# What is read wrongly: (model, tensor, how it is read, a site that must be found wrong)
TENSORS: list[tuple[str, str, Reading, str]] = [
    ("llama", "W_Q", lambda w: w.flip(0), "q"),
    ("qwen3", "W_Q", lambda w: w[[1, 0, 2, 3]], "q"),
    ("mistral", "W_K", lambda w: w.flip(0), "k"),
    ("gpt_neox", "W_V", lambda w: w.roll(1, 0), "v"),
    ("gemma2", "W_V", lambda w: w.flip(2), "v"),
    ("qwen2", "b_K", torch.zeros_like, "k"),
    ("gpt2", "b_Q", torch.zeros_like, "q"),
    ("bert", "b_V", torch.zeros_like, "v"),
    ("llama", "b_O", torch.zeros_like, "attn_out"),
    ("gpt2", "W_O", turned_head_by_head, "attn_out"),
    ("opt", "W_O", turned_head_by_head, "attn_out"),
    ("bert-masked", "W_O", lambda w: w.flip(0), "attn_out"),
    ("gemma2", "ln1.w", lambda w: w - 1, "q"),
    ("gemma3", "ln1_post.w", lambda w: w - 1, "attn_out"),
    ("gemma3", "q_norm.w", lambda w: w - 1, "q_rot"),
    ("llama", "ln1.w", torch.ones_like, "q"),
    ("gpt2", "ln1.b", torch.zeros_like, "q"),
    ("llama", "ln2.w", torch.ones_like, "mlp_pre"),
    ("gemma2", "ln2.w", lambda w: w - 1, "mlp_pre"),
    ("gemma2", "ln2_post.w", lambda w: w - 1, "mlp_out"),
    ("phi3", "W_gate", lambda w: w.flip(1), "mlp_pre"),
    ("llama", "W_in", lambda w: w.roll(1, 1), "mlp_post"),
    ("llama", "b_out", torch.zeros_like, "mlp_out"),
    ("gpt_neox", "W_out", lambda w: w.flip(0), "mlp_out"),
    ("gpt2", "W_in", lambda w: w.flip(0), "mlp_pre"),
    ("bert", "ln2.w", torch.ones_like, "resid_post"),
    ("bert", "ln1.b", torch.zeros_like, "resid_mid"),
    ("gpt2", "W_pos", one_later, "resid_pre"),
    ("opt", "W_pos", one_later, "resid_pre"),
    ("qwen2", "W_E", one_later, "resid_pre"),
    ("bert", "ln_embed.w", torch.ones_like, "resid_pre"),
    ("llama", "W_U", lambda w: w.roll(1, 1), "logits"),
    ("llama-tied", "ln_final.w", torch.ones_like, "logits"),
    ("gpt2-headless", "ln_final.b", torch.zeros_like, "resid_post"),
]
FACTS: list[tuple[str, Mapping[str, Any], str]] = [
    ("llama", {"scale": (1.0,) * 3}, "scores"),
    ("gemma2", {"scale": (10**-0.5,) * 3}, "scores"),
    ("gpt2-layer-scaled", {"scale": (6**-0.5,) * 3}, "scores"),
    ("mistral", {"sliding_window": (None,) * 3}, "scores"),
    ("qwen2", {"sliding_window": (5,) * 3}, "scores"),
    ("gemma3", {"sliding_window": (4, 4, 4)}, "scores"),
    ("gemma2", {"soft_cap": None}, "scores"),
    ("qwen3", {"query_norm": False}, "q_rot"),
    ("llama", {"norm": "layer"}, "q"),
    ("gpt2", {"norm": "rms"}, "q"),
    ("opt", {"norm_first": False}, "q"),
    ("gpt2", {"activation": "gelu_pytorch_tanh", "norm_epsilon": 0.1}, "q"),
    ("llama", {"activation": "gelu"}, "mlp_post"),
    ("bert", {"activation": "relu"}, "mlp_post"),
    ("gpt_neox-sequential", {"parallel": True}, "mlp_pre"),
    ("gemma3", {"embedding_scale": 1.0}, "resid_pre"),
    ("llama", {"logit_scale": 1.1}, "logits"),
    ("gemma2", {"final_soft_cap": None, "residual_scale": 0.5}, "resid_mid"),
]


def open_in(directory: Callable[[str], Path], name: str, dtype: str) -> PretrainedModel:
    return open_pretrained(ModelSpec(str(directory(name)), TransformersParameters(), dtype=dtype))


def wrong_sites(model: PretrainedModel, engine: TransformersEngine | None = None) -> set[str]:
    wrong = [f for f in (engine or TransformersEngine()).prove(model) if not f.holds]
    assert all(f.sites and not f.left_out for f in wrong), wrong
    return {site for f in wrong for site in f.sites}


def misread(model: PretrainedModel, name: str, how: Reading) -> None:
    """From now on our tensor of this name is another."""
    plain = model.tensor
    model.tensor = lambda layer, n: how(plain(layer, n)) if n == name else plain(layer, n)  # type: ignore[method-assign]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "tensor", "how", "site"), TENSORS, ids=lambda v: v if isinstance(v, str) else "")
def test_a_tensor_read_wrongly_is_found(
    name: str, tensor: str, how: Reading, site: str, dtype: str, directory: Callable[[str], Path]
) -> None:
    model = open_in(directory, name, dtype)
    misread(model, tensor, how)
    found = wrong_sites(model)
    assert site in found
    # It is found where it is, not everywhere: what comes after is made of what was captured.
    assert len(found) <= 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "told", "site"), FACTS, ids=lambda v: "-".join(v) if isinstance(v, dict) else str(v))
def test_a_wrong_fact_is_found(
    name: str, told: Mapping[str, Any], site: str, dtype: str, directory: Callable[[str], Path]
) -> None:
    model = open_in(directory, name, dtype)
    model.__dict__["info"] = replace(model.info, facts={**model.info.facts, **told})
    assert site in wrong_sites(model)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt_neox", "phi3", "lfm2"])
@pytest.mark.parametrize("how", ["theta", "scaling", "fewer"])
def test_a_wrong_rotary_table_is_found(how: str, name: str, directory: Callable[[str], Path]) -> None:
    model = open_in(directory, name, "float32")
    changed = []
    for told in model.info.facts["rotary"]:
        frequencies = told["frequencies"]
        if how == "theta":
            frequencies = tuple(f ** (11 / 10) for f in frequencies)
        if how == "fewer":
            frequencies = frequencies[:-1]
        changed.append({**told, "frequencies": frequencies, "scaling": 1.2 if how == "scaling" else told["scaling"]})
    model.__dict__["info"] = replace(model.info, facts={**model.info.facts, "rotary": tuple(changed)})
    assert {"q_rot", "k_rot"} <= wrong_sites(model)


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen2", "gpt_neox"])
@pytest.mark.parametrize("tensor", ["W_Q", "W_O", "W_out"])
def test_through_the_bridge_too(tensor: str, name: str, directory: Callable[[str], Path]) -> None:
    model = open_bridge(ModelSpec(str(directory(name)), TransformersParameters()))
    model.bridge  # noqa: B018
    misread(model, tensor, lambda w: w.flip(0))
    site = {"W_Q": "q", "W_O": "attn_out", "W_out": "mlp_out"}[tensor]
    assert site in wrong_sites(model, BridgeEngine())


def test_one_wrong_head_of_one_layer_is_found(directory: Callable[[str], Path]) -> None:
    """Two key/value heads exchanged in the last layer alone."""
    model = open_in(directory, "llama", "bfloat16")
    plain = model.tensor

    def exchanged(layer: int | None, name: str) -> torch.Tensor:
        return plain(layer, name).flip(0) if (layer, name) == (2, "W_V") else plain(layer, name)

    model.tensor = exchanged  # type: ignore[method-assign]
    wrong = [f.what for f in TransformersEngine().prove(model) if not f.holds]
    assert wrong == ["v of layer 2 from weights"]
