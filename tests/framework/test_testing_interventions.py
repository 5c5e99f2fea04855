"""The tools for authors of engines, and of analyses that intervene: what is right passes, what is wrong is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import probes
import pytest
import xarray as xr

import gausslens
from gausslens import Context, Twin
from gausslens.testing import TinyEngine, TinyModel, check_forward, check_interventions


@pytest.mark.parametrize("kind", TinyModel.kinds())
def test_the_tiny_engine_intervenes_at_every_site(kind: str) -> None:
    check_interventions(TinyEngine(), TinyModel.kinds()[kind], texts=["some words"])


class _Deaf(TinyEngine):
    """Its runner leaves out what is asked of some heads, positions or gradients."""

    def __init__(self, change: Any) -> None:
        self.change = change

    def runner(self, twin: Twin) -> Any:
        runner, change = super().runner(twin), self.change

        class Deaf:
            def forward(self, tokens: Any, sites: Any = (), interventions: Any = (), grad: bool = False) -> Any:
                given = [made for one in interventions for made in change(one)]
                found = runner.forward(tokens, sites, interventions=given, grad=grad)
                return {key: array.clone() for key, array in found.items()} if change(None) else found

        return Deaf()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: [], r"embed: it was called with \[\]"),
        (lambda one: [replace(one, heads=None)] if one else [], r"\{'heads': \[3\]\} changed the heads \[0, 1, 2, 3\]"),
        (
            lambda one: [replace(one, positions=None)] if one else [],
            r"embed: \{'positions': \[.\]\} changed the positions",
        ),
        (
            lambda one: [replace(one, function=lambda x, w: (one.function(x, w), x * 2)[1])] if one else [],
            "is unchanged",
        ),
        (lambda one: [one] if one else [None], "embed: with grad the logits have no gradient"),
    ],
)
def test_wrong_runners_are_caught(change: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_interventions(_Deaf(change), TinyModel(), texts=["ab"])  # type: ignore[arg-type]


class Patching:
    """A forward analysis that intervenes: what the loss of z of each head is, set to zero."""

    def __init__(self, parameters: Any, context: Context) -> None:
        self.model = context.model

    def run(self, runner: Any, prompts: Any) -> xr.Dataset:
        ids = prompts.ids[0][None]
        plain = runner.forward(ids)["logits"]

        def without(layer: int, head: int) -> float:
            zero = gausslens.Intervention("z", layer, lambda x, _: x * 0, heads=[head])
            return float((runner.forward(ids, interventions=[zero])["logits"] - plain).abs().mean())

        values = np.array([[without(layer, head) for head in self.model.heads] for layer in self.model.layers])
        return xr.Dataset({"moved": (("layer", "head"), values, {"long_name": "change of logits", "units": "1"})})


class Spoiling(Patching):
    def run(self, runner: Any, prompts: Any) -> xr.Dataset:
        found = super().run(runner, prompts)
        runner.whole.twin.base.tensor(0, "W_Q")[0, 0, 0] += 0
        runner.whole.twin.base.tensor(1, "W_K")[0] *= 2
        return found


def test_forward_analyses_that_intervene() -> None:
    found = check_forward(replace(probes.NEXT, analysis=f"{__name__}:Patching"))
    assert found["moved"].dims == ("layer", "head")
    assert float(found["moved"].min()) > 0
    with pytest.raises(AssertionError, match=r"second run differs|changed W_K of layer 1 in place"):
        check_forward(replace(probes.NEXT, analysis=f"{__name__}:Spoiling"))
