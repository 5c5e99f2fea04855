"""The way from the residual stream to a head's values, for every family of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gausslens import Context, Tokens, Twin
from gausslens.testing import check_result
from gausslens_gaussian.analyses.collapse import Collapse
from gausslens_gaussian.analyses.value_path import ValuePath
from gausslens_gaussian.parameters import CollapseParameters
from gausslens_models.capture.engine import TransformersEngine


def test_values_are_the_normed_stream_through_w_v(
    family: str, family_model: Callable[[str], Any], family_tokens: Tokens
) -> None:
    model = family_model(family)
    runner = TransformersEngine().runner(Twin(model))
    found = runner.forward(family_tokens.ids[0][None], sites=("resid_pre", "v"))
    layers = [n for n in model.info.layers if "v" not in model.info.lacking.get(n, {})]
    assert layers
    for layer in layers:
        v = found[layer, "v"][0].double().numpy()
        ours = ValuePath.of(runner.weights(layer)).values(found[layer, "resid_pre"][0].double().numpy())
        np.testing.assert_allclose(ours, v, atol=1e-4 * np.abs(v).max())


def test_deficits_lie_between_even_and_one_hot(
    family: str, family_model: Callable[[str], Any], family_tokens: Tokens
) -> None:
    """Sliding windows, bidirectional attention, padding: no row has more entropy than its keys allow."""
    model = family_model(family)
    runner = TransformersEngine().runner(Twin(model))
    found = Collapse(CollapseParameters(), Context(model.info, 0, family_tokens)).run(runner, family_tokens)
    check_result(found)
    assert float(found["entropy_deficit"].min()) > -1e-5
    assert float(found["entropy_deficit"].max()) < np.log(max(family_tokens.lengths))
    assert np.isfinite(found["diameter_path"]).all()
