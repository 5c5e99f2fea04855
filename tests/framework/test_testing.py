"""The tools for plugin authors: they pass what is right, and each catches the mistake that it is for."""

from __future__ import annotations

import copy
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import probe_analyses
import probes
import pytest
import torch
import xarray as xr

import gausslens
from gausslens import Context, Part, Prompt, Request, StepRef, Twin
from gausslens.contract.descriptors import Owned, Owner
from gausslens.contract.errors import Mark
from gausslens.contract.reference import resolve
from gausslens.contract.twin import EditCall
from gausslens.testing import (
    TinyEngine,
    TinyModel,
    TinyParameters,
    check_derived,
    check_edit,
    check_forward,
    check_references,
    check_result,
    check_round_trip,
    check_stream,
    check_weights,
    host_of,
)


@pytest.mark.parametrize("analysis", [probes.POWER, probes.SPREAD, probes.ROWS, probes.LAYERS, probes.DRAWS])
def test_right_streams_pass(analysis: gausslens.Analysis) -> None:
    check_stream(analysis)


def test_right_weights_forward_derived_and_edits_pass() -> None:
    norm = check_weights(probes.NORM)
    model = TinyModel()
    wanted = [model.tensor(layer, "W_Q").double().square().sum((1, 2)).numpy() for layer in (0, 1)]
    np.testing.assert_allclose(norm["norm"], wanted, rtol=1e-12)
    assert norm["norm"].dims == ("layer", "head")
    loss = check_forward(probes.NEXT)
    np.testing.assert_array_equal(loss["loss"], loss["base"])
    given = {StepRef("trained", "probe.power", "probe.power"): check_stream(probes.POWER)}
    np.testing.assert_allclose(check_derived(probes.DOUBLED, given)["value"], 2 * next(iter(given.values()))["value"])
    check_edit(probes.SCALE)
    check_edit(probes.REDRAW)


class ChangesWeights(probe_analyses.Norm):
    def layer(self, weights: Any, layer: int) -> xr.Dataset:
        found = super().layer(weights, layer)
        weights.W_K.mul_(2)
        return found


class CountsItsLayers(probe_analyses.Norm):
    def layer(self, weights: Any, layer: int) -> xr.Dataset:
        self.seen = getattr(self, "seen", 0) + 1
        return super().layer(weights, layer) * self.seen


class SeesAllHeads(probe_analyses.Norm):
    def layer(self, weights: Any, layer: int) -> xr.Dataset:
        return super().layer(weights, layer).pad(head=(0, 4 - len(weights.heads))).assign_coords(head=range(4))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (ChangesWeights, "changed W_K of layer 0 in place"),
        (CountsItsLayers, "order in which layers come"),
        (SeesAllHeads, r"with only head \[3\] in view it gives head"),
    ],
)
def test_wrong_weights_analyses_are_caught(made: type, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_analyses, "Wrong", made, raising=False)
    resolve.cache_clear()
    with pytest.raises(AssertionError, match=said):
        check_weights(replace(probes.NORM, analysis="probe_analyses:Wrong"))


def test_a_stream_sees_what_the_model_computes() -> None:
    """The mean square of resid_pre in layer 0 is that of W_E[token] + W_pos[position] over real tokens."""
    model = TinyModel()
    texts = ("ab", "cde fg")
    found = check_stream(probes.POWER, probes.Power(site="resid_pre"), model=model, texts=texts)
    rows = []
    for text in texts:
        ids = torch.tensor([256, *text.encode()])
        rows.append((model.tensor(None, "W_E")[ids] + model.tensor(None, "W_pos")[: len(ids)])[1:])
    wanted = torch.cat(rows).double().square().mean()
    np.testing.assert_allclose(found["value"].sel(layer=0), wanted, rtol=1e-12)


class CountsPadding(probe_analyses.MeanSquare):
    def update(self, batch: Any) -> None:
        self.total[batch.layer] = self.total.get(batch.layer, 0) + batch["q"].double().square().sum((0, 1, 3)).numpy()
        self.count[batch.layer] = self.count.get(batch.layer, 0) + batch.tokens.numel()


class KeepsArrays(probe_analyses.MeanSquare):
    def update(self, batch: Any) -> None:
        self.kept = [*getattr(self, "kept", []), batch]
        super().update(batch)

    def result(self) -> xr.Dataset:
        for batch in self.kept:
            self.total[batch.layer] = self.total[batch.layer] + float(batch["q"].sum())
        return super().result()


class ForgetsToAdd(probe_analyses.MeanSquare):
    def merge(self, other: Any) -> None:
        self.total = {layer: (total + other.total[layer]) / 2 for layer, total in self.total.items()}


class SharesState(probe_analyses.MeanSquare):
    def __deepcopy__(self, memo: Any) -> SharesState:
        made = copy.copy(self)
        made.count = dict(self.count)
        return made


class HasNoUnits(probe_analyses.MeanSquare):
    def result(self) -> xr.Dataset:
        found = super().result()
        found["value"].attrs = {}
        return found


class TakesTheFirstLayer(probe_analyses.MeanSquare):
    def update(self, batch: Any) -> None:
        self.first = getattr(self, "first", batch.layer)
        super().update(batch)

    def merge(self, other: Any) -> None:
        super().merge(other)

    def result(self) -> xr.Dataset:
        return super().result() + self.first


class ChangesTokens(probe_analyses.MeanSquare):
    """Numbers of its own that are right, and those of whoever reads the tokens after it wrong."""

    def update(self, batch: Any) -> None:
        super().update(batch)
        batch.tokens.fill_(0)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (ChangesTokens, "it changes batch.tokens in place"),
        (CountsPadding, "how prompts are cut"),
        (KeepsArrays, "arrays are reused"),
        (ForgetsToAdd, "how prompts are cut|associative"),
        (SharesState, "is state shared"),
        (HasNoUnits, "long_name and units"),
        (TakesTheFirstLayer, "layers come in another order"),
    ],
)
def test_wrong_streams_are_caught(made: type, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_analyses, "Wrong", made, raising=False)
    resolve.cache_clear()
    with pytest.raises(AssertionError, match=said):
        check_stream(replace(probes.POWER, analysis="probe_analyses:Wrong"))


def _unseeded(weights: Any, parameters: Any, generators: Any) -> dict[str, torch.Tensor]:
    return {"W_Q": torch.randn_like(weights.W_Q)}


def _always_the_same(weights: Any, parameters: Any, generators: Any) -> dict[str, torch.Tensor]:
    return {"W_Q": torch.randn(weights.W_Q.shape, generator=torch.Generator().manual_seed(1))}


def _secretly_random(weights: Any, parameters: Any, generators: Any) -> dict[str, torch.Tensor]:
    return {"W_Q": torch.randn(weights.W_Q.shape, generator=generators.torch("W_Q"))}


def _with_output_bias(weights: Any, parameters: Any, generators: Any) -> dict[str, torch.Tensor]:
    return {name: weights[name] * 2 for name in ("W_Q", "b_O", "ln1.w") if name in weights}


def _of_norms(weights: Any, parameters: Any, generators: Any) -> dict[str, torch.Tensor]:
    return {name: weights[name] * 2 for name in ("b_O", "ln1.w", "ln_final.b") if name in weights}


def _once_for_all(weights: Any, parameters: Any, generators: Any) -> dict[str, torch.Tensor]:
    if weights.rows("W_Q") is not None:
        raise gausslens.ModelError("leave out heads: it is an edit of all of them")
    return _with_output_bias(weights, parameters, generators)


@pytest.mark.parametrize("edit", [_of_norms, _once_for_all])
def test_edits_of_norms_and_biases_are_made_where_models_have_them(edit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_analyses, "right", edit, raising=False)
    resolve.cache_clear()
    touches = ("b_O", "ln1.w", "ln_final.b", *(("W_Q",) if edit is _once_for_all else ()))
    made = check_edit(replace(probes.SCALE, edit="probe_analyses:right", touches=touches))
    assert made[0].keys() == ({"b_O", "ln1.w"} if edit is _of_norms else {"W_Q"})  # of the plain model no biases


def test_an_edit_that_ignores_heads_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_analyses, "wrong", _with_output_bias, raising=False)
    resolve.cache_clear()
    wrong = replace(probes.SCALE, edit="probe_analyses:wrong", touches=("W_Q", "b_O", "ln1.w"))
    said = r"on a tiny model, LayerNorm, biases and an MLP: probe.scale ignores heads: .*b_O: it has no head axis"
    with pytest.raises(AssertionError, match=said):
        check_edit(wrong)
    check_edit(wrong, model=TinyModel())  # it has none of what is ignored


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_a_tiny_model_computes_what_torch_does(norm: str, parallel: bool) -> None:
    """Norms, biases, MLP and what it reads, by torch's own modules; the loss of a layer's heads by hand."""
    model = TinyModel.of(norm=norm, gains=True, biases=True, mlp=True, parallel=parallel, kv_heads=1)
    ids = model.tokenise([Prompt((Part("by hand"),))]).ids[0]
    found = TinyEngine().runner(Twin(model)).forward(ids[None], sites=TinyEngine().sites(model))
    linear, width = torch.nn.functional.linear, (model.info.d_model,)

    def normed(x: torch.Tensor, layer: int | None, name: str) -> torch.Tensor:
        w = model.tensor(layer, f"{name}.w")
        if norm == "rms":
            return torch.nn.functional.rms_norm(x, width, w, 1e-6)
        return torch.nn.functional.layer_norm(x, width, w, model.tensor(layer, f"{name}.b"), 1e-6)

    x = found["embed"]
    for layer in model.info.layers:
        of = {name: model.tensor(layer, name) for name in model.names(layer)}
        torch.testing.assert_close(found[layer, "resid_pre"], x)
        h = normed(x, layer, "ln1")
        torch.testing.assert_close(found[layer, "q"][..., 2, :], linear(h, of["W_Q"][2].T, of["b_Q"][2]))
        torch.testing.assert_close(found[layer, "v"][..., 0, :], linear(h, of["W_V"][0].T, of["b_V"][0]))
        z = torch.nn.functional.scaled_dot_product_attention(
            *(found[layer, site].transpose(1, 2) for site in "qkv"), is_causal=True, enable_gqa=True
        )
        torch.testing.assert_close(found[layer, "z"], z.transpose(1, 2))
        out = linear(found[layer, "z"].flatten(2), of["W_O"].flatten(0, 1).T, of["b_O"])
        torch.testing.assert_close(found[layer, "attn_out"], out)
        read = h if parallel else normed(x + out, layer, "ln2")
        mlp = linear(torch.nn.functional.gelu(linear(read, of["W_in"].T, of["b_in"])), of["W_out"].T, of["b_out"])
        torch.testing.assert_close(found[layer, "mlp_out"], mlp)
        assert ((layer, "resid_mid") in found) is not parallel
        x = x + out + mlp
    torch.testing.assert_close(found["logits"], normed(x, None, "ln_final") @ model.tensor(None, "W_U"))
    names = [(layer, name) for layer in (None, *model.info.layers) for name in model.names(layer)]
    assert model.info.n_parameters == sum(model.tensor(*name).numel() for name in names)


def test_what_the_tiny_model_could_not_do_at_first_is_in_no_key_of_then() -> None:
    """Fingerprints are stored: that of the plain model is what it was."""
    assert TinyModel().info.fingerprint == "dfa7ddca165a932a07136f43ac1e91da7c5848ed9afd472041419afd262bca70"
    assert "norm" not in TinyParameters().canonical()
    every = {held.info.fingerprint for held in TinyModel.kinds().values()}
    assert len(every) == len(TinyModel.kinds())
    with pytest.raises(ValueError, match="say mlp: true too"):
        TinyModel.of(parallel=True)


def _nothing(weights: Any, parameters: Any, generators: Any) -> dict[str, torch.Tensor]:
    return {}


@pytest.mark.parametrize(
    ("edit", "random", "said"),
    [
        (_unseeded, True, "a second application differs"),
        (_always_the_same, True, "another draw gives the same"),
        (_secretly_random, False, "must say random=True"),
        (_nothing, False, "returned no tensor"),
    ],
)
def test_wrong_edits_are_caught(edit: Any, random: bool, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_analyses, "wrong", edit, raising=False)
    resolve.cache_clear()
    with pytest.raises(AssertionError, match=said):
        check_edit(replace(probes.SCALE, edit="probe_analyses:wrong", random=random))


def _plugin(**contributed: Any) -> types.SimpleNamespace:
    hooks = {}
    for name, value in contributed.items():
        exec(f"def {name}(): return value", scope := {"value": value})
        hooks[name] = gausslens.hookimpl(scope[name])
    return types.SimpleNamespace(**hooks)


class Undescribed(gausslens.Parameters):
    size: int = 3


def test_a_right_plugin_passes_and_gives_its_host() -> None:
    host = check_references(probes)
    assert "probe.power" in host.analyses
    assert set(host.loaders) == {"tiny"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"analysis": "probe_analyses:NoSuch"}, "has no 'NoSuch'"),
        ({"analysis": "no_such_module:X"}, "no_such_module"),
        ({"analysis": "probe_analyses:Norm"}, "has no method request"),
        ({"analysis": "probe_analyses:lines"}, "is not a class"),
        ({"parameters": "probe_analyses:MeanSquare"}, "not a subclass of gausslens.Parameters"),
        ({"parameters": "probes:Undescribed"}, "parameter size has no description"),
        ({"estimate": "probe_analyses:_axis"}, "cannot be called with 3 arguments"),
    ],
)
def test_wrong_references_are_caught(changed: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "Undescribed", Undescribed, raising=False)
    resolve.cache_clear()
    with pytest.raises(AssertionError, match=said):
        check_references(_plugin(analyses=[replace(probes.POWER, **changed)]))


def test_a_plugin_that_imports_heavy_libraries_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy_plugin.py").write_text(
        "import numpy\nimport gausslens\n@gausslens.hookimpl\ndef analyses():\n    return []\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import heavy_plugin

    with pytest.raises(AssertionError, match="imports numpy"):
        check_references(heavy_plugin)


def test_a_broken_plugin_is_not_a_host() -> None:
    with pytest.raises(AssertionError, match="only Analysis"):
        host_of(wrong=types.SimpleNamespace(analyses=gausslens.hookimpl(lambda: [3])))


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (xr.Dataset(), "no variable"),
        (xr.Dataset({"x": ((), 1.0, {"units": "1"})}), "long_name"),
        (xr.Dataset({"x": ("dim_0", [1.0], {"units": "1", "long_name": "x"})}), "has no name"),
        (xr.Dataset({"x": ((), object(), {"units": "1", "long_name": "x"})}), "objects cannot be stored"),
    ],
)
def test_malformed_results_are_caught(dataset: xr.Dataset, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_result(dataset)


def test_the_store_gives_back_what_it_was_given(tmp_path: Path) -> None:
    given = check_stream(probes.POWER)
    back = check_round_trip(given, tmp_path)
    assert back["value"].dtype == given["value"].dtype


def test_the_tiny_model_is_its_own_null_save_where_a_head_is_planted() -> None:
    plain, planted = TinyModel(), TinyModel(TinyParameters(planted=[(1, 2, 4.0)]))
    for layer in (0, 1):
        for name in plain.names(layer):
            ratio = planted.tensor(layer, name) / plain.tensor(layer, name)
            wanted = torch.ones_like(ratio)
            if (layer, name) == (1, "W_Q"):
                wanted[2] = 4.0
            torch.testing.assert_close(ratio, wanted)
    assert torch.equal(plain.tensor(0, "W_Q"), plain.initial(0, "W_Q", 0))
    assert not torch.equal(plain.tensor(0, "W_Q"), plain.initial(0, "W_Q", 1))
    assert plain.info.fingerprint != planted.info.fingerprint


def test_the_tiny_tokeniser_maps_bytes_to_words_and_segments() -> None:
    model = TinyModel()
    tokens = model.tokenise([Prompt((Part("é b ", "example.0.word"), Part("c", "target")))])
    assert tokens.pieces[0] == ("<bos>", "<0xC3>", "<0xA9>", " ", "b", " ", "c")
    assert tokens.word[0].tolist() == [-1, 0, 0, -1, 1, -1, 2]
    assert [tokens.segments[i] for i in tokens.segment[0]] == ["special", *["example.0.word"] * 5, "target"]
    assert tokens.text[0].tolist() == [False] + [True] * 6
    assert "".join(tokens.rendered[0][a:b] for a, b in tokens.span[0][2:]) == "é b c"
    assert TinyEngine().runner(Twin(model)).decode(tokens.ids[0]) == "é b c"


def test_replacing_with_the_same_changes_nothing_and_with_another_does() -> None:
    model = TinyModel()
    runner = TinyEngine().runner(Twin(model))
    ids = model.tokenise([Prompt((Part("some text"),))]).ids[0][None]
    plain = runner.forward(ids, ("z", "logits"))
    same = runner.forward(ids, replace=lambda layer, scores, pattern, v: pattern)
    heads = runner.forward(ids, replace=lambda layer, scores, pattern, v: plain[layer, "z"])
    flat = runner.forward(ids, replace=lambda layer, scores, pattern, v: torch.ones_like(pattern) / pattern.shape[-1])
    assert torch.equal(same["logits"], plain["logits"])
    assert torch.equal(heads["logits"], plain["logits"])
    assert not torch.allclose(flat["logits"], plain["logits"])
    assert set(plain) == {"logits", (0, "z"), (1, "z")}


def test_the_runner_of_a_twin_sees_its_edits_and_its_base_does_not() -> None:
    call = EditCall(Owned(probes.SCALE, Owner("probe", "", "")), probes.Scale(alpha=30.0), None, None, Mark("", 1, 1))
    model = TinyModel()
    edited, plain = (TinyEngine().runner(Twin(model, edits)) for edits in ([call], ()))
    ids = model.tokenise([Prompt((Part("some text"),))]).ids[0][None]
    assert not torch.equal(edited.forward(ids)["logits"], plain.forward(ids)["logits"])
    assert torch.equal(edited.forward(ids, base=True)["logits"], plain.forward(ids)["logits"])
    assert torch.equal(edited.weights(0).W_Q, 30 * plain.weights(0).W_Q)
    [continued] = plain.generate(ids, 3)
    assert continued.tolist() == edited.generate(ids[0], 3, base=True)[0].tolist()
    assert continued[0] == int(plain.forward(ids)["logits"][0, -1].argmax())
    with pytest.raises(TypeError, match="knows no temperature"):
        plain.generate(ids, 3, temperature=1.0)


def test_padding_changes_nothing() -> None:
    model = TinyModel()
    tokens = model.tokenise([Prompt((Part("ab"),)), Prompt((Part("a much longer prompt"),))])
    runner = TinyEngine().runner(Twin(model))
    ids, _, mask = tokens.padded([0, 1])
    together = runner.forward(ids, mask=mask)["logits"][0, :3]
    torch.testing.assert_close(together, runner.forward(tokens.ids[0][None])["logits"][0], rtol=1e-5, atol=1e-6)


def test_a_layer_without_attention_is_left_out() -> None:
    model = TinyModel(TinyParameters(layers=3, attention_free=[1]))
    found = check_stream(probes.POWER, model=model)
    assert found["layer"].values.tolist() == [0, 2]
    assert model.names(1) == ()


def test_the_pytest_plugin_starts_light() -> None:
    heavy = "('torch', 'numpy', 'xarray', 'pydantic')"
    script = f"import sys, gausslens.testing; print([m for m in {heavy} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_context_gives_independent_repeatable_generators() -> None:
    context = Context(TinyModel().info, 7)
    assert context.generator("a").random() == context.generator("a").random()
    assert context.generator("a").random() != context.generator("b").random()
    assert Request(("q",)).passes == 1
