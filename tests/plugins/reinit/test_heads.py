"""Edits of some heads: what is claimed holds of these heads' part of each tensor, and the rest is bit-equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest

import gausslens_reinit.plugin as plugin
from gausslens import Results
from gausslens.testing import TinyModel, TinyParameters
from gausslens_reinit.maths.claims import broken_claim

# Four heads read two key/value heads: 0 and 1 the first, 2 and 3 the second.
ROWS = {
    (1,): {"W_Q": [1], "W_K": [0], "W_V": [0], "W_O": [1]},
    (0, 3): {"W_Q": [0, 3], "W_K": [0, 1], "W_V": [0, 1], "W_O": [0, 3]},
    (2, 3): {"W_Q": [2, 3], "W_K": [1], "W_V": [1], "W_O": [2, 3]},
}
# What each keeps of the part; the blocks of which the spectrum is.
CLAIMS: dict[str, tuple[Any, dict[str, Any], tuple[str, ...], str]] = {
    "permute": (plugin.PERMUTE, {}, ("values", "mean", "variance", "energy"), "head"),
    "gaussian": (plugin.GAUSSIAN, {}, ("mean", "variance", "energy"), "head"),
    "diagonal": (plugin.DIAGONAL, {}, ("energy",), "head"),
    "diagonal-each": (plugin.DIAGONAL, {"by": "head"}, ("energy",), "head"),
    "rotate": (plugin.ROTATE, {}, ("spectrum", "energy"), "head"),
    "rotate-whole": (plugin.ROTATE, {"by": "matrix"}, ("spectrum", "energy"), "matrix"),
    "cascade": (plugin.CASCADE, {"scheme": "permute", "depth": 2}, ("values", "energy"), "head"),
    "xavier": (plugin.XAVIER, {}, (), "head"),
}


@pytest.fixture
def model() -> TinyModel:
    """Heads of different size, so that entries of one are seen in another."""
    return TinyModel(TinyParameters(d_model=32, d_head=8, heads=4, kv_heads=2, planted=[(0, 1, 5.0), (0, 3, 9.0)]))


@pytest.mark.parametrize("heads", ROWS)
@pytest.mark.parametrize("scheme", CLAIMS)
def test_the_claim_holds_of_the_part_and_the_rest_stays(
    scheme: str, heads: tuple[int, ...], model: TinyModel, twin_of: Any
) -> None:
    edit, given, claims, by = CLAIMS[scheme]
    twin = twin_of(model, (edit, given), heads=heads)
    for layer in model.info.layers:
        assert set(twin.overlay(layer)) == set(ROWS[heads])
        for name, rows in ROWS[heads].items():
            before, after = model.tensor(layer, name), twin.weights(layer)[name]
            rest = [row for row in range(len(before)) if row not in rows]
            assert torch.equal(before[rest], after[rest])
            assert broken_claim(name, before[rows], after[rows], claims, by) is None
            assert all(not torch.equal(before[row], after[row]) for row in rows)


def test_fans_are_of_the_whole_matrix(twin_of: Any) -> None:
    """Of two heads of four W_Q reads 64 and writes 64; W_K has half as many heads."""
    model = TinyModel(TinyParameters(d_model=64, d_head=16, heads=4, kv_heads=2))
    weights = twin_of(model, (plugin.XAVIER, {}), heads=(2, 3)).weights(0)
    for name, rows, variance in (("W_Q", [2, 3], 2 / 128), ("W_K", [1], 2 / 96)):
        drawn = weights[name][rows].double().flatten().numpy()
        assert kstest(drawn / np.sqrt(variance), "norm").pvalue > 0.001


@pytest.mark.parametrize("scheme", CLAIMS)
def test_all_heads_named_are_no_restriction(scheme: str, model: TinyModel, twin_of: Any) -> None:
    edit, given, _, _ = CLAIMS[scheme]
    plain, named = (twin_of(model, (edit, given), heads=heads).overlay(0) for heads in (None, (0, 1, 2, 3)))
    assert all(torch.equal(plain[name], named[name]) for name in ROWS[(1,)])


@pytest.mark.parametrize("seen", [None, [1]])
@pytest.mark.parametrize("scheme", ["permute", "gaussian", "diagonal", "rotate"])
def test_the_check_agrees(scheme: str, seen: list[int] | None, gausslens_run: Callable[..., Results]) -> None:
    """Of the edited head and of the whole tensor; tiny's heads share key/value heads."""
    edit, given, claims, _ = CLAIMS[scheme]
    use: dict[str, Any] = {"use": "reinit.check", "with": {"claims": list(claims), "matrices": list(ROWS[(1,)])}}
    study = {
        "variants": {"part": [{"edit": edit.name, "heads": [1], **given}]},
        "analyses": [use if seen is None else use | {"heads": seen}],
    }
    found = gausslens_run(study, "reinit")["part", "reinit.check"]
    assert float(abs(found["energy_change"]).max()) < 1e-6
    assert float(found["moved"].sel(tensor="W_Q").min()) > (0.9 if seen else 0)
