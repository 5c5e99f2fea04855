"""The tiny engine, with which authors test: interventions at every site, gradients, generation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import gausslens
from gausslens import Intervention, ModelError, Twin, site
from gausslens.testing import TinyEngine, TinyModel

IDS = np.array([[5, 9, 40, 7, 80], [5, 9, 40, 7, 11]])
SITES = TinyEngine().sites(TinyModel())


@pytest.fixture
def runner() -> Any:
    return TinyEngine().runner(Twin(TinyModel()))


@pytest.mark.parametrize("name", SITES)
def test_putting_back_the_same_changes_nothing_and_another_does(name: str, runner: Any) -> None:
    layer = None if site(name).whole else 1
    plain = runner.forward(IDS)["logits"]

    def through(function: Any, **cut: Any) -> torch.Tensor:
        found: torch.Tensor = runner.forward(IDS, interventions=[Intervention(name, layer, function, **cut)])["logits"]
        return found

    cut: dict[str, Any] = {"positions": [3, 1]} | ({"heads": [1]} if site(name).heads_dim else {})
    for how in ({}, cut):
        assert torch.equal(through(lambda tensor, where: tensor.clone(), **how), plain)
        assert torch.equal(through(lambda tensor, where: None, **how), plain)
        assert not torch.equal(through(lambda tensor, where: tensor.flip(-1), **how), plain)


@pytest.mark.parametrize("name", SITES)
def test_gradients_are_those_of_small_steps(name: str) -> None:
    runner = TinyEngine().runner(Twin(TinyModel(dtype="float64")))
    layer = None if site(name).whole else 1
    found = runner.forward(IDS, ("logits", name), grad=True)
    assert torch.equal(found["logits"], runner.forward(IDS)["logits"])
    draw = torch.Generator().manual_seed(0)
    along = torch.randn(found["logits"].shape, generator=draw, dtype=torch.float64)
    [gradient] = torch.autograd.grad(
        (found["logits"] * along).sum(), [found[name] if layer is None else found[1, name]]
    )
    step = 1e-5 * torch.randn(gradient.shape, generator=draw, dtype=torch.float64)
    ends = []
    for sign in (1.0, -1.0):
        moved = Intervention(name, layer, lambda tensor, where, by=sign * step: tensor + by)
        ends.append(float((runner.forward(IDS, interventions=[moved])["logits"] * along).sum()))
    assert math.isclose((ends[0] - ends[1]) / 2, float((gradient * step).sum()), rel_tol=1e-4, abs_tol=1e-10)


def test_what_is_captured_comes_after(runner: Any) -> None:
    gone = Intervention("attn_out", 1, lambda tensor, where: torch.zeros_like(tensor))
    found = runner.forward(IDS, ("attn_out", "resid_pre", "resid_post"), interventions=[gone])
    assert not found[1, "attn_out"].any()
    assert torch.equal(found[1, "resid_post"], found[1, "resid_pre"])


def test_generation_is_that_of_forward(runner: Any) -> None:
    def reversed_heads(tensor: torch.Tensor, where: gausslens.Where) -> torch.Tensor:
        return -10 * tensor

    late = [Intervention("z", 0, reversed_heads, positions=[5, 6])]
    assert runner.generate(IDS, 3, interventions=late)[0].tolist() != runner.generate(IDS, 3)[0].tolist()
    first = runner.generate(IDS, 1, interventions=late)[0].tolist()
    assert first == runner.generate(IDS, 1)[0].tolist()  # there is no position 5 yet
    with pytest.raises(ModelError, match="no positions 5, 6: these rows have 5"):
        runner.forward(IDS, interventions=late)


def test_heads_and_positions_are_numbers_and_no_mask() -> None:
    def same(tensor: torch.Tensor, where: gausslens.Where) -> torch.Tensor:
        return tensor

    for named in (np.array([0, 2]), torch.tensor([0, 2]), range(0, 3, 2), [np.int64(0), 2]):
        one = Intervention("z", 1, same, heads=named, positions=named)
        assert one.heads == one.positions == (0, 2)
    for wrong in ([True, False], np.array([True, False]), 1, slice(0, 2), "01", [0.5], torch.tensor([0.0])):
        for what in ("heads", "positions"):
            with pytest.raises(ModelError, match=f"intervention at z of layer 1: {what} are whole numbers in a list"):
                Intervention("z", 1, same, **{what: wrong})


def test_a_function_that_cannot_be_called_is_refused_where_it_is_given() -> None:
    for function in (torch.zeros(3), lambda tensor: tensor, 3):
        with pytest.raises(ModelError, match=r"at z of layer 1: its function is called as function\(tensor, where\)"):
            Intervention("z", 1, function)  # type: ignore[arg-type]
