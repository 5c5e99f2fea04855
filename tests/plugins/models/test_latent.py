"""Latent attention: products of factors, values of a width of their own, edits of both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gausslens
from gausslens import ModelError, Request, Tokens, Twin
from gausslens.testing import host_of
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.pretrained import PretrainedModel
from gausslens_models.loading.weights import CheckpointModel

from .test_capture import captured

Opens = Callable[[str], PretrainedModel]
Files = Callable[[str], CheckpointModel]


@pytest.mark.parametrize("name", ["deepseek_v3", "minicpm3"])
def test_products_are_the_factors_of_the_module(name: str, opened: Opens, as_files: Files) -> None:
    """By slices of their own: head 2 of layer 1, from the module's parameters."""
    model, files = opened(name), as_files(name)
    own = dict(model.module.named_parameters())
    at = "model.layers.1.self_attn."
    down, gain = own[at + "q_a_proj.weight"], own[at + "q_a_layernorm.weight"]
    up = own[at + "q_b_proj.weight"][2 * 10 : 3 * 10]
    expected = (up @ torch.diag(gain) @ down).T
    assert torch.allclose(files.tensor(1, "W_Q")[2], expected, atol=1e-6)
    down, gain = own[at + "kv_a_proj_with_mqa.weight"], own[at + "kv_a_layernorm.weight"]
    up = own[at + "kv_b_proj.weight"][2 * 11 : 3 * 11]
    expected = torch.cat([(up[:6] @ torch.diag(gain) @ down[:8]).T, down[8:].T], dim=1)
    assert torch.allclose(files.tensor(1, "W_K")[2], expected, atol=1e-6)
    assert torch.allclose(files.tensor(1, "W_V")[2], (up[6:] @ torch.diag(gain) @ down[:8]).T, atol=1e-6)
    output = own[at + "o_proj.weight"][:, 2 * 5 : 3 * 5]
    assert torch.equal(files.tensor(1, "W_O")[2], output.T)
    assert (files.info.d_head, files.info.d_value) == (10, 5)


def test_values_are_as_wide_as_they_are(opened: Opens, prompts: Tokens) -> None:
    batch = captured(opened("deepseek_v3"), prompts, Request(("q", "k", "v", "z"), layers=(1,)))[0]
    assert [batch[site].shape[-1] for site in ("q", "k", "v", "z")] == [10, 10, 5, 5]
    shared = batch["k"][..., 6:]
    assert torch.equal(shared[:, :, 0], shared[:, :, 3])
    assert not torch.equal(batch["k"][:, :, 0, :6], batch["k"][:, :, 3, :6])


def test_an_edited_factor_is_in_its_product_and_in_the_run(opened: Opens, written: Any) -> None:
    model = opened("minicpm3")
    ids = np.array([[3, 4, 5, 6]])
    twin = written(model, change=lambda name, tensor: 2 * tensor if name == "W_KV_down" else None)
    weights, base = twin.weights(1), Twin(model).weights(1)
    assert torch.allclose(weights.W_V, 2 * base.W_V)
    assert torch.allclose(weights.W_K[..., :6], 2 * base.W_K[..., :6])
    assert torch.equal(weights.W_K[..., 6:], base.W_K[..., 6:])
    assert torch.equal(weights.W_Q, base.W_Q)
    engine = TransformersEngine()
    before = engine.runner(Twin(model)).forward(ids)["logits"]
    after = engine.runner(twin).forward(ids)["logits"]
    # The norm of the latent takes any factor out again, but for its epsilon.
    assert 0 < (after - before).abs().max() < 1e-3  # logits are of order one
    gained = written(model, change=lambda name, tensor: 2 * tensor if name == "ln_KV.w" else None)
    assert torch.allclose(gained.weights(1).W_V, 2 * base.W_V)
    assert (engine.runner(gained).forward(ids)["logits"] - before).abs().max() > 0.1


def test_an_edit_of_a_product_is_refused_by_its_factors(opened: Opens, written: Any) -> None:
    model = opened("deepseek_v3")
    twin = written(model, change=lambda name, tensor: 2 * tensor if name == "W_K" else None)
    assert torch.equal(twin.weights(1).W_K, 2 * model.tensor(1, "W_K"))  # of weights alone it is an edit as any
    with pytest.raises(ModelError, match=r"W_K is a product.*W_KV_down, ln_KV.w, W_K_up, W_K_shared"):
        TransformersEngine().runner(twin).forward(np.array([[3, 4, 5]]))


def test_what_makes_queries_at_once_has_no_factors_of_them(opened: Opens) -> None:
    model = opened("deepseek_v2-direct")
    assert "W_Q_down" not in model.names(0)
    assert set(model.info.facts["products"][0]) == {"W_K", "W_V"}


def test_heads_that_lie_apart_are_edited_too(opened: Opens, written: Any, directory: Callable[[str], Path]) -> None:
    """Queries of a group before its key and value: no view cuts them, and an edit must reach the model yet."""
    model = opened("falcon-groups")
    ids = np.array([[3, 4, 5, 6]])
    runner = TransformersEngine().runner
    before = runner(Twin(model)).forward(ids, sites=("q", "k"))
    twin = written(model, change=lambda name, tensor: 2 * tensor if name in ("W_Q", "b_Q") else None)
    after = runner(twin).forward(ids, sites=("q", "k"))
    assert torch.allclose(after[0, "q"], 2 * before[0, "q"], atol=1e-5)
    assert torch.equal(after[0, "k"], before[0, "k"])


def test_the_null_of_its_own_initialisation_reaches_the_model(directory: Callable[[str], Path], tmp_path: Path) -> None:
    """reinit.config draws the factors: weights, and what runs with them, are both of the twin."""
    study = {
        "gausslens": 1,
        "name": "latent",
        "model": {"path": str(directory("deepseek_v3"))},
        "prompts": {"source": "tokens", "ids": [[3, 4, 5, 6, 7, 8], [9, 8, 7, 6]]},
        "variants": {"trained": [], "fresh": {"edits": [{"edit": "reinit.config"}], "draws": 2}},
        "analyses": [
            {"use": "bilinear.spectrum", "with": {"matrices": ["W_Q", "W_K"]}},
            {"use": "gaussian.moments", "with": {"site": "z"}},
        ],
    }
    host = host_of("models", "bilinear", "gaussian", "reinit")
    results = gausslens.run(study, store=tmp_path / "store", host=host, shown=False)
    for name in ("bilinear.spectrum", "gaussian.moments"):
        assert results["fresh", name].sizes["draw"] == 2
