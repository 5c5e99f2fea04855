"""An adapter of a model of two stacks: as a model it changes both, as an edit the one that is studied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from planted_adapters import plant
from safetensors.torch import load_file, save_file
from tiny_stacks import built, saved

from gausslens import Generators, LayerWeights, ModelError, ModelSpec
from gausslens_models.edits import check_lora, lora
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.parameters import LoraParameters, TransformersParameters

TARGETS = {"bart": ("q_proj", "v_proj", "fc1"), "t5": (".q", ".v", ".wi")}


def opened(path: Path, stack: str) -> PretrainedModel:
    return open_pretrained(ModelSpec(str(path), TransformersParameters(stack=stack)))


def merged(base: Path, added: dict[str, torch.Tensor], to: Path) -> Path:
    """The base with what the adapter adds (alpha / r = 3), written by hand."""
    shutil.copytree(base, to)
    held = load_file(base / "model.safetensors")
    for name, change in added.items():
        held[name] = (held[name].double() + 3 * change).float()
    save_file(held, to / "model.safetensors", metadata={"format": "pt"})
    return to


@pytest.fixture(params=TARGETS)
def three(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, Path]:
    """Directories of a base, an adapter of both stacks, and the two in one."""
    base = saved(request.param, tmp_path / "base")
    added = plant(tmp_path / "adapter", base, TARGETS[request.param])
    assert {name.removeprefix("model.").split(".")[0] for name in added} == {"encoder", "decoder"}
    return base, tmp_path / "adapter", merged(base, added, tmp_path / "merged")


@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
def test_as_a_model_both_stacks_are_changed(stack: str, three: tuple[Path, Path, Path]) -> None:
    _, adapter, whole = three
    found, expected = opened(adapter, stack), opened(whole, stack)
    for name, parameter in expected.module.named_parameters():
        torch.testing.assert_close(dict(found.module.named_parameters())[name], parameter, rtol=0, atol=1e-6)
    for layer in (None, *found.info.layers):
        assert set(found.layout.places[layer]) == set(expected.layout.places[layer])
        for name in found.layout.places[layer]:
            torch.testing.assert_close(found.tensor(layer, name), expected.tensor(layer, name), rtol=0, atol=1e-6)


@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
def test_as_an_edit_the_studied_stack_is_changed(stack: str, three: tuple[Path, Path, Path]) -> None:
    base, adapter, whole = three
    model, expected = opened(base, stack), opened(whole, stack)
    parameters = LoraParameters(path=str(adapter))
    check_lora(model, parameters)
    changed = 0
    for layer in model.info.layers:
        for name, tensor in lora(LayerWeights(model, layer), parameters, Generators(0, layer)).items():
            torch.testing.assert_close(tensor, expected.tensor(layer, name), rtol=0, atol=1e-6)
            changed += not torch.equal(tensor, model.tensor(layer, name))
    assert changed >= 2 * len(model.info.layers)


def test_one_that_leaves_the_studied_stack_alone_is_refused_as_an_edit(tmp_path: Path) -> None:
    base = saved("bart", tmp_path / "base")
    plant(tmp_path / "a", base, ("decoder.layers.1.self_attn.q_proj",))
    with pytest.raises(ModelError, match="changes nothing of the encoder"):
        check_lora(opened(base, "encoder"), LoraParameters(path=str(tmp_path / "a")))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # peft's own
@pytest.mark.parametrize("name", TARGETS)
def test_it_is_what_peft_merges(name: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    base, kind = saved(name, tmp_path / "base"), type(built(name))
    targets = [target.strip(".") for target in TARGETS[name]]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = peft.LoraConfig(init_lora_weights=False, r=4, lora_alpha=6, target_modules=targets)
        peft.get_peft_model(kind.from_pretrained(base), config).save_pretrained(tmp_path / "a")
    whole = peft.PeftModel.from_pretrained(kind.from_pretrained(base), tmp_path / "a").merge_and_unload()
    found = dict(opened(tmp_path / "a", "cross").module.named_parameters())
    for place, parameter in whole.named_parameters():
        torch.testing.assert_close(found[place], parameter.detach(), rtol=0, atol=1e-6)
