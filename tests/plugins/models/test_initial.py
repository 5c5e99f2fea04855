"""Draws from a model's own initialisation: its own law, seeded, and not the trained weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from gausslens import LayerWeights, ModelError, ModelSpec
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.loading.skeleton import Initial
from gausslens_models.loading.weights import CheckpointModel, open_weights
from gausslens_models.parameters import TransformersParameters, WeightsParameters


def test_draws_have_the_shape_and_come_by_seed(which: str, opened: Callable[[str], PretrainedModel]) -> None:
    model = opened(which)
    state = torch.random.get_rng_state()
    for layer in (None, *model.info.layers[:2]):
        for name in model.names(layer):
            one = model.initial(layer, name, 1)
            assert one.shape == model.tensor(layer, name).shape
            assert one.dtype == model.dtype
            assert torch.isfinite(one).all()
            assert torch.equal(one, model.initial(layer, name, 1))
            if one.numel() > 1 and one.std() > 0:
                assert not torch.equal(one, model.initial(layer, name, 2))
                assert not torch.equal(one, model.tensor(layer, name))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_law_is_that_of_the_class_built_anew(which: str, opened: Callable[[str], PretrainedModel]) -> None:
    """Each tensor beside that of a fresh model of the class: equal where constant, else of equal mean and spread."""
    model = opened(which)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        fresh = model.model_class()(copy.deepcopy(model.config))
    anew = open_pretrained(ModelSpec("live:fresh", TransformersParameters(), model=fresh))
    for layer in (None, 0, model.info.n_layers - 1):
        for name in model.names(layer):
            drawn, own = model.initial(layer, name, 2).double(), anew.tensor(layer, name).double()
            if own.numel() < 2 or own.std() < 1e-6:
                assert torch.equal(drawn, own), (layer, name)
                continue
            if name == "W_E":  # the row of padding is nought
                drawn, own = (t[t.abs().sum(1) > 0] for t in (drawn, own))
            # Two draws of n numbers: their means differ by sd sqrt(2 / n), their spreads by sd / sqrt(n).
            sd, n = own.std(), own.numel()
            assert abs(drawn.mean() - own.mean()) < 6 * sd * math.sqrt(2 / n), (layer, name)
            assert abs(drawn.std() - sd) < 6 * sd / math.sqrt(n), (layer, name)


def test_equal_seeds_do_not_give_two_tensors_equal_numbers(opened: Callable[[str], PretrainedModel]) -> None:
    model = opened("gpt2-layer-scaled")
    outside = [model.initial(None, name, 7).flatten()[:200] for name in ("W_E", "W_pos")]
    outside.append(model.initial(None, "W_U", 7).T.flatten()[:200])
    inside = [model.initial(layer, name, 7).flatten()[:100] for layer in (0, 1) for name in ("W_Q", "W_K", "W_in")]
    for draws in (outside, inside):
        for i, one in enumerate(draws):
            for other in draws[i + 1 :]:
                # 100 independent pairs: |r| over 0.4 once in 3e4 (4 standard errors)
                assert abs(torch.corrcoef(torch.stack([one, other]))[0, 1]) < 0.4


def test_the_law_is_the_classes_own(tmp_path: Path) -> None:
    """GPT-2 scales what writes to the stream by depth; gains are one and biases nought."""
    config = transformers.GPT2Config(
        vocab_size=80, n_positions=64, n_embd=64, n_layer=8, n_head=4, initializer_range=0.05
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    model = open_pretrained(ModelSpec(str(tmp_path), TransformersParameters()))
    expected = {"W_Q": 0.05, "W_K": 0.05, "W_in": 0.05}
    expected |= {"W_O": 0.05 / math.sqrt(16), "W_out": 0.05 / math.sqrt(16)}
    for name, sd in expected.items():
        draws = torch.cat([model.initial(layer, name, 3).flatten() for layer in (0, 7)])
        error = sd / math.sqrt(2 * len(draws))  # the standard error of a standard deviation
        assert abs(draws.std().item() - sd) < 4 * error, name
        assert abs(draws.mean().item()) < 4 * sd / math.sqrt(len(draws))
    assert torch.equal(model.initial(0, "ln1.w", 3), torch.ones(64))
    assert torch.equal(model.initial(0, "b_Q", 3), torch.zeros(4, 16))


def test_gains_of_gemma_are_one(opened: Callable[[str], PretrainedModel]) -> None:
    assert torch.equal(opened("gemma2").initial(0, "ln1_post.w", 0), torch.ones(24))


def test_every_loader_draws_the_same(
    directory: Callable[[str], Path],
    opened: Callable[[str], PretrainedModel],
    as_files: Callable[[str], CheckpointModel],
) -> None:
    live = ModelSpec("live:LlamaForCausalLM", TransformersParameters(), model=opened("llama-tied").module)
    models = [opened("llama-tied"), as_files("llama-tied"), open_pretrained(live)]
    for layer, name in ((2, "W_K"), (None, "W_E"), (None, "W_U")):
        draws = [LayerWeights(model, layer, seed=5).initial(name) for model in models]
        assert all(torch.equal(draws[0], draw) for draw in draws)
    tied = models[0]
    assert torch.equal(tied.initial(None, "W_E", 5).T, tied.initial(None, "W_U", 5))


def test_a_draw_builds_no_model(directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_weights(ModelSpec(str(directory("llama")), WeightsParameters()))
    made: list[torch.Size] = []
    original = torch.Tensor.normal_

    def noted(self: torch.Tensor, *arguments: object, **named: object) -> torch.Tensor:
        if not self.is_meta:
            made.append(self.shape)
        return original(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.Tensor, "normal_", noted)
    model.initial(1, "W_Q", 0)
    assert 0 < len(made) <= 7  # the matrices of one layer


def test_what_the_class_leaves_undone_is_told(
    opened: Callable[[str], PretrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers.LlamaPreTrainedModel, "_init_weights", lambda self, module: None)
    with pytest.raises(ModelError, match=r"does not initialise .*q_proj\.weight"):
        opened("llama").initial(0, "W_Q", 0)


def test_a_tensor_drawn_alone_is_that_of_the_whole_layer_and_no_more_of_it_is_drawn(which, directory):
    model = open_weights(ModelSpec(str(directory(which)), WeightsParameters()))
    initial = Initial(model.config, model.model_class(), torch.float32, model.layout.family)
    partly = 0
    for layer in (None, 0):
        for name, place in initial.layout.places[layer].items():
            initial._drawn = None
            alone = initial.draw(layer, name, 3)
            drawing = initial._drawn[1] if initial._drawn is not None else None
            if drawing is None:
                continue
            assert torch.equal(alone, initial.layout.ours(place, whole_layer(initial, place, layer), torch.float32)), (
                name
            )
            partly += any(p.is_meta for p in drawing._module.parameters())
    assert partly, "every tensor had all others drawn with it"


def whole_layer(initial: Initial, place: Any, layer: int | None) -> torch.Tensor:
    """The tensor where its whole layer is made real and initialised, as transformers does it."""
    owner = initial._drawn[0][2]
    module = copy.deepcopy(initial.skeleton.get_submodule(owner)).to_empty(device="cpu")
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(sha256(f"3 {owner}".encode()).digest()[:7]))
        module.apply(initial.skeleton._init_weights)
        for part in module.modules():
            if part._parameters and type(part).__module__ == "transformers.activations":
                for leaf, begun in type(part)().named_parameters(recurse=False):
                    part._parameters[leaf].copy_(begun)
    return dict(module.named_parameters())[place.theirs.removeprefix(f"{owner}.")].detach()
