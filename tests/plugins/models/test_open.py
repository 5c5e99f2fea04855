"""Opening: fingerprints and their cache, live modules, built-in models, placement."""

from __future__ import annotations

import copy
import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gausslens import InputError, ModelError, ModelSpec, OpenModel, Request, Tokens, Twin
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading import fingerprint
from gausslens_models.loading.config_and_tokenizer import claims_bridge, claims_directory, claims_files
from gausslens_models.loading.pretrained import PretrainedModel, module_fingerprint, open_builtin, open_pretrained
from gausslens_models.loading.weights import open_weights
from gausslens_models.parameters import BuiltinParameters, TransformersParameters, WeightsParameters

Directory = Callable[[str], Path]


def files(path: Path) -> OpenModel:
    return open_weights(ModelSpec(str(path), WeightsParameters()))


@pytest.fixture
def settled(directory: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a tiny model whose files are old enough for the cache (when an inode changed cannot be set back)."""
    monkeypatch.setattr(fingerprint, "_SETTLED_SECONDS", -1.0)
    path = tmp_path / "model"
    shutil.copytree(directory("llama"), path)
    for file in path.iterdir():
        os.utime(file, (time.time() - 60, time.time() - 60))
    return path


def test_the_fingerprint_is_of_content_not_of_files(settled: Path, tmp_path: Path) -> None:
    one = files(settled).info.fingerprint
    tensors = load_file(settled / "model.safetensors")
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    save_file(dict(reversed(tensors.items())), moved / "model.safetensors", {"by": "another"})
    config = json.loads((settled / "config.json").read_text()) | {"transformers_version": "9.9", "use_cache": False}
    (moved / "config.json").write_text(json.dumps(config))
    assert files(moved).info.fingerprint == one
    tensors["model.norm.weight"][0] += 1e-6
    save_file(tensors, moved / "model.safetensors")
    assert files(moved).info.fingerprint != one


def test_the_fingerprint_sees_the_config(settled: Path) -> None:
    one = files(settled).info.fingerprint
    config = json.loads((settled / "config.json").read_text())
    (settled / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    assert files(settled).info.fingerprint != one


def test_the_cache_saves_reading(settled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = files(settled).info.fingerprint

    def read(*arguments: Any) -> str:
        raise AssertionError("read again")

    monkeypatch.setattr("gausslens_models.loading.weights.fingerprint", read)
    assert files(settled).info.fingerprint == one
    tensors = settled / "model.safetensors"
    os.utime(tensors, (time.time() - 30, time.time() - 30))
    with pytest.raises(AssertionError, match="read again"):
        files(settled).info  # noqa: B018


def test_a_file_that_just_changed_is_not_trusted_to_the_cache(settled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_SETTLED_SECONDS", 2.0)
    tensors = load_file(settled / "model.safetensors")
    seen = set()
    for number in range(3):  # same size, perhaps the same time stamp
        tensors["model.norm.weight"][0] = number
        save_file(tensors, settled / "model.safetensors")
        seen.add(files(settled).info.fingerprint)
    assert len(seen) == 3


@pytest.mark.parametrize("content", ["", "{", '{"files": 3}', "[]", '"x"'])
def test_a_spoilt_cache_is_none(content: str, settled: Path) -> None:
    one = files(settled).info.fingerprint
    for place in fingerprint.cache_directory().iterdir():
        place.write_text(content)
    assert files(settled).info.fingerprint == one


def test_a_cache_that_cannot_be_written_is_none(settled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(files(settled).info.fingerprint) == 64


def test_many_may_write_the_cache_at_once(settled: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: files(settled).info.fingerprint, range(24)))
    assert len(found) == 1
    assert list(fingerprint.cache_directory().glob("*.tmp")) == []


def test_a_live_module_is_the_same_model(which: str, opened: Callable[[str], PretrainedModel]) -> None:
    plain = opened(which)
    module = opened(which).module
    live = open_pretrained(ModelSpec(f"live:{type(module).__name__}", TransformersParameters(), model=module))
    assert live.module is module
    assert live.headed == plain.headed
    for layer in (None, 0):
        assert live.names(layer) == plain.names(layer)
        for name in plain.names(layer):
            assert torch.equal(live.tensor(layer, name), plain.tensor(layer, name))
    assert live.info.fingerprint == module_fingerprint(module)
    assert live.info.n_parameters == plain.info.n_parameters
    live.close()
    assert live.module is module


def test_a_live_module_keeps_its_attention(opened: Callable[[str], PretrainedModel], prompts: Tokens) -> None:
    module = opened("llama").module
    module.set_attn_implementation("eager")
    live = open_pretrained(ModelSpec("live:LlamaForCausalLM", TransformersParameters(), model=module))
    engine = TransformersEngine()
    engine.run(Twin(live), prompts, prompts.shards()[0], Request(("pattern",)), lambda batch: None)
    assert module.config._attn_implementation == "eager"


def test_a_quantised_live_module_is_refused(opened: Callable[[str], PretrainedModel]) -> None:
    module = opened("llama").module
    module.config.quantization_config = {"quant_method": "bitsandbytes"}
    with pytest.raises(ModelError, match=r"quantised \(bitsandbytes\)"):
        open_pretrained(ModelSpec("live:LlamaForCausalLM", TransformersParameters(), model=module))


def test_the_network_is_asked_for_hub_ids_alone(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, prompts: Tokens
) -> None:
    asked: list[tuple[str, str | None]] = []

    def download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        assert "*.safetensors" in allow_patterns
        asked.append((name, revision))
        return str(directory("llama"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    plain = open_pretrained(ModelSpec(str(directory("llama")), TransformersParameters()))
    assert plain.module is not None
    assert asked == []
    model = open_pretrained(ModelSpec("hub:owner/name@v2", TransformersParameters()))
    assert model.info.fingerprint == plain.info.fingerprint
    assert model.info.name == "hub:owner/name@v2"
    assert [f for f in TransformersEngine().prove(model) if not f.holds] == []
    assert asked == [("owner/name", "v2")]
    files = open_weights(ModelSpec("hub:owner/name@v2", WeightsParameters()))
    assert torch.equal(files.tensor(0, "W_Q"), plain.tensor(0, "W_Q"))


def test_a_hub_that_does_not_answer_is_told() -> None:
    with pytest.raises(ModelError, match="hub:owner/nowhere: cannot be had"):
        open_pretrained(ModelSpec("hub:owner/nowhere", TransformersParameters()))


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ModelError, match=r"Linear is not a transformers model.*mapping="):
        open_pretrained(ModelSpec("live:Linear", TransformersParameters(), model=torch.nn.Linear(2, 2)))
    with pytest.raises(ModelError, match="model="):
        open_pretrained(ModelSpec("live:Linear", TransformersParameters()))


def test_a_live_module_that_is_not_what_runs_is_refused(opened: Callable[[str], PretrainedModel]) -> None:
    module = opened("llama").module
    for passed, said in (
        (torch.compile(module, backend="eager"), "is compiled.*pass what was, its _orig_mod"),
        (copy.deepcopy(module).to("meta"), r"embed_tokens.weight is not in memory \(on the device meta\)"),
    ):
        with pytest.raises(ModelError, match=said):
            open_pretrained(ModelSpec("live:it", TransformersParameters(), model=passed))


def test_a_fine_tuned_copy_with_more_tokens_opens(opened: Callable[[str], PretrainedModel], tmp_path: Path) -> None:
    module = opened("llama-tied").module
    module.resize_token_embeddings(70)
    module.save_pretrained(tmp_path)
    model = open_pretrained(ModelSpec(str(tmp_path), TransformersParameters()))
    assert model.info.vocabulary == 70
    assert [f for f in TransformersEngine().prove(model) if not f.holds] == []


def test_another_head_is_left_aside(tmp_path: Path, opened: Callable[[str], PretrainedModel]) -> None:
    """A classifier: its transformer is a model without a language-model head."""
    import transformers

    torch.manual_seed(0)
    config = opened("llama").module.config
    transformers.LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    model = open_pretrained(ModelSpec(str(tmp_path), TransformersParameters()))
    assert "logits" not in model.sites
    assert model.info.facts["unclaimed"] == ("score.weight",)
    assert [f for f in TransformersEngine().prove(model) if not f.holds] == []


@pytest.mark.parametrize("device_map", ["auto", "sequential"])
def test_a_device_map(device_map: str, directory: Directory, prompts: Tokens) -> None:
    spec = ModelSpec(str(directory("llama")), TransformersParameters(device_map=device_map))
    assert [f for f in TransformersEngine().prove(open_pretrained(spec)) if not f.holds] == []


def test_built_in_models(tmp_path: Path) -> None:
    model = open_builtin(ModelSpec("builtin:tiny", BuiltinParameters()))
    assert model.info.name == "builtin:tiny"
    assert [f for f in TransformersEngine().prove(model) if not f.holds] == []
    with pytest.raises(InputError, match="builtin:tiny"):
        open_builtin(ModelSpec("builtin:../../tiny", BuiltinParameters()))


def test_the_built_in_model_has_learned_to_copy() -> None:
    """What random twins do not do: a head that looks at the token before, heads that find what followed last time."""
    import numpy as np

    model = open_builtin(ModelSpec("builtin:tiny", BuiltinParameters()))
    n = 40
    drawn = np.random.default_rng(0).integers(2, model.info.vocabulary, size=n)
    ids = np.concatenate([[0], drawn, drawn])[None]
    found = TransformersEngine().runner(Twin(model)).forward(ids, sites=("pattern", "logits"))
    query = torch.arange(n + 1, 2 * n + 1)
    before = found[0, "pattern"][0][:, query, query - 1].mean(-1)
    copying = found[1, "pattern"][0][:, query, query - n + 1].mean(-1)
    assert before.max() > 0.5
    assert copying.max() > 0.5
    losses = -found["logits"][0, :-1].log_softmax(-1).gather(1, torch.tensor(ids[0, 1:, None]))[:, 0]
    assert losses[n + 1 :].mean() < 1.0 < np.log(model.info.vocabulary) < losses[:n].mean()


@pytest.mark.parametrize(
    ("path", "claimed"),
    [("hub:a/b", (True, False, False)), ("live:LlamaModel", (True, False, False)), ("nowhere", (False, False, False))],
)
def test_claims(path: str, claimed: tuple[bool, ...]) -> None:
    assert (claims_directory(path), claims_files(path), claims_bridge(path)) == claimed


def test_a_directory_is_claimed_by_all(directory: Directory) -> None:
    path = str(directory("llama"))
    assert claims_directory(path)
    assert claims_files(path)
    assert claims_bridge(path)
    assert claims_bridge("live:TransformerBridge")
    assert not claims_directory("live:TransformerBridge")
