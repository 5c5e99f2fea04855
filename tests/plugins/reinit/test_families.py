"""Re-initialisation of every family: what is drawn, what stays, and that the draw is the model's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

import gausslens_reinit.plugin as plugin
from gausslens import ModelSpec, Tokens, Twin
from gausslens.contract.twin import touched
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.pretrained import PretrainedModel, module_fingerprint, open_pretrained
from gausslens_models.parameters import TransformersParameters

Opens = Callable[[str], PretrainedModel]
CASES: list[tuple[Any, dict[str, Any]]] = [
    (plugin.CONFIG, {}),
    (plugin.CONFIG, {"embeddings": True}),
    (plugin.GAUSSIAN, {}),
    (plugin.GAUSSIAN, {"variance": 0.01}),
    (plugin.XAVIER, {}),
    (plugin.HE, {"distribution": "uniform"}),
    (plugin.PERMUTE, {}),
    (plugin.ROTATE, {}),
    (plugin.ROTATE, {"by": "matrix"}),
    (plugin.CASCADE, {"depth": 1, "scheme": "rotate"}),
    (plugin.IDENTITY, {}),
    (plugin.DIAGONAL, {"by": "head"}),
    (plugin.BAND, {"width": 2}),
    (plugin.SPARSE, {"density": 0.2}),
    (plugin.LOW_RANK, {"rank": 2}),
]


def outputs(model: PretrainedModel, twin: Twin, tokens: Tokens) -> torch.Tensor:
    """Logits, or the last layer's residual stream where there is no head."""
    ids, _, mask = tokens.padded(range(len(tokens)))
    site: Any = "logits" if model.headed else (model.info.n_layers - 1, "resid_post")
    sites = (site,) if model.headed else ("resid_post",)
    return TransformersEngine().runner(twin).forward(ids, sites=sites, mask=mask)[site][torch.as_tensor(mask)]


def test_what_is_asked_for_is_drawn_and_all_else_stays(
    family: str, family_model: Opens, family_tokens: Tokens, twin_of: Any
) -> None:
    model = family_model(family)
    before = outputs(model, Twin(model), family_tokens)
    fingerprint = module_fingerprint(model.module)
    for edit, given in CASES:
        twin = twin_of(model, (edit, given))
        assert not torch.allclose(outputs(model, twin, family_tokens), before, atol=1e-4), edit.name
        wanted = set(touched(twin.edits[0], twin.info))
        for layer in (*model.info.layers, None):
            drawn = edit is not plugin.CASCADE or layer == model.info.n_layers - 1
            for name in model.names(layer):
                changed = not torch.equal(twin.weights(layer)[name], model.tensor(layer, name))
                assert changed == (drawn and name in wanted), f"{edit.name}, layer {layer}, {name}"
        del twin
        assert module_fingerprint(model.module) == fingerprint
    assert torch.equal(outputs(model, Twin(model), family_tokens), before)


def test_numbers_of_a_twin_do_not_depend_on_whether_it_was_run(
    family: str, family_model: Opens, family_tokens: Tokens, twin_of: Any
) -> None:
    """A run takes its tensors into the module's storage: sums over other strides would differ in their last digits."""
    model = family_model(family)
    places = [(layer, name) for layer in (*model.info.layers, None) for name in model.names(layer)]

    def sums(twin: Twin) -> list[bytes]:
        tensors = [twin.weights(layer)[name].double() for layer, name in places]
        axes = [list(range(tensor.ndim))[-2:] for tensor in tensors]
        return [
            (t * t).sum(axis).numpy().tobytes() + t.sum().numpy().tobytes()
            for t, axis in zip(tensors, axes, strict=True)
        ]

    twin = twin_of(model, (plugin.GAUSSIAN, {}))
    before = sums(twin)
    outputs(model, twin, family_tokens)
    after = sums(twin)
    assert [place for place, one, other in zip(places, before, after, strict=True) if one != other] == []


def test_the_same_seed_gives_the_same_twin_from_files_and_from_a_module(
    family: str, family_model: Opens, family_files: Any, twin_of: Any
) -> None:
    running, files = family_model(family), family_files(family)
    running.module  # noqa: B018  from here on tensors are views of its parameters
    for edit, given in CASES:
        one, other = (twin_of(m, (edit, given), seed=5, draw=1) for m in (running, files))
        for layer in (*running.info.layers, None):
            assert one.overlay(layer).keys() == other.overlay(layer).keys()
            for name, tensor in one.overlay(layer).items():
                assert torch.equal(tensor, other.overlay(layer)[name]), f"{edit.name}, {name}"


def test_config_draws_as_a_model_built_anew_from_its_config_does(
    family: str, family_model: Opens, twin_of: Any
) -> None:
    """Tensor by tensor: the entries of five twins and of five fresh models are of one distribution."""
    model = family_model(family)
    twins = [twin_of(model, (plugin.CONFIG, {"embeddings": True}), draw=draw) for draw in range(5)]
    fresh = []
    for seed in range(5):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            built = type(model.module)(model.config)
        fresh.append(open_pretrained(ModelSpec("live:fresh", TransformersParameters(), model=built)))
    p_values = {}
    for layer in (*model.info.layers, None):
        for name in twins[0].overlay(layer):
            ours = torch.cat([t.overlay(layer)[name].flatten() for t in twins]).numpy()
            theirs = torch.cat([m.tensor(layer, name).flatten() for m in fresh]).numpy()
            if np.ptp(theirs) == 0:
                assert (ours == theirs[0]).all(), name
            else:
                p_values[layer, name] = ks_2samp(ours, theirs).pvalue
    # The smallest of n p-values is below 1e-3 / n in one of a thousand runs.
    assert min(p_values.values()) > 1e-3 / len(p_values), min(p_values, key=lambda k: p_values[k])
    # And it is not what the weights were: these were made with other spreads.
    held = torch.cat([model.tensor(0, "W_in").flatten()]).numpy()
    assert ks_2samp(held, twins[0].overlay(0)["W_in"].flatten().numpy()).pvalue < 1e-6


def test_every_tensor_of_the_layers_and_outside_is_drawn_by_config(
    family: str, family_model: Opens, twin_of: Any
) -> None:
    """All but the heads of other tasks."""
    model = family_model(family)
    twin = twin_of(model, (plugin.CONFIG, {"embeddings": True}))
    for layer in (*model.info.layers, None):
        assert set(model.names(layer)) - set(twin.overlay(layer)) <= {"W_pool", "b_pool"}


def test_tied_weights_stay_tied_and_buffers_stay(family: str, family_model: Opens, twin_of: Any) -> None:
    model = family_model(family)
    module = model.module
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    before = model.tensor(None, "W_E").clone()
    twin = twin_of(model, (plugin.CONFIG, {"embeddings": True}))
    engine = TransformersEngine()
    with engine.patches.applied(twin, list(model.info.layers)):
        assert all(torch.equal(buffer, buffers[name]) for name, buffer in module.named_buffers())
        drawn = module.get_input_embeddings().weight
        assert not torch.equal(drawn, before)
        if model.info.facts["tied"]:
            assert torch.equal(module.get_output_embeddings().weight, drawn)


@pytest.mark.parametrize("heads", [(1,), (2, 3)])
def test_only_the_heads_asked_for_are_drawn(
    family: str, family_model: Opens, twin_of: Any, heads: tuple[int, ...]
) -> None:
    model = family_model(family)
    twin = twin_of(model, (plugin.CONFIG, {}), heads=heads)
    groups = {model.info.kv_of_head[h] for h in heads}
    for layer in model.info.layers:
        for name, tensor in twin.overlay(layer).items():
            before = model.tensor(layer, name)
            axis, kind = model.info.head_axis(name) or (0, "none")
            rows = zip(before.unbind(axis), tensor.unbind(axis), strict=True)
            changed = {i for i, (old, new) in enumerate(rows) if not torch.equal(old, new)}
            assert changed == (groups if kind == "kv_head" else set(heads)), name
