"""Which tensors of a family have an axis of heads beyond those that the host knows by name; `heads` follow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gausslens import LayerWeights
from gausslens.maths.effective_forms import effective
from gausslens_models.loading.pretrained import PretrainedModel

Opens = Callable[..., PretrainedModel]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gpt_oss", {"sinks": (0, "head")}),
        ("cohere", {"q_norm.w": (0, "head"), "k_norm.w": (0, "kv_head")}),
        ("olmo2", {}),  # one norm over all heads: its gain belongs to none
        ("qwen3", {}),  # one gain for each head
        ("deepseek_v3", {}),  # factors that heads share
        ("deberta-v2", dict.fromkeys(("W_K_pos", "b_K_pos", "W_Q_pos", "b_Q_pos"), (0, "head"))),
    ],
)
def test_head_axes_are_told_and_fit(name: str, told: dict[str, tuple[int, str]], opened: Opens) -> None:
    model = opened(name)
    assert dict(model.info.facts.head_axes) == told
    _check_sizes(model)


def test_distances_have_their_heads_behind(open_stack: Opens) -> None:
    model = open_stack("t5", "encoder")
    assert dict(model.info.facts.head_axes) == {"W_distance": (1, "head")}
    _check_sizes(model)


def _check_sizes(model: PretrainedModel) -> None:
    """Each axis is as long as there are heads, and what is in view follows."""
    info = model.info
    few = info.narrowed(None, info.heads[-1:])
    for layer in (None, *info.layers):
        for name in model.names(layer):
            found = info.head_axis(name)
            whole, seen = (LayerWeights(model, layer, info=view)[name] for view in (info, few))
            if found is None:
                assert torch.equal(whole, seen)
                continue
            axis, kind = found
            assert whole.shape[axis] == (info.n_heads if kind == "head" else info.n_kv_heads), name
            rows = few.heads if kind == "head" else few.kv_heads
            assert torch.equal(seen, whole.index_select(axis, torch.tensor(rows))), name


@pytest.mark.parametrize("heads", [(0,), (1, 3), (2, 3)])
def test_gains_of_each_head_go_with_it(heads: tuple[int, ...], opened: Opens) -> None:
    """The effective forms of some heads are those of all, of these heads."""
    model = opened("cohere")
    scoring = model.info.facts.scoring(0)
    draw = torch.Generator().manual_seed(3)
    gains: dict[str, Any] = {n: torch.randn(model.tensor(0, n).shape, generator=draw) for n in ("q_norm.w", "k_norm.w")}
    few = model.info.narrowed(None, heads)
    every, some = (effective(LayerWeights(model, 0, gains, view), scoring) for view in (model.info, few))
    np.testing.assert_array_equal(some.query.gain, every.query.gain[list(heads)])
    np.testing.assert_array_equal(some.key.gain, every.key.gain[list(few.kv_heads)])
    np.testing.assert_array_equal(some.query.W, every.query.W[list(heads)])
