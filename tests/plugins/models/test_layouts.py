"""Directories laid out otherwise: sentence-transformers, variants, files of other names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import build
from safetensors.torch import load_file, save_file

from gausslens import ModelError, ModelSpec
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.config_and_tokenizer import claims_directory
from gausslens_models.loading.pretrained import open_pretrained
from gausslens_models.loading.weights import open_weights
from gausslens_models.parameters import TransformersParameters, WeightsParameters

Directory = Callable[[str], Path]


def run(path: Path) -> Any:
    return open_pretrained(ModelSpec(str(path), TransformersParameters()))


def files(path: Path) -> Any:
    return open_weights(ModelSpec(str(path), WeightsParameters()))


OPENED = [run, files]


def modules(path: str, kind: str = "Transformer") -> str:
    """What sentence-transformers writes into modules.json."""
    rows = [(path, kind), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    told = [
        {"idx": n, "name": str(n), "path": p, "type": f"sentence_transformers.models.{k}"}
        for n, (p, k) in enumerate(rows)
    ]
    return json.dumps(told)


@pytest.mark.parametrize("opens", OPENED)
@pytest.mark.parametrize("inside", ["", "0_Transformer"])
def test_the_transformer_of_sentence_transformers_is_opened(
    inside: str, opens: Callable[[Path], Any], directory: Directory, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    shutil.copytree(directory("bert"), root / inside if inside else root)
    (root / "1_Pooling").mkdir()
    (root / "modules.json").write_text(modules(inside))
    assert claims_directory(str(root))
    model, plain = opens(root), opens(directory("bert"))
    assert model.info.fingerprint == plain.info.fingerprint
    assert model.info.name == "root"
    where = "the transformer in 0_Transformer is opened" if inside else "its transformer is opened"
    assert any(f"sentence-transformers: {where}" in note for note in model.info.facts["notes"])
    assert torch.equal(model.tensor(1, "W_Q"), plain.tensor(1, "W_Q"))
    if opens is run:
        assert [f for f in TransformersEngine().prove(model) if not f.holds] == []


@pytest.mark.parametrize(
    ("told", "match"),
    [
        (modules("", "WordEmbeddings"), "whose first module is a WordEmbeddings, no Transformer"),
        (modules("../elsewhere"), r"its transformer is in '\.\./elsewhere'; it should be in a directory of this one"),
        (modules(""), "its transformer is in ''"),
        ("[]", "not a list of modules"),
        ("{", "not a list of modules"),
    ],
)
@pytest.mark.parametrize("opens", OPENED)
def test_other_modules_are_refused(opens: Callable[[Path], Any], told: str, match: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(told)
    with pytest.raises(ModelError, match=match):
        opens(tmp_path)


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("opens", OPENED)
def test_the_one_variant_that_is_there_is_opened(opens: Callable[[Path], Any], shards: bool, tmp_path: Path) -> None:
    size = {"max_shard_size": "20KB"} if shards else {}
    build("llama").save_pretrained(tmp_path, variant="fp16", **size)
    assert not (tmp_path / "model.safetensors").exists()
    assert shards == any(f.name.endswith(".fp16.json") for f in tmp_path.iterdir())
    model, plain = opens(tmp_path), build("llama")
    for layer in model.info.layers:
        stored = plain.model.layers[layer].self_attn.q_proj.weight
        assert torch.equal(torch.cat([head.T for head in model.tensor(layer, "W_Q")]), stored)
    if opens is run:
        assert torch.equal(model.module.lm_head.weight, plain.lm_head.weight)
        assert [f for f in TransformersEngine().prove(model) if not f.holds] == []


@pytest.mark.parametrize("opens", OPENED)
def test_several_variants_are_refused_by_name(
    opens: Callable[[Path], Any], directory: Directory, tmp_path: Path
) -> None:
    shutil.copytree(directory("llama"), tmp_path, dirs_exist_ok=True)
    shutil.copy(tmp_path / "model.safetensors", tmp_path / "model.bf16.safetensors")
    assert opens(tmp_path).checkpoint.variant is None  # model.safetensors goes first
    (tmp_path / "model.safetensors").rename(tmp_path / "model.fp16.safetensors")
    with pytest.raises(ModelError, match=r"several variants .*model\.bf16\.safetensors, model\.fp16\.safetensors"):
        opens(tmp_path)


@pytest.mark.parametrize("opens", OPENED)
def test_files_of_other_names_are_told(opens: Callable[[Path], Any], directory: Directory, tmp_path: Path) -> None:
    shutil.copytree(directory("llama"), tmp_path, dirs_exist_ok=True)
    held = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    with pytest.raises(
        ModelError, match=r"no weights there: .* there are weights\.safetensors; .*transformers_weights"
    ):
        opens(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"transformers_weights": "weights.safetensors"}))
    assert opens(tmp_path).info.n_layers == 3  # as the error says
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "weights.safetensors").unlink()
    theirs = {
        name.removeprefix("model.").replace("self_attn.", "attention.w").replace("_proj", ""): tensor
        for name, tensor in held.items()
    }
    save_file(theirs, tmp_path / "consolidated.safetensors")
    with pytest.raises(ModelError, match=r"consolidated\.safetensors holds the weights under the names of their publ"):
        opens(tmp_path)
    (tmp_path / "consolidated.safetensors").unlink()
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor pytorch_model\.bin$"):
        opens(tmp_path)


@pytest.mark.real_model
def test_a_real_model_of_sentence_transformers(real_models: Path) -> None:
    model = files(real_models / "minilm")
    assert any("sentence-transformers: its transformer is opened" in note for note in model.info.facts["notes"])
