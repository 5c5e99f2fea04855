"""bilinear.noise and bilinear.slerp: what chance alone gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import gausslens
from gausslens.testing import check_round_trip, check_weights
from gausslens_bilinear.analyses.slerp import cosine_misfit
from gausslens_bilinear.parameters import NoiseParameters, SlerpParameters
from gausslens_bilinear.plugin import NOISE


def test_noise_of_given_sizes_follows_the_law_of_its_shape_and_not_the_published_scale() -> None:
    result = check_weights(NOISE, NoiseParameters(sizes=((200, 200), (60, 240)), samples=30))
    check_round_trip(result)
    assert result["size"].values.tolist() == ["200 x 200", "60 x 240"]
    np.testing.assert_allclose(result["law_upper"], [4.0, 2 / 300 * (60**0.5 + 240**0.5) ** 2])
    # Sum: variance 2 n m s^2 over draws, s = 2/(n + m).
    n, m = result["rows"].values, result["columns"].values
    error = np.sqrt(2 * n * m / 30) * 2 / (n + m)
    assert np.all(np.abs(result["sum"] - result["sum_law"]) < 4 * error)
    off = np.abs(result["maximum"] - result["maximum_law_mean"]).values
    assert np.all(off < 4 * result["maximum_law_sd"].values / np.sqrt(30))
    assert np.all(result["law_distance"] < 0.04)
    assert np.all(result["published_distance"] > 0.8)
    assert result["published_upper"].values[0] == pytest.approx(4 / 200)


def test_noise_has_the_sizes_of_the_models_own_matrices_where_none_are_given() -> None:
    result = check_weights(NOISE, NoiseParameters(samples=2))
    assert len(result["size"]) == len(set(zip(result["rows"].values, result["columns"].values, strict=True)))
    assert int(result["squared"].sel(size=result["size"].values[0]).count()) == int(result["rows"][0])


def test_a_cosine_is_one_and_a_second_harmonic_is_not() -> None:
    t = np.linspace(0, 1, 21)
    exact = 0.3 * np.cos(np.pi * t / 2 + 0.4) - 2
    assert cosine_misfit(t, exact) < 1e-12
    assert cosine_misfit(t, exact + 0.1 * np.cos(np.pi * t)) > 0.01


def test_divergence_along_arcs_is_near_a_cosine_only_to_leading_order(tmp_path: Path) -> None:
    found = {"use": "bilinear.slerp", "as": "arcs", "with": {"sizes": [4, 400], "lengths": [0.1, 1], "pairs": 60}}
    run = {"gausslens": 1, "name": "arcs", "model": {"path": "builtin:tiny"}, "analyses": [found]}
    data = gausslens.run(run, store=tmp_path / "store", shown=False)["trained", "arcs"]
    assert data["ends"].values.tolist() == ["random, n = 4", "random, n = 400", "embeddings"]
    assert data["dimension"].values[2] == gausslens.load("builtin:tiny").weights(0).W_Q.shape[1]
    few, many = (data.sel(ends=f"random, n = {n}") for n in (4, 400))
    np.testing.assert_allclose(data["kl_mean"].sel(t=1), 0, atol=1e-12)
    # Angles and lengths of 400 random coordinates spread by 1/sqrt(400), over 60 pairs: a tenth is many errors.
    for at in (0.1, 1.0):
        off = np.abs(many["kl_mean"].sel(length=at) - many["leading_order"].sel(length=at))
        assert float(off.max()) < 0.1 * float(many["leading_order"].sel(length=at).max())
        assert float(many["kl_misfit"].sel(length=at)) < 0.01
        assert float(few["kl_misfit_most"].sel(length=at)) > 0.05
        assert float(few["kl_misfit_mean"].sel(length=at)) < float(few["kl_misfit_most"].sel(length=at))
    # Jensen-Shannon is a quarter of KL to that order.
    ratio = many["js_mean"].sel(length=0.1, t=0) / many["kl_mean"].sel(length=0.1, t=0)
    assert float(ratio) == pytest.approx(0.25, rel=0.02)


@pytest.mark.parametrize(
    ("model", "wrong", "why"),
    [
        (NoiseParameters, {"sizes": ((1, 4),)}, "two rows"),
        (NoiseParameters, {"sizes": ((4, 4), (4, 4))}, "named once"),
        (SlerpParameters, {"sizes": (1,)}, "two dimensions"),
        (SlerpParameters, {"lengths": (0.0,)}, "positive"),
        (SlerpParameters, {"lengths": (1.0, 1.0)}, "named twice"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(model: Any, wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        model(**wrong)
