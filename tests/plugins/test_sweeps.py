"""Sweeps over every edit: planned, cached value by value, one dimension in the results, one axis in the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gausslens
import gausslens_models.plugin as models
import gausslens_reinit.plugin as reinit
import gausslens_spectrum.plugin as spectrum
from gausslens import plugins
from gausslens.figures import Lines
from gausslens.perform import perform
from gausslens.testing import wiring
from gausslens_spectrum.figures.effect import effect

# Of each edit a parameter, three values of it, and what else the edit needs.
SWEEPS: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "spectrum.scale": ("alpha", [0.5, 2.0, 4.0], {}),
    "spectrum.keep": ("k", [1, 2, 3], {}),
    "spectrum.drop": ("energy", [0.2, 0.5, 0.9], {"end": "bottom"}),
    "spectrum.keep-random": ("k", [1, 2, 3], {}),
    "spectrum.drop-random": ("k", [1, 2, 3], {"matrices": ["W_V"]}),
    "spectrum.power": ("p", [0.5, 2.0, 3.0], {}),
    "spectrum.flatten": ("amount", [0.2, 0.5, 1.0], {}),
    "spectrum.law": ("law", ["noise", "uniform", "exponential"], {}),
    "spectrum.vectors": ("sides", ["left", "right", "both"], {}),
    "spectrum.graft": ("source", [0, 1, 2], {"hold": "energy"}),
    "reinit.config": ("series", [0, 1, 2], {}),
    "reinit.gaussian": ("variance", [0.01, 0.1, 1.0], {}),
    "reinit.xavier": ("gain", [0.5, 1.0, 2.0], {}),
    "reinit.he": ("gain", [0.5, 1.0, 2.0], {"distribution": "uniform"}),
    "reinit.permute": ("series", [0, 1, 2], {}),
    "reinit.rotate": ("series", [0, 1, 2], {"by": "matrix"}),
    "reinit.cascade": ("depth", [1, 2, 3], {}),
    "reinit.identity": ("by", ["head", "matrix"], {}),
    "reinit.diagonal": ("series", [0, 1, 2], {}),
    "reinit.band": ("width", [0, 1, 2], {}),
    "reinit.sparse": ("density", [0.1, 0.5, 1.0], {}),
    "reinit.low-rank": ("rank", [1, 2, 3], {}),
}
ANALYSES: list[dict[str, Any]] = [{"use": "spectrum.effect", "with": {"tokens": 2}}, {"use": "reinit.check"}]


def run(edit: dict[str, Any], store: Path, draws: int | None = None, name: str = "swept") -> Any:
    study = {
        "gausslens": 1,
        "name": name,
        "model": {"path": "builtin:testing", "layers": 3},
        "prompts": {"source": "text", "text": ["one and one", "two and two", "three and three"]},
        "variants": {"edited": {"edits": [edit]} | ({} if draws is None else {"draws": draws})},
        "analyses": ANALYSES,
        "report": False,
    }
    host = plugins.load(only=[], extra={"tiny": wiring, "models": models, "spectrum": spectrum, "reinit": reinit})
    return perform(study, store=store, host=host)


def swept(edit: str, values: list[Any]) -> dict[str, Any]:
    parameter, _, given = SWEEPS[edit]
    return {"edit": edit, **given, "sweep": {parameter: values}}


def test_every_edit_is_swept_here() -> None:
    assert set(SWEEPS) == {edit.name for edit in (*spectrum.edits(), *reinit.edits())}


@pytest.mark.parametrize("edit", SWEEPS)
def test_a_sweep_is_one_dimension_and_each_value_is_cached(edit: str, tmp_path: Path) -> None:
    parameter, values, given = SWEEPS[edit]
    first = run(swept(edit, values[:-1]), tmp_path)
    assert [dict(s.ref.sweep) for s in first.plan.steps] == [{parameter: v} for v in values[:-1]] * len(ANALYSES)
    assert len(first.outcome.computed) == len(first.plan.steps)

    # One value more costs that value alone.
    more = run(swept(edit, values), tmp_path)
    assert [dict(s.ref.sweep) for s in more.outcome.computed] == [{parameter: values[-1]}] * len(ANALYSES)

    results = gausslens.open(tmp_path)
    for analysis in ("spectrum.effect", "reinit.check"):
        found = results["edited", analysis]
        assert found[parameter].values.tolist() == values
        assert {d for v in found.data_vars.values() for d in v.dims} >= {parameter}
    moved = results["edited", "reinit.check"]["moved"]
    assert moved.dims == (parameter, "layer", "tensor")
    assert float(moved.max()) > 0

    # A value of a sweep is what the edit with that value is.
    alone = run({"edit": edit, **given, parameter: values[0]}, tmp_path, name="alone")
    assert alone.outcome.computed == []
    here = gausslens.open(tmp_path).run("alone")["edited", "spectrum.effect"]
    np.testing.assert_array_equal(here["kl"], results.run("swept")["edited", "spectrum.effect"]["kl"][0])


@pytest.mark.parametrize("edit", ["spectrum.keep-random", "reinit.low-rank"])
def test_draws_and_sweeps_multiply_and_are_one_axis_in_the_figures(edit: str, tmp_path: Path) -> None:
    parameter, values, _ = SWEEPS[edit]
    made = run(swept(edit, values), tmp_path, draws=2)
    assert len(made.outcome.computed) == 2 * len(values) * len(ANALYSES)
    results = gausslens.open(tmp_path)
    assert results["edited", "spectrum.effect"]["kl"].dims == ("draw", parameter)
    curves = [f for f in effect(results) if isinstance(f, Lines) and f.x_name == parameter]
    assert [f.x.tolist() for f in curves] == [values] * 3
    kl = results["edited", "spectrum.effect"]["kl"]
    assert kl.std("draw").max() > 0
    (drawn,) = (f.series[0].y for f in curves if f.title.startswith("Divergence"))
    np.testing.assert_allclose(drawn, kl.mean("draw"))
