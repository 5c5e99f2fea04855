"""Twins in the live module: identity changes nothing, edits act, undoing restores, memory is the edited tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gausslens import LayerWeights, ModelError, Request, Tokens, Twin
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.capture.patching import Patches
from gausslens_models.loading.pretrained import PretrainedModel, module_fingerprint

Opens = Callable[[str], PretrainedModel]


def logits(model: PretrainedModel, twin: Twin, tokens: Tokens) -> torch.Tensor:
    ids, _, mask = tokens.padded(range(len(tokens)))
    site = "logits" if model.headed else (model.info.n_layers - 1, "resid_post")
    found = TransformersEngine().runner(twin).forward(ids, sites=(site if model.headed else site[1],), mask=mask)
    return found[site][torch.as_tensor(mask)]


def test_an_identity_overlay_changes_nothing(which: str, opened: Opens, prompts: Tokens, written: Any) -> None:
    model = opened(which)
    base = logits(model, Twin(model), prompts)
    same = logits(model, written(model, change=lambda name, tensor: tensor.clone()), prompts)
    assert torch.equal(base, same)


def test_an_identity_replacement_changes_nothing(which: str, opened: Opens, prompts: Tokens) -> None:
    model = opened(which)
    runner = TransformersEngine().runner(Twin(model))
    ids, _, mask = prompts.padded(range(len(prompts)))
    sites = ("logits",) if model.headed else ("resid_post",)
    plain = runner.forward(ids, sites=sites, mask=mask)
    patterns = runner.forward(ids, sites=sites, mask=mask, replace=lambda layer, s, p, v: p)
    outputs = runner.forward(ids, sites=sites, mask=mask, replace=_own_outputs(model))
    for key in plain:
        assert torch.equal(plain[key], patterns[key])
        assert torch.allclose(plain[key], outputs[key], atol=1e-5)


def _own_outputs(model: PretrainedModel) -> Callable[..., torch.Tensor]:
    def replace(layer: int, scores: torch.Tensor, pattern: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.einsum("phqk,pkhe->pqhe", pattern, v[:, :, list(model.info.kv_of_head)])

    return replace


def _slope(tensor: torch.Tensor) -> torch.Tensor:
    """No constant: a norm of q and k takes that off."""
    return torch.linspace(0.0, 0.06, tensor.numel()).reshape(tensor.shape)


def test_every_edited_tensor_acts(which: str, opened: Opens, prompts: Tokens, written: Any) -> None:
    """Changing any one tensor, anywhere, changes what comes out as changing the files would."""
    model = opened(which)
    base = logits(model, Twin(model), prompts)
    silent = {"b_K"}  # adds the same to all scores of a row, unless q and k are normed or rotated
    unread = {"W_pool", "b_pool"}  # read by heads that we do not run
    unread |= set() if model.headed else {"ln_final.w", "ln_final.b"}  # comes after the last layer
    for name in dict.fromkeys(n for layer in (0, None) for n in model.names(layer)):
        twin = written(model, change=lambda n, t, name=name: t * 1.5 + 0.3 + _slope(t) if n == name else None)
        changed = not torch.allclose(logits(model, twin, prompts), base, rtol=0, atol=1e-6)
        if name in silent and model.info.facts["position"] in ("learned", "sinusoidal"):
            continue
        assert changed == (name not in unread), name
    assert torch.equal(logits(model, Twin(model), prompts), base)


def test_an_edited_twin_is_the_edited_checkpoint(which: str, opened: Opens, prompts: Tokens, written: Any) -> None:
    """Scaling a tensor through the overlay equals scaling the parameter itself."""
    model = opened(which)
    twin = written(model, change=lambda name, tensor: tensor * 0.5 if name in ("W_Q", "W_V", "b_Q") else None)
    overlaid = logits(model, twin, prompts)
    edited = opened(which)
    with torch.no_grad():
        for layer in edited.info.layers:
            for name in {"W_Q", "W_V", "b_Q"} & set(edited.names(layer)):
                edited.module  # noqa: B018 - built now, so that tensors are views of its parameters
                edited.tensor(layer, name).mul_(0.5)
    assert torch.equal(logits(edited, Twin(edited), prompts), overlaid)


def test_undoing_restores_the_fingerprint(which: str, opened: Opens, prompts: Tokens, written: Any) -> None:
    model = opened(which)
    before = module_fingerprint(model.module)
    objects = {name: id(p) for name, p in model.module.named_parameters()}
    twin = written(model, change=lambda name, tensor: tensor + 1)
    patches = Patches()

    def fail() -> None:
        with patches.applied(twin, list(model.info.layers)):
            assert module_fingerprint(model.module) != before
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert module_fingerprint(model.module) == before
    assert {name: id(p) for name, p in model.module.named_parameters()} == objects


def test_base_and_twin_run_side_by_side(opened: Opens, prompts: Tokens, written: Any) -> None:
    model = opened("llama")
    runner = TransformersEngine().runner(written(model, change=lambda n, t: t * 2 if n == "W_O" else None))
    ids = prompts.ids[0][None]
    alone = TransformersEngine().runner(Twin(model)).forward(ids)["logits"]
    for _ in range(2):
        edited = runner.forward(ids)["logits"]
        assert torch.equal(runner.forward(ids, base=True)["logits"], alone)
        assert not torch.allclose(edited, alone)


def test_memory_is_the_edited_tensors_once(opened: Opens, prompts: Tokens, written: Any) -> None:
    model = opened("gpt2")
    twin = written(model, change=lambda name, tensor: tensor * 2 if name == "W_in" else None)
    engine = TransformersEngine()
    engine.run(twin, prompts, np.arange(3), Request(("resid_post",)), lambda batch: None)
    original = {p.data_ptr() for p in model.module.parameters()}
    exchanged = [p for made in engine.patches._made.values() for _, _, p in made]
    assert {p.data_ptr() for p in exchanged}.isdisjoint(original)
    held = {t.untyped_storage().data_ptr() for layer in model.info.layers for t in twin.overlay(layer).values()}
    assert held == {p.untyped_storage().data_ptr() for p in exchanged}
    assert sum(p.numel() for p in exchanged) == model.info.n_layers * model.info.d_model * model.info.d_mlp


def test_another_twin_lets_the_first_go(opened: Opens, prompts: Tokens, written: Any) -> None:
    model = opened("llama")
    engine = TransformersEngine()
    for factor in (2.0, 3.0):
        twin = written(model, change=lambda n, t, f=factor: t * f if n == "W_Q" else None)
        engine.run(twin, prompts, np.arange(3), Request(("q",)), lambda batch: None)
        made = [p for made in engine.patches._made.values() for _, _, p in made]
        assert torch.equal(made[0], factor * model.module.get_parameter("model.layers.0.self_attn.q_proj.weight"))
        del twin
        assert engine.patches._made == {}


def test_tied_embeddings_are_edited_apart(opened: Opens, prompts: Tokens, written: Any) -> None:
    """A twin is the base plus a dictionary: W_U stays what it was when W_E is edited, and the other way round."""
    model = opened("qwen3")
    assert model.info.facts["tied"]
    runner = TransformersEngine().runner(written(model, change=lambda n, t: t * 2 if n == "W_U" else None))
    ids = prompts.ids[0][None]
    assert torch.allclose(runner.forward(ids)["logits"], 2 * runner.forward(ids, base=True)["logits"], atol=1e-5)
    runner = TransformersEngine().runner(written(model, change=lambda n, t: t * 2 if n == "W_E" else None))
    sites = ("embed", "logits", "resid_post")
    found, base = runner.forward(ids, sites=sites), runner.forward(ids, sites=sites, base=True)
    assert torch.equal(found["embed"], 2 * base["embed"])
    final = found[model.info.n_layers - 1, "resid_post"]
    weights = LayerWeights(model, None)
    normed = final * torch.rsqrt(final.pow(2).mean(-1, keepdim=True) + model.info.facts["norm_epsilon"])
    assert torch.allclose(found["logits"], normed * weights["ln_final.w"] @ weights["W_U"], atol=1e-4)


def test_generation_under_a_twin_restores(opened: Opens, written: Any) -> None:
    model = opened("llama-tied")
    before = module_fingerprint(model.module)
    runner = TransformersEngine().runner(written(model, change=lambda n, t: t * 3 if n == "W_O" else None))
    start = np.array([[5, 6, 7]])
    made = runner.generate(start, 12, stop=())[0]
    ids = [5, 6, 7]
    for _ in range(12):
        ids.append(int(runner.forward(np.array([ids]))["logits"][0, -1].argmax()))
    assert made.tolist() == ids[3:]
    same = runner.generate(start, 12, stop=(), replace=lambda layer, s, p, v: p)[0]
    assert same.tolist() == made.tolist()
    assert runner.generate(start, 12, stop=(), base=True)[0].tolist() != made.tolist()
    assert module_fingerprint(model.module) == before


def test_generation_stops_and_draws_by_seed(opened: Opens) -> None:
    runner = TransformersEngine().runner(Twin(opened("llama")))
    rows, mask = np.array([[5, 6, 7], [9, 0, 0]]), np.array([[1, 1, 1], [1, 0, 0]], dtype=bool)
    one = runner.generate(rows, 10, temperature=2.0, seed=4, stop=(), mask=mask)
    two = runner.generate(rows, 10, temperature=2.0, seed=4, stop=(), mask=mask)
    other = runner.generate(rows, 10, temperature=2.0, seed=5, stop=(), mask=mask)
    assert [a.tolist() for a in one] == [b.tolist() for b in two]
    assert [a.tolist() for a in one] != [b.tolist() for b in other]
    greedy = runner.generate(rows[:1], 10, stop=())[0]
    stopped = runner.generate(rows[:1], 10, stop=(int(greedy[3]),))[0]
    assert stopped.tolist() == greedy[: greedy.tolist().index(greedy[3]) + 1].tolist()


def test_what_does_not_generate_says_so(opened: Opens) -> None:
    with pytest.raises(ModelError, match="does not generate"):
        TransformersEngine().runner(Twin(opened("bert-masked"))).generate(np.array([[3, 4]]), 2)
