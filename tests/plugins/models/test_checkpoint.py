"""Checkpoints on disk: whole ones are read alike however they are stored, others are refused by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gausslens import InputError, ModelError, ModelSpec, OpenModel
from gausslens_models.loading.bridge import open_bridge
from gausslens_models.loading.checkpoint import Checkpoint
from gausslens_models.loading.pretrained import open_pretrained
from gausslens_models.loading.weights import open_weights
from gausslens_models.parameters import TransformersParameters, WeightsParameters

Directory = Callable[[str], Path]
Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def copied(directory: Directory, tmp_path: Path) -> Callable[..., Path]:
    """A copy of a tiny model with its tensors changed."""

    def copy(name: str, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
        tensors = load_file(directory(name) / "model.safetensors")
        change(tensors)
        save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
        (tmp_path / "config.json").write_text((directory(name) / "config.json").read_text())
        return tmp_path

    return copy


def files(path: Path, **how: Any) -> OpenModel:
    return open_weights(ModelSpec(str(path), WeightsParameters(), **how))


def open_each(path: Path) -> list[Callable[[], OpenModel]]:
    """Every loader of directories."""
    spec = ModelSpec(str(path), TransformersParameters())
    return [lambda: files(path), lambda: open_pretrained(spec), lambda: open_bridge(spec)]


def equal(one: OpenModel, other: OpenModel) -> bool:
    return all(
        one.names(layer) == other.names(layer)
        and all(torch.equal(one.tensor(layer, n), other.tensor(layer, n)) for n in one.names(layer))
        for layer in (None, *one.info.layers)
    )


def test_a_missing_tensor_is_named(copied: Callable[..., Path]) -> None:
    path = copied("llama", lambda tensors: tensors.pop(Q))
    for opens in open_each(path):
        with pytest.raises(ModelError, match=r"incomplete.*layers\.1\.self_attn\.q_proj\.weight"):
            opens()


def test_a_missing_bias_is_named(copied: Callable[..., Path]) -> None:
    """A bias that the other layers have; whole families may do without."""
    path = copied("llama", lambda tensors: tensors.pop("model.layers.2.self_attn.v_proj.bias"))
    for opens in open_each(path):
        with pytest.raises(ModelError, match=r"incomplete.*layers\.2\.self_attn\.v_proj\.bias"):
            opens()


def test_biases_missing_everywhere_are_found(copied: Callable[..., Path]) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if n.endswith("o_proj.bias")]:
            del tensors[name]

    for opens in open_each(copied("llama", drop)):
        with pytest.raises(ModelError, match=r"incomplete checkpoint: .*o_proj\.bias.* missing"):
            opens()


def test_a_missing_head_is_named(copied: Callable[..., Path]) -> None:
    with pytest.raises(ModelError, match=r"lm_head\.weight \(W_U\)"):
        files(copied("llama", lambda tensors: tensors.pop("lm_head.weight")))


def test_a_shape_that_does_not_fit_is_named(copied: Callable[..., Path]) -> None:
    path = copied("llama", lambda tensors: tensors.update({Q: torch.zeros(20, 24)}))
    for opens in open_each(path):
        with pytest.raises(ModelError, match=r"layers\.1\.self_attn\.q_proj\.weight has shape \[20, 24\]"):
            opens()


def test_tensors_that_nobody_claims_are_listed(copied: Callable[..., Path]) -> None:
    strange = "model.layers.0.self_attn.q_proj.lora_A.weight"
    path = copied("llama", lambda tensors: tensors.update({strange: torch.zeros(2, 2)}))
    with pytest.raises(ModelError, match=r"nobody claims model\.layers\.0\.self_attn\.q_proj\.lora_A"):
        files(path)


def test_tensors_outside_the_layers_that_nobody_claims_are_told(copied: Callable[..., Path]) -> None:
    path = copied("llama", lambda tensors: tensors.update({"score.weight": torch.zeros(2, 24)}))
    assert files(path).info.facts["unclaimed"] == ("score.weight",)


def test_a_layer_too_many_is_named(copied: Callable[..., Path]) -> None:
    path = copied("llama", lambda tensors: tensors.update({"model.layers.3.self_attn.q_proj.weight": torch.zeros(1)}))
    with pytest.raises(ModelError, match="layer 3, the config says 3 layers"):
        files(path)


def test_an_unknown_layout_is_refused_by_name(copied: Callable[..., Path]) -> None:
    path = copied("llama", lambda tensors: None)
    (path / "config.json").write_text(
        json.dumps({"model_type": "openai-gpt", "architectures": ["OpenAIGPTLMHeadModel"]})
    )
    with pytest.raises(ModelError, match=r"'openai-gpt' is not one.*docs/models\.md.*nobody claims lm_head\.weight"):
        files(path)


def test_older_names_of_norms_are_known(copied: Callable[..., Path], directory: Directory) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if "LayerNorm" in n]:
            tensors[name.replace(".weight", ".gamma").replace(".bias", ".beta")] = tensors.pop(name)

    assert equal(files(copied("bert", rename)), files(directory("bert")))


def test_prefixes_do_not_matter(copied: Callable[..., Path], directory: Directory) -> None:
    """The original GPT-2 files lack the prefix that the class gives its parameters."""

    def strip(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if n.startswith("transformer.")]:
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)  # the causal mask, which old files carry

    path = copied("gpt2", strip)
    assert equal(files(path), files(directory("gpt2")))
    assert equal(open_pretrained(ModelSpec(str(path), TransformersParameters())), files(directory("gpt2")))


@pytest.mark.parametrize("name", ["llama", "gpt2", "phi3", "gpt_neox"])
def test_shards_are_read_as_one(name: str, directory: Directory, tmp_path: Path) -> None:
    model = open_pretrained(ModelSpec(str(directory(name)), TransformersParameters()))
    model.module.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert equal(files(tmp_path), files(directory(name)))
    assert files(tmp_path).info.fingerprint == files(directory(name)).info.fingerprint


def test_a_missing_shard_is_named(directory: Directory, tmp_path: Path) -> None:
    model = open_pretrained(ModelSpec(str(directory("llama")), TransformersParameters()))
    model.module.save_pretrained(tmp_path, max_shard_size="20KB")
    lost = sorted(tmp_path.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ModelError, match=f"incomplete.*{lost.name}"):
        files(tmp_path)


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", "..", "a/b.safetensors"])
def test_an_index_cannot_lead_out_of_the_directory(shard: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(ModelError, match="not the name of a file beside it"):
        Checkpoint(tmp_path)


def test_an_index_that_names_a_tensor_elsewhere_is_refused(directory: Directory, tmp_path: Path) -> None:
    model = open_pretrained(ModelSpec(str(directory("llama")), TransformersParameters()))
    model.module.save_pretrained(tmp_path, max_shard_size="20KB")
    index = tmp_path / "model.safetensors.index.json"
    told = json.loads(index.read_text())
    told["weight_map"]["model.extra"] = next(iter(told["weight_map"].values()))
    index.write_text(json.dumps(told))
    with pytest.raises(ModelError, match=r"says model\.extra is in"):
        files(tmp_path)


@pytest.mark.parametrize("old_format", [False, True])
def test_bin_files_are_read(old_format: bool, copied: Callable[..., Path], directory: Directory) -> None:
    path = copied("llama", lambda tensors: None)
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    torch.save(tensors, path / "pytorch_model.bin", _use_new_zipfile_serialization=not old_format)
    assert equal(files(path), files(directory("llama")))


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("owned",)


def test_a_bin_file_cannot_run_code(copied: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = copied("llama", lambda tensors: None)
    monkeypatch.chdir(path)
    (path / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(1), "b": Evil()}, path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="plain tensors"):
        files(path)
    assert not (path / "owned").exists()


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 4, b"\xff" * 64, (20).to_bytes(8, "little") + b"not json at all....."]
)
def test_what_is_not_safetensors_is_refused(content: bytes, copied: Callable[..., Path]) -> None:
    path = copied("llama", lambda tensors: None)
    (path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="not a safetensors file"):
        files(path)


def test_a_file_cut_short_is_refused(copied: Callable[..., Path]) -> None:
    path = copied("llama", lambda tensors: None)
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(ModelError, match="cut short"):
        files(path)


def test_quantised_checkpoints_are_refused(copied: Callable[..., Path]) -> None:
    path = copied("llama", lambda tensors: None)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (path / "config.json").write_text(json.dumps(config))
    for opens in open_each(path):
        with pytest.raises(ModelError, match=r"quantised \(gptq\).*dequantize"):
            opens()


def test_code_that_comes_with_a_model_is_not_run(copied: Callable[..., Path]) -> None:
    path = copied("llama", lambda tensors: None)
    config = json.loads((path / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "code.Mine"}}
    (path / "config.json").write_text(json.dumps(config))
    (path / "code.py").write_text("open('owned', 'w')\n")
    with pytest.raises(ModelError, match="config cannot be read"):
        files(path)
    assert not (path / "owned").exists()


def test_paths_that_are_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such directory"):
        files(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelError, match="no weights there"):
        files(tmp_path)
    with pytest.raises(InputError, match="float13"):
        files(tmp_path, dtype="float13")


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_the_type_is_as_asked(dtype: str, directory: Directory) -> None:
    wanted = getattr(torch, dtype)
    read = files(directory("gemma2"), dtype=dtype)
    built = open_pretrained(ModelSpec(str(directory("gemma2")), TransformersParameters(), dtype=dtype))
    assert built.module.dtype == wanted
    for name in read.names(0):
        assert read.tensor(0, name).dtype == built.tensor(0, name).dtype == wanted
        assert torch.equal(read.tensor(0, name), built.tensor(0, name))
    assert read.info.dtype == dtype
