"""Capture: every site of every family is given, checked, or refused by name; nothing is left behind."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tiny_mixtures import MIXTURES

from gausslens import SITES, Batch, ModelError, Request, Tokens, Twin
from gausslens_models.capture import attention
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.pretrained import PretrainedModel

Opens = Callable[[str], PretrainedModel]


def captured(model: PretrainedModel, tokens: Tokens, request: Request) -> list[Batch]:
    """All batches of all shards, kept."""
    found: list[Batch] = []
    engine = TransformersEngine()
    for shard in tokens.shards():
        engine.run(Twin(model), tokens, shard, request, found.append)
    return found


def hooks(module: Any) -> int:
    """How many hooks there are in a module, and watched attention modules anywhere."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return sum(len(getattr(m, kind)) for m in module.modules() for kind in kinds) + attention.watched()


def test_every_site_is_given_or_refused_by_name(which: str, opened: Opens, prompts: Tokens) -> None:
    model = opened(which)
    has = TransformersEngine().sites(model)
    for site in SITES:
        if site not in has:
            with pytest.raises(ModelError, match=f"no site '{site}'.*resid_pre"):
                captured(model, prompts, Request((site,)))
            continue
        batches = captured(model, prompts, Request((site,)))
        layers = [n for n in model.info.layers if site not in model.info.lacking.get(n, {})]
        layers = [None] if site in ("embed", "logits") else layers
        assert [b.layer for b in batches] == layers
        for batch in batches:
            assert set(batch.arrays) == {site}
            assert batch[site].shape[0] == len(prompts)
            real = batch[site].transpose(1, 2) if site in ("scores", "pattern") else batch[site]
            assert real[batch.mask].float().abs().sum() > 0
            assert not torch.isnan(batch[site]).any()  # not in padding either: nought times it must be nought
            if site != "scores":
                assert torch.isfinite(batch[site]).all()


def test_the_lacking_sites_are_those_that_cannot_be(which: str, opened: Opens) -> None:
    model = opened(which)
    lacking = set(SITES) - set(TransformersEngine().sites(model))
    expected = set()
    if model.info.family in ("gpt2", "bert", "opt", "gpt_bigcode", "biogpt", "ctrl"):
        expected |= {"q_rot", "k_rot"}
    if which in ("gpt_neox", "cohere", "cohere2", "cohere2_moe", "phi", "stablelm-parallel"):
        expected |= {"resid_mid"}
    if which in MIXTURES and all(model.info.facts.experts(layer) for layer in model.info.layers):
        expected |= {"mlp_pre", "mlp_post"}
    if which == "granitemoeshared":
        expected |= {"mlp_out"}
    if which in ("gpt2-headless", "bert"):
        expected |= {"logits"}
    assert lacking == expected
    reasons = model.info.lacking.get(0, {})
    assert all(reasons[site] for site in expected - {"logits"})


def test_layers_without_attention_are_skipped_with_a_reason(opened: Opens, prompts: Tokens) -> None:
    model = opened("lfm2")
    assert set(model.info.lacking) == {0, 2}
    assert "short convolution" in model.info.lacking[0]["pattern"]
    batches = captured(model, prompts, Request(("resid_pre", "pattern")))
    assert [(b.layer, set(b.arrays)) for b in batches] == [
        (0, {"resid_pre"}),
        (1, {"resid_pre", "pattern"}),
        (2, {"resid_pre"}),
    ]
    assert model.names(0)[:3] == ("W_conv", "W_conv_in", "W_conv_out")
    assert "W_Q" in model.names(1)


def test_sites_fit_together(family_of_all: str, opened: Opens, prompts: Tokens) -> None:
    """The stream adds up: what a layer reads and writes is what lies between resid_pre and resid_post."""
    model, which = opened(family_of_all), family_of_all
    family, sites = model.info.family, TransformersEngine().sites(model)
    asked = tuple(s for s in sites if s not in ("logits", "embed"))
    batches = captured(model, prompts, Request(asked))
    for batch, after in pairwise(batches):
        assert torch.equal(batch["resid_post"], after["resid_pre"])
    for batch in batches:
        if family == "bert" or which == "opt-after" or "attn_out" not in batch.arrays:
            continue  # the norm stands after the sum, or there is no attention
        if "mlp_out" in batch.arrays:
            made = batch["resid_pre"] + batch["attn_out"] + batch["mlp_out"]
            assert torch.allclose(made, batch["resid_post"], atol=1e-5)
        if "resid_mid" in sites:
            assert torch.allclose(batch["resid_pre"] + batch["attn_out"], batch["resid_mid"], atol=1e-5)
        if "mlp_post" not in batch.arrays or "ln2_post.w" in model.names(0):
            continue
        written = torch.einsum("ptm,md->ptd", batch["mlp_post"], model.tensor(batch.layer, "W_out"))
        bias = model.tensor(batch.layer, "b_out") if "b_out" in model.names(0) else 0
        assert torch.allclose((written + bias) * model.info.facts.residual_scale, batch["mlp_out"], atol=1e-5)


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_blocks_of_rows_are_the_whole(rows: int, opened: Opens, prompts: Tokens) -> None:
    model = opened("gemma2")
    sites = ("resid_pre", "pattern", "scores", "z")
    whole = {b.layer: b for b in captured(model, prompts, Request(sites))}
    blocks = captured(model, prompts, Request(sites, rows=rows))
    width = max(prompts.lengths)
    for layer, one in whole.items():
        own = [b for b in blocks if b.layer == layer]
        assert [b.rows for b in own] == list(range(0, width, rows))
        assert [b.last_rows for b in own] == [False] * (len(own) - 1) + [True]
        for site in ("pattern", "scores"):
            assert torch.allclose(torch.cat([b[site] for b in own], dim=2), one[site], atol=1e-6)
        for site in ("resid_pre", "z"):
            assert all(torch.equal(b[site], one[site]) for b in own)


def test_long_sequences_go_in_blocks_and_stay_equal(
    opened: Opens, prompts: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened("mistral")
    sites = tuple(s for s in model.sites)
    whole = captured(model, prompts, Request(sites))
    monkeypatch.setattr(attention, "BLOCK_BYTES", 3 * 4 * 4 * 11 * 4)  # four rows at a time
    cut = captured(model, prompts, Request(sites))
    for one, other in zip(whole, cut, strict=True):
        for site in one.arrays:
            finite = one[site].isfinite()
            assert torch.equal(finite, other[site].isfinite())
            assert torch.allclose(one[site][finite], other[site][finite], atol=1e-5), site


def test_masked_scores_are_minus_infinity(opened: Opens, prompts: Tokens) -> None:
    model = opened("mistral")  # a window of five
    batch = captured(model, prompts, Request(("scores", "pattern"), layers=(1,)))[0]
    for row in range(len(prompts)):
        n = int(batch.mask[row].sum())
        scores = batch["scores"][row, :, :n]
        for query in range(n):
            seen = range(max(0, query - 4), query + 1)
            finite = torch.isfinite(scores[:, query]).nonzero()[:, 1].reshape(scores.shape[0], -1)
            assert finite.tolist() == [list(seen)] * scores.shape[0]
    assert torch.equal(batch["pattern"] > 0, torch.isfinite(batch["scores"]))


def test_no_number_depends_on_what_else_is_asked(which: str, opened: Opens, prompts: Tokens) -> None:
    """A step that is computed alone after a kill gets what it would have got beside others."""
    model = opened(which)
    together = {b.layer: b for b in captured(model, prompts, Request(tuple(model.sites)))}
    for site in model.sites:
        for batch in captured(model, prompts, Request((site,), layers=(1,))):
            assert torch.equal(batch[site], together[batch.layer][site]), site


def test_a_misspelt_site_is_refused(opened: Opens, prompts: Tokens) -> None:
    with pytest.raises(ModelError, match=r"'resid_prae'.*resid_pre"):
        captured(opened("llama"), prompts, Request(("resid_prae",)))


def test_an_exception_in_a_sink_leaves_nothing_behind(which: str, opened: Opens, prompts: Tokens) -> None:
    model = opened(which)
    before, implementation = hooks(model.module), model.module.config._attn_implementation

    def fails(batch: Batch) -> None:
        raise KeyError("mine")

    asked = Request(tuple(s for s in model.sites if s not in ("embed", "logits")))
    with pytest.raises(KeyError, match="mine"):
        TransformersEngine().run(Twin(model), prompts, np.arange(3), asked, fails)
    assert hooks(model.module) == before
    assert model.module.config._attn_implementation == implementation


def test_a_site_that_never_fires_is_an_error(opened: Opens, prompts: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that goes round its projection: the hook is there, and never called."""
    model = opened("llama")
    module = model.layer_module(1).self_attn
    plain = module.v_proj
    monkeypatch.setattr(type(module.v_proj), "__call__", lambda s, x: s.forward(x) if s is plain else s._call_impl(x))
    before = hooks(model.module)
    with pytest.raises(ModelError, match="v of layer 1 fired 0 times"):
        captured(model, prompts, Request(("v",)))
    assert hooks(model.module) == before


def test_later_layers_do_not_run_when_nobody_asks(opened: Opens, prompts: Tokens) -> None:
    model = opened("llama")
    ran: list[int] = []
    for layer in model.info.layers:
        model.layer_module(layer).register_forward_hook(lambda m, a, r, n=layer: ran.append(n))
    captured(model, prompts, Request(("resid_post",), layers=(0, 1)))
    assert 2 not in ran
    assert ran.count(0) == 1


def test_nothing_is_kept_after_a_pass(opened: Opens, prompts: Tokens) -> None:
    """The garbage collector finds as many tensors after ten passes as after one."""
    model = opened("mistral")
    engine, asked = TransformersEngine(), Request(tuple(model.sites))
    counts = []
    for passes in (1, 9):
        for _ in range(passes):
            engine.run(Twin(model), prompts, np.arange(3), asked, lambda batch: None)
        gc.collect()
        counts.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
    assert counts[-1] == counts[0]


def test_training_mode_is_put_back(opened: Opens, prompts: Tokens) -> None:
    model = opened("bert")
    model.module.train()
    model.layer_module(1).eval()
    modes = [m.training for m in model.module.modules()]
    one = captured(model, prompts, Request(("resid_post",)))
    two = captured(model, prompts, Request(("resid_post",)))
    assert [m.training for m in model.module.modules()] == modes
    assert all(torch.equal(a["resid_post"], b["resid_post"]) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_model_that_is_trained_is_proved_without_its_dropout(name: str, opened: Opens) -> None:
    """A live module comes from training, or fresh from its class, with dropout of attention."""
    model = opened(name)
    model.module.train()
    model.layer_module(1).eval()
    modes = [m.training for m in model.module.modules()]
    dropping = [m.p for m in model.layer_module(0).modules() if isinstance(m, torch.nn.Dropout) and m.training]
    assert max(dropping) > 0
    wrong = [finding.what for finding in TransformersEngine().prove(model) if not finding.holds]
    assert wrong == []
    assert [m.training for m in model.module.modules()] == modes


def test_clipping_is_behind_q_k_v(opened: Opens, prompts: Tokens) -> None:
    """What the projections give is captured; what attention reads of it is within the bound."""
    model = opened("olmo")
    bound = model.info.facts.clip
    assert bound is not None
    batch = captured(model, prompts, Request(("q", "k", "v", "z"), layers=(1,)))[0]
    for name in ("q", "k", "v"):
        assert batch[name][batch.mask].abs().max() > 1.2 * bound
    assert batch["z"][batch.mask].abs().max() <= bound * (1 + 1e-5)
