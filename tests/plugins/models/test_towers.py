"""Models that read images or sound: their text stack is opened by itself, as what the whole computes of text."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from towers import OF_TEXT, TOWERS, build, saved

import gausslens
from gausslens import ModelError, ModelSpec, Prompt, Twin
from gausslens.__main__ import main
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.loading.weights import CheckpointModel, open_weights
from gausslens_models.parameters import TransformersParameters, WeightsParameters

# What stands before the layers in the whole's own module, and whether its embedding is the head too.
OPENED = {
    "llava": ("model.language_model.", False),
    "llava-tied": ("model.language_model.", True),
    "llava-mixture": ("model.language_model.", False),
    "gemma3": ("model.language_model.", True),
    "mistral3": ("model.language_model.", False),
    "idefics3": ("model.text_model.", False),
    "fuyu": ("model.language_model.", False),
    "qwen2_audio": ("model.language_model.", False),
    "qwen2_vl": ("model.language_model.", False),
    "qwen2_5_vl": ("model.language_model.", True),
    "qwen3_vl": ("model.language_model.", False),
}
LEFT = {"qwen2_audio": "the audio tower of qwen2_audio is", "fuyu": "all but the text stack of fuyu is"}
REFUSED = {
    "aya_vision": "'cohere2', cannot be read alone: in AyaVisionFor.* its head computes otherwise than that of Cohere2",
    "blip-2": "'opt', cannot be read alone: Blip2For.* does not run on text alone .*pixel_values",
    "paligemma": "'gemma', cannot be read alone: tokens of a prompt see those behind them .use_bidirectional_attention",
    "paligemma2": "'gemma2', cannot be read alone: tokens of a prompt see those behind them",
    "mllama": "'mllama_text_model', is none that can be read alone: some of its layers read the states of an image",
    "qwen3_vl_moe": "'qwen3_vl_moe_text', is none that can be read alone: its files hold experts turned",
}
Made = Callable[[str], Path]


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The directory of a whole model, saved once."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = saved(name, tmp_path_factory.mktemp(name))
        return made[name]

    return of


def opened(directory: Path) -> PretrainedModel:
    return open_pretrained(ModelSpec(str(directory), TransformersParameters()))


def as_files(directory: Path) -> CheckpointModel:
    return open_weights(ModelSpec(str(directory), WeightsParameters()))


def plainly(directory: Path, name: str) -> Any:
    """The whole as plain transformers loads it."""
    found = getattr(transformers, json.loads((directory / "config.json").read_text("utf-8"))["architectures"][0])
    assert type(build(name)) is found
    return found.from_pretrained(directory, attn_implementation="eager").eval()


def ids_of_text(length: int = 13) -> torch.Tensor:
    return torch.randint(3, OF_TEXT, (1, length), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("name", OPENED)
def test_it_computes_what_the_whole_computes_of_text(name: str, at: Made) -> None:
    model, whole, ids = opened(at(name)), plainly(at(name), name), ids_of_text()
    with torch.no_grad():
        said = whole(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True)
    found = TransformersEngine().runner(Twin(model)).forward(ids.numpy(), sites=("logits", "pattern"))
    torch.testing.assert_close(found["logits"], said.logits, rtol=0, atol=1e-5)
    assert float(said.logits.std()) > 0.1
    for layer in model.info.layers:
        torch.testing.assert_close(found[layer, "pattern"], said.attentions[layer], rtol=0, atol=1e-5)
    assert [f for f in TransformersEngine().prove(model) if not f.holds] == []


@pytest.mark.parametrize("name", sorted({*TOWERS} - {*OPENED, *REFUSED, "llava-headless"}))
def test_others_by_the_same_structure(name: str, at: Made) -> None:
    model, whole, ids = opened(at(name)), plainly(at(name), name), ids_of_text()
    with torch.no_grad():
        said = whole(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    found = TransformersEngine().runner(Twin(model)).forward(ids.numpy(), sites=("logits",))
    torch.testing.assert_close(found["logits"], said, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", OPENED)
def test_only_its_own_tensors_are_in_memory_and_the_others_are_told(name: str, at: Made) -> None:
    model, whole = opened(at(name)), build(name)
    begin, tied = OPENED[name]
    text = {n: p for n, p in whole.named_parameters() if n.startswith((begin, "lm_head."))}
    left = len(load_file(at(name) / "model.safetensors")) - len(text)
    if name != "llava-mixture":  # a file has one tensor for each expert
        assert model.told()[0].startswith(
            f"{LEFT.get(name, f'the image tower of {whole.config.model_type} is')} left out: {left} tensors"
        ), model.told()
    assert model.layout.tied is tied
    assert sum(p.numel() for p in model.module.parameters()) == sum(p.numel() for p in text.values())
    assert type(model.module).__name__.endswith("ForCausalLM")


@pytest.mark.parametrize("name", OPENED)
def test_weights_of_a_head_are_slices_of_the_whole(name: str, at: Made) -> None:
    model, files, state = opened(at(name)), as_files(at(name)), build(name).state_dict()
    assert model.module is not None
    info, begin = model.info, OPENED[name][0]
    assert files.info.fingerprint == info.fingerprint
    for layer in (None, *info.layers):
        assert files.names(layer) == model.names(layer)
        assert all(torch.equal(files.tensor(layer, n), model.tensor(layer, n)) for n in files.names(layer))
    width, head = info.d_head, 1
    group = info.n_heads // info.n_kv_heads
    of_layer = f"{begin}layers.2.self_attn."
    if name == "fuyu":
        fused = state[f"{of_layer}query_key_value.weight"]  # head by head: q, k, v
        query, key, value = (fused[(3 * head + n) * width :][:width] for n in range(3))
        output = state[f"{of_layer}dense.weight"][:, head * width :][:, :width]
    else:
        query = state[f"{of_layer}q_proj.weight"][head * width :][:width]
        key, value = (state[f"{of_layer}{n}_proj.weight"][head // group * width :][:width] for n in "kv")
        output = state[f"{of_layer}o_proj.weight"][:, head * width :][:, :width]
    assert torch.equal(files.tensor(2, "W_Q")[head], query.T)
    assert torch.equal(files.tensor(2, "W_K")[head // group], key.T)
    assert torch.equal(files.tensor(2, "W_V")[head // group], value.T)
    assert torch.equal(files.tensor(2, "W_O")[head], output.T)
    assert torch.equal(files.tensor(None, "W_E"), state[f"{begin}embed_tokens.weight"])
    assert torch.equal(files.tensor(None, "W_U"), state["lm_head.weight"].T)


@pytest.mark.parametrize("name", ["llava", "llava-tied", "llava-mixture", "gemma3", "qwen2_vl", "idefics3"])
def test_both_layouts_and_shards_are_the_same_model(name: str, at: Made, tmp_path: Path) -> None:
    """Files have had other prefixes than the modules have now: what is read is the same, and so is its fingerprint."""
    whole, model = build(name), opened(at(name))
    stored = load_file(at(name) / "model.safetensors")
    current = {n: p.detach().clone() for n, p in whole.named_parameters()}
    (tmp_path / "config.json").write_bytes((at(name) / "config.json").read_bytes())
    if name == "llava-mixture":  # whose experts transformers stacks: only the prefix is changed
        current = {
            n.replace("language_model.model.", "model.language_model.").replace("language_model.lm", "lm"): t
            for n, t in stored.items()
        }
    save_file(current, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert (set(current) == set(stored)) == (name == "idefics3")
    again = opened(tmp_path)
    assert again.info.fingerprint == model.info.fingerprint
    ids = ids_of_text()
    with torch.no_grad():
        said = model.module(input_ids=ids).logits
        assert torch.equal(again.module(input_ids=ids).logits, said)
    whole.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    sharded = opened(tmp_path / "shards")
    assert sharded.info.fingerprint == model.info.fingerprint
    with torch.no_grad():
        assert torch.equal(sharded.module(input_ids=ids).logits, said)


def test_what_is_left_out_is_not_in_the_fingerprint(at: Made, tmp_path: Path) -> None:
    stored = load_file(at("llava") / "model.safetensors")

    def changed(part: str) -> str:
        directory = tmp_path / part
        directory.mkdir()
        (directory / "config.json").write_bytes((at("llava") / "config.json").read_bytes())
        tensors = {n: t + 1 if part in n else t for n, t in stored.items()}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return opened(directory).info.fingerprint

    own = opened(at("llava")).info.fingerprint
    assert changed("vision_tower") == own
    assert changed("q_proj.weight") != own


def test_a_body_without_a_head(at: Made) -> None:
    model, whole, ids = opened(at("llava-headless")), build("llava-headless"), ids_of_text()
    assert not model.headed
    assert type(model.module).__name__ == "MistralModel"
    with torch.no_grad():
        said, found = whole(input_ids=ids), model.module(input_ids=ids)
    torch.testing.assert_close(found.last_hidden_state, said.last_hidden_state, rtol=0, atol=1e-5)


def test_a_run_with_a_null_and_a_written_twin(at: Made, tmp_path: Path, written: Any) -> None:
    study = {
        "gausslens": 1,
        "name": "tower",
        "model": {"path": str(at("llava"))},
        "prompts": {"source": "tokens", "ids": [ids_of_text().tolist()[0], ids_of_text(9).tolist()[0]]},
        "variants": {"trained": [], "before": {"edits": [{"edit": "reinit.config"}], "draws": 3}},
        "analyses": [{"use": "attention.band", "with": {"w": [2]}}, {"use": "model.loss"}],
        "against": ["before"],
        "report": False,
    }
    results = gausslens.run(study, store=tmp_path / "store", shown=False)
    for use in ("attention.band", "model.loss"):
        frame = results.frame("trained", use)
        assert np.isfinite(frame["null_mean"].to_numpy(float)).any(), use
        assert not np.allclose(frame["value"], frame["null_mean"]), use
    model = opened(at("llava"))
    twin = written(model, change=lambda name, tensor: 2 * tensor if name == "W_V" else None)
    alone = tmp_path / "alone"
    alone.mkdir()
    model.save(alone, twin)
    plain = transformers.AutoModelForCausalLM.from_pretrained(alone)
    assert type(plain).__name__ == "LlamaForCausalLM"
    state = build("llava").state_dict()["model.language_model.layers.1.self_attn.v_proj.weight"]
    assert torch.equal(plain.state_dict()["model.layers.1.self_attn.v_proj.weight"], 2 * state)


@pytest.mark.parametrize("name", REFUSED)
def test_what_computes_otherwise_is_refused_by_its_reason(name: str, at: Made) -> None:
    for opens in (opened, as_files):
        with pytest.raises(ModelError, match=REFUSED[name]) as told:
            opens(at(name))
        assert len(str(told.value)) < 800


class Doubled(transformers.LlavaForConditionalGeneration):
    """Puts something else in than the embeddings."""

    def get_input_embeddings(self) -> Any:
        inner = super().get_input_embeddings()
        return lambda ids: 2 * inner(ids)

    def forward(self, input_ids: Any = None, **given: Any) -> Any:
        return super().forward(inputs_embeds=self.get_input_embeddings()(input_ids), **given)


class BothWays(transformers.LlavaForConditionalGeneration):
    """Lets tokens see those behind them."""

    def forward(self, input_ids: Any = None, **given: Any) -> Any:
        size = input_ids.shape[1]
        return super().forward(input_ids, attention_mask=torch.zeros(1, 1, size, size), **given)


class Placed(transformers.LlavaForConditionalGeneration):
    """Has the same positions twice."""

    def forward(self, input_ids: Any = None, **given: Any) -> Any:
        return super().forward(input_ids, position_ids=torch.arange(input_ids.shape[1])[None] // 2, **given)


class Twice(transformers.LlavaForConditionalGeneration):
    """Holds another text stack besides."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.another = transformers.LlamaModel(config.text_config)


@pytest.mark.parametrize(
    ("whole", "why"),
    [
        (Doubled, "what goes in are not the embeddings of the tokens"),
        (BothWays, "its mask is not causal"),
        (Placed, "positions are not those of the tokens"),
        (Twice, "holds 2 modules of class LlamaModel"),
        (None, "transformers has no class LlavaForConditionalGeneration"),
    ],
)
def test_a_whole_that_does_more_with_text_is_found_by_running_it(
    whole: Any, why: str, at: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened(at("llava")).text is not None
    monkeypatch.setattr(sys.modules["transformers"], "LlavaForConditionalGeneration", whole)
    with pytest.raises(ModelError, match=f"'llava', of type 'llama', cannot be read alone: .*{why}"):
        opened(at("llava"))


def test_a_lost_tensor_is_told_with_its_place_in_the_files(at: Made, tmp_path: Path) -> None:
    stored = load_file(at("llava") / "model.safetensors")
    stored.pop("language_model.model.layers.1.self_attn.q_proj.weight")
    (tmp_path / "config.json").write_bytes((at("llava") / "config.json").read_bytes())
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelError, match=r"layers\.1\.self_attn\.q_proj.*language_model\.model\. in the files for model"
    ):
        as_files(tmp_path)
    without = {n.replace("embed_tokens", "words"): t for n, t in stored.items()}
    save_file(without, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"no one prefix .* none ends with embed_tokens\.weight"):
        as_files(tmp_path)


def test_the_place_of_an_image_is_no_text(at: Made) -> None:
    model = opened(at("llava"))
    assert len(model.tokenise([Prompt(ids=(3, 4, 5))])) == 1
    with pytest.raises(ModelError, match=f"prompt 'seen' holds the token {OF_TEXT}, which stands for an image"):
        model.tokenise([Prompt(ids=(3, OF_TEXT, 5), name="seen")])


def test_the_bridge_opens_it_too(at: Made, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", str(at("llava")), "--loader", "transformer-lens"]) == 0
    printed = capsys.readouterr().out
    assert "the image tower of llava is left out" in printed
    assert "comparisons hold" in printed


def test_a_live_whole_is_refused_with_what_to_pass() -> None:
    live = ModelSpec("live:it", TransformersParameters(), model=build("llava"))
    with pytest.raises(ModelError, match=r"reads more than text.*pass that stack as .*model=module"):
        open_pretrained(live)
