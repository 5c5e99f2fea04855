"""gaussian.collapse: entropy deficits, contraction and rates, planted and on the tiny model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gausslens import Context, GausslensError, ModelError, ModelInfo, Part, Prompt, Twin
from gausslens.testing import TinyEngine, TinyModel, TinyParameters, check_forward, check_round_trip
from gausslens_gaussian.analyses.collapse import AttentionOnly, Collapse, estimate, visible
from gausslens_gaussian.maths.collapse_measures import diameter, relative_diameter
from gausslens_gaussian.parameters import CollapseParameters
from gausslens_gaussian.plugin import COLLAPSE


def texts(count: int, length: int = 14) -> list[str]:
    rng = np.random.default_rng(0)
    return ["".join(chr(97 + c) for c in rng.integers(0, 26, length + i % 3)) for i in range(count)]


def test_it_runs_with_no_parameters_and_names_its_variables() -> None:
    result = check_forward(COLLAPSE, texts=texts(40))
    check_round_trip(result)
    assert result["entropy_deficit"].dims == ("layer", "head")
    for name in ("diameter", "cosine", "position_distance", "collapse_rate", "collapse_rate_se"):
        base, _, se = name.partition("_se")
        assert name in result
        assert f"{base}_path{'_se' if se == '' and name.endswith('_se') else ''}" in result


def test_deficits_are_log_n_less_the_entropy_of_each_row() -> None:
    model = TinyModel()
    text = texts(1)[0]
    tokens = model.tokenise([Prompt((Part(text),))])
    result = Collapse(CollapseParameters(), Context(model.info, 0, tokens)).run(
        TinyEngine().runner(Twin(model)), tokens
    )
    found = TinyEngine().runner(Twin(model)).forward(tokens.ids[0][None], sites=("pattern",))
    for layer in model.info.layers:
        p = found[layer, "pattern"][0].double().numpy()
        entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1)
        n = np.arange(1, p.shape[-1] + 1)
        expected = (np.log(n) - entropy)[:, 1:].mean(axis=1)
        np.testing.assert_allclose(result["entropy_deficit"].sel(layer=layer), expected, atol=1e-6)


def test_uniform_attention_has_no_deficit_and_sharp_attention_nearly_log_n() -> None:
    flat = TinyModel(TinyParameters(planted=[(0, h, 0.0) for h in range(4)]))
    sharp = TinyModel(TinyParameters(planted=[(0, 1, 100.0)]))
    for model, head, least, most in ((flat, 1, -1e-6, 1e-6), (sharp, 1, 1.0, 3.0)):
        found = check_forward(COLLAPSE, model=model, texts=texts(6))["entropy_deficit"].sel(layer=0, head=head)
        assert least <= float(found) <= most


def test_uniform_attention_contracts_values_by_what_it_says() -> None:
    model = TinyModel(TinyParameters(layers=1, planted=[(0, h, 0.0) for h in range(4)]), dtype="float64")
    tokens = model.tokenise([Prompt((Part(texts(1)[0]),))])
    runner = TinyEngine().runner(Twin(model))
    result = Collapse(CollapseParameters(), Context(model.info, 0, tokens)).run(runner, tokens)
    v = runner.forward(tokens.ids[0][None], sites=("v",))[0, "v"][0].numpy()
    means = np.cumsum(v, axis=0) / np.arange(1, len(v) + 1)[:, None, None]
    for head, kv_head in enumerate(model.info.kv_of_head):
        ratio = diameter(means[1:, kv_head]) / diameter(v[1:, kv_head])
        assert float(result["mixing"].sel(layer=0, head=head)) == pytest.approx(ratio, rel=1e-9)


def test_without_the_residual_stream_tokens_collapse_and_with_it_they_do_not() -> None:
    """Random weights, eight layers: geometric collapse of the attention-only path, none of the residual stream."""
    model = TinyModel(TinyParameters(layers=8, d_model=32))
    result = check_forward(COLLAPSE, model=model, texts=texts(40))
    rate, error = float(result["collapse_rate_path"]), float(result["collapse_rate_path_se"])
    assert rate > 0.2 + 3 * error
    assert abs(float(result["collapse_rate"])) < 0.1
    assert float(result["diameter_path"][-1]) < 0.15 * float(result["diameter_path"][0])
    assert float(result["cosine_path"][-1]) > 0.98
    assert float(result["cosine"][-1]) < 0.9
    assert float(result["position_distance_path"][-1]) < 0.2 * float(result["position_distance_path"][0])


def test_the_path_is_attention_of_its_own_output() -> None:
    model = TinyModel(TinyParameters(layers=2), dtype="float64")
    runner = TinyEngine().runner(Twin(model))
    ids = np.arange(10)[None]
    found = runner.forward(ids, sites=("pattern", "v"))
    alone = AttentionOnly(runner)
    alone.start()
    x = None
    for layer in range(2):
        after = alone.step(layer, found[layer, "pattern"], found[layer, "v"])[0].numpy()
        w = runner.weights(layer)
        if x is None:
            v = found[layer, "v"][0].numpy()
        else:
            h = x / np.sqrt((x**2).mean(axis=-1, keepdims=True))
            v = np.einsum("nd,hde->nhe", h, w.W_V.numpy())
        A = found[layer, "pattern"][0].numpy()
        heads = [A[h] @ v[:, kv] @ w.W_O[h].numpy() for h, kv in enumerate(w.kv_of_head)]
        x = np.sum(heads, axis=0)
        np.testing.assert_allclose(after, x, atol=1e-10)
    assert relative_diameter(x) > 0


def test_results_do_not_depend_on_padding() -> None:
    model = TinyModel(dtype="float64")
    mixed = ["abcdefgh ijklm", "zyx wvu", "some words here and there", "q w e r t y"]
    together = check_forward(COLLAPSE, model=model, texts=mixed)
    alone = [check_forward(COLLAPSE, model=model, texts=[text]) for text in mixed]
    for name in ("diameter", "diameter_path", "cosine", "cosine_path"):
        np.testing.assert_allclose(together[name], np.mean([a[name] for a in alone], axis=0), rtol=1e-9)


def test_how_many_keys_a_query_sees() -> None:
    info = TinyModel().info
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=bool)
    np.testing.assert_array_equal(visible(info, 0, mask)[0], [1, 2, 3, 4, 5])
    windowed = replace(info, facts={**info.facts, "sliding_window": (None, 2)})
    np.testing.assert_array_equal(visible(windowed, 0, mask)[0], [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(visible(windowed, 1, mask)[0], [1, 2, 2, 2, 2])
    np.testing.assert_array_equal(visible(replace(info, causal=False), 0, mask)[1], [3, 3, 3, 3, 3])


@pytest.mark.parametrize(("facts", "missing"), [({}, "norm"), ({"norm": "rms"}, "sliding_window")])
def test_what_a_loader_does_not_tell_is_refused_by_name(facts: dict[str, Any], missing: str) -> None:
    class Foreign(TinyModel):
        @property
        def info(self) -> ModelInfo:
            return replace(super().info, facts=facts)

    with pytest.raises(ModelError, match=f"does not tell '{missing}'"):
        check_forward(COLLAPSE, model=Foreign(), texts=texts(3))


def test_few_prompts_leave_out_what_needs_many_and_say_so() -> None:
    result = check_forward(COLLAPSE, texts=texts(5))
    assert "position_distance" not in result
    assert "more than 16 prompts of 8 text tokens" in result.attrs["not_measured"]
    assert np.isfinite(result["entropy_deficit_se"]).all()
    one = check_forward(COLLAPSE, texts=texts(1))
    assert np.isnan(one["entropy_deficit_se"]).all()


def test_layers_without_attention_are_left_out() -> None:
    model = TinyModel(TinyParameters(layers=3, attention_free=[1]))
    assert check_forward(COLLAPSE, model=model, texts=texts(5))["layer"].values.tolist() == [0, 2]


def test_equal_tokens_are_no_error() -> None:
    result = check_forward(COLLAPSE, texts=["aaaaaaaa", "bbbbbbb"])
    assert np.isfinite(result["entropy_deficit"]).all()


def test_prompts_of_one_token_are_refused() -> None:
    with pytest.raises(GausslensError, match="no prompt has two text tokens"):
        check_forward(COLLAPSE, texts=["x"])


def test_the_estimate_follows_the_prompts() -> None:
    model = TinyModel()
    short, long = (model.tokenise([Prompt((Part("a" * n),))] * 5) for n in (10, 100))
    assert (
        estimate(CollapseParameters(), model.info, long).memory
        > estimate(CollapseParameters(), model.info, short).memory
    )
    assert estimate(CollapseParameters(), model.info, None).memory == 0


def test_patterns_are_not_changed_by_looking() -> None:
    model = TinyModel()
    runner = TinyEngine().runner(Twin(model))
    ids = np.arange(12)[None]
    tokens = model.tokenise([Prompt(ids=tuple(range(12)))])
    before = runner.forward(ids)["logits"].clone()
    Collapse(CollapseParameters(), Context(model.info, 0, tokens)).run(runner, tokens)
    assert torch.equal(runner.forward(ids)["logits"], before)
