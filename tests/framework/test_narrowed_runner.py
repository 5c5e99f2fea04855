"""A forward analysis sees, and changes, the layers and heads in view alone; numbers are those of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import gausslens
from gausslens import Intervention, ModelError, NarrowedRunner, Twin
from gausslens.testing import TinyEngine, TinyModel, TinyParameters

MODEL = TinyParameters(layers=3, heads=6, kv_heads=3, d_model=24, d_head=6)
IDS = np.array([[5, 9, 40, 7, 80, 11]])


@pytest.fixture
def whole() -> Any:
    return TinyEngine().runner(Twin(TinyModel(MODEL)))


@pytest.fixture
def narrowed(whole: Any) -> NarrowedRunner:
    return NarrowedRunner(whole, whole.twin, whole.info.narrowed([1], [4]))


def test_what_is_captured_is_what_is_in_view(whole: Any, narrowed: NarrowedRunner) -> None:
    sites = ("resid_pre", "q", "k", "v", "scores", "pattern", "z", "logits")
    every, seen = whole.forward(IDS, sites), narrowed.forward(IDS, sites)
    assert narrowed.info.heads == (4,)
    assert narrowed.info.kv_heads == (2,)
    assert set(seen) == {"logits", *((1, name) for name in sites[:-1])}
    for name in ("q", "z"):
        assert torch.equal(seen[1, name], every[1, name][:, :, [4]])
    for name in ("k", "v"):
        assert torch.equal(seen[1, name], every[1, name][:, :, [2]])
    for name in ("scores", "pattern"):
        assert torch.equal(seen[1, name], every[1, name][:, [4]])
    assert torch.equal(seen[1, "resid_pre"], every[1, "resid_pre"])
    assert torch.equal(narrowed.weights(1).W_Q, whole.weights(1).W_Q[[4]])
    assert torch.equal(narrowed.weights(1).W_K, whole.weights(1).W_K[[2]])
    assert narrowed.whole.info == whole.info
    assert torch.equal(narrowed.whole.forward(IDS, ("q",))[0, "q"], whole.forward(IDS, ("q",))[0, "q"])
    assert narrowed.decode(IDS[0]) == whole.decode(IDS[0])


def test_all_heads_in_view_are_changed_and_no_others(whole: Any, narrowed: NarrowedRunner) -> None:
    def removed(tensor: torch.Tensor, where: gausslens.Where) -> torch.Tensor:
        assert (where.heads, tensor.shape[2]) == ((4,), 1)
        return torch.zeros_like(tensor)

    found = narrowed.forward(IDS, ("logits",), interventions=[Intervention("z", 1, removed)])
    expected = whole.forward(IDS, ("logits",), interventions=[Intervention("z", 1, removed, heads=[4])])
    assert torch.equal(found["logits"], expected["logits"])
    assert not torch.equal(found["logits"], whole.forward(IDS)["logits"])


@pytest.mark.parametrize(
    ("site", "layer", "heads", "said"),
    [
        ("z", 1, [0], "no heads 0 in view; there are 4"),
        ("k", 1, [0], "no key/value heads 0 in view; there are 2"),
        ("resid_pre", 0, None, "no such layer in view; it has 1"),
    ],
)
def test_what_is_not_in_view_is_refused(narrowed: NarrowedRunner, site: str, layer: int, heads: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        narrowed.forward(IDS, interventions=[Intervention(site, layer, lambda tensor, where: None, heads)])


def test_replace_of_before_is_narrowed_too(whole: Any, narrowed: NarrowedRunner) -> None:
    layers = []

    def even(layer: int, scores: torch.Tensor, pattern: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        layers.append(layer)
        assert scores.shape[1] == pattern.shape[1] == v.shape[2] == 1
        return torch.full_like(pattern, 1 / pattern.shape[-1])

    flat = Intervention("pattern", 1, lambda tensor, where: torch.full_like(tensor, 1 / 6), heads=[4])
    found = narrowed.forward(IDS, replace=even)
    assert layers == [1]
    torch.testing.assert_close(found["logits"], whole.forward(IDS, interventions=[flat])["logits"])
    with pytest.raises(ModelError, match="an intervention at z"):
        narrowed.forward(IDS, replace=lambda layer, scores, pattern, v: pattern[..., :2])


class Removed:
    """The loss without each head in view, as one would write it who never saw more than these."""

    def __init__(self, parameters: Any, context: Any) -> None:
        self.info = context.model

    def run(self, runner: Any, prompts: Any) -> xr.Dataset:
        ids = prompts.ids[0][None]
        found = np.zeros((len(self.info.layers), len(self.info.heads)))
        for row, layer in enumerate(runner.info.layers):
            z = runner.forward(ids, ("z",))[layer, "z"]
            assert z.shape[2] == len(self.info.heads)
            for place, head in enumerate(runner.info.heads):
                gone = Intervention("z", layer, lambda tensor, where: torch.zeros_like(tensor), heads=[head])
                moved = runner.forward(ids, interventions=[gone])["logits"] - runner.forward(ids)["logits"]
                found[row, place] = float(moved.square().sum())
        return xr.Dataset({"moved": gausslens.variable(("layer", "head"), found, "how far logits move")})


class Plugin:
    """A plugin of one analysis."""

    @staticmethod
    @gausslens.hookimpl
    def analyses() -> list[gausslens.Analysis]:
        return [
            gausslens.Analysis(
                name="probe.removed",
                version=1,
                shape="forward",
                summary="What each head does to the logits.",
                analysis=f"{__name__}:Removed",
            )
        ]


def test_a_step_of_one_head_gives_the_number_of_that_head(gausslens_run: Callable[..., Any]) -> None:
    model = {"path": "builtin:testing", "layers": 3, "heads": 6, "kv_heads": 3}
    use: dict[str, Any] = {"use": "probe.removed"}
    steps = [use | {"as": "every"}, use | {"as": "one", "heads": [4], "layers": [1]}]
    study = {"model": model, "prompts": {"source": "text", "text": ["some text"]}, "analyses": steps}
    results = gausslens_run(study, "models", probe=Plugin)
    every, one = (results["trained", label]["moved"] for label in ("every", "one"))
    assert one["head"].values.tolist() == [4]
    assert one["layer"].values.tolist() == [1]
    assert float(one[0, 0]) == float(every.sel(layer=1, head=4)) != float(every.sel(layer=1, head=0))


def test_an_engine_of_before_is_named_where_it_would_have_to_intervene(whole: Any) -> None:
    class Before:
        info = whole.info

        def forward(self, tokens: Any, sites: Any = (), base: bool = False, mask: Any = None) -> Any:
            return whole.forward(tokens, sites, base=base, mask=mask)

    runner = NarrowedRunner(Before(), whole.twin, whole.info)
    assert torch.equal(runner.forward(IDS)["logits"], whole.forward(IDS)["logits"])
    with pytest.raises(ModelError, match="written before there were interventions"):
        runner.forward(IDS, interventions=[Intervention("z", 1, lambda z, _: z)])
