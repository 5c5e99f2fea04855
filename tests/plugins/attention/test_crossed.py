"""Attention between two stacks, through every analysis: keys are sources, of other lengths than the targets."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xarray as xr

import gausslens
from gausslens import Context, Part, Prompt, Request, Tokens, Twin
from gausslens.contract.reference import resolve
from gausslens.measuring.passes import Job, run_passes
from gausslens.testing import check_result, host_of
from gausslens.testing.stream_checks import sharded
from gausslens_attention import plugin
from gausslens_attention.analyses.patterns import looks_back, predicts, size_of
from gausslens_attention.analyses.roles import of_families
from gausslens_attention.analyses.swap import Swap
from gausslens_attention.parameters import SwapParameters

from .. import crossed_model
from ..crossed_model import CrossedEngine, CrossedModel
from .test_rectangular_maps import banded, nearest

# Source longer than target, shorter, as long, and a target of one letter: padded on either side in one batch.
TEXTS = (
    "the lazy dog sleeps|der Hund",
    "ja|yes of course",
    "same len|gth here",
    "and a long one, twice|x",
    "a|b",
)
SMALL: dict[str, dict[str, Any]] = {
    "attention.band": {"w": [0, 2, 40], "budget": [0, 3]},
    "attention.masks": {"keys": [3, 60]},
    "attention.lowrank": {"rank": [1, 2, 60]},
    "attention.kernels": {"features": [8]},
    "attention.pooling": {"directions": 1, "hidden": 1, "steps": 5},
    "attention.roles": {"directions": 4},
}
MODEL = CrossedModel()


def tokens_of(*texts: str) -> Tokens:
    return MODEL.tokenise([Prompt((Part(text),)) for text in texts or TEXTS])


def analysis_of(name: str, tokens: Tokens, given: dict[str, Any]) -> Any:
    descriptor = next(a for a in plugin.analyses() if a.name == name)
    parameters = resolve(descriptor.parameters)(**given)
    context = Context(MODEL.info, 0, tokens)
    return resolve(descriptor.analysis)(parameters, context)


def streamed(name: str, tokens: Tokens, shards: Any = None, at_once: int = 10**9) -> xr.Dataset:
    """As the host runs it: a copy for each shard, pieces of a shard joined, states merged."""
    analysis = analysis_of(name, tokens, SMALL[name])
    engine = CrossedEngine()
    engine.at_once = at_once
    given = tokens if shards is None else sharded(tokens, shards)
    job = Job(
        "one",
        name,
        analysis,
        analysis.request(),
        MODEL.info,
        shared=(analysis.context,) if hasattr(analysis, "context") else (),
    )
    list(run_passes(engine, Twin(MODEL), given, [job]))
    if job.error is not None:
        raise job.error
    return copy.deepcopy(job.state).result()


def sites_of(tokens: Tokens, *sites: str) -> dict[tuple[int, int, str], np.ndarray]:
    """Each site of a layer and prompt by itself, a prompt at a time: nothing is padded."""
    found = {}
    for prompt in range(len(tokens)):
        CrossedEngine().run(
            Twin(MODEL),
            tokens,
            np.array([prompt]),
            Request(sites),
            lambda b, prompt=prompt: found.update(
                {(b.layer, prompt, s): a[0].double().numpy() for s, a in b.arrays.items()}
            ),
        )
    return found


@pytest.mark.parametrize("name", list(SMALL))
def test_it_does_not_matter_how_prompts_are_cut_and_padded(name: str) -> None:
    tokens = tokens_of()
    whole = streamed(name, tokens)
    assert whole.attrs["keys"].startswith("tokens of the other stack")
    check_result(whole)
    one_by_one = streamed(name, tokens, [np.array([i]) for i in (3, 0, 4, 2, 1)])
    in_pieces = streamed(name, tokens, [np.arange(5)], at_once=2)
    for other in (one_by_one, in_pieces):
        xr.testing.assert_allclose(whole, other, rtol=1e-4, atol=1e-5)


def test_bands_masks_and_ranks_are_those_made_by_hand() -> None:
    tokens = tokens_of()
    sites = sites_of(tokens, "pattern", "v")
    band, masks, lowrank = (streamed(f"attention.{n}", tokens) for n in ("band", "masks", "lowrank"))
    each: dict[str, list[Any]] = {"band": [], "mask": [], "rank": [], "cells": [], "keys": [], "uniform": []}
    for prompt, (n, m) in enumerate(zip(tokens.lengths, tokens.keys.lengths, strict=True)):
        P, v = sites[1, prompt, "pattern"], sites[1, prompt, "v"].swapaxes(0, 1)[[0, 0, 1, 1]]
        assert P.shape == (4, n, m)
        inside = banded(n, m, 2)
        X = np.where(inside, P, 0.0)
        each["band"].append(np.linalg.norm((P - X) @ v, axis=(1, 2)) / np.linalg.norm(P @ v, axis=(1, 2)))
        each["cells"].append(inside.sum() + 2 * min(3, (~inside).sum()))
        kept = np.where(banded(n, m, 1), P, 0.0)
        kept /= kept.sum(axis=-1, keepdims=True)
        each["mask"].append(np.abs(P - kept).sum(axis=(1, 2)))
        each["keys"].append(banded(n, m, 1).sum())
        u, s, vt = np.linalg.svd(P, full_matrices=False)
        each["rank"].append(np.abs(P - (u[..., :2] * s[:, None, :2]) @ vt[:, :2]).sum(axis=(1, 2)))
        each["uniform"].append(np.abs(P - 1 / m).sum(axis=(1, 2)) / n)
    close = {"rtol": 1e-5, "atol": 1e-6}
    one = band.sel(layer=1)
    np.testing.assert_allclose(one["output_error"].sel(w=2, budget=0), np.mean(each["band"], axis=0), **close)
    np.testing.assert_allclose(
        one["trivial_distance_per_row"].sel(baseline="uniform"), np.mean(each["uniform"], axis=0), **close
    )
    assert float(one["scalars"].sel(w=2, budget=3)) == np.mean(each["cells"])
    one = masks.sel(layer=1).sel(kind="window", keys=3)
    np.testing.assert_allclose(one["distance"], np.mean(each["mask"], axis=0), **close)
    assert float(one["scalars"]) == np.mean(each["keys"])
    one = lowrank.sel(layer=1)
    np.testing.assert_allclose(one["distance"].sel(kind="svd", rank=2), np.mean(each["rank"], axis=0), **close)
    lengths = list(zip(tokens.lengths, tokens.keys.lengths, strict=True))
    assert float(one["scalars"].sel(kind="svd", rank=60)) == np.mean([(n + m) * min(n, m) for n, m in lengths])
    assert float(one["scalars"].sel(kind="linformer", rank=60)) == np.mean([(n + m) * m for n, m in lengths])
    # Without a mask, Linformer of as many rows as there are keys is the softmax itself; so is every whole budget.
    assert float(lowrank["output_error"].sel(rank=60, kind=["svd", "linformer"]).max()) < 1e-5
    assert float(masks["output_error"].sel(keys=60, kind=["window", "longformer", "bigbird", "top-k"]).max()) < 1e-6
    assert float(band["output_error"].sel(w=40).max()) < 1e-12


def test_kernels_are_those_made_by_hand() -> None:
    tokens = tokens_of()
    sites, d = sites_of(tokens, "pattern", "q", "k"), MODEL.info.d_head
    found, each = streamed("attention.kernels", tokens), []
    for prompt in range(len(tokens)):
        q, k = (sites[0, prompt, s].swapaxes(0, 1) * d**-0.25 for s in "qk")
        phi_q, phi_k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (q, k[[0, 0, 1, 1]]))
        weights = np.einsum("hqd,hkd->hqk", phi_q, phi_k)
        weights /= weights.sum(axis=-1, keepdims=True)
        each.append(np.abs(sites[0, prompt, "pattern"] - weights).sum(axis=(1, 2)))
    np.testing.assert_allclose(found["distance"].sel(layer=0, kind="elu"), np.mean(each, axis=0), rtol=1e-5)
    lengths = zip(tokens.lengths, tokens.keys.lengths, strict=True)
    assert float(found["scalars"].sel(kind="elu")) == np.mean([(n + m) * d for n, m in lengths])
    # "ja" and "a" are three and two keys: too few for six numbers, however long their targets are.
    assert found.attrs["too_short"].startswith("least-squares takes as many tokens as a key has numbers: 2 of 5")


def test_the_dot_product_makes_the_scores() -> None:
    found = streamed("attention.pooling", tokens_of())
    np.testing.assert_allclose(found["explained"].sel(scoring="dot"), 1.0, atol=1e-5)


def test_roles_are_of_the_stretched_diagonal() -> None:
    tokens = tokens_of()
    sites, found = sites_of(tokens, "pattern"), streamed("attention.roles", tokens)
    itself, first = (
        [np.mean([sites[0, p, "pattern"][:, i, at(i)] for i in range(n)], axis=0) for p, n, at in places]
        for places in (
            [
                (p, n, nearest(n, m).__getitem__)
                for p, (n, m) in enumerate(zip(tokens.lengths, tokens.keys.lengths, strict=True))
            ],
            [(p, n, lambda i: 0) for p, n in enumerate(tokens.lengths)],
        )
    )
    np.testing.assert_allclose(found["itself"].sel(layer=0), np.mean(itself, axis=0), rtol=1e-5)
    np.testing.assert_allclose(found["first"].sel(layer=0), np.mean(first, axis=0), rtol=1e-5)


def test_a_planted_alignment_is_a_diagonal() -> None:
    """Each query looks at its place among twice as many keys: that is offset 0 of the stretched diagonal."""
    P = np.full((1, 6, 12), 0.01)
    P[0, np.arange(6), nearest(6, 12)] += 1 - 0.12
    told = of_families(P, 8, causal=False)
    assert float(told["offset"][0]) == 0
    assert float(told["itself"][0]) == pytest.approx(0.89)
    assert told["share"][0].argmax() == 0


def swapped(tokens: Tokens, **given: Any) -> xr.Dataset:
    none = {"band": [], "masks": [], "rank": []}
    analysis = Swap(SwapParameters(**(none | given)), Context(MODEL.info, 0, tokens))
    return check_result(analysis.run(CrossedEngine().runner(Twin(MODEL)), tokens))


def test_whole_budgets_change_nothing() -> None:
    whole = {
        "band": [99],
        "budget": [0],
        "masks": ["window", "longformer", "bigbird", "top-k"],
        "keys": [199],
        "rank": [99],
    }
    found = swapped(tokens_of(), **whole, which=["all", "each"])
    assert float(found["logit_change"].max()) < 1e-4
    assert float(np.abs(found["loss_change_each"]).max()) < 1e-5
    assert found.attrs["judge"] == "loss_change"


def by_hand(tokens: Tokens, prompt: int, put: Any) -> np.ndarray:
    """Log probabilities [position, token] of the model with the patterns that ``put(layer, pattern)`` makes."""
    outside = Twin(MODEL).weights(None)
    E, pos, U = (outside[name].double().numpy() for name in ("W_E", "W_pos", "W_U"))

    def normed(x: np.ndarray) -> np.ndarray:
        return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6))

    x, y = (E[t.ids[prompt]] + pos[: t.lengths[prompt]] for t in (tokens, tokens.keys))
    y = normed(y)
    for layer in range(2):
        weights = Twin(MODEL).weights(layer)
        W = {name: weights[name].double().numpy() for name in ("W_Q", "W_K", "W_V", "W_O")}
        scores = np.stack([normed(x) @ W["W_Q"][h] @ (y @ W["W_K"][h // 2]).T / 6**0.5 for h in range(4)])
        pattern = np.exp(scores - scores.max(axis=-1, keepdims=True))
        pattern = put(layer, pattern / pattern.sum(axis=-1, keepdims=True))
        x = x + sum(pattern[h] @ (y @ W["W_V"][h // 2]) @ W["W_O"][h] for h in range(4))
    logits = normed(x) @ U
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)))


@pytest.mark.parametrize("kind", ["band 0 + 0", "window 3", "top-k 2", "svd 1", "longformer 3"])
def test_a_swap_costs_what_it_costs_by_hand(kind: str) -> None:
    tokens = tokens_of()

    def put(_: int, P: np.ndarray) -> np.ndarray:
        n, m = P.shape[1:]
        if kind == "svd 1":
            u, s, vt = np.linalg.svd(P, full_matrices=False)
            return np.asarray(u[..., :1] * s[:, None, :1] @ vt[:, :1])
        width = {"band 0 + 0": 0, "window 3": 1, "longformer 3": 0}
        mask = np.broadcast_to(banded(n, m, width.get(kind, 0)), P.shape).copy()
        if kind == "longformer 3":
            mask[:, 0], mask[:, :, 0] = True, True
        if kind == "top-k 2":
            mask = np.sort(P, axis=-1)[..., -2:][..., :1] <= P
        kept = np.where(mask, P, 0.0)
        return np.asarray(kept / kept.sum(axis=-1, keepdims=True))

    given = {"band": {"band": [0], "budget": [0]}, "svd": {"rank": [1]}}.get(kind.split()[0])
    found = swapped(tokens, **(given or {"masks": [kind.split()[0]], "keys": [int(kind.split()[1])]}))
    losses, own, kl, counted = 0.0, 0.0, 0.0, 0
    for prompt, ids in enumerate(tokens.ids):
        changed, plain = by_hand(tokens, prompt, put), by_hand(tokens, prompt, lambda _, P: P)
        rows = np.arange(len(ids) - 1)
        losses, own = losses - changed[rows, ids[1:]].sum(), own - plain[rows, ids[1:]].sum()
        kl += float((np.exp(plain[rows]) * (plain[rows] - changed[rows])).sum())
        counted += len(rows)
    one = found.sel(setting=kind)
    assert float(found["loss_whole"]) == pytest.approx(own / counted, rel=1e-5)
    assert float(one["loss"]) == pytest.approx(losses / counted, rel=1e-4)
    assert float(one["kl"]) == pytest.approx(kl / counted, rel=1e-3)


def test_kernels_and_single_heads_are_swapped() -> None:
    found = swapped(tokens_of(), kernels=["elu", "performer"], features=[8], which=["all", "each"], draws=2)
    assert np.isfinite(found["kl_each"]).all()
    assert (found["kl"] > 0).all()
    lengths = zip(tokens_of().lengths, tokens_of().keys.lengths, strict=True)
    assert float(found["scalars"].sel(setting="elu")) == np.mean([(n + m) * 6 for n, m in lengths])


def test_generators_are_named_by_both_sizes() -> None:
    """Where both are as long, the draws are those of any other model of that length."""
    assert (size_of(7, 7), size_of(7, 8)) == ("7", "7 x 8")


SWAPPED = {
    "band": [1],
    "budget": [0, 1],
    "masks": ["window", "bigbird"],
    "keys": [4],
    "rank": [1],
    "kernels": ["elu"],
    "which": ["all", "each"],
}
USES = [
    *({"use": name, "with": given} for name, given in SMALL.items()),
    {"use": "attention.swap", "with": SWAPPED},
    {"use": "model.attention", "with": {"maps": "heads"}},
    {"use": "model.attention", "as": "words", "with": {"level": "word"}},
    {"use": "bilinear.alignment"},
    {"use": "bilinear.spectrum"},
    {"use": "bilinear.slerp", "with": {"sizes": [8], "pairs": 4}},
]


def study(uses: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "gausslens": 1,
        "name": "crossed",
        "model": {"path": "builtin:crossed"},
        "prompts": {"source": "text", "text": list(TEXTS[:3])},
        "variants": {
            "trained": [],
            "chance": {"edits": [{"edit": "reinit.config"}], "draws": 5},
        },
        "analyses": uses,
        "against": ["chance"],
        "report": True,
    }


def test_everything_runs_against_its_nulls_and_is_drawn(tmp_path: Any) -> None:
    host = host_of("models", "attention", "bilinear", "reinit", crossed=crossed_model)
    results = gausslens.run(study(USES), store=tmp_path / "store", host=host, shown=False)
    for use in USES:
        label = use.get("as", use["use"])
        check_result(results["trained", label])
        if label != "bilinear.slerp":  # which reads nothing that a null changes
            compared = results.against("trained", label, "chance")
            assert any(np.isfinite(compared[n].values).any() for n in compared.data_vars if str(n).endswith("_z"))
    maps = results["trained", "model.attention"]["pattern"]
    assert maps.sizes["query"] != maps.sizes["key"]
    titles = [drawn.figure.title for drawn in gausslens.draw(results)]
    assert any(title.startswith("Attention, prompt 0, trained") for title in titles)
    page = next((tmp_path / "store").rglob("*.html")).read_text()
    for title in (
        "Output error of band plus sparse error",
        "Families of heads",
        "Scoring functions",
        "Entropy deficit",
    ):
        assert title in page, title
    assert page.count("Keys are tokens of the other stack") >= 4


@pytest.mark.parametrize("name", ["bilinear.angles", "bilinear.head-roles", "bilinear.logits"])
def test_what_has_no_meaning_there_is_refused_by_name(name: str, tmp_path: Any) -> None:
    host = host_of("models", "bilinear", "reinit", crossed=crossed_model)
    one = {"gausslens": 1, "name": "x", "model": {"path": "builtin:crossed"}, "analyses": [{"use": name}]}
    one["prompts"] = {"source": "text", "text": list(TEXTS)}
    one["analyses"] = [{"use": name, "prompts": one["prompts"]}]
    with pytest.raises(gausslens.GausslensError, match=f"{name} does not know attention from one stack to another"):
        gausslens.run(one, store=tmp_path / "store", host=host, shown=False)


def test_a_model_that_says_it_looks_back_still_sees_all_keys() -> None:
    """Whatever its own stack does: what is causal there is the decoder, not its attention to the encoder."""
    causal = replace(MODEL.info, causal=True)
    assert not looks_back(causal)
    assert predicts(MODEL.info)
