"""Our own forward analyses: the numbers of a step of some layers and heads are those that the whole model gives."""

from __future__ import annotations

from typing import Any

import pytest
import xarray as xr

from gausslens import Context, NarrowedRunner, Part, Prompt, Twin
from gausslens.contract.reference import resolve
from gausslens.testing import TinyEngine, TinyModel, TinyParameters
from gausslens_attention.parameters import SwapParameters
from gausslens_attention.plugin import SWAP
from gausslens_bilinear.plugin import ANGLES, ENERGY
from gausslens_gaussian.parameters import PropagateParameters
from gausslens_gaussian.plugin import COLLAPSE, PROPAGATE
from gausslens_spectrum.plugin import EFFECT

GIVEN: dict[str, tuple[Any, Any]] = {
    "swap": (SWAP, SwapParameters(which=["all", "each"], band=[0], budget=[1], masks=[], rank=[])),
    "effect": (EFFECT, None),
    "angles": (ANGLES, None),
    "energy": (ENERGY, None),
    "collapse": (COLLAPSE, None),
    "propagate": (PROPAGATE, PropagateParameters(window=3, dims=2)),
}


@pytest.mark.parametrize("use", GIVEN)
def test_what_is_in_view_does_not_change_what_is_found(use: str) -> None:
    """With the runner that the host gives, and with that of the whole model, which they were given before."""
    analysis, given = GIVEN[use]
    model = TinyModel(TinyParameters(layers=3, heads=6, kv_heads=3, d_model=24, d_head=6))
    texts = [f"{chr(97 + n)} word {n * n} and {chr(122 - n % 20)} more {n}" for n in range(24)]
    tokens = model.tokenise([Prompt((Part(text),)) for text in texts])
    info, twin = model.info.narrowed([1, 2], [1, 4]), Twin(model)
    whole = TinyEngine().runner(twin)
    parameters = given or resolve(analysis.parameters)()
    before, now = (
        resolve(analysis.analysis)(parameters, Context(info, 0, tokens)).run(runner, tokens)
        for runner in (whole, NarrowedRunner(whole, twin, info))
    )
    xr.testing.assert_identical(before, now)
    assert any("head" in array.dims or "layer" in array.dims for array in now.data_vars.values())
