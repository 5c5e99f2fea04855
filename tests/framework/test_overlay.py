"""Edits as overlays: order, scope, seeds, and what an edit may not do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import probe_analyses
import probes
import pytest
import torch

from gausslens import LayerWeights, NoParameters
from gausslens.contract.descriptors import Edit, Owned, Owner
from gausslens.contract.errors import GausslensError, Mark, ModelError
from gausslens.contract.reference import resolve
from gausslens.contract.twin import EditCall, EditFailed, Generators, Twin, check_edit, left_whole
from gausslens.testing import TinyModel, TinyParameters

MODEL = TinyModel(TinyParameters(layers=3))


def call(edit: Edit, parameters: Any = None, layers: Any = None, heads: Any = None) -> EditCall:
    owner = Owner("probe", "probe-distribution", "1.0")
    return EditCall(Owned(edit, owner), parameters or NoParameters(), layers, heads, Mark("study.yaml", 7, 3))


def made(function: Any, random: bool = False, touches: Any = ("W_Q", "W_O", "W_E")) -> Edit:
    probe_analyses.passing = function  # type: ignore[attr-defined]
    resolve.cache_clear()
    return Edit(name="probe.made", version=1, summary="", edit="probe_analyses:passing", touches=touches, random=random)


def twin(*calls: EditCall, **options: Any) -> Twin:
    return Twin(MODEL, calls, **options)


def test_without_edits_a_twin_is_the_model_itself():
    assert twin().overlay(0) == {}
    assert twin().weights(1).W_Q is MODEL.tensor(1, "W_Q")


def test_edits_apply_in_order_and_change_nothing_of_the_model():
    before = MODEL.tensor(0, "W_Q").clone()
    add = call(made(lambda w, p, g: {"W_Q": w.W_Q + 1}))
    double = call(probes.SCALE, probes.Scale(alpha=2.0))
    first, second = twin(add, double), twin(double, add)
    torch.testing.assert_close(first.weights(0).W_Q, 2 * (before + 1))
    torch.testing.assert_close(second.weights(0).W_Q, 2 * before + 1)
    assert torch.equal(MODEL.tensor(0, "W_Q"), before)
    assert torch.equal(first.weights(0).W_K, MODEL.tensor(0, "W_K"))


def test_an_edit_that_works_in_place_changes_its_copy_only():
    before = MODEL.tensor(0, "W_Q").clone()
    edited = twin(call(made(lambda w, p, g: {"W_Q": w.W_Q.mul_(3)})))
    torch.testing.assert_close(edited.weights(0).W_Q, 3 * before)
    assert torch.equal(MODEL.tensor(0, "W_Q"), before)


def test_an_edit_may_graft_from_the_unedited_tensors_of_any_layer():
    before = MODEL.tensor(2, "W_Q").clone()
    graft = made(lambda w, p, g: {"W_Q": w.base(2).W_Q.mul_(3)})
    edited = twin(call(probes.SCALE, probes.Scale(alpha=7.0)), call(graft, layers=(0,)))
    torch.testing.assert_close(edited.weights(0).W_Q, 3 * before)
    assert torch.equal(edited.weights(0).base(2).W_Q, before)
    assert torch.equal(MODEL.tensor(2, "W_Q"), before)


def test_layers_and_heads_restrict_any_edit():
    edited = twin(call(probes.SCALE, probes.Scale(alpha=5.0), layers=(1,), heads=(0, 2)))
    assert edited.overlay(0) == {}
    ratio = (edited.weights(1).W_Q / MODEL.tensor(1, "W_Q")).mean((1, 2))
    torch.testing.assert_close(ratio, torch.tensor([5.0, 1.0, 5.0, 1.0]))
    keys = twin(call(made(lambda w, p, g: {"W_K": w.W_K * 5}, touches=("W_K",)), heads=(3,)))
    ratio = (keys.weights(0).W_K / MODEL.tensor(0, "W_K")).mean((1, 2))
    torch.testing.assert_close(ratio, torch.tensor([1.0, 5.0]))


def test_tensors_outside_the_layers_are_edited_with_layer_none():
    seen: list[int | None] = []

    def edit(weights: LayerWeights, parameters: Any, generators: Generators) -> dict[str, torch.Tensor]:
        seen.append(weights.layer)
        return {"W_E": weights.W_E * 2} if weights.layer is None else {}

    edited = twin(call(made(edit)))
    torch.testing.assert_close(edited.weights(None).W_E, 2 * MODEL.tensor(None, "W_E"))
    edited.overlay(0)
    assert seen == [None, 0]


def test_random_twins_depend_on_seed_draw_layer_and_tensor_and_on_nothing_else():
    def twin_of(seed: int, draw: int | None) -> Twin:
        return twin(call(probes.REDRAW), run_seed=seed, draw=draw)

    one, again = twin_of(1, 0), twin_of(1, 0)
    again.overlay(2)  # another order of layers
    assert torch.equal(one.weights(0).W_Q, again.weights(0).W_Q)
    for other in (twin_of(1, 1), twin_of(2, 0), twin_of(1, None)):
        assert not torch.equal(one.weights(0).W_Q, other.weights(0).W_Q)
    assert not torch.equal(one.weights(0).W_Q, one.weights(1).W_Q)
    assert not torch.equal(one.weights(0).W_K, one.weights(0).W_V)


def test_what_is_forgotten_is_made_again_the_same():
    edited = twin(call(probes.REDRAW), run_seed=1, draw=0)
    before = edited.weights(1).W_V
    edited.forget(1)
    after = edited.weights(1).W_V
    assert after is not before
    assert torch.equal(after, before)


def test_generators_differ_by_tensor_and_repeat():
    generators = Generators(5, 2)
    a, b = (torch.randn(4, generator=generators.torch("W_Q")) for _ in range(2))
    assert torch.equal(a, b)
    assert not torch.equal(a, torch.randn(4, generator=generators.torch("W_K")))
    assert generators.numpy("x").normal() == generators.numpy("x").normal()
    assert Generators(5, None).of("W_E") != Generators(5, 0).of("W_E")


@pytest.mark.parametrize(
    ("function", "random", "said"),
    [
        (lambda w, p, g: {"W_K": w.W_K}, False, "it says that it touches only W_E, W_O, W_Q"),
        (lambda w, p, g: {"W_Q": w.W_Q[:1]}, False, r"its shape is \(1, 16, 6\), the model's is \(4, 16, 6\)"),
        (lambda w, p, g: {"W_Q": w.W_Q / 0}, False, "not finite"),
        (lambda w, p, g: {"W_Q": w.W_Q}, True, "random and left the tensor bit-equal"),
        (lambda w, p, g: {"W_E": w.W_Q}, False, "the model has no such tensor"),
        (lambda w, p, g: w.W_Z, False, "did you mean|has no W_Z|AttributeError"),
        (lambda w, p, g: 1 / 0, False, "edit probe.made failed in layer 0: ZeroDivisionError"),
    ],
)
def test_what_an_edit_may_not_do(function, random, said):
    with pytest.raises(GausslensError, match=said) as caught:
        twin(call(made(function, random))).overlay(0)
    assert "study.yaml:7:3" in str(caught.value)


BIASED = TinyModel.of(norm="layer", gains=True, biases=True, mlp=True)
BIASES = ("W_Q", "b_Q", "b_V", "b_O", "W_in", "ln1.w", "W_E")


@pytest.mark.parametrize("name", ["b_O", "ln1.w", "ln1.b", "W_in", "b_in", "W_E", "W_pos", "ln_final.w"])
def test_with_heads_a_tensor_that_has_none_is_never_dropped_in_silence(name):
    """A hundred in b_O was the unedited loss: what no part of belongs to some heads is refused by name."""
    edit = made(lambda w, p, g: {n: w[n] + 100 for n in (name, "W_Q") if n in w}, touches=("W_Q", name))
    layer = 0 if name in BIASED.names(0) else None
    with pytest.raises(EditFailed, match=rf"study.yaml:7:3.*{name}: it has no head axis.*\[1\]: leave out heads"):
        Twin(BIASED, [call(edit, heads=(1,))]).overlay(layer)
    assert name in Twin(BIASED, [call(edit)]).overlay(layer)
    with pytest.raises(ModelError, match=rf"no tensor that has heads, {name} alone: leave out heads"):
        check_edit(call(made(None, touches=(name,)), heads=(1,)), BIASED)


def test_with_heads_what_comes_back_as_it_was_is_no_change():
    edit = made(lambda w, p, g: {n: w[n] * (1 + (n == "W_Q")) for n in w if n in BIASES}, touches=BIASES)
    edited = Twin(BIASED, [call(edit, heads=(1,))])
    assert set(edited.overlay(0)) == {"W_Q", "b_Q", "b_V"}
    assert edited.overlay(None) == {}


def test_an_edit_is_told_what_it_may_change():
    told = {}

    def edit(weights: LayerWeights, parameters: Any, generators: Generators) -> dict[str, torch.Tensor]:
        told.update({name: (weights.rows(name), weights.may_change(name)) for name in weights})
        return {name: weights[name] * 2 for name in weights if name in BIASES and weights.may_change(name)}

    twin = Twin(BIASED, [call(made(edit, touches=BIASES), heads=(3,))])
    assert set(twin.overlay(0)) == {"W_Q", "b_Q", "b_V"}
    assert told["W_Q"] == told["b_Q"] == told["W_O"] == ([3], True)
    assert told["W_K"] == told["b_V"] == ([1], True)
    assert told["b_O"] == told["ln1.w"] == told["W_in"] == ([], False)
    Twin(BIASED, [call(made(edit, touches=BIASES))]).overlay(0)
    assert set(told.values()) == {(None, True)}
    note = "study.yaml:7:3: probe.made with heads: [3] leaves as it is what has no head axis: b_O, W_in, ln1.w, W_E"
    assert left_whole(call(made(edit, touches=BIASES), heads=(3,)), BIASED) == [note]
    assert left_whole(call(made(edit, touches=BIASES)), BIASED) == []


class WithSinks:
    """A model whose loader tells the head axes of tensors that the host does not know by name."""

    def __init__(self) -> None:
        told = {"sinks": (0, "head"), "W_distance": (1, "head"), "k_gain": (0, "kv_head"), "b_Q": None}
        self.info = replace(BIASED.info, facts={**BIASED.info.facts, "head_axes": told})
        self.more = {"sinks": torch.arange(4.0), "W_distance": torch.arange(12.0).reshape(3, 4)}
        self.more["k_gain"] = torch.arange(2.0)

    def names(self, layer):
        return (*BIASED.names(layer), *(self.more if layer == 0 else ()))

    def tensor(self, layer, name):
        return self.more[name] if name in self.more else BIASED.tensor(layer, name)


def test_a_loader_tells_which_axis_is_that_of_heads():
    model = WithSinks()
    weights = LayerWeights(model, 0, info=model.info.narrowed(None, [2, 3]))  # type: ignore[arg-type]
    assert weights["sinks"].tolist() == [2, 3]
    assert weights["W_distance"].tolist() == [[2, 3], [6, 7], [10, 11]]
    assert weights["k_gain"].tolist() == [1]
    assert weights["b_Q"].shape[0] == 4
    names = ("sinks", "W_distance", "k_gain")
    edit = call(made(lambda w, p, g: {n: w[n] - 100 for n in names if n in w}, touches=names), heads=(1,))
    edited = Twin(model, [edit]).overlay(0)  # type: ignore[arg-type]
    assert edited["sinks"].tolist() == [0, -99, 2, 3]
    assert edited["W_distance"].tolist() == [[0, -99, 2, 3], [4, -95, 6, 7], [8, -91, 10, 11]]
    assert edited["k_gain"].tolist() == [-100, 1]


@pytest.mark.parametrize(
    ("edit", "options", "said"),
    [
        (probes.SCALE, {"heads": (9,)}, "has no head 9: its heads are 0 to 3"),
        (probes.SCALE, {"layers": (7,)}, "has no layer 7: its layers are 0 to 2"),
        (made(None, touches=("W_gate",)), {}, r"would change nothing: it touches W_gate; there the model has W_E, W_K"),
        (made(None, touches=("W_E",)), {"heads": (1,)}, "it touches no tensor that has heads"),
        (made(None, touches=("W_E",)), {"layers": (0,)}, "there the model has W_K, W_O, W_Q, W_V.*leave out layers"),
    ],
)
def test_an_edit_that_would_change_nothing_is_refused_at_plan(edit, options, said):
    with pytest.raises(ModelError, match=said):
        check_edit(call(edit, probes.Scale() if edit is probes.SCALE else None, **options), MODEL)


def refuse_unless_one(model, parameters):
    """What an edit asks of the model and its parameters, when the run is planned."""
    if model.info.n_layers / parameters.alpha != 3:
        raise ModelError(f"{model.info.name} is scaled by one alone")


def test_an_edit_may_say_that_it_cannot_be_made():
    edit = replace(probes.SCALE, check=f"{__name__}:refuse_unless_one")
    check_edit(call(edit, probes.Scale(alpha=1)), MODEL)
    with pytest.raises(ModelError, match="is scaled by one alone"):
        check_edit(call(edit, probes.Scale(alpha=2)), MODEL)
    with pytest.raises(EditFailed, match=r"cannot say whether it can be made: ZeroDivisionError"):
        check_edit(call(edit, probes.Scale(alpha=0)), MODEL)


def test_weights_in_view():
    info = MODEL.info.narrowed([1], [2, 3])
    weights = Twin(MODEL).weights(1, info)
    assert weights.W_Q.shape[0] == 2
    assert weights.W_K.shape[0] == 1
    assert weights.kv_of_head == (0, 0)
    assert "W_Q" in weights
    assert "W_E" not in weights
    with pytest.raises(ModelError, match=r"has no W_q in layer 1: did you mean W_Q"):
        weights["W_q"]
    with pytest.raises(AttributeError, match="did you mean W_Q"):
        _ = weights.W_q
