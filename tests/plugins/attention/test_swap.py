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
    assert query_and_key_sites(replace(info, facts={"position": "none"})) == ("q", "k")
    unknown = replace(info, facts={"position": "unknown"})
    assert query_and_key_sites(unknown) == ("q_rot", "k_rot")
    model, tokens = tiny()
    context = Context(replace(model.info, facts={"position": "learned"}), 0, tokens)
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
            float(result["scalars"].sel(setting=s))
            for s, m in zip(result["setting"].values, result["setting_kind"].values, strict=True)
            if m == kind and float(result["loss_change"].sel(setting=s)) <= 1e-3
        ]
        assert float(result["scalars_needed"].sel(kind=kind)) == min(enough)
    assert "change the loss by at most 0.001" in result["scalars_needed"].attrs["long_name"]
    alone = run(model, tokens, band=[4], budget=[0], masks=[], rank=[], which=["each"])
    assert alone.attrs["judge"] == "loss_change"


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
    ],
)
def test_parameters_that_make_no_sense_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SwapParameters(**given)
