"""What a notebook is given: a number of one's own beside its null, names to choose from, tables to look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import gausslens
from gausslens.maths.nulls import compare
from gausslens.terminal import html_table

RANDOM = np.random.default_rng(5)
DRAWS = RANDOM.normal(size=(8, 3, 4))
VALUE = RANDOM.normal(size=(3, 4)) + np.eye(3, 4) * 30


def test_a_number_of_ones_own_is_judged_as_those_of_a_run() -> None:
    found = gausslens.versus(VALUE, DRAWS)
    expected = compare(VALUE, DRAWS, (), (0, 1))
    np.testing.assert_array_equal(found["value"], VALUE)
    for column, values in (("z", expected.z), ("p", expected.p), ("q", expected.q), ("effect", expected.effect)):
        np.testing.assert_array_equal(found[f"value_{column}"], values)
    assert (found["value_z"].values[np.eye(3, 4, dtype=bool)] > 3).all()


def test_names_and_dimensions_stay_and_one_number_will_do() -> None:
    made = [xr.DataArray(draw, dims=("layer", "head"), name="score") for draw in (VALUE, *DRAWS)]
    found = gausslens.versus(made[0], made[1:], pooled=("head",))
    assert found["score_z"].dims == ("layer", "head")
    np.testing.assert_array_equal(found["score_p_empirical"], compare(VALUE, DRAWS, (1,), (0,)).p_empirical)
    alone = gausslens.versus(9.0, [0.1, -0.2, 0.3, 0.0, -0.1])
    assert float(alone["value_z"]) > 3


@pytest.mark.parametrize(
    ("value", "draws", "pooled", "said"),
    [
        (1.0, [2.0], (), "at least 2 draws, there is 1"),
        (1.0, [], (), "there are none"),
        (np.zeros(3), np.zeros((8, 4)), (), "a draw is not what the value is: .*3.* here"),
        ("a", ["b", "c"], (), "give real numbers"),
        (xr.DataArray(np.zeros(3), dims="head"), np.zeros((8, 3)), ("haed",), "did you mean head"),
    ],
)
def test_what_cannot_be_compared_is_told(value: object, draws: object, pooled: tuple[str, ...], said: str) -> None:
    with pytest.raises(gausslens.InputError, match=said):
        gausslens.versus(value, draws, pooled)


def test_results_models_and_weights_show_what_they_hold(tmp_path: Path) -> None:
    study = {
        "gausslens": 1,
        "name": "shown",
        "model": {"path": "builtin:tiny"},
        "variants": {"trained": []},
        "analyses": [{"use": "bilinear.spectrum"}],
        "report": False,
    }
    store = gausslens.run(study, store=tmp_path)
    assert store._ipython_key_completions_() == [("trained", "bilinear.spectrum")]
    assert "<td>bilinear.spectrum</td><td>1 of 1</td>" in store._repr_html_()
    model = gausslens.load("builtin:tiny")
    assert "resid_post" in model._repr_html_()
    assert "144,064" in model._repr_html_()
    weights = model.weights(1)
    assert "W_Q" in weights._ipython_key_completions_()
    assert repr(weights).startswith("<layer 1 of builtin:tiny: ")


def test_names_are_no_markup() -> None:
    assert "<b>" not in html_table("<b>", [("<b>", 1)], ("<b>", "n"))
