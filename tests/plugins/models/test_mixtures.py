"""Experts: our tensors against the module's own arithmetic, from both layouts of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_mixtures import MIXTURES

from gausslens import ModelError, ModelSpec
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.families.slots import MLP_TENSORS
from gausslens_models.loading.checkpoint import Checkpoint
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.loading.weights import CheckpointModel, open_weights
from gausslens_models.parameters import TransformersParameters, WeightsParameters

Opens = Callable[[str], PretrainedModel]


def of_experts(model: PretrainedModel) -> int:
    """A layer of experts."""
    return max(layer for layer in model.info.layers if model.info.facts.experts(layer))


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_compute_what_their_tensors_say(name: str, opened: Opens) -> None:
    """Each token goes to two experts of our choice: the module's sum is that of W_gate, W_in and W_out."""
    model = opened(name)
    layer = of_experts(model)
    place = model.module_layout.places[layer]["W_out"]
    experts = model.module.get_submodule(place.theirs.rpartition(".")[0])
    count = model.info.facts.experts(layer)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(7, model.info.d_model, generator=draw)
    chosen = torch.stack([torch.randperm(count, generator=draw)[:2] for _ in x])
    weight = torch.rand(7, 2, generator=draw)
    tensors = {w: model.tensor(layer, w) for w in model.names(layer) if w in MLP_TENSORS}
    expected = torch.zeros_like(x)
    for token in range(7):
        for expert, share in zip(chosen[token].tolist(), weight[token], strict=True):
            own = {w: tensor[expert] for w, tensor in tensors.items()}
            gate = x[token] @ own["W_gate"] + own.get("b_gate", 0)
            up = x[token] @ own["W_in"] + own.get("b_in", 0)
            if name == "gpt_oss":  # its own gate: x sigmoid(1.702 x) (up + 1), clamped at 7
                gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
                middle = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            else:
                middle = torch.nn.functional.silu(gate) * up
            expected[token] += share * (middle @ own["W_out"] + own.get("b_out", 0))
    if name == "llama4":  # its experts take an equal share of the tokens, and weigh what they read
        made = experts(x.repeat(count, 1)).view(count, 7, -1)
        one = torch.nn.functional.silu(x @ tensors["W_gate"][1]) * (x @ tensors["W_in"][1]) @ tensors["W_out"][1]
        assert torch.allclose(made[1], one, atol=1e-4)
        return
    assert torch.allclose(experts(x, chosen, weight), expected, atol=1e-4)


@pytest.mark.parametrize("name", MIXTURES)
def test_routers_and_shared_experts_are_linear_layers(name: str, opened: Opens) -> None:
    model = opened(name)
    layer = of_experts(model)
    places = model.module_layout.places[layer]
    x = torch.randn(5, model.info.d_model, generator=torch.Generator().manual_seed(1))
    for ours in ("W_router", "W_shared_in", "W_shared_gate", "W_shared_router"):
        if ours not in places:
            continue
        weight = model.module.get_parameter(places[ours].theirs)
        made = torch.nn.functional.linear(x, weight)
        part = places[ours].slot.part
        made = made.chunk(2, dim=-1)[int(part[0])] if part else made
        assert torch.allclose(x @ model.tensor(layer, ours), made, atol=1e-5)


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "phimoe", "minimax_m2", "glm4_moe", "gpt_oss"])
def test_files_with_fused_experts_are_read_alike(
    name: str, opened: Opens, as_files: Callable[[str], CheckpointModel], tmp_path: Path
) -> None:
    """transformers saves one tensor for each expert; a file may hold them as the module does."""
    model, files = opened(name), as_files(name)
    model.config.save_pretrained(tmp_path)
    save_file({n: p.detach().contiguous() for n, p in model.module.named_parameters()}, tmp_path / "model.safetensors")
    fused = open_weights(ModelSpec(str(tmp_path), WeightsParameters()))
    if name != "gpt_oss":
        assert len(Checkpoint(tmp_path).tensors) < len(files.checkpoint.tensors)  # type: ignore[union-attr]
    for layer in (None, *fused.info.layers):
        assert fused.names(layer) == files.names(layer)
        for tensor in fused.names(layer):
            assert torch.equal(fused.tensor(layer, tensor), files.tensor(layer, tensor))


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "gpt_oss", "granitemoe", "llama4"])
def test_experts_run_in_float64(name: str, directory: Callable[[str], Path]) -> None:
    """Which the grouped products of transformers cannot; its plain loop over experts can."""
    spec = ModelSpec(str(directory(name)), TransformersParameters(), dtype="float64")
    assert [f for f in TransformersEngine().prove(open_pretrained(spec)) if not f.holds] == []


def test_a_lost_expert_is_told(directory: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    source = directory("mixtral")
    tensors = load_file(source / "model.safetensors")
    lost = next(n for n in tensors if n.endswith("layers.1.block_sparse_moe.experts.2.w1.weight"))
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.experts has a tensor of 3 experts, another of 4"):
        open_weights(ModelSpec(str(tmp_path), WeightsParameters()))
