"""Weights from files: names, shapes, and that they are the loaded model's."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gausslens_models.loading.pretrained import PretrainedModel
from gausslens_models.loading.weights import CheckpointModel

Opens = Callable[[str], PretrainedModel]
Files = Callable[[str], CheckpointModel]


def test_weights_from_files_are_the_loaded_models(family_of_all: str, opened: Opens, as_files: Files) -> None:
    files, model = as_files(family_of_all), opened(family_of_all)
    module = model.module  # from here on tensors come from the module
    assert module is not None
    for layer in (None, *model.info.layers):
        assert files.names(layer) == model.names(layer)
        for name in files.names(layer):
            assert torch.equal(files.tensor(layer, name), model.tensor(layer, name)), (layer, name)


def test_shapes_are_transformer_lens(which: str, as_files: Files) -> None:
    model = as_files(which)
    info = model.info
    for layer in info.layers:
        shapes = {name: tuple(model.tensor(layer, name).shape) for name in model.names(layer)}
        experts = info.facts.experts(layer)
        width = (experts, info.d_model, shapes["W_out"][-2]) if experts else (info.d_model, info.d_mlp)
        assert shapes["W_in"] == shapes.get("W_gate", width) == width
        assert shapes["W_out"] == (*width[:-2], width[-1], width[-2])
        assert shapes.get("W_router") == ((info.d_model, experts) if experts else None)
        if layer in info.lacking and "pattern" in info.lacking[layer]:
            continue
        assert shapes["W_Q"] == (info.n_heads, info.d_model, info.d_head)
        assert shapes["W_K"] == (info.n_kv_heads, info.d_model, info.d_head)
        assert shapes["W_V"] == (info.n_kv_heads, info.d_model, info.d_value or info.d_head)
        assert shapes["W_O"] == (info.n_heads, info.d_value or info.d_head, info.d_model)
        assert shapes.get("b_K", (info.n_kv_heads, info.d_head)) == (info.n_kv_heads, info.d_head)


def test_every_parameter_is_claimed(family_of_all: str, opened: Opens) -> None:
    """What the tables name is the whole model, each number once (a tied head is the embedding again)."""
    model = opened(family_of_all)
    counted = 0
    for layer in (None, *model.info.layers):
        names = [n for n in model.names(layer) if not (n == "W_U" and model.layout.tied)]
        counted += sum(model.tensor(layer, name).numel() for name in names)
    if model.info.family in ("opt", "biogpt"):
        counted += 2 * model.info.d_model  # the first two rows of its position embedding belong to no position
        assert model.tensor(None, "W_pos").shape[0] == model.info.max_positions
    assert counted == sum(p.numel() for p in model.module.parameters()) == model.info.n_parameters
    assert model.info.facts["unclaimed"] == ()
