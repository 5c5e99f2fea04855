"""The edit model.lora: base and fine-tuned in one study; the edit is the model that the adapter opens as."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planted_adapters import PREFIX, configured, copied, factors, plant, write
from safetensors.torch import load_file, save_file

import gausslens
from gausslens import Generators, LayerWeights, ModelError, ModelSpec
from gausslens.__main__ import main
from gausslens.maths.heads import as_matrices
from gausslens.testing import check_edit
from gausslens_models import plugin
from gausslens_models.edits import lora, touched_by_lora
from gausslens_models.loading.config_and_tokenizer import DIRECTORY
from gausslens_models.loading.pretrained import open_pretrained
from gausslens_models.loading.weights import open_weights
from gausslens_models.parameters import LoraParameters, TransformersParameters, WeightsParameters

Directory = Callable[[str], Path]
TINY = DIRECTORY / "tiny"
TARGETS = ("q_proj", "k_proj", "o_proj", "up_proj")


def edited(base: Any, adapter: Path, layer: int | None) -> dict[str, torch.Tensor]:
    return lora(LayerWeights(base, layer), LoraParameters(path=str(adapter)), Generators(0, layer))


def study(model: dict[str, Any], variants: dict[str, Any], sites: tuple[str, ...] = ("pattern", "resid_post")) -> Any:
    return {
        "gausslens": 1,
        "name": "tuned",
        "model": model,
        "prompts": {"source": "text", "text": ["The ant sees the bee.", "abcabc"]},
        "variants": variants,
        "analyses": [{"use": "model.capture", "with": {"sites": list(sites)}}],
        "report": False,
    }


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("llama", TARGETS),
        ("gpt2", ("c_attn", "c_proj")),
        ("phi3", ("qkv_proj", "gate_up_proj")),
        ("gpt_bigcode", ("c_attn",)),
        ("gpt_neox", ("query_key_value", "dense")),
        ("deepseek_v3", ("kv_a_proj_with_mqa", "kv_b_proj", "o_proj")),
        ("albert", ("query", "ffn")),
        ("bert", ("query", "pooler.dense")),
    ],
)
def test_the_edit_gives_the_tensors_of_the_model(
    name: str, targets: tuple[str, ...], directory: Directory, tmp_path: Path
) -> None:
    turned = name == "gpt2"
    added = plant(tmp_path / "a", directory(name), targets)
    if turned:  # Conv1D stores [in, out]: A and B are of the matrix turned
        held = load_file(tmp_path / "a" / "adapter_model.safetensors")
        swapped = {
            key.replace(".lora_A.", ".lora_.").replace(".lora_B.", ".lora_A.").replace(".lora_.", ".lora_B."): t.T
            for key, t in held.items()
        }
        save_file({key: t.contiguous() for key, t in swapped.items()}, tmp_path / "a" / "adapter_model.safetensors")
    base = open_weights(ModelSpec(str(directory(name)), WeightsParameters()))
    model = open_weights(ModelSpec(str(tmp_path / "a"), WeightsParameters()))
    touched = set(touched_by_lora(LoraParameters(path=str(tmp_path / "a"))))
    changed = 0
    for layer in (*base.info.layers, None):
        made = edited(base, tmp_path / "a", layer)
        assert made.keys() <= touched
        for ours in base.names(layer):
            if ours in base.layout.products(layer):
                continue
            expected = model.tensor(layer, ours)
            found = made.get(ours, base.tensor(layer, ours))
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
            changed += ours in made and not torch.equal(expected, base.tensor(layer, ours))
    assert changed >= len(added)


def test_magnitudes_and_embeddings_too(directory: Directory, tmp_path: Path) -> None:
    A, B = factors((61, 24), 2, 1)
    tensors = {
        f"{PREFIX}model.embed_tokens.lora_embedding_A": B.T,
        f"{PREFIX}model.embed_tokens.lora_embedding_B": A.T,
        f"{PREFIX}lm_head.weight": torch.ones(61, 24),
        f"{PREFIX}model.layers.1.input_layernorm.weight": torch.full((24,), 2.0),
    }
    A, B = factors((12, 24), 2, 2)
    at = f"{PREFIX}model.layers.2.self_attn.v_proj"
    tensors |= {f"{at}.lora_A.weight": A, f"{at}.lora_B.weight": B, f"{at}.lora_magnitude_vector": torch.ones(12)}
    write(tmp_path / "a", tensors, {"use_dora": True, "base_model_name_or_path": str(directory("llama"))})
    base = open_weights(ModelSpec(str(directory("llama")), WeightsParameters()))
    model = open_weights(ModelSpec(str(tmp_path / "a"), WeightsParameters()))
    expected = {None: {"W_E", "W_U"}, 0: set(), 1: {"ln1.w"}, 2: {"W_V"}}
    for layer, names in expected.items():
        made = edited(base, tmp_path / "a", layer)
        assert made.keys() == names
        for ours in names:
            torch.testing.assert_close(made[ours], model.tensor(layer, ours), rtol=0, atol=1e-6)


def test_base_and_tuned_stand_in_one_study(tmp_path: Path) -> None:
    """What is captured of the edited base is what is captured of the adapter opened as a model."""
    plant(tmp_path / "a", TINY, TARGETS)
    variants = {"trained": [], "tuned": [{"edit": "model.lora", "path": str(tmp_path / "a")}]}
    both = gausslens.run(study({"path": "builtin:tiny"}, variants), store=tmp_path / "one")
    alone = gausslens.run(
        study({"path": str(tmp_path / "a"), "base": "builtin:tiny"}, {"trained": []}), store=tmp_path / "two"
    )
    base, tuned = both["trained", "model.capture"], both["tuned", "model.capture"]
    merged = alone["trained", "model.capture"]
    for site in ("pattern", "resid_post"):
        np.testing.assert_allclose(tuned[site].values, merged[site].values, rtol=0, atol=1e-6)
        assert float(np.nanmax(np.abs(tuned[site].values - base[site].values))) > 0.01


def test_logits_of_a_head_that_was_saved_whole(directory: Directory, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(3)
    head = {f"{PREFIX}lm_head.weight": torch.randn(61, 24, generator=draw)}
    write(tmp_path / "a", head, {"base_model_name_or_path": str(directory("llama"))})
    prompts = {"source": "tokens", "ids": [[3, 9, 27, 20]]}
    edit = {"trained": [], "tuned": [{"edit": "model.lora", "path": str(tmp_path / "a")}]}
    one = gausslens.run(
        study({"path": str(directory("llama"))}, edit, ("logits",)) | {"prompts": prompts}, store=tmp_path / "1"
    )
    two = gausslens.run(
        study({"path": str(tmp_path / "a")}, {"trained": []}, ("logits",)) | {"prompts": prompts}, store=tmp_path / "2"
    )
    found = one["tuned", "model.capture"]["logits"].values
    np.testing.assert_allclose(found, two["trained", "model.capture"]["logits"].values, rtol=0, atol=1e-6)
    assert float(np.abs(found - one["trained", "model.capture"]["logits"].values).max()) > 0.1


def test_the_key_is_of_what_the_adapter_holds_and_not_of_where_it_is(tmp_path: Path) -> None:
    plant(tmp_path / "a", TINY, ("q_proj",))
    copied(tmp_path / "a", tmp_path / "moved" / "b")
    (tmp_path / "moved" / "b" / "README.md").write_text("no part of it")
    changed = copied(tmp_path / "a", tmp_path / "changed")
    held = load_file(changed / "adapter_model.safetensors")
    held[sorted(held)[0]] += 1e-3
    save_file(held, changed / "adapter_model.safetensors")
    scaled = configured(copied(tmp_path / "a", tmp_path / "scaled"), lora_alpha=5)
    summaries = []
    for place in (tmp_path / "a", tmp_path / "moved" / "b", changed, scaled):
        variants = {"tuned": [{"edit": "model.lora", "path": str(place)}]}
        gausslens.run(study({"path": "builtin:tiny"}, variants), store=tmp_path / "store")
        summaries.append({step["key"] for step in _steps(tmp_path / "store")})
    first, moved, changed_keys, scaled_keys = summaries
    assert first == moved
    assert len(first | changed_keys | scaled_keys) == 3


def _steps(store: Path) -> list[dict[str, Any]]:
    """The steps of the manifest that was written last."""
    manifests = sorted((store / "runs").rglob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    found: list[dict[str, Any]] = json.loads(manifests[-1].read_text())["steps"]
    return found


def test_an_edit_of_some_heads_and_layers(tmp_path: Path) -> None:
    plant(tmp_path / "a", TINY, ("q_proj",))
    variants = {
        "tuned": [{"edit": "model.lora", "path": str(tmp_path / "a"), "layers": [1], "heads": [2]}],
        "trained": [],
    }
    found = gausslens.run(study({"path": "builtin:tiny"}, variants, ("q",)), store=tmp_path / "store")
    moved = np.abs(found["tuned", "model.capture"]["q"] - found["trained", "model.capture"]["q"])
    by_head = moved.max([d for d in moved.dims if d not in ("layer", "head")])
    assert float(by_head.sel(layer=1, head=2)) > 0.01
    assert float(by_head.sel(layer=0).max()) == 0
    assert float(by_head.sel(layer=1).drop_sel(head=2).max()) == 0


def test_paths_are_relative_to_the_run_file_and_must_be_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path / "runs" / "a", TINY, ("q_proj",))
    run = tmp_path / "runs" / "tuned.yaml"
    text = (
        "gausslens: 1\nname: tuned\nmodel: {path: builtin:tiny}\nvariants:\n  tuned: [{edit: model.lora, path: a}]\n"
        "prompts: {source: text, text: [abc]}\nanalyses: [{use: model.capture, with: {sites: [q]}}]\nreport: false\n"
    )
    run.write_text(text)
    assert main(["run", str(run), "--store", str(tmp_path / "store")]) == 0
    run.write_text(text.replace("path: a}", "path: b}"))
    capsys.readouterr()
    assert main(["check", str(run)]) != 0
    said = capsys.readouterr()
    assert "there is nothing at" in said.out + said.err
    assert "paths are relative to the run file" in said.out + said.err


def test_an_adapter_of_another_model_is_refused_before_it_is_laid_over(directory: Directory, tmp_path: Path) -> None:
    plant(tmp_path / "a", directory("llama"), ("q_proj",))
    tiny = open_pretrained(ModelSpec(str(TINY), TransformersParameters()))
    with pytest.raises(ModelError, match=r"q_proj\.weight \[24, 24\], which in .* is \[64, 64\]"):
        edited(tiny, tmp_path / "a", 0)
    with pytest.raises(ModelError, match="does not say as what its tensors are stored"):
        check_edit(plugin.edits()[0], LoraParameters(path=str(tmp_path / "a")))


@pytest.mark.parametrize(
    ("base", "told"),
    [
        ("llama", r"no such tensor|which in .* is \[24, 24\]"),
        ("llama-tied", "one tensor for embedding and head"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_when_the_run_is_planned(
    base: str, told: str, directory: Directory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if base == "llama":
        plant(tmp_path / "a", TINY, ("q_proj",))
    else:
        write(tmp_path / "a", {f"{PREFIX}lm_head.weight": torch.ones(61, 24)}, {})
    file = tmp_path / "tuned.json"
    variants = {"tuned": [{"edit": "model.lora", "path": str(tmp_path / "a")}]}
    block = study({"path": str(directory(base))}, variants, ("q",)) | {"prompts": {"source": "tokens", "ids": [[1, 2]]}}
    file.write_text(json.dumps(block))
    assert main(["plan", str(file), "--store", str(tmp_path / "store")]) != 0
    said = capsys.readouterr()
    assert re.search(told, (said.out + said.err).replace("\n", " "))


def test_ranks_stack(tmp_path: Path) -> None:
    """An adapter over an adapter's model adds to it: the difference to the base has both ranks."""
    plant(tmp_path / "a", TINY, ("q_proj",))
    plant(tmp_path / "b", TINY, ("q_proj",), {"r": 3}, {"q_proj": 3})
    held = load_file(tmp_path / "b" / "adapter_model.safetensors")
    other = {name: tensor.flip(0, 1).contiguous() for name, tensor in held.items()}  # another space than that of a
    save_file(other, tmp_path / "b" / "adapter_model.safetensors")
    model = open_pretrained(ModelSpec(str(tmp_path / "a"), TransformersParameters()))
    base = open_weights(ModelSpec(str(TINY), WeightsParameters()))
    both = edited(model, tmp_path / "b", 0)["W_Q"] - base.tensor(0, "W_Q")
    whole = as_matrices("W_Q", both, "matrix")[0].double()
    assert int(torch.linalg.matrix_rank(whole, atol=1e-4)) == 5
