"""spectrum.effect: intervals that cover, distances by their definitions, and agreement with other analyses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gausslens_spectrum.analyses.edited_beside_unedited as paired_runs
from gausslens import Context, ModelError, Prompt, Results, Tokens, Twin
from gausslens.maths.resampling import average
from gausslens.testing import TinyEngine, TinyModel, check_forward
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.prompts.tokenise import tokenise
from gausslens_spectrum import plugin
from gausslens_spectrum.analyses.edited_beside_unedited import layers_that_fit, run_both
from gausslens_spectrum.analyses.effect import Effect
from gausslens_spectrum.maths.distances import attention, entropy, predictions
from gausslens_spectrum.parameters import EffectParameters

Runs = Callable[..., Results]
PROMPTS = {"source": "text", "text": ["abcdefgh abcdefgh", "one two three one two three", "again and again"]}


@pytest.mark.parametrize("prompts", [6, 40])
def test_intervals_cover_what_they_say(prompts: int) -> None:
    """Tokens of a prompt go together: half of the spread is between prompts, whose lengths differ."""
    draw = np.random.default_rng(0)
    runs = 4000
    lengths = draw.integers(5, 40, size=(runs, prompts))
    means = 0.3 + draw.normal(size=(runs, prompts)) * 0.2
    sums = lengths * means + draw.normal(size=(runs, prompts)) * np.sqrt(lengths)
    found = [average(s, n, 0.95) for s, n in zip(sums, lengths, strict=True)]
    covered = np.mean([one.low <= 0.3 <= one.high for one in found])
    # The standard error of a share of 95 % in 4000 is 0.35 %.
    assert 0.93 < covered < 0.97
    assert average(sums[0], lengths[0], 0.5).high < found[0].high


def test_an_average_counts_tokens_and_leaves_empty_prompts_out() -> None:
    found = average([[4.0, 8.0], [1.0, 1.0], [0.0, 0.0]], [2, 1, 0], 0.95)
    np.testing.assert_allclose(found.value, [5 / 3, 3.0])
    assert (found.low < found.value).all()
    alone = average([4.0, 0.0], [2, 0], 0.95)
    assert (alone.value, np.isnan(alone.low), np.isnan(alone.high)) == (2.0, True, True)
    assert np.isnan(average([0.0], [0], 0.95).value)


def logits_of(positions: int, seed: int) -> torch.Tensor:
    return 3 * torch.randn(positions, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seed=st.integers(0, 10_000), positions=st.integers(1, 150), causal=st.booleans())
def test_predictions_are_compared_by_their_definitions(seed: int, positions: int, causal: bool) -> None:
    edited, base = logits_of(positions, seed), logits_of(positions, seed + 1)
    ids = torch.arange(positions) % 7
    found = predictions(edited, base, ids, causal)
    shift = 1 if causal else 0
    assert all(len(row) == positions for row in found.values())
    assert all(bool(row[:shift].isnan().all()) for row in found.values())
    p, q = (x.softmax(-1)[: positions - shift] for x in (base, edited))
    own = ids[shift:, None]
    torch.testing.assert_close(found["loss"][shift:], -q.gather(-1, own)[:, 0].log())
    torch.testing.assert_close(found["base_loss"][shift:], -p.gather(-1, own)[:, 0].log())
    torch.testing.assert_close(found["kl"][shift:], (p * (p / q).log()).sum(-1))
    assert torch.equal(found["agreement"][shift:], (p.argmax(-1) == q.argmax(-1)).double())


def test_a_token_that_may_not_come_adds_nothing() -> None:
    logits = logits_of(4, 0)
    logits[:, 3] = -torch.inf
    assert float(predictions(logits, logits, torch.tensor([0, 1, 2, 0]), False)["kl"].max()) == 0


@given(seed=st.integers(0, 10_000), keys=st.integers(2, 12))
def test_attention_rows_are_compared_by_jensen_and_shannon(seed: int, keys: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    p, q = torch.randn(2, 3, 4, keys, generator=draw, dtype=torch.float64).softmax(-1)
    found = attention(q, p)
    m = (p + q) / 2
    wanted = ((p * (p / m).log()).sum(-1) + (q * (q / m).log()).sum(-1)) / 2
    torch.testing.assert_close(found["divergence"], wanted, atol=1e-12, rtol=1e-9)
    assert float(found["divergence"].max()) <= np.log(2)
    assert float(attention(p, p)["divergence"].max()) < 1e-15
    one_hot = torch.eye(keys, dtype=torch.float64)[None]
    assert float(attention(one_hot.roll(1, -1), one_hot)["divergence"].min()) == pytest.approx(np.log(2))
    assert float(entropy(one_hot).max()) == 0


def test_as_the_host_runs_it() -> None:
    result = check_forward(plugin.EFFECT, EffectParameters(tokens=4))
    assert float(result["loss_change"]) == 0
    assert float(result["agreement"]) == 1
    assert float(result["divergence"].max()) < 1e-12
    assert list(result["text"].values) == list(result["base_text"].values)


def test_it_agrees_with_the_analyses_that_measure_the_same(gausslens_run: Runs) -> None:
    store = gausslens_run(
        {
            "model": {"path": "builtin:tiny"},
            "prompts": PROMPTS,
            "variants": {"trained": [], "sharp": [{"edit": "spectrum.scale", "alpha": 1.5}]},
            "analyses": [
                {"use": "spectrum.effect"},
                {"use": "model.loss"},
                {"use": "model.attention"},
                {"use": "model.generate", "with": {"tokens": 32, "stop": ""}},
            ],
        },
        "models",
        "spectrum",
    )
    effect = store["sharp", "spectrum.effect"]
    loss = {v: float(store[v, "model.loss"]["mean_loss"]) for v in ("trained", "sharp")}
    assert float(effect["loss"]) == pytest.approx(loss["sharp"], abs=1e-5)
    assert float(effect["loss_change"]) == pytest.approx(loss["sharp"] - loss["trained"], abs=1e-5)
    seen = {v: store[v, "model.attention"]["entropy"].values for v in ("trained", "sharp")}
    np.testing.assert_allclose(effect["entropy"].values, seen["sharp"], atol=1e-5)
    np.testing.assert_allclose(effect["entropy_change"].values, seen["sharp"] - seen["trained"], atol=1e-5)
    assert list(effect["base_text"].values) == list(store["trained", "model.generate"]["text"].values[:, 0])
    assert list(effect["text"].values) == list(store["sharp", "model.generate"]["text"].values[:, 0])
    assert float(effect["layer_entropy_change"].max()) < 0
    np.testing.assert_allclose(effect["layer_entropy_change"], effect["entropy_change"].mean("head"))


def test_only_the_layers_and_heads_asked_for_are_compared(gausslens_run: Runs) -> None:
    study = {
        "prompts": PROMPTS,
        "variants": {"sharp": [{"edit": "spectrum.scale", "alpha": 2.0}]},
        "analyses": [{"use": "spectrum.effect", "as": e, **w} for e, w in (("all", {}), ("some", SOME))],
    }
    store = gausslens_run(study, "models", "spectrum")
    whole, part = store["sharp", "all"], store["sharp", "some"]
    assert part["layer"].values.tolist() == [1]
    assert part["head"].values.tolist() == [0, 3]
    np.testing.assert_array_equal(part["entropy"], whole["entropy"].sel(layer=[1], head=[0, 3]))
    assert float(part["loss"]) == float(whole["loss"])


SOME = {"layers": [1], "heads": [0, 3]}


def test_layers_that_do_not_fit_together_are_compared_in_turns(monkeypatch: pytest.MonkeyPatch, twin_of: Any) -> None:
    assert list(layers_that_fit(range(5), heads=2, length=8)) == [range(5)]
    monkeypatch.setattr(paired_runs, "PATTERN_BYTES", 2 * 4 * 2 * 8 * 8)
    assert [list(some) for some in layers_that_fit(range(5), heads=2, length=8)] == [[0, 1], [2, 3], [4]]
    model = TinyModel()
    runner = TinyEngine().runner(twin_of(model, (plugin.SCALE, {"alpha": 2.0})))
    tokens = tokenise(None, [Prompt(ids=tuple(range(40, 60)))], "tiny")
    whole, turns = (
        run_both(runner, tokens, 0, model.info.layers, model.info.heads, True)
        for kept in (2**30, 1)
        if monkeypatch.setattr(paired_runs, "PATTERN_BYTES", kept) is None
    )
    assert whole.predicted == turns.predicted
    assert whole.attended is not None
    assert turns.attended is not None
    for name, sums in whole.attended.items():
        np.testing.assert_array_equal(sums, turns.attended[name])


def test_models_without_a_head_and_layers_without_attention(
    family: str, family_model: Any, family_tokens: Tokens, twin_of: Any
) -> None:
    model = family_model(family)
    runner = TransformersEngine().runner(twin_of(model, (plugin.SCALE, {"alpha": 2.0})))
    result = Effect(EffectParameters(tokens=0), Context(model.info, 0, family_tokens)).run(runner, family_tokens)
    assert ("loss" in result) == model.headed
    with_attention = [n for n in model.info.layers if "W_Q" in model.names(n)]
    known = ~np.isnan(result["entropy"].values).any(axis=1)
    assert np.flatnonzero(known).tolist() == with_attention
    assert float(result["divergence"].max()) > 0
    if not model.headed:
        with pytest.raises(ModelError, match="predicts nothing"):
            Effect(EffectParameters(attention=False), Context(model.info, 0, family_tokens)).run(runner, family_tokens)


def test_a_model_that_is_not_edited_is_run_all_the_same(twin_of: Any) -> None:
    model = TinyModel()
    tokens = tokenise(None, [Prompt(ids=tuple(range(40, 50)))], "tiny")
    one = run_both(TinyEngine().runner(Twin(model)), tokens, 0, (), (), True)
    assert one.attended is None
    assert one.predicted is not None
    assert one.predicted["kl"] == 0
