"""bilinear.energy: the identities of Hopfield networks and energy transformers, brute force, as the host runs it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gausslens
from gausslens import Part, Prompt, Twin
from gausslens.maths.effective_forms import effective
from gausslens.testing import TinyEngine, TinyModel, check_forward, check_round_trip
from gausslens_bilinear.maths.energy import descent, energy_change, read_by, scores_of
from gausslens_bilinear.plugin import ENERGY


def _hopfield(x: torch.Tensor, K: torch.Tensor, beta: float) -> torch.Tensor:
    """The energy of Ramsauer et al. (2020), but for a constant."""
    return -torch.logsumexp(beta * K @ x, dim=0) / beta + x @ x / 2


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.floats(0.05, 20.0), st.integers(1, 12), st.integers(1, 6))
def test_the_update_of_a_hopfield_network_is_a_step_of_size_one_and_never_raises_the_energy(
    seed: int, beta: float, keys: int, width: int
) -> None:
    drawn = torch.Generator().manual_seed(seed)
    K = torch.randn(keys, width, generator=drawn, dtype=torch.float64)
    x = 3 * torch.randn(width, generator=drawn, dtype=torch.float64)
    at = x.clone().requires_grad_()
    before = _hopfield(at, K, beta)
    (slope,) = torch.autograd.grad(before, at)
    after = torch.softmax(beta * K @ x, dim=0) @ K
    torch.testing.assert_close(after, x - slope, rtol=1e-9, atol=1e-9)
    fall = before.detach() - _hopfield(after, K, beta)
    assert fall >= (x - after).square().sum() / 2 - 1e-9 * (1 + before.detach().abs())


def test_the_change_of_an_energy_is_that_of_its_log_sum_with_sinks_and_masks() -> None:
    drawn = torch.Generator().manual_seed(1)
    before, after = (5 * torch.randn(2, 3, 4, generator=drawn, dtype=torch.float64) for _ in range(2))
    hidden = torch.zeros(2, 3, 4, dtype=torch.bool)
    hidden[:, 0, 2:] = True
    extra, sink = torch.randn(2, 3, 4, generator=drawn, dtype=torch.float64), torch.ones(2, 3, 1, dtype=torch.float64)

    def whole(scores: torch.Tensor) -> torch.Tensor:
        return torch.cat([(scores + extra).masked_fill(hidden, -torch.inf), sink], dim=-1)

    pattern = whole(before).softmax(-1)[..., :-1]
    wanted = -whole(after).logsumexp(-1) + whole(before).logsumexp(-1)
    torch.testing.assert_close(energy_change(pattern, before, after, sinks=True), wanted, rtol=1e-9, atol=1e-9)


def test_scores_and_descent_are_those_of_brute_force() -> None:
    model = TinyModel()
    runner = TinyEngine().runner(Twin(model))
    ids = model.tokenise([Prompt((Part("The quick brown fox"),))]).ids[0]
    found = runner.forward(ids[None], sites=("resid_pre", "k", "scores", "pattern"))
    layer, head, row = 1, 2, 9
    form = effective(runner.weights(layer), model.info.facts.scoring(layer))
    x, keys = (found[layer, site][0].double() for site in ("resid_pre", "k"))
    pattern = found[layer, "pattern"][0].double()
    h = read_by(x, form.scoring)
    down, scores = descent(h, keys, pattern, form)
    captured = found[layer, "scores"][0].double()
    seen = captured > -1e30
    torch.testing.assert_close(scores[seen], captured[seen], rtol=1e-4, atol=1e-4)
    # The slope by finite differences of -log sum exp over the keys in view.
    for place in (0, 5):
        slopes = []
        for sign in (1, -1):
            moved = h.clone()
            moved[row, place] += sign * 1e-6
            slopes.append(-scores_of(moved, keys, form)[head, row, : row + 1].logsumexp(0))
        slope = (slopes[0] - slopes[1]) / 2e-6
        assert float(-down[head, row, place]) == pytest.approx(float(slope), rel=1e-4, abs=1e-6)


def test_as_the_host_runs_it() -> None:
    result = check_forward(ENERGY)
    check_round_trip(result)
    assert result["cosine"].dims == ("layer", "head")
    assert (result["steepest_change"] < 0).all()


def _tied() -> Any:
    """A small GPT-2 whose W_V W_O is the transpose of W_Q W_K^T in every head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_embd=24, n_layer=2, n_head=3, n_positions=32, vocab_size=50, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for block in model.transformer.h:
            q, k = torch.randn(24, 24) * 0.3, torch.randn(24, 24) * 0.3
            q = q - q.mean(0)  # LayerNorm leaves no mean to read: none is written
            block.attn.c_attn.weight.copy_(torch.cat([q, k, k], dim=1))
            block.attn.c_attn.bias.zero_()
            block.attn.c_proj.weight.copy_(q.T)
            block.attn.c_proj.bias.zero_()
    return model


def test_heads_whose_circuits_are_tied_go_straight_down(tmp_path: Any) -> None:
    study = {
        "gausslens": 1,
        "name": "tied",
        "model": {},
        "prompts": {"source": "tokens", "ids": [list(range(1, 20)), list(range(30, 45))]},
        "variants": {"tied": [], "untied": {"edits": [{"edit": "reinit.rotate"}]}},
        "analyses": [{"use": "bilinear.energy"}],
    }
    found = gausslens.run(study, store=tmp_path / "store", model=_tied())
    tied, untied = (found[name, "bilinear.energy"] for name in ("tied", "untied"))
    np.testing.assert_allclose(tied["cosine"], 1.0, atol=1e-5)
    np.testing.assert_allclose(tied["change"], tied["steepest_change"], rtol=1e-4, atol=1e-6)
    assert (tied["lowered"] == 1).all()
    assert float(np.abs(untied["cosine"]).max()) < 0.6
