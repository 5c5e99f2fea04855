"""A checkpoint of nanoGPT is what plain hooks see in it, and what the GPT-2 of transformers is with its weights."""

from __future__ import annotations

import math
import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import train_tiny
import transformers
from gausslens_nanogpt import plugin
from gausslens_nanogpt.checkpoint import read, write
from gausslens_nanogpt.gpt import GPT
from gausslens_nanogpt.tokenizers_of_files import END, of_ranks
from tokenizers import ByteLevelBPETokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

import gausslens
from gausslens import ModelError
from gausslens.testing import check_references

TEXTS = ["Ant: works all summer", "Cat: cleans itself with its tongue"]
LAYERS, HEADS = 2, 4
SITES = tuple(name for name in gausslens.SITES if name not in ("q_rot", "k_rot"))


@pytest.fixture(scope="module", params=["bias", "no bias"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained for a moment, so that biases and gains are not what they began as."""
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("out") / "tiny"
    train_tiny.main([str(place), "--steps", "20", *(["--no-bias"] if request.param == "no bias" else [])])
    return place


@pytest.fixture(scope="module")
def module(checkpoint: Path) -> GPT:
    found = read(checkpoint / "ckpt.pt")
    made = GPT(found.sizes)
    made.load_state_dict(found.tensors, strict=False)
    return made.eval()


@pytest.fixture
def held(checkpoint: Path) -> dict[str, Any]:
    return torch.load(checkpoint / "ckpt.pt", weights_only=True)


def written(place: Path, held: Mapping[str, Any], **other: Any) -> Path:
    place.mkdir(exist_ok=True)
    torch.save({**held, **other}, place / "ckpt.pt")
    return place


def test_everything_that_the_plugin_names_exists() -> None:
    assert "nanogpt" in check_references(plugin).loaders


def test_every_site_is_what_plain_hooks_see(checkpoint: Path, module: GPT) -> None:
    model = gausslens.load(checkpoint)
    tokens = model.tokenise(TEXTS)
    found = model.run(tokens, sites=SITES)
    for prompt, ids in enumerate(tokens.ids):
        for (layer, name), value in by_hooks(module, torch.from_numpy(ids)[None]).items():
            ours = found[name].isel(prompt=prompt)
            ours = ours if layer is None else ours.sel(layer=layer)
            cut = {dim: slice(len(ids)) for dim in ("position", "query", "key") if dim in ours.dims}
            np.testing.assert_allclose(ours.isel(cut), value.numpy(), rtol=0, atol=1e-5, err_msg=f"{name} {layer}")


def by_hooks(module: GPT, ids: torch.Tensor) -> dict[tuple[int | None, str], torch.Tensor]:
    """{(layer, site): array} of one prompt, by hooks on the module's parts; patterns written out."""
    seen: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    handles = [
        part.register_forward_hook(lambda _, given, made, name=name: seen.update({name: (given[0][0], made[0])}))
        for name, part in module.named_modules()
        if list(part.parameters(recurse=False)) or name.split(".")[-1].isdigit()
    ]
    with torch.no_grad():
        logits = module(ids)[0]
    for handle in handles:
        handle.remove()
    found: dict[tuple[int | None, str], torch.Tensor] = {(None, "logits"): logits}
    found[None, "embed"] = seen["transformer.wte"][1]
    for layer in range(LAYERS):
        block = f"transformer.h.{layer}"
        q, k, v = (part.unflatten(-1, (HEADS, -1)) for part in seen[f"{block}.attn.c_attn"][1].chunk(3, -1))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
        future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        sites = {
            "resid_pre": seen[block][0],
            "resid_post": seen[block][1],
            "resid_mid": seen[f"{block}.ln_2"][0],
            "q": q,
            "k": k,
            "v": v,
            "pattern": scores.masked_fill(future, -torch.inf).softmax(-1),
            "z": seen[f"{block}.attn.c_proj"][0].unflatten(-1, (HEADS, -1)),
            "attn_out": seen[f"{block}.attn.c_proj"][1],
            "mlp_pre": seen[f"{block}.mlp.c_fc"][1],
            "mlp_post": seen[f"{block}.mlp.c_proj"][0],
            "mlp_out": seen[f"{block}.mlp.c_proj"][1],
        }
        found |= {(layer, name): value for name, value in sites.items()}
    return found


def twin_of(module: GPT) -> Any:
    """The GPT-2 of transformers with the same weights; biases that nanoGPT lacks are zero there."""
    held = module.state_dict()
    width = held["transformer.wte.weight"].shape[1]
    config = transformers.GPT2Config(
        vocab_size=held["transformer.wte.weight"].shape[0],
        n_positions=held["transformer.wpe.weight"].shape[0],
        n_embd=width,
        n_layer=LAYERS,
        n_head=HEADS,
        activation_function="gelu",
    )
    config.bos_token_id = config.eos_token_id = None
    twin = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            own = held.get(name, torch.zeros_like(parameter))
            turned = name.endswith("weight") and ".h." in name and own.ndim == 2
            parameter.copy_(own.mT if turned else own)
    return twin


def test_it_is_its_twin_of_transformers(checkpoint: Path, module: GPT) -> None:
    ours, theirs = gausslens.load(checkpoint), gausslens.load(twin_of(module))
    tokens = ours.tokenise(TEXTS)
    one, other = ours.run(tokens, sites=SITES), theirs.run(tokens, sites=SITES)
    assert one.sizes == other.sizes
    for name in SITES:
        np.testing.assert_allclose(one[name], other[name], rtol=0, atol=1e-5, err_msg=name)
    for layer in (None, *range(LAYERS)):
        mine = ours.weights(layer)
        assert set(mine.names) <= set(theirs.weights(layer).names)
        for name in mine.names:
            assert torch.equal(mine[name], theirs.weights(layer)[name]), name


def test_what_it_writes_is_what_the_plain_module_finds_likeliest(checkpoint: Path, module: GPT, tmp_path: Path) -> None:
    study = {
        "gausslens": 1,
        "name": "writes",
        "model": {"path": str(checkpoint)},
        "prompts": {"source": "text", "text": TEXTS},
        "analyses": [{"use": "model.generate", "with": {"tokens": 8}}],
    }
    made = gausslens.run(study, tmp_path / "store", shown=False)["trained", "model.generate"]
    model = gausslens.load(checkpoint)
    tokens = model.tokenise(TEXTS)
    for prompt, ids in enumerate(tokens.ids):
        row = torch.from_numpy(ids)
        for _ in range(8):
            row = torch.cat([row, module(row[None])[0, -1].argmax()[None]])
        [pieces] = model.tokenise([gausslens.Prompt(ids=tuple(row[len(ids) :].tolist()))]).pieces
        assert str(made["text"].values.reshape(-1)[prompt]) == "".join(pieces)


def test_fresh_weights_have_the_spread_of_nanogpt(checkpoint: Path) -> None:
    weights = gausslens.load(checkpoint).weights(1)
    for name, spread in (("W_Q", 0.02), ("W_in", 0.02), ("W_O", 0.02 / 2), ("W_out", 0.02 / 2)):  # sqrt(2 * 2) is 2
        drawn = weights.initial(name)
        assert abs(float(drawn.std()) - spread) < 5 * spread / math.sqrt(2 * drawn.numel()), name
        assert abs(float(drawn.mean())) < 5 * spread / math.sqrt(drawn.numel()), name
    assert torch.equal(weights.initial("ln1.w"), torch.ones_like(weights["ln1.w"]))
    if "b_Q" in weights:
        assert not weights.initial("b_Q").any()


def test_a_twin_is_written_and_opened_again(checkpoint: Path, tmp_path: Path) -> None:
    study = {
        "gausslens": 1,
        "name": "written",
        "model": {"path": str(checkpoint)},
        "variants": {"fresh": {"edits": [{"edit": "reinit.config", "embeddings": True}], "draws": 2}},
        "analyses": [{"use": "bilinear.spectrum"}],
    }
    made = gausslens.edit(study, "fresh", tmp_path / "one", draw=1)
    other = gausslens.edit(study, "fresh", tmp_path / "two", draw=0)
    held = torch.load(made / "ckpt.pt", weights_only=True)
    assert {"model", "model_args", "config", "iter_num"} <= set(held)
    before, one, two = (gausslens.load(place) for place in (checkpoint, made, other))
    assert len({before.info.fingerprint, one.info.fingerprint, two.info.fingerprint}) == 3
    assert torch.equal(one.weights()["W_U"], one.weights()["W_E"].mT)
    assert one.tokenise(TEXTS).digest() == before.tokenise(TEXTS).digest()
    assert abs(float(one.weights(0)["W_Q"].std()) - 0.02) < 0.002


def test_a_twin_that_unties_the_head_is_refused(checkpoint: Path, module: GPT, tmp_path: Path) -> None:
    tensors = dict(module.state_dict())
    tensors["lm_head.weight"] = 2 * tensors["lm_head.weight"]
    with pytest.raises(ModelError, match="ties W_U to W_E"):
        write(tmp_path / "ckpt.pt", read(checkpoint / "ckpt.pt"), tensors)


def test_how_it_was_trained_and_compiled_does_not_matter(
    checkpoint: Path, held: dict[str, Any], tmp_path: Path
) -> None:
    named = {f"_orig_mod.{name}": tensor for name, tensor in held["model"].items()}
    named["_orig_mod.transformer.h.0.attn.bias"] = torch.ones(1, 1, 8, 8)
    optimizer = {"state": {0: {"exp_avg": torch.ones(3)}}}
    other = written(tmp_path / "other", held, model=named, optimizer=optimizer, iter_num=7)
    assert gausslens.load(other).info.fingerprint == gausslens.load(checkpoint).info.fingerprint
    moved = {**held["model"], "transformer.ln_f.weight": held["model"]["transformer.ln_f.weight"] + 1e-6}
    third = gausslens.load(written(tmp_path / "third", held, model=moved))
    assert third.info.fingerprint != gausslens.load(other).info.fingerprint
    assert third.info.n_parameters == sum(t.numel() for n, t in moved.items() if n != "lm_head.weight")


def test_the_two_ways_of_gelu_differ_and_are_both_proved(checkpoint: Path) -> None:
    exact, tanh = (gausslens.load(checkpoint, gelu=gelu).run(TEXTS[0], "logits").logits for gelu in ("exact", "tanh"))
    assert 1e-8 < float(abs(exact - tanh).max()) < 1e-2


def test_a_training_that_writes_the_file_again_is_found_out(held: Any, tmp_path: Path) -> None:
    place = written(tmp_path / "out", held)
    model = gausslens.load(place)
    moved = {name: tensor + 0.1 for name, tensor in held["model"].items()}
    written(place, held, model=moved)
    with pytest.raises(ModelError, match="has changed since it was opened"):
        model.weights(0)["W_Q"]


class TestTokenizers:
    def test_characters_are_there_and_back(self, checkpoint: Path) -> None:
        tokens = gausslens.load(checkpoint).tokenise(TEXTS)
        assert ["".join(pieces) for pieces in tokens.pieces] == TEXTS
        assert [list(map(len, TEXTS))] == [list(tokens.lengths)]

    def test_characters_that_it_does_not_know_are_named(self, checkpoint: Path) -> None:
        with pytest.raises(ModelError, match="not '€': leave them out"):
            gausslens.load(checkpoint).tokenise(["a €"])

    def test_they_are_found_where_nanogpt_has_them(self, checkpoint: Path, held: Any, tmp_path: Path) -> None:
        place = written(tmp_path / "out", held)
        ids = gausslens.Prompt(ids=(1, 2, 3))
        with pytest.raises(ModelError, match="no tokenizer"):
            gausslens.load(place).tokenise("Ant")
        assert gausslens.load(place).tokenise([ids]).lengths == (3,)
        (tmp_path / "data" / "words").mkdir(parents=True)
        shutil.copy(checkpoint / "meta.pkl", tmp_path / "data" / "words")
        assert gausslens.load(place).tokenise("Ant").lengths == (3,)
        assert gausslens.load(place, tokenizer=str(checkpoint)).tokenise("Ant").lengths == (3,)

    def test_a_pickle_that_names_a_function_is_not_run(self, held: Any, tmp_path: Path) -> None:
        class Trap:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(tmp_path / "sprung"),)

        place = written(tmp_path / "out", held)
        (place / "meta.pkl").write_bytes(pickle.dumps({"stoi": Trap()}))
        with pytest.raises(ModelError, match=r"it names (posix|nt)\.mkdir"):
            gausslens.load(place)
        assert not (tmp_path / "sprung").exists()

    @pytest.mark.parametrize("stoi", [{}, {"ab": 0}, {"a": 1}, {"a": 0, "b": 0}, {"a": 0, "b": True}, None])
    def test_what_is_no_table_of_characters_is_refused(self, stoi: Any, held: Any, tmp_path: Path) -> None:
        place = written(tmp_path / "out", held)
        (place / "meta.pkl").write_bytes(pickle.dumps({"stoi": stoi}))
        with pytest.raises(ModelError, match="stoi"):
            gausslens.load(place)

    def test_ranks_give_the_tokens_that_their_merges_give(self) -> None:
        trained = ByteLevelBPETokenizer()
        trained.train_from_iterator(TEXTS * 3 + ["naïve café, 3 €\n\t tabs"], vocab_size=330, special_tokens=[])
        letters = {letter: number for number, letter in enumerate(alphabet())}
        ranks = {bytes(letters[c] for c in token): number for token, number in trained.get_vocab().items()}
        made = of_ranks(ranks)
        for text in (*TEXTS, "naïve  café\n 3€", "a new one: ☃"):
            assert made(text)["input_ids"] == trained.encode(text).ids
            assert made.decode(made(text)["input_ids"]) == text
        assert made.eos_token_id == len(ranks)
        assert made.convert_tokens_to_ids(END) == len(ranks)


def alphabet() -> list[str]:
    """GPT-2's letter for each byte, as tokenizers has them."""
    return [bytes_to_unicode()[byte] for byte in range(256)]


BROKEN: dict[str, tuple[Any, str]] = {
    "a tensor is missing": (lambda held: {"model": less(held["model"], "h.1.ln_1.weight")}, "ln_1.weight is missing"),
    "a tensor too many": (lambda held: {"model": {**held["model"], "x": torch.ones(1)}}, "x is none that a nanoGPT"),
    "another shape": (lambda held: {"model_args": {**held["model_args"], "vocab_size": 5}}, r"should be \[5, 64\]"),
    "heads that do not fit": (lambda held: {"model_args": {**held["model_args"], "n_head": 3}}, "does not divide"),
    "sizes missing": (lambda _: {"model_args": {}}, "n_layer is None"),
    "a size that is none": (lambda held: {"model_args": {**held["model_args"], "n_layer": 10**7}}, "n_layer is 1000"),
    "no tensors": (lambda _: {"model": None}, "no checkpoint of nanoGPT"),
    "integers": (lambda held: {"model": {n: t.long() for n, t in held["model"].items()}}, "no tensor of numbers"),
    "not finite": (lambda held: {"model": {n: t / 0 for n, t in held["model"].items()}}, "differ|finite|NaN|inf"),
}


def less(tensors: Mapping[str, Any], end: str) -> dict[str, Any]:
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(end)}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_refused_in_words(what: str, held: dict[str, Any], tmp_path: Path) -> None:
    change, said = BROKEN[what]
    place = written(tmp_path / "broken", held, **change(held))
    with pytest.raises(ModelError, match=said):
        gausslens.load(place)


def test_what_holds_code_is_not_read(tmp_path: Path) -> None:
    torch.save({"model": GPT, "model_args": {}}, tmp_path / "ckpt.pt")
    with pytest.raises(ModelError, match="tensors and plain values"):
        gausslens.load(tmp_path)
