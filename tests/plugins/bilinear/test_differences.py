"""Differences of checkpoints through whole runs: what is found of them, what is left out, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import gausslens
import gausslens_bilinear.plugin
from gausslens import Context, ModelError
from gausslens.contract.errors import GausslensError
from gausslens.contract.twin import DifferenceModel, Twin
from gausslens.figures import Heatmap, Lines
from gausslens.spreading.prepare import prepare
from gausslens.testing import TinyModel, TinyParameters, check_result, check_round_trip
from gausslens_bilinear.analyses.difference import WeightDifference
from gausslens_bilinear.figures.difference import difference
from gausslens_bilinear.parameters import DifferenceParameters
from gausslens_models.loading.config_and_tokenizer import DIRECTORY

TINY = DIRECTORY / "tiny"
PAIR = {"difference": ["tuned", "base"]}
EQUAL = PAIR | {"edits": [{"edit": "reinit.gaussian"}], "draws": 3}
STEP = {"use": "bilinear.difference", "with": {"ranks": [1, 2, 4]}}


def checkpoint(place: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    """builtin:tiny with other tensors, and other lines in its config."""
    shutil.copytree(TINY, place)
    told = json.loads((place / "config.json").read_text()) | config
    (place / "config.json").write_text(json.dumps(told))
    save_file(tensors, place / "model.safetensors", {"format": "pt"})
    return place


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """base, tuned (noise on every matrix), and others that differ from them in form."""
    place = tmp_path_factory.mktemp("checkpoints")
    base = {name: tensor.float() for name, tensor in load_file(TINY / "model.safetensors").items()}
    checkpoint(place / "base", base)
    checkpoint(place / "again", base)
    generator = torch.Generator().manual_seed(0)
    tuned = {n: t + 0.01 * torch.randn(t.shape, generator=generator) * (t.ndim > 1) for n, t in base.items()}
    checkpoint(place / "tuned", tuned)
    checkpoint(place / "narrow", {n: t.bfloat16() for n, t in base.items()}, dtype="bfloat16")
    more = {n: torch.cat([t, t[:8]]) if "embed_tokens" in n or "lm_head" in n else t for n, t in tuned.items()}
    checkpoint(place / "words", more, vocab_size=266)
    untied = {n: t for n, t in tuned.items() if n != "lm_head.weight"}
    checkpoint(place / "tied", untied, tie_word_embeddings=True)
    sharded(place / "sharded", tuned)
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    checkpoint(place / "llama", base, **llama)
    widths = {"q": 64, "k": 32, "v": 32, "o": 64}
    biases = {f"model.layers.{i}.self_attn.{n}_proj.bias": torch.ones(w) for i in range(3) for n, w in widths.items()}
    checkpoint(place / "biased", tuned | biases, attention_bias=True, **llama)
    adapter(place / "adapter", place / "base", generator)
    return place


def sharded(place: Path, tensors: dict[str, torch.Tensor]) -> None:
    checkpoint(place, {})
    (place / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, place / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, held in parts.items() for name in held}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))


def adapter(place: Path, base: Path, generator: torch.Generator) -> None:
    """A LoRA adapter of rank 3 of q and v."""
    place.mkdir()
    tensors = {}
    for layer in range(3):
        for name, wide in (("q_proj", 64), ("v_proj", 32)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = torch.randn(3, 64, generator=generator)
            tensors[f"{at}.lora_B.weight"] = torch.randn(wide, 3, generator=generator)
    save_file(tensors, place / "adapter_model.safetensors")
    told = {"peft_type": "LORA", "r": 3, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj"]}
    (place / "adapter_config.json").write_text(json.dumps(told | {"base_model_name_or_path": str(base)}))


def study(here: Path, tuned: Any, base: Any, *more: dict[str, Any], **variants: Any) -> dict[str, Any]:
    def side(given: Any) -> Any:
        return {"model": {"path": str(here / given), "loader": "weights"}} if isinstance(given, str) else given

    return {
        "gausslens": 1,
        "name": "difference",
        "model": {"path": str(here / "base"), "loader": "weights"},
        "variants": {"tuned": side(tuned), "base": side(base), "added": PAIR, **variants},
        "analyses": [STEP, *more],
        "against": ["equal"] if "equal" in variants else [],
        "report": False,
    }


def ran(tmp_path: Path, told: dict[str, Any]) -> gausslens.Results:
    return gausslens.run(told, store=tmp_path / "store", shown=False)


def test_everything_but_the_weights_of_a_model_is_left_out_by_name(here: Path, tmp_path: Path) -> None:
    """By what each analysis says of itself, at plan; the rest is computed, and compared with its nulls."""
    others = [{"use": name} for name in ("bilinear.spectrum", "bilinear.alignment", "bilinear.noise", "reinit.check")]
    told = study(here, "tuned", "base", *others, equal=EQUAL)
    _, _, models, plan = prepare(told)
    models.close()
    for name in ("bilinear.alignment", "reinit.check"):
        for variant in ("added", "equal"):
            wanted = f"{name} is left out on {variant}, a difference of weights: it is of a model as a whole"
            assert sum(wanted in note for note in plan.notes) == 1
    results = ran(tmp_path, told)
    of_added = {label for variant, label in results if variant == "added" and ".against." not in label}
    assert of_added == {"bilinear.difference", "bilinear.spectrum", "bilinear.noise"}
    assert ("tuned", "bilinear.alignment") in results
    assert ("tuned", "bilinear.difference") not in results
    compared = results.against("added", "bilinear.difference")
    assert {"effective_rank_z", "overlap_z", "nearest_mean_z", "cosine_z"} <= set(compared)
    assert not {"relative_norm_z", "matrix_rank_z", "chance_z", "amplification_z"} & set(compared)
    same = results["equal", "bilinear.difference"]["norm"] / results["added", "bilinear.difference"]["norm"]
    np.testing.assert_allclose(same, 1, rtol=1e-5)


def test_spectrum_and_difference_are_those_of_the_tensors(here: Path, tmp_path: Path) -> None:
    results = ran(tmp_path, study(here, "tuned", "base", {"use": "bilinear.spectrum"}))
    base, tuned = (load_file(here / name / "model.safetensors") for name in ("base", "tuned"))
    W, V = (t["model.layers.1.mlp.up_proj.weight"].double().numpy().T for t in (base, tuned))
    at = {"layer": 1, "tensor": "W_in"}
    squared = np.linalg.svd(V - W, compute_uv=False) ** 2
    np.testing.assert_allclose(results["added", "bilinear.spectrum"]["squared"].sel(at), squared, rtol=1e-5)
    found = results["added", "bilinear.difference"].sel(at)
    assert float(found["relative_norm"]) == pytest.approx(np.linalg.norm(V - W) / np.linalg.norm(W), rel=1e-6)
    P, U = (np.linalg.svd(X)[0][:, :2] for X in (W, V - W))
    wanted = np.square(U.T @ P).sum() / 2
    assert float(found["overlap"].sel(leading=2, side="left")) == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("as_model", [True, False])
def test_the_rank_of_an_adapter_is_found_exactly(here: Path, tmp_path: Path, as_model: bool) -> None:
    edit: Any = [{"edit": "model.lora", "path": str(here / "adapter")}]
    found = ran(tmp_path, study(here, "adapter" if as_model else edit, "base"))["added", "bilinear.difference"]
    ranks = found["matrix_rank"].transpose("tensor", "layer")
    for name in found["tensor"].values:
        assert (ranks.sel(tensor=name) == (3 if name in ("W_Q", "W_V") else 0)).all()
    assert found.attrs["note"] == "15 of 21 matrices are equal in both models: NaN stands for 0/0"
    overlap = found["overlap"].sel(tensor="W_Q")
    assert np.isfinite(overlap.sel(leading=2)).all()
    assert np.isnan(overlap.sel(leading=4)).all()


@pytest.mark.parametrize("edit", ["reinit.gaussian", "reinit.permute", "reinit.rotate"])
def test_the_same_model_twice_is_told_and_differs_by_nothing(here: Path, tmp_path: Path, edit: str) -> None:
    told = study(here, "base", "again", {"use": "bilinear.spectrum"}, equal=EQUAL | {"edits": [{"edit": edit}]})
    _, _, models, plan = prepare(told)
    models.close()
    assert any("both sides of added are the same weights: it is 0" in note for note in plan.notes)
    results = ran(tmp_path, told | {"report": True})
    found = results["added", "bilinear.difference"]
    assert (found["relative_norm"] == 0).all()
    assert not any(np.isinf(found[name]).any() for name in found)
    assert np.isnan(found["overlap"]).all()
    assert not results.frame("added", "bilinear.difference")["called"].fillna(False).astype(bool).any()
    assert all(isinstance(figure, Heatmap) for figure in difference(results))


def test_shards_are_the_same_weights(here: Path) -> None:
    _, _, models, plan = prepare(study(here, "sharded", "tuned"))
    models.close()
    assert any("both sides of added are the same weights" in note for note in plan.notes)


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float64"])
def test_a_narrow_type_beside_a_wide_one_is_rounding_and_no_rank(here: Path, tmp_path: Path, dtype: str | None) -> None:
    told = study(here, "narrow", "base")
    if dtype is not None:
        told["variants"]["tuned"]["model"]["dtype"] = dtype
    found = ran(tmp_path, told)["added", "bilinear.difference"]
    # The spacing of bfloat16 is 2^-7 to 2^-8 of a number, and rounding, a uniform, has 1/sqrt 12 of it.
    assert 2**-8 / np.sqrt(12) < float(found["relative_norm"].min())
    assert float(found["relative_norm"].max()) < 2**-7 / np.sqrt(12)
    assert (found["matrix_rank"] == 0).all()


@pytest.mark.parametrize("tuned", ["words", "tied"])
def test_other_words_or_a_tied_head_leave_the_layers_as_they_are(here: Path, tmp_path: Path, tuned: str) -> None:
    one, other = (ran(tmp_path / n, study(here, n, "base"))["added", "bilinear.difference"] for n in (tuned, "tuned"))
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def _difference(here: Path, of: str, less: str) -> DifferenceModel:
    sides = (Twin(gausslens.load(str(here / name), loader="weights").weights(None).model) for name in (of, less))
    return DifferenceModel(*sides, "x")


def test_tensors_that_one_lacks_or_has_in_another_shape_are_left_out(here: Path) -> None:
    assert {"W_E", "W_U", "ln_final.w"} <= set(_difference(here, "tuned", "base").names(None))
    words = _difference(here, "words", "base")
    assert not {"W_E", "W_U"} & set(words.names(None))
    assert "ln_final.w" in words.names(None)
    assert set(words.names(0)) == set(_difference(here, "tuned", "base").names(0))
    for of, less in (("biased", "llama"), ("llama", "biased")):
        assert "b_Q" not in _difference(here, of, less).names(0)
        assert "W_Q" in _difference(here, of, less).names(0)


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        ({"tuned": "llama"}, "llama and base have no difference: family is llama and mistral"),
        ({"equal": PAIR | {"edits": [{"edit": "reinit.config"}], "draws": 2}}, "which no class of models draws"),
        (
            {"equal": PAIR | {"edits": [{"edit": "reinit.cascade", "depth": 1}], "draws": 2}},
            "as reinit.gaussian (norm), reinit.permute (entries)",
        ),
        ({"grafted": PAIR | {"edits": [{"edit": "spectrum.graft", "source": 1}]}}, "take the difference of that"),
    ],
)
def test_what_has_no_difference_is_refused_at_plan(here: Path, variants: dict[str, Any], said: str) -> None:
    rest = {name: value for name, value in variants.items() if name != "tuned"}
    with pytest.raises(GausslensError) as caught:
        prepare(study(here, variants.get("tuned", "tuned"), "base", **rest))
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_study_without_a_difference_is_told_what_to_write(here: Path) -> None:
    told = study(here, "tuned", "base")
    del told["variants"]["added"]
    with pytest.raises(GausslensError, match=r"computed on none of its variants: .*add a variant, as `added: \{diff"):
        prepare(told)
    with pytest.raises(ModelError, match=r"tiny is one model: bilinear\.difference reads a variant that is the differ"):
        WeightDifference(DifferenceParameters(), Context(TinyModel().info, 0))


def test_a_difference_is_compared_with_nulls_of_its_own_alone(here: Path) -> None:
    other = {"difference": ["narrow", "base"]}
    narrow = {"model": {"path": str(here / "narrow"), "loader": "weights"}}
    _, _, models, plan = prepare(study(here, "tuned", "base", equal=EQUAL, narrow=narrow, rounding=other))
    models.close()
    against = {step.ref.variant for step in plan.steps if step.against}
    assert against == {"added"}
    assert any("of rounding beside equal: not compared, it is of another difference" in note for note in plan.notes)


def test_a_missing_fact_of_a_difference_is_told_as_such() -> None:
    planted = TinyModel(TinyParameters(planted=[(1, 2, 8.0)]))
    info = DifferenceModel(Twin(planted), Twin(TinyModel()), "x").info
    assert info.facts.difference
    with pytest.raises(ModelError, match=r"is a difference of weights and has no 'norm'.*on variants that are models"):
        _ = info.facts.norm


def test_heads_and_layers_in_view(here: Path, tmp_path: Path) -> None:
    """Per head as whole: a head's own block, and none but those asked for."""
    step = STEP | {"with": {"per_head": True, "ranks": [1, 2, 20]}}
    whole = ran(tmp_path / "whole", study(here, "tuned", "base") | {"analyses": [step]})["added", "bilinear.difference"]
    few = study(here, "tuned", "base") | {"analyses": [step | {"layers": [1], "heads": [2, 3]}]}
    found = ran(tmp_path / "few", few)["added", "bilinear.difference"]
    assert found["layer"].values.tolist() == [1]
    assert found["head"].values.tolist() == [2, 3]
    assert found["kv_head"].values.tolist() == [1]
    for name in found:
        if name.startswith(("head_", "kv_head_")):
            dims = {d: found[d].values for d in ("layer", "head", "kv_head") if d in found[name].dims}
            np.testing.assert_array_equal(found[name], whole[name].sel(dims))
    assert np.isnan(whole["head_overlap"].sel(leading=20)).all()
    check_result(whole)
    check_round_trip(whole)


def test_figures(here: Path, tmp_path: Path) -> None:
    results = ran(tmp_path, study(here, "tuned", "base", equal=EQUAL))
    figures = difference(results)
    assert [type(figure) for figure in figures] == [Heatmap] * 3 + [Lines] * 6
    assert len({figure.title for figure in figures}) == len(figures)
    for figure in figures:
        for source in figure.sources:
            assert source.array in results[source.variant, source.label]
    names = [line.name for line in figures[4].series]
    assert names == ["added", "equal, mean of 3", "at random"]


def test_ranks_are_positive_and_named_once() -> None:
    for wrong in ((0, 1), (2, 2), ()):
        with pytest.raises(ValueError, match="ranks"):
            DifferenceParameters(ranks=wrong)


def test_it_is_wired() -> None:
    assert gausslens_bilinear.plugin.DIFFERENCE.differences == "only"
