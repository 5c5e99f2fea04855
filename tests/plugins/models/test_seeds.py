"""model.seeds: planted components of variance are found, of trainings in three groups and of crossed ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import gausslens
from gausslens import Context, InputError, StepRef
from gausslens.spreading.prepare import prepare
from gausslens_models.analyses.seeds import Seeds
from gausslens_models.parameters import SeedsParameters

DATA, INIT, BOTH = 2.0, 1.0, 0.5
GROUPS = {"data": "a", "initialisation": "b", "both": "c"}
CELLS = (6, 8)


def context() -> Context:
    from gausslens.testing import TinyModel

    return Context(TinyModel().info, 0)


def result(values: np.ndarray) -> xr.Dataset:
    return xr.Dataset({"score": (("layer", "place"), values), "text": (("layer",), np.array(["x"] * CELLS[0]))})


def trained(rng: np.random.Generator, data: Any, init: Any, known: dict[Any, np.ndarray]) -> np.ndarray:
    """A mean, and what these seeds give: each the same wherever it is met."""
    parts = ((("D", data), DATA), (("N", init), INIT), (("DN", data, init), BOTH))
    return 5.0 + sum(known.setdefault(what, rng.normal(size=CELLS) * variance**0.5) for what, variance in parts)


def grouped(seed: int, count: int = 5) -> dict[StepRef, xr.Dataset]:
    rng, known = np.random.default_rng(seed), dict[Any, np.ndarray]()
    seeds = {"a": [(i, 0) for i in range(count)], "b": [(0, i) for i in range(count)]}
    seeds["c"] = [(i, i) for i in range(1, count + 1)]
    return {
        StepRef(variant, "of", "probe", draw): result(trained(rng, *pair, known))
        for variant, pairs in seeds.items()
        for draw, pair in enumerate(pairs)
    }


def crossed(seed: int, count: int = 4) -> dict[StepRef, xr.Dataset]:
    rng, known = np.random.default_rng(seed), dict[Any, np.ndarray]()
    return {
        StepRef("grid", "of", "probe", None, (("data", d), ("init", i))): result(trained(rng, d, i, known))
        for d in range(count)
        for i in range(count)
    }


@pytest.mark.parametrize(
    ("made", "given", "planted"),
    [
        (grouped, GROUPS, {"data": DATA + BOTH, "init": INIT + BOTH, "both": DATA + INIT + BOTH, "data_alone": DATA}),
        (crossed, {"crossed": "grid"}, {"data": DATA, "init": INIT, "interaction": BOTH}),
    ],
)
def test_planted_components_lie_in_their_intervals(made: Any, given: dict[str, str], planted: dict[str, float]) -> None:
    """In 19 of 20 about; of 40 studies fewer than 32 has a chance below 1 in 10^5 at 95 %, and 1 in 20 at 85 %."""
    hits = dict.fromkeys(planted, 0)
    for seed in range(40):
        inputs = made(seed)
        analysis = Seeds(SeedsParameters(of="of", **given), context())
        assert analysis.inputs(list(inputs)) == list(inputs)
        found = analysis.compute(inputs).sel(statistic="score")
        for source, value in planted.items():
            one = found.sel(source=source)
            hits[source] += float(one["low"]) <= value <= float(one["high"])
    assert min(hits.values()) >= 32, hits


def test_heads_are_taken_in_order() -> None:
    """Trainings whose heads are the same set in other places do not differ."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, 5))
    inputs = {}
    for variant in "abc":
        for draw in range(3):
            mixed = rng.permuted(values, axis=1)
            data = xr.Dataset({"score": (("layer", "head"), mixed), "mean": ((), rng.normal())})
            inputs[StepRef(variant, "of", "probe", draw)] = data
    found = Seeds(SeedsParameters(of="of", **GROUPS), context()).compute(inputs)
    assert float(abs(found["variance"].sel(statistic="score")).max()) < 1e-30
    assert float(found["variance"].sel(statistic="mean", source="both")) > 0


@pytest.mark.parametrize(
    ("steps", "given", "said"),
    [
        ([], GROUPS, "there is no 'of'"),
        ([StepRef("a", "of", "x", 0), StepRef("b", "of", "x", 0)], GROUPS, "not computed on the variant 'c'"),
        ([StepRef(v, "of", "x") for v in "abc"], GROUPS, "'a' has no draws that are models"),
        ([StepRef("grid", "of", "x", 0)], {"crossed": "grid"}, "'grid' is not swept over two seeds"),
    ],
)
def test_what_is_missing_is_named(steps: list[StepRef], given: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Seeds(SeedsParameters(of="of", **given), context()).inputs(steps)


def test_parameters_say_which_trainings() -> None:
    for wrong in ({}, {"data": "a"}, GROUPS | {"crossed": "grid"}):
        with pytest.raises(ValueError, match="or crossed alone"):
            SeedsParameters(of="of", **wrong)


def test_a_study_of_live_trainings(tmp_path: Path) -> None:
    """Two sizes of draws in one run file: three groups of built-in twins stand for trainings."""
    random = {"edits": [{"edit": "reinit.gaussian"}], "draws": 3}
    study = {
        "name": "seeds",
        "model": {"path": "builtin:tiny"},
        "variants": {"a": random, "b": random | {"edits": [{"edit": "reinit.permute"}]}, "c": random},
        "analyses": [
            {"use": "bilinear.spectrum"},
            {"use": "model.seeds", "with": {"of": "bilinear.spectrum", **GROUPS}},
        ],
    }
    results = gausslens.run(study, store=tmp_path / "store")
    found = results["all", "model.seeds"]
    assert "maximum" in found["statistic"].values
    page = (tmp_path / "store" / "report.html").read_text(encoding="utf-8")
    assert "What seeds give" in page
    study["analyses"][1]["with"]["data"] = "nobody"
    with pytest.raises(InputError, match="nobody"):
        prepare(study)
