"""attention.swap: budgets that keep everything change nothing, in every family; smaller ones cost what they should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from gausslens import Context, GausslensError, ModelError, ModelSpec, Part, Prompt, Tokens, Twin
from gausslens.testing import TinyEngine, TinyModel, TinyParameters, check_forward, check_round_trip
from gausslens_attention.analyses.patterns import query_and_key_sites
from gausslens_attention.analyses.swap import Swap
from gausslens_attention.maths.predictions import enough, is_within
from gausslens_attention.parameters import SwapParameters
from gausslens_attention.plugin import SWAP
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.pretrained import open_pretrained
from gausslens_models.parameters import TransformersParameters

# A band, masks and a rank that leave everything as it is.
WHOLE: dict[str, Any] = {
    "band": [10_000],
    "budget": [0],
    "masks": ["window", "longformer", "bigbird", "top-k"],
    "keys": [10_000],
    "rank": [10_000],
}
NONE: dict[str, Any] = {"band": [], "masks": [], "rank": []}
EVERY_KERNEL = ["elu", "taylor-1", "taylor-2", "performer", "least-squares"]


def test_as_the_host_runs_it() -> None:
    parameters = SwapParameters(
        which=["all", "each"], keys=[3], band=[0], budget=[0, 1], kernels=EVERY_KERNEL, features=[8]
    )
    result = check_forward(SWAP, parameters)
    check_round_trip(result)
    assert result["loss_change_each"].dims == ("setting", "layer", "head")
    assert result.attrs["judge"] == "loss_change"


def swapped(model: Any, tokens: Tokens, **given: Any) -> Any:
    """The result on a model opened by the loader `transformers`."""
    context = Context(model.info, 0, tokens)
    return Swap(SwapParameters(**given), context).run(TransformersEngine().runner(Twin(model)), tokens)


def test_a_whole_budget_changes_no_family(
    family: str, family_model: Callable[[str], Any], family_tokens: Tokens
) -> None:
    model = family_model(family)
    result = swapped(model, family_tokens, **WHOLE, which=["all", "each"])
    if "logit_change" in result:
        assert float(result["logit_change"].max()) < 1e-4
        assert float(result["logit_change_each"].max()) < 1e-4
        assert float(np.abs(result["kl"]).max()) < 1e-6
        assert float(result["agreement"].min()) == 1
    assert float(result["hidden_change"].max()) < 1e-5
    small = swapped(model, family_tokens, band=[0], budget=[0], masks=[], rank=[1])
    assert float(small["hidden_change"].min()) > 1e-3


def test_queries_and_keys_are_those_that_make_the_pattern(
    family: str, family_model: Callable[[str], Any], family_tokens: Tokens
) -> None:
    """What kernels are made of: softmax(scale q . k) is the model's own pattern, in every family."""
    model = family_model(family)
    ids, info = family_tokens.ids[0], model.info
    sites = query_and_key_sites(info)
    seen = TransformersEngine().runner(Twin(model)).forward(ids[None], sites=("pattern", *sites))
    checked = 0
    for layer in info.layers:
        if "pattern" in info.lacking.get(layer, {}):
            continue
        q, k = (seen[layer, site][0].transpose(0, 1).double() for site in sites)
        scores = q @ k[list(info.kv_of_head)].transpose(-1, -2) * info.facts.scale(layer)
        cap = info.facts.get("soft_cap")
        scores = cap * (scores / cap).tanh() if cap else scores
        pattern = seen[layer, "pattern"][0].double()
        # Some families look through a window: what it hides is hidden here too.
        made = scores.masked_fill(pattern == 0, -torch.inf).softmax(-1)
        torch.testing.assert_close(made, pattern, rtol=0, atol=1e-5)
        checked += 1
    assert checked


def test_facts_that_a_loader_does_not_tell_are_not_guessed() -> None:
    info = TinyModel(TinyParameters()).info
    assert query_and_key_sites(info) == ("q", "k")
    assert query_and_key_sites(replace(info, facts={"position": "rotary"})) == ("q_rot", "k_rot")
    plain = {"position": "none", "query_norm": False}
    assert query_and_key_sites(replace(info, facts=plain)) == ("q", "k")
    assert query_and_key_sites(replace(info, facts=plain | {"query_norm": True})) == ("q_rot", "k_rot")
    with pytest.raises(ModelError, match="does not tell 'query_norm'"):
        query_and_key_sites(replace(info, facts={"position": "none"}))
    unknown = replace(info, facts={"position": "unknown"})
    assert query_and_key_sites(unknown) == ("q_rot", "k_rot")
    model, tokens = tiny()
    context = Context(replace(model.info, facts={"position": "learned", "query_norm": False}), 0, tokens)
    with pytest.raises(ModelError, match="does not tell 'scale'"):
        Swap(SwapParameters(**NONE, kernels=["elu"]), context).run(TinyEngine().runner(Twin(model)), tokens)


@pytest.mark.real_model
@pytest.mark.parametrize("name", ["smollm2", "minilm"])
def test_a_whole_budget_changes_no_real_model(name: str, real_models: Path) -> None:
    model = open_pretrained(ModelSpec(str(real_models / name), TransformersParameters()))
    tokens = model.tokenise(
        [Prompt((Part("The ferry left the harbour at six, and nobody on deck could see the islands."),))]
    )
    result = swapped(model, tokens, **WHOLE)
    assert ("loss" in result) == (name == "smollm2")
    assert result.attrs["judge"] == ("loss_change" if name == "smollm2" else "hidden_change")
    if name == "smollm2":
        assert float(result["logit_change"].max()) < 1e-4
        assert float(np.abs(result["loss_change"]).max()) < 1e-6
    assert float(result["hidden_change"].max()) < 1e-5


def tiny(**given: Any) -> tuple[TinyModel, Tokens]:
    model = TinyModel(TinyParameters(layers=3, **given))
    return model, model.tokenise([Prompt((Part(text),)) for text in ("The quick brown fox", "jumps over it")])


def run(model: TinyModel, tokens: Tokens, **given: Any) -> Any:
    context = Context(model.info.narrowed(given.pop("layers", None), given.pop("heads", None)), 0, tokens)
    return Swap(SwapParameters(**given), context).run(TinyEngine().runner(Twin(model)), tokens)


def test_what_the_model_loses_is_measured_as_it_says() -> None:
    model, tokens = tiny()
    result = run(model, tokens, band=[2], budget=[0], masks=[], rank=[])
    runner = TinyEngine().runner(Twin(model))

    def replace(layer: int, scores: torch.Tensor, pattern: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        n = pattern.shape[-1]
        apart = torch.arange(n)[:, None] - torch.arange(n)
        return scores.masked_fill((apart > 2) | (apart < 0), -torch.inf).softmax(-1)

    losses, whole, divergence, count = 0.0, 0.0, 0.0, 0
    for ids in tokens.ids:
        plain, made = (runner.forward(ids[None], replace=r)["logits"][0, :-1].double() for r in (None, replace))
        targets = torch.as_tensor(ids[1:])
        losses += float(torch.nn.functional.cross_entropy(made, targets, reduction="sum"))
        whole += float(torch.nn.functional.cross_entropy(plain, targets, reduction="sum"))
        p, r = plain.log_softmax(-1), made.log_softmax(-1)
        divergence += float((p.exp() * (p - r)).sum())
        count += len(targets)
    assert float(result["loss_whole"]) == pytest.approx(whole / count, abs=1e-6)
    assert float(result["loss"].squeeze()) == pytest.approx(losses / count, abs=1e-6)
    assert float(result["loss_change"].squeeze()) == pytest.approx(losses / whole - 1, abs=1e-6)
    assert float(result["kl"].squeeze()) == pytest.approx(divergence / count, abs=1e-6)


def test_an_error_has_the_unit_of_what_it_is_of() -> None:
    model, tokens = tiny()
    result = run(model, tokens, band=[2], budget=[0], masks=[], rank=[], which=["all", "each"])
    errors = {str(name): str(name).replace("_se", "", 1) for name in result.data_vars if "_se" in str(name)}
    assert {"kl_se", "kl_se_each", "loss_change_se"} <= set(errors)
    for name, of in errors.items():
        assert result[name].attrs["units"] == result[of].attrs["units"], name


@pytest.mark.parametrize("kernels", [[], EVERY_KERNEL])
def test_one_head_alone_is_the_same_as_all_heads_in_view(kernels: list[str]) -> None:
    model, tokens = tiny()
    given: dict[str, Any] = {"band": [1], "budget": [0], "masks": [], "rank": [2], "kernels": kernels, "features": [8]}
    each = run(model, tokens, **given, which=["each"])
    for layer, head in ((0, 0), (1, 3), (2, 2)):
        alone = run(model, tokens, **given, layers=[layer], heads=[head])
        for name in ("loss", "kl", "hidden_change"):
            one = each[f"{name}_each"].sel(layer=layer, head=head)
            np.testing.assert_allclose(one, alone[name], rtol=1e-5, atol=1e-7)


def test_kernels_follow_what_was_put_in_before() -> None:
    """With all heads at once, q and k of a layer are those of the changed model: as a model with that attention has."""
    model, tokens = tiny()
    result = run(model, tokens, **NONE, kernels=["elu"])
    whole = TinyEngine().runner(Twin(model))
    changes = []
    for ids in tokens.ids:
        known: dict[int, torch.Tensor] = {}
        for layer in model.info.layers:
            seen = whole.forward(ids[None], sites=("q", "k"), replace=lambda n, s, p, v: known.get(n))  # noqa: B023
            q, k = (seen[layer, site][0].transpose(0, 1).double() * 6**-0.25 for site in ("q", "k"))
            k = k[list(model.info.kv_of_head)]
            weights = ((torch.nn.functional.elu(q) + 1) @ (torch.nn.functional.elu(k) + 1).transpose(-1, -2)).tril()
            known[layer] = (weights / weights.sum(-1, keepdim=True)).float()[None]
        found = whole.forward(ids[None], sites=("resid_post",), replace=lambda n, s, p, v: known[n])  # noqa: B023
        plain = whole.forward(ids[None], sites=("resid_post",))
        last = (model.info.layers[-1], "resid_post")
        changes.append(float((found[last] - plain[last]).norm() / plain[last].norm()))
    assert float(result["hidden_change"].squeeze()) == pytest.approx(np.mean(changes), rel=1e-4)


def test_larger_budgets_cost_less_and_the_least_that_is_enough_is_told() -> None:
    model, tokens = tiny(planted=[(0, 0, 6.0)])
    result = run(
        model, tokens, band=[0, 4, 30], budget=[0], masks=["top-k"], keys=[1, 6, 30], rank=[1, 30], tolerance=1e-3
    )
    by_setting = result["hidden_change"].to_series()
    assert by_setting["band 0 + 0"] > by_setting["band 4 + 0"] > by_setting["band 30 + 0"]
    assert by_setting["top-k 1"] > by_setting["top-k 6"] > by_setting["top-k 30"]
    for kind in ("band", "top-k", "svd"):
        enough = [
            float(one["scalars"])
            for one in (result.sel(setting=s) for s in result["setting"].values)
            if str(one["setting_kind"].values) == kind and _near(one, 1e-3)
        ]
        assert float(result["scalars_needed"].sel(kind=kind)) == min(enough)
    assert "change the loss by at most 0.001, up or down" in result["scalars_needed"].attrs["long_name"]
    alone = run(model, tokens, band=[4], budget=[0], masks=[], rank=[], which=["each"])
    assert alone.attrs["judge"] == "loss_change"
    assert "enough" not in alone


def _near(one: Any, tolerance: float) -> bool:
    """The two conditions, by hand: 12.706 is Student's quantile of 97.5 % with one degree of freedom (two prompts)."""
    loss = abs(float(one["loss_change"])) + 12.706 * float(one["loss_change_se"])
    kl = abs(float(one["kl"])) + 12.706 * float(one["kl_se"])
    return loss <= tolerance and kl <= tolerance * float(one["loss_whole"])


def _written(model: TinyModel, gain: bool) -> Tokens:
    """Texts that the model with one key a row loses nothing on, or gains, while its predictions are others.

    Each next token is chosen by both models' distributions: the one that brings the sum of the losses' differences
    nearest to zero, or the one on which the changed model gains most.
    """
    runner = TinyEngine().runner(Twin(model))

    def replace(layer: int, scores: torch.Tensor, pattern: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(pattern).scatter_(-1, pattern.argmax(-1, keepdim=True), 1.0)

    prompts = []
    for start in range(5):
        ids, total = [start + 3], 0.0
        while len(ids) < 14:
            now = np.array(ids)[None]
            own, made = (runner.forward(now, sites=("logits",), replace=r)["logits"][0, -1] for r in (None, replace))
            apart = own.double().log_softmax(-1) - made.double().log_softmax(-1)
            ids.append(int(apart.argmin() if gain else (apart + total).abs().argmin()))
            total += float(apart[ids[-1]])
        prompts.append(Prompt(ids=tuple(ids)))
    return model.tokenise(prompts)


def test_what_costs_no_loss_but_the_predictions_is_not_enough() -> None:
    model = TinyModel(TinyParameters(layers=3, planted=[(0, 0, 6.0), (1, 2, 6.0)]))
    given: dict[str, Any] = NONE | {"band": [30], "budget": [0], "masks": ["top-k"], "keys": [1], "tolerance": 2e-3}
    tokens = _written(model, gain=False)
    result = run(model, tokens, **given)
    one = result.sel(setting="top-k 1")
    assert abs(float(one["loss_change"])) < 1e-3
    assert float(one["kl"]) > 2 * result.attrs["kl_tolerance"]
    assert result["enough"].values.tolist() == [1, 0]
    assert result.attrs["smallest_enough"].startswith("band 30 + 0 (")
    # It is the divergence that stops it, and nothing else.
    free = run(model, tokens, **given, kl_tolerance=1e6)
    assert free["enough"].values.tolist() == [1, 1]
    assert free.attrs["smallest_enough"].startswith("top-k 1 (")
    # The loss of a text on which the changed model does better falls: that is a change of its size.
    gained = run(model, _written(model, gain=True), **given, kl_tolerance=1e6)
    assert float(gained["loss_change"].sel(setting="top-k 1")) < -2e-3
    assert gained["enough"].values.tolist() == [1, 0]


def test_one_prompt_tells_no_interval_and_decides_nothing() -> None:
    model, _ = tiny()
    result = run(model, model.tokenise([Prompt((Part("The quick brown fox"),))]), **NONE | {"rank": [1, 30]})
    assert np.isnan(result["enough"]).all()
    assert np.isnan(result["scalars_needed"]).all()
    assert result.attrs["smallest_enough"] == "none"


def test_the_interval_has_the_rate_that_it_says() -> None:
    """A change that is just at the bound is called enough in 2.5 % of cases, and too much in 2.5 %."""
    rng, m, repeats = np.random.default_rng(0), 6, 20_000
    values = 0.01 + 0.002 * rng.standard_normal((m, repeats))
    error = values.std(axis=0, ddof=1) / np.sqrt(m)
    met = is_within(values.mean(axis=0), error, np.full(repeats, m), 0.01)
    tolerance = 4 * np.sqrt(0.025 * 0.975 / repeats)
    assert abs(np.mean(met == 1) - 0.025) < tolerance
    assert abs(np.mean(met == 0) - 0.025) < tolerance
    conditions = np.array([[1, 1, 0, 1, np.nan], [1, 0, 0, np.nan, 0]])
    np.testing.assert_array_equal(enough(*conditions), [1, 0, 0, np.nan, 0])


def test_random_maps_are_drawn_several_times_and_the_mean_is_told() -> None:
    model, tokens = tiny()
    given: dict[str, Any] = {"band": [1], "budget": [0], "masks": ["bigbird"], "keys": [5], "rank": []}
    given |= {"kernels": ["performer"], "features": [8]}
    several = run(model, tokens, **given, draws=3)
    assert several.attrs["draws"] == 3
    for name in ("kl", "loss_change", "hidden_change"):
        sd = several[f"{name}_draws_sd"].to_series()
        assert sd["band 1 + 0"] == 0
        assert sd["bigbird 5"] > 0
        assert sd["performer 8"] > 0
    # The draws of which the mean is taken are the same ones, however many there are.
    of_two, of_one = (run(model, tokens, **given, draws=draws) for draws in (2, 1))
    assert "kl_draws_sd" not in of_one
    for setting in ("bigbird 5", "performer 8"):
        mean, first = (float(r["kl"].sel(setting=setting)) for r in (of_two, of_one))
        apart = float(of_two["kl_draws_sd"].sel(setting=setting))
        assert abs(first - mean) == pytest.approx(apart / np.sqrt(2), rel=1e-6)
    assert "kl_draws_sd" not in run(model, tokens, band=[1], budget=[0], masks=[], rank=[])


def test_a_prompt_too_short_for_a_fit_has_no_number_and_is_told() -> None:
    model, _ = tiny()  # keys have 6 numbers
    texts = ["so", "The quick brown fox", "jumps over it"]
    given: dict[str, Any] = NONE | {"kernels": ["elu", "least-squares"]}
    whole, long, short = (
        run(model, model.tokenise([Prompt((Part(text),)) for text in some]), **given)
        for some in (texts, texts[1:], texts[:1])
    )
    assert "least-squares: 1 of 3 prompts have fewer than the 6 tokens" in whole.attrs["too_short"]
    assert "too_short" not in long.attrs
    for name in ("loss", "loss_change", "loss_change_se", "kl", "hidden_change"):
        assert float(whole[name].sel(setting="least-squares")) == float(long[name].sel(setting="least-squares"))
        assert float(whole[name].sel(setting="elu")) != float(long[name].sel(setting="elu"))
    assert np.isnan(float(short["kl"].sel(setting="least-squares")))
    assert np.isfinite(float(short["kl"].sel(setting="elu")))
    assert np.isnan(float(short["enough"].sel(setting="least-squares")))


def test_a_prompt_of_one_token_is_left_out_and_nothing_else_is_an_error() -> None:
    model, _ = tiny()
    with pytest.raises(GausslensError, match="no prompt has two tokens"):
        run(model, model.tokenise([Prompt(ids=(3,))]))


@pytest.mark.parametrize(
    "given",
    [
        NONE,
        {"masks": ["longformer"], "keys": [1]},
        {"which": []},
        {"band": [-1]},
        {"rank": [2, 2]},
        {"kernels": ["performer", "elu"], "features": []},
        {"keys": []},
        {"budget": []},
        {"draws": 0},
        {"kl_tolerance": 0.0},
    ],
)
def test_parameters_that_make_no_sense_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SwapParameters(**given)
