"""A loader may make a module and hand it to the loader `torch`: the model is its own, served as any other."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import plain_gpt
import pytest
import torch
from plain_gpt import GPT, GPT_MAPPING, changed, gpt_twins
from test_plain_module import SAMPLE, assert_equal, every_type, of

import gausslens
from gausslens import GausslensError, Loader, ModelError, ModelSpec, OpenAs, hookimpl
from gausslens.plugins import Host
from gausslens.runs import open as open_models
from gausslens.spreading.prepare import prepare
from gausslens.testing import host_of

ROOT = Path(__file__).parents[3]
TIER = os.environ.get("GAUSSLENS_FULL")
MADE: list[weakref.ref[Any]] = []
# What the next path that is opened gives; a test sets it.
NEXT: dict[str, Any] = {}
# Modules of some paths; of all others `made` is.
OF_PATH: dict[str, Any] = {}


def claims(path: str) -> bool:
    return path.startswith("builtin:made")


def made() -> GPT:
    module = gpt_twins()[0]
    MADE.append(weakref.ref(module))
    return module


def opens(spec: ModelSpec) -> Any:
    module = OF_PATH.get(spec.path, made)
    return replace(
        OpenAs(module=module, parameters=GPT_MAPPING, fingerprint=f"of {spec.path}", name="a made one"), **NEXT
    )


class Plugin:
    @hookimpl
    def loaders(self) -> list[Loader]:
        home = __name__
        named = {"claims": f"{home}:claims", "open": f"{home}:opens"}
        return [Loader(name="makes", version=3, summary="Makes a module.", rank=200, **named)]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    NEXT.clear()
    OF_PATH.clear()
    MADE.clear()
    found = host_of("models", "reinit", "bilinear", makes=Plugin())
    monkeypatch.setattr("gausslens.plugins.load", lambda *_, **__: found)
    return found


def study(*variants: str) -> dict[str, Any]:
    edits = {
        "trained": [],
        "gaussian": {"edits": [{"edit": "reinit.gaussian"}], "draws": 2},
        "before": {"edits": [{"edit": "reinit.config", "embeddings": True}], "draws": 2},
    }
    return {
        "gausslens": 1,
        "name": "made",
        "model": {"path": "builtin:made"},
        "prompts": {"source": "repeated-random", "prompts": 3, "length": 6},
        "variants": {name: edits[name] for name in ("trained", *variants)},
        "analyses": [{"use": "model.loss"}, {"use": "bilinear.spectrum"}],
    }


def test_it_is_the_live_module_under_its_own_name(host: Host, tmp_path: Path) -> None:
    module, _ = gpt_twins()
    ours = gausslens.run(study("gaussian"), tmp_path / "ours", host=host, shown=False)
    live = study("gaussian")
    del live["model"]
    theirs = gausslens.run(live, tmp_path / "live", model=module, mapping=GPT_MAPPING, host=host, shown=False)
    assert assert_equal(ours, theirs) >= 4
    model = gausslens.load("builtin:made")
    assert model.info.fingerprint == "of builtin:made"
    assert model.info.name == "a made one"
    assert model._opened.identity["loader"] == {"name": "makes", "version": 3, "parameters": {}}


def test_a_module_is_made_when_it_is_needed_and_let_go_of(host: Host) -> None:
    model = gausslens.load("builtin:made")
    gc.collect()
    assert [ref() for ref in MADE] == [None]
    before = model.weights(1)["W_Q"].clone()
    assert MADE[-1]() is not None
    model._opened.model.close()
    gc.collect()
    assert [ref() for ref in MADE] == [None, None]
    assert torch.equal(model.weights(1)["W_Q"], before)
    assert model.run([gausslens.Prompt(ids=(1, 2, 3))], "logits").logits.shape == (1, 3, plain_gpt.VOCABULARY)


def along(steps: int) -> GPT:
    """A module so many steps along a straight line."""
    module = gpt_twins()[0]
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data += steps / 100 * torch.randn(parameter.shape, generator=generator)
    return module


@pytest.mark.parametrize(("held", "few", "said"), [("01234", 0, ""), ("02134", 0, "changed places"), ("02134", 1, "")])
def test_steps_out_of_order_are_told(host: Host, monkeypatch: pytest.MonkeyPatch, held: str, few: int, said: str):
    OF_PATH.update({f"builtin:made{n}": partial(along, int(of)) for n, of in enumerate(held)})
    swept = {"model": {"path": "builtin:made{step}"}, "sweep": {"step": [0, 1, 2, 3, 4]}}
    if few:
        monkeypatch.setattr(open_models, "OF_EACH", few)
    whole = study() | {"variants": {"training": swept}, "analyses": [{"use": "bilinear.spectrum"}]}
    _, _, models, plan = prepare(whole, host=host)
    models.close()
    assert [said in note for note in plan.notes] == ([True] if said else [])


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_it_has_the_type_that_is_wanted(host: Host, dtype: str) -> None:
    model = gausslens.load("builtin:made", dtype=dtype)
    assert model.info.dtype == dtype
    found = model.run([gausslens.Prompt(ids=(1, 2, 3))], "resid_post").resid_post
    assert found.dtype == ("float64" if dtype == "float64" else "float32")


def test_what_it_was_before_training_is_what_it_says(host: Host, tmp_path: Path) -> None:
    with pytest.raises(GausslensError, match=r"does not say how it was initialised: use reinit\.gaussian"):
        gausslens.run(study("before"), tmp_path / "one", host=host, shown=False)
    NEXT["initial"] = GPT
    found = gausslens.run(study("before"), tmp_path / "two", host=host, shown=False)
    losses = found["before", "model.loss"]["loss"]
    assert float(losses.std()) > 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        fresh = GPT().transformer["h"][1].attn.c_proj.weight
    weights = gausslens.load("builtin:made").weights(1)
    ours = weights.model.initial(1, "W_O", 7)
    torch.testing.assert_close(ours.flatten(0, 1), fresh.detach().mT, rtol=0, atol=0)


class TestSaving:
    def saved(self, host: Host, tmp_path: Path, save: Any) -> Path:
        NEXT.update(initial=GPT, save=save)
        return gausslens.edit(study("before"), "before", tmp_path / "made", draw=1, host=host)

    def save(self, directory: Path, tensors: Any) -> OpenAs:
        torch.save(dict(tensors), directory / "all.pt")

        def again() -> GPT:
            module = GPT()
            module.load_state_dict(torch.load(directory / "all.pt", weights_only=True))
            return module

        return OpenAs(module=again, parameters=GPT_MAPPING, fingerprint="written")

    def test_a_twin_is_written_and_compared(self, host: Host, tmp_path: Path) -> None:
        place = self.saved(host, tmp_path, self.save)
        held = torch.load(place / "all.pt", weights_only=True)
        assert (place / "gausslens.json").is_file()
        assert torch.equal(held["lm_head.weight"], held["transformer.wte.weight"])
        assert not torch.equal(held["lm_head.weight"], gpt_twins()[0].lm_head.weight)

    def test_what_is_another_when_it_is_read_again_is_refused(self, host: Host, tmp_path: Path) -> None:
        def wrong(directory: Path, tensors: Any) -> OpenAs:
            return self.save(directory, {**tensors, "transformer.ln_f.bias": tensors["transformer.ln_f.bias"] + 1})

        with pytest.raises(ModelError, match=r"read again, transformer.ln_f.bias is another"):
            self.saved(host, tmp_path, wrong)
        assert not (tmp_path / "made").exists()

    def test_without_save_it_is_refused(self, host: Host, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="its loader has no save"):
            self.saved(host, tmp_path, None)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no such loader": ({"loader": "torhc"}, "which there is not: did you mean torch"),
    "itself": ({"loader": "makes"}, "which there is not"),
    "one that takes none": ({"loader": "tiny", "parameters": {}}, "which takes no modules of other loaders"),
    "other parameters": ({"parameters": {"n_heads": 4, "n_haeds": 3}}, "parameters that it does not have"),
    "a parameter that is no data": ({"parameters": {"n_heads": object()}}, "parameters that it does not have"),
    "no module": ({"module": dict}, "is no torch module: dict"),
    "a module that fails": ({"module": lambda: 1 / 0}, "could not open"),
    "another mapping": (
        {"parameters": changed(GPT_MAPPING, facts={"activation": "relu"})},
        "does not compute what its mapping says",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_told_with_the_loader_s_name(what: str, host: Host) -> None:
    wrong, said = WRONG[what]
    NEXT.update(wrong)
    with pytest.raises(ModelError, match=said) as told:
        gausslens.load("builtin:made")
    if said.startswith(("which", "parameters")):
        assert "the loader makes (plugin makes of" in str(told.value)


@pytest.fixture(scope="module")
def nanogpt() -> Any:
    """The plugin of examples/gausslens-nanogpt, as if it were installed."""
    place = str(ROOT / "examples/gausslens-nanogpt")
    sys.path.insert(0, place)
    try:
        yield importlib.import_module("gausslens_nanogpt.plugin")
    finally:
        sys.path.remove(place)


def test_every_analysis_gives_of_a_nanogpt_what_it_gives_of_its_twin(nanogpt: Any, tmp_path: Path) -> None:
    """In the long tier all that there are."""
    ours, theirs = gpt_twins()
    theirs.config.activation_function = "gelu_new"
    tensors = ours.state_dict()
    sizes = {"n_layer": plain_gpt.LAYERS, "n_head": plain_gpt.HEADS, "n_embd": plain_gpt.WIDTH, "bias": True}
    args = sizes | {"block_size": plain_gpt.POSITIONS, "vocab_size": plain_gpt.VOCABULARY}
    place = tmp_path / "out"
    place.mkdir()
    torch.save({"model": tensors, "model_args": args}, place / "ckpt.pt")
    words = every_type.tokenizer(plain_gpt.VOCABULARY)
    words.save_pretrained(tmp_path / "words")
    told = of(*(() if TIER else SAMPLE))
    installed = ("models", "gaussian", "bilinear", "spectrum", "attention", "reinit")
    host = host_of(*installed, nanogpt=nanogpt)
    model = {"path": str(place), "tokenizer": str(tmp_path / "words"), "gelu": "tanh"}
    one = gausslens.run({**told, "model": model}, tmp_path / "ours", host=host, shown=False)
    other = gausslens.run(told, tmp_path / "theirs", model=theirs, tokenizer=words, host=host, shown=False)
    assert assert_equal(one, other) >= 2 * len(SAMPLE)
