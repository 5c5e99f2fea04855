"""A twin that is written as a checkpoint is the twin: in plain transformers, and opened again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plain_gpt
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_decoders import SMALL

import gausslens
from gausslens import ModelError, ModelSpec, Tokens, Twin
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.plain_module import open_module
from gausslens_models.loading.pretrained import PretrainedModel, module_fingerprint, open_pretrained
from gausslens_models.parameters import TorchParameters, TransformersParameters

Opens = Callable[[str], PretrainedModel]
# Conv1D, fused q, k and v, experts stacked on loading, gains of 1 + weight, a tied head, encoders, one layer for all.
SAMPLE = ("gpt2", "gpt_neox", "mixtral", "qwen2_moe", "gemma2", "qwen3", "bert", "bert-masked", "albert")
INSIDE = ("W_Q", "W_K", "W_V", "W_O", "b_V", "W_in", "W_out", "ln1.w")


def shifted(*names: str) -> Callable[[str, torch.Tensor], torch.Tensor | None]:
    """An edit of these tensors that no norm takes off."""

    def change(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
        slope = torch.linspace(0.0, 0.06, tensor.numel(), dtype=tensor.dtype).reshape(tensor.shape)
        return 1.1 * tensor + slope if name in names else None

    return change


def plain_answer(directory: Path, model: PretrainedModel, ids: torch.Tensor, **beside: Any) -> torch.Tensor:
    """What plain transformers says of a directory, as anyone would ask."""
    auto = transformers.AutoModel
    if model.stack is not None:
        auto = transformers.AutoModelForSeq2SeqLM
    elif model.headed:
        auto = transformers.AutoModelForCausalLM if model.info.causal else transformers.AutoModelForMaskedLM
    plain = auto.from_pretrained(directory, attn_implementation="eager", dtype=model.dtype).eval()
    with torch.no_grad():
        output = plain(input_ids=ids, **beside)
    found: torch.Tensor = output.logits if model.headed else output.last_hidden_state
    return found


def twins_answer(twin: Twin, ids: torch.Tensor) -> torch.Tensor:
    model: Any = twin.base
    site = "logits" if model.headed else (model.info.n_layers - 1, "resid_post")
    found = TransformersEngine().runner(twin).forward(ids.numpy(), sites=("logits" if model.headed else "resid_post",))
    return found[site]


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal to 1e-6 of the largest."""
    return float((one - other).abs().amax()) <= 1e-6 * max(1.0, float(one.abs().amax()))


@pytest.mark.parametrize("name", SAMPLE)
def test_plain_transformers_says_what_the_twin_says(
    name: str, opened: Opens, prompts: Tokens, written: Any, tmp_path: Path
) -> None:
    model = opened(name)
    twin = written(model, change=shifted(*INSIDE))
    ids = torch.as_tensor(prompts.ids[0])[None]
    fingerprint = model.save(tmp_path, twin)
    said = twins_answer(twin, ids)
    assert not torch.allclose(said, twins_answer(Twin(model), ids), atol=1e-2)
    assert close(plain_answer(tmp_path, model, ids), said)
    again = open_pretrained(ModelSpec(str(tmp_path), TransformersParameters()))
    assert again.info.fingerprint == fingerprint
    assert torch.equal(again.tensor(1, "W_Q"), twin.weights(1)["W_Q"])


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("name", ["t5", "marian"])
def test_a_twin_of_one_stack_is_written_with_the_other_as_it_is(
    name: str, stack: str, open_stack: Callable[..., PretrainedModel], written: Any, tmp_path: Path
) -> None:
    """Of the shared embedding the studied stack's use alone is edited: it is cut loose from the other's."""
    model = open_stack(name, stack)
    names = (*INSIDE, "W_E") if stack == "decoder" else INSIDE
    twin = written(model, change=shifted(*names))
    model.save(tmp_path, twin)
    draw = torch.Generator().manual_seed(1)
    source, target = (torch.randint(5, 50, (1, n), generator=draw) for n in (9, 7))
    plain = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    runner, sources = TransformersEngine().runner(twin), (source.numpy(), np.ones(source.shape, dtype=bool))
    with torch.no_grad():
        output = plain(input_ids=source, decoder_input_ids=target, output_hidden_states=True)
    if stack == "decoder":
        assert close(output.logits, runner.forward(target.numpy(), sources=sources)["logits"])
    else:
        assert close(
            output.encoder_hidden_states[1], runner.forward(source.numpy(), sites=("resid_post",))[0, "resid_post"]
        )
    before, after = open_stack(name, "decoder").module.state_dict(), plain.state_dict()
    shared = next(tensor for place, tensor in before.items() if place.endswith("shared.weight"))
    # All but the encoder, with head and bias; or, of an edited decoder, the encoder.
    kept = [n for n in after if ("encoder." in n) == (stack == "decoder")]
    assert len(kept) > 10
    assert [n for n in kept if not torch.equal(after[n], before.get(n, shared))] == []


@pytest.mark.parametrize("edited", ["W_E", "W_U"])
def test_a_tied_tensor_that_is_edited_on_one_side_is_untied(
    edited: str, opened: Opens, prompts: Tokens, written: Any, tmp_path: Path
) -> None:
    model = opened("qwen3")
    twin = written(model, change=shifted(edited))
    before = module_fingerprint(model.module)
    model.save(tmp_path, twin)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is False
    ids = torch.as_tensor(prompts.ids[0])[None]
    assert close(plain_answer(tmp_path, model, ids), twins_answer(twin, ids))
    assert module_fingerprint(model.module) == before
    assert model.config.tie_word_embeddings


def test_a_tied_tensor_that_is_edited_on_both_sides_alike_stays_tied(
    opened: Opens, written: Any, tmp_path: Path
) -> None:
    model = opened("qwen3")
    model.save(tmp_path, written(model, change=lambda n, t: 2 * t if n in ("W_E", "W_U") else None))
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is True
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 - it is no mapping


def test_what_no_file_had_is_not_written(directory: Callable[[str], Path], written: Any, tmp_path: Path) -> None:
    """A pooler that transformers drew would be another each time, and so would the fingerprint."""
    (without := tmp_path / "without").mkdir()
    source = directory("bert")
    (without / "config.json").write_text((source / "config.json").read_text())
    kept = {n: t for n, t in load_file(source / "model.safetensors").items() if "pooler" not in n}
    save_file(kept, without / "model.safetensors", metadata={"format": "pt"})
    prints = []
    for number in range(2):
        model = open_pretrained(ModelSpec(str(without), TransformersParameters()))
        (out := tmp_path / str(number)).mkdir()
        prints.append(model.save(out, written(model, change=shifted("W_Q"))))
        assert load_file(out / "model.safetensors").keys() == kept.keys()
    assert prints[0] == prints[1]


def test_the_head_of_another_task_is_kept(written: Any, tmp_path: Path) -> None:
    """What is studied is the body; what is written is what the config names."""
    (source := tmp_path / "source").mkdir()
    (out := tmp_path / "out").mkdir()
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, num_labels=3)
    transformers.BertForSequenceClassification(config).save_pretrained(source)
    model = open_pretrained(ModelSpec(str(source), TransformersParameters()))
    model.save(out, written(model, change=shifted("W_Q")))
    before, after = (load_file(path / "model.safetensors") for path in (source, out))
    assert {n for n in before if not torch.equal(before[n], after[n])} == {
        f"bert.encoder.layer.{layer}.attention.self.query.weight" for layer in range(3)
    }
    assert json.loads((out / "config.json").read_text())["architectures"] == ["BertForSequenceClassification"]


def test_the_type_is_that_of_the_model(directory: Callable[[str], Path], written: Any, tmp_path: Path) -> None:
    model = open_pretrained(ModelSpec(str(directory("llama")), TransformersParameters(), dtype="bfloat16"))
    model.save(tmp_path, written(model, change=shifted("W_Q")))
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    assert {t.dtype for t in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}


def test_what_transformers_does_not_read_back_is_refused(opened: Opens, written: Any, tmp_path: Path) -> None:
    """BioGPT's class ties its head whatever its config says."""
    model = opened("biogpt")
    with pytest.raises(ModelError, match=r"output_projection.weight would have to be cut loose"):
        model.save(tmp_path, written(model, change=shifted("W_E")))


def test_an_edit_of_a_product_is_refused(opened: Opens, written: Any, tmp_path: Path) -> None:
    model = opened("deepseek_v3")
    with pytest.raises(ModelError, match="W_Q is a product"):
        model.save(tmp_path, written(model, change=shifted("W_Q")))


def test_a_plain_module_is_refused(written: Any, tmp_path: Path) -> None:
    module, _ = plain_gpt.gpt_twins()
    spec = ModelSpec("live:mapped:GPT", TorchParameters(**plain_gpt.GPT_MAPPING), model=module)
    with pytest.raises(ModelError, match="has no config"):
        open_module(spec).save(tmp_path, Twin(open_module(spec)))


RUN: dict[str, Any] = {
    "model": {"path": "builtin:tiny"},
    "prompts": {"source": "repeated-random", "prompts": 2, "length": 12},
    "variants": {
        "trained": [],
        "entries": {"edits": [{"edit": "reinit.permute"}], "draws": 3},
        "kept": [{"edit": "spectrum.keep", "matrices": ["QK", "OV"], "sweep": {"k": [2, 4]}}],
    },
    "analyses": [
        {"use": "model.loss"},
        {"use": "bilinear.spectrum"},
        {"use": "model.attention", "with": {"maps": "none"}},
    ],
    "errors": False,
    "report": False,
}


@pytest.mark.parametrize(("variant", "choice"), [("entries", {"draw": 2}), ("kept", {"at": {"k": 4}})])
def test_a_run_of_what_was_written_gives_what_the_run_gave_for_the_twin(
    variant: str, choice: dict[str, Any], tmp_path: Path
) -> None:
    out = gausslens.edit(RUN, variant, tmp_path / "twin", **choice)
    told = json.loads((out / "gausslens.json").read_text())
    model = gausslens.load(out)
    assert model.info.fingerprint == told["fingerprint"]
    assert told["base"]["fingerprint"] == gausslens.load("builtin:tiny").info.fingerprint
    twins = gausslens.run(RUN, tmp_path / "store")
    alone = gausslens.run(RUN | {"model": {"path": str(out)}, "variants": {"trained": []}}, tmp_path / "alone")
    for label in ("model.loss", "bilinear.spectrum", "model.attention"):
        of_twin = twins[variant, label]
        of_twin = of_twin.sel({"draw" if "draw" in choice else "k": choice.get("draw", 4)})
        of_file = alone["trained", label]
        for name in of_file.data_vars:
            if np.issubdtype(of_file[name].dtype, np.number):
                assert np.allclose(of_file[name], of_twin[name], rtol=1e-6, atol=1e-7, equal_nan=True), (label, name)


@pytest.mark.real_model
@pytest.mark.parametrize(("variant", "draw"), [("permuted", 0), ("flattened", None)])
def test_twins_of_a_real_model_in_plain_transformers(
    variant: str, draw: int | None, real_models: Path, tmp_path: Path
) -> None:
    variants = {
        "permuted": {"edits": [{"edit": "reinit.permute", "matrices": ["W_Q", "W_O"]}], "draws": 2},
        "flattened": [{"edit": "spectrum.power", "matrices": ["QK"], "p": 0.5}],
    }
    run = RUN | {"model": {"path": str(real_models / "smollm2")}, "variants": variants}
    out = gausslens.edit(run, variant, tmp_path / "twin", draw=draw)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    ids = tokenizer("red green blue grey red green blue", return_tensors="pt")["input_ids"]
    plain = transformers.AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        said = plain(input_ids=ids).logits
    host = gausslens.plugins.load()  # the twin itself, made anew
    study = gausslens.runfile.read(run, host)
    chosen = next(v for v in study.variants if v.name == variant)
    model = open_pretrained(ModelSpec(str(real_models / "smollm2"), TransformersParameters()))
    twin = Twin(model, chosen.points[0].edits, study.seed, draw)
    assert close(said, twins_answer(twin, ids))
