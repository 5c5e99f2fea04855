"""Studies of many models: each opened once and let go before the next, nothing mixed, and what is told at plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import probe_directories
import probes
import pytest
import xarray as xr
from numpy.testing import assert_allclose

import gausslens
from gausslens import plugins
from gausslens.perform import perform
from gausslens.report.departures import Departure, columns, rows
from gausslens.runfile.problems import RunFileErrors
from gausslens.spreading.prepare import prepare
from gausslens.testing import TinyEngine, TinyModel, wiring

STEPS = (0, 10, 100)


def host() -> plugins.Host:
    return plugins.load(only=[], extra={"tiny": wiring, "probe": probes, "directories": probe_directories})


def model(place: Path, **parameters: Any) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    (place / "tiny.json").write_text(json.dumps(parameters), encoding="utf-8")
    return place


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Checkpoints of a training in ck/, other trainings in seeds/, the last step as final."""
    for step in STEPS:
        model(tmp_path / "ck" / f"step{step:04d}", planted=[[1, 2, 1.0 + step]])
    for seed in range(1, 6):
        model(tmp_path / "seeds" / str(seed), seed=seed)
    model(tmp_path / "final", planted=[[1, 2, 101.0]])
    monkeypatch.chdir(tmp_path)
    probe_directories.OPENED.clear()
    probe_directories.HELD.clear()
    return tmp_path


TRAINING = {"model": {"path": "ck/step{step}"}, "sweep": {"step": "all"}}
SEEDS = {"model": {"path": "seeds/{seed}"}, "draws": {"seed": "all"}}


def study(variants: dict[str, Any], *uses: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": "many",
        "model": {"path": "final"},
        "prompts": {"source": "lines"},
        "variants": variants,
        "analyses": list(uses or ({"use": "probe.power"}, {"use": "probe.norm"})),
        "report": False,
    } | more


def ran(whole: dict[str, Any], store: str = "store") -> gausslens.Results:
    return gausslens.run(whole, store=store, host=host())


def notes(whole: dict[str, Any]) -> list[str]:
    _, _, models, plan = prepare(whole, host=host())
    models.close()
    return list(plan.notes)


def test_each_model_gives_its_own_numbers(here: Path) -> None:
    """Those of a run of that model alone, under the same keys: a study after it computes nothing again."""
    whole = ran(study({"final": [], "training": TRAINING, "seeds": SEEDS}))
    for label in ("probe.power", "probe.norm"):
        swept = whole["training", label]
        assert swept["step"].values.tolist() == list(STEPS)
        for step in STEPS:
            alone = ran(study({"t": []}, model={"path": f"ck/step{step:04d}"}), f"alone-{step}")
            xr.testing.assert_equal(swept.sel(step=step, drop=True).load(), alone["t", label].load())
        drawn = whole["seeds", label]
        for draw in range(5):
            alone = ran(study({"t": []}, model={"path": f"seeds/{draw + 1}"}), f"seed-{draw}")
            xr.testing.assert_equal(drawn.sel(draw=draw, drop=True).load(), alone["t", label].load())
    again = perform(study({"t": []}, model={"path": "ck/step0010"}), store="store", host=host())
    assert again.outcome.counts() == {"computed": 0, "found": 2, "failed": 0}


def test_each_model_is_opened_once_and_one_is_held_at_a_time(here: Path) -> None:
    redrawn = TRAINING | {"edits": [{"edit": "probe.redraw"}], "draws": 2}
    ran(study({"final": [], "training": TRAINING, "chance": redrawn, "few": TRAINING | {"sweep": {"step": [0]}}}))
    opened = probe_directories.OPENED
    assert sorted(opened) == sorted({*opened})
    assert len(opened) == 4
    assert max(map(len, probe_directories.HELD)) == 1


def test_a_run_that_was_stopped_goes_on_and_computes_nothing_twice(here: Path) -> None:
    whole = study({"training": TRAINING, "seeds": SEEDS})
    part = study({"training": TRAINING | {"sweep": {"step": [0, 10]}}})
    assert perform(part, store="store", host=host()).outcome.counts()["computed"] == 4
    assert perform(whole, store="store", host=host()).outcome.counts() == {"computed": 12, "found": 4, "failed": 0}
    assert perform(whole, store="store", host=host()).outcome.counts()["computed"] == 0


def test_a_null_that_is_swept_stands_beside_its_own_step(here: Path) -> None:
    redrawn = TRAINING | {"edits": [{"edit": "probe.redraw"}], "draws": 3}
    whole = ran(study({"final": [], "training": TRAINING, "chance": redrawn}, {"use": "probe.norm"}, against="chance"))
    found = whole.against("training", "probe.norm")
    drawn = whole["chance", "probe.norm"]["norm"]
    assert_allclose(found["norm_null_mean"].values, drawn.mean("draw").transpose(*found["norm"].dims).values)
    with pytest.raises(gausslens.GausslensError, match="compared with no null"):
        whole.against("final", "probe.norm")
    told = notes(study({"final": [], "t": TRAINING, "chance": redrawn}, {"use": "probe.norm"}, against="chance"))
    assert told == ["probe.norm of final beside chance: not compared, it has draws at swept values alone"]


def test_heads_of_other_trainings_are_compared_by_rank(here: Path) -> None:
    """The k-th smallest of a layer with the k-th smallest of each draw, whatever heads they are."""
    whole = ran(study({"final": [], "seeds": SEEDS}, {"use": "probe.norm"}, against="seeds"))
    mine, drawn = (whole[name, "probe.norm"]["norm"] for name in ("final", "seeds"))
    found = whole.against("final", "probe.norm")
    ranks = mine.values.argsort(axis=-1).argsort(axis=-1)
    ordered = np.sort(drawn.transpose("draw", *mine.dims).values, axis=-1).mean(axis=0)
    assert_allclose(found["norm_null_mean"].values, np.take_along_axis(ordered, ranks, axis=-1))
    assert "by rank" in found.attrs["heads"]
    assert whole.rungs == {"seeds": "seeds"}


def test_draws_of_equal_weights_count_once(here: Path) -> None:
    model(here / "seeds" / "6", seed=5)
    whole = study({"final": [], "seeds": SEEDS}, {"use": "probe.norm"}, against="seeds")
    assert any("seed 5 and seed 6 of seeds are the same weights: they count once" in note for note in notes(whole))
    assert ran(whole).against("final", "probe.norm").attrs["draws"] == 5


def test_steps_of_equal_weights_are_told(here: Path) -> None:
    model(here / "ck" / "step0200", planted=[[1, 2, 11.0]])
    told = notes(study({"training": TRAINING}))
    assert any("step 10 and step 200 of training are the same weights" in note for note in told)


def test_models_that_do_not_fit_are_left_out_and_named(here: Path) -> None:
    model(here / "seeds" / "7", d_model=20)
    model(here / "seeds" / "8", layers=3)
    whole = study({"final": [], "seeds": SEEDS}, {"use": "probe.norm"}, against="seeds")
    told = notes(whole)
    assert any("seed 7 is left out, d_model is 20 there and 16 here" in note for note in told)
    assert any("seed 8 is left out, n_layers is 3 there and 2 here" in note for note in told)
    assert ran(whole).against("final", "probe.norm").attrs["draws"] == 5


def test_a_difference_has_the_weights_of_one_less_those_of_the_other(here: Path) -> None:
    variants: dict[str, Any] = {
        "final": [],
        "base": {"model": {"path": "ck/step0000"}},
        "added": {"difference": ["final", "base"]},
        "grown": {"difference": ["training", "base"]},
        "training": TRAINING,
        "chance": {"difference": ["final", "base"], "edits": [{"edit": "probe.scale", "alpha": 3.0}]},
    }
    whole = ran(study(variants))
    head = energy(100.0)
    added = whole["added", "probe.norm"]["norm"]
    assert_allclose(added.sel(layer=1, head=2), head, rtol=1e-6)
    assert float(added.sum()) == pytest.approx(head, rel=1e-6)
    grown = whole["grown", "probe.norm"]["norm"].sel(layer=1, head=2)
    assert_allclose(grown.values, [energy(step) for step in STEPS], rtol=1e-6)
    assert_allclose(whole["chance", "probe.norm"]["norm"].values, 9 * added.values, rtol=1e-6)
    assert ("added", "probe.power") not in whole
    assert any("left out on added, a difference of weights: it runs a model" in note for note in notes(study(variants)))


def energy(factor: float) -> float:
    """The squared norm of W_Q of the planted head, so many times as large."""
    return float((factor * TinyModel().tensor(1, "W_Q")[2].double()).square().sum())


def test_dtype_and_device_come_from_the_run(here: Path) -> None:
    whole = study({"training": TRAINING, "own": {"model": {"path": "final", "dtype": "float32"}}})
    _, read, models, plan = prepare(whole | {"model": {"path": "final", "dtype": "float64"}}, host=host())
    models.close()
    dtypes = {step.ref.variant: step.info.dtype for step in plan.steps}
    assert dtypes == {"training": "float64", "own": "float32"}
    assert read.resolved["variants"]["training"]["sweep"] == {"step": [0, 10, 100]}


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ({"model": {"path": "ck/step{step}"}}, "nothing fills in {step}; add `sweep: {step: [...]}`"),
        ({"model": {"path": "ck/step{step}"}, "sweep": {"stp": [0]}}, "the path of this variant's model has no {stp}"),
        ({"sweep": {"step": [0]}}, "this variant has no `model:`"),
        ({"model": {"path": "ck/step{step}"}, "sweep": {"step": [0, 7, 8]}}, "2 of 3 models are not there: ck/step7"),
        ({"model": {"path": "ck/st{step}.x"}, "sweep": {"step": "all"}}, "nothing matches 'ck/st{step}.x'"),
        ({"model": {"path": "no/{step}"}, "sweep": {"step": "all"}}, "there are ck, final, seeds"),
        ({"model": {"path": "ck/step{layer}"}, "sweep": {"layer": "all"}}, "results have a dimension of this name"),
        ({"model": {"path": "ck/step{step}"}, "sweep": {"step": 3}}, "should be a list"),
        ({"model": {"path": "ck/step{step}"}, "sweep": {"step": [0, 0]}}, "is swept twice"),
        (TRAINING | {"draws": {"step": [0]}}, "is swept and drawn"),
        ({"difference": ["trained", "nobody"]}, "there is no variant 'nobody'"),
        ({"difference": ["trained", "trained"]}, "the difference of trained from itself is nothing"),
        ({"difference": ["trained"]}, "2"),
        ({"difference": ["trained", "many"]}, "many has draws"),
        ({"difference": ["trained", "swept"]}, "does not say which point of it is meant"),
        ({"difference": ["trained", "other"], "model": {"path": "final"}}, "has no model of its own"),
    ],
)
def test_mistakes_are_told_at_their_place(here: Path, variant: dict[str, Any], said: str) -> None:
    variants = {"trained": [], "other": [{"edit": "probe.scale"}], "many": SEEDS, "swept": TRAINING, "wrong": variant}
    with pytest.raises(RunFileErrors) as caught:
        prepare(study(variants), host=host())
    assert said in str(caught.value)


def test_a_study_needs_no_model_that_no_variant_reads(here: Path) -> None:
    """The model of the run is opened where something reads it."""
    ran(study({"seeds": SEEDS}, {"use": "probe.norm"}))
    assert not any(path.endswith("final") for path in probe_directories.OPENED)


def test_numbers_in_names_are_numbers(here: Path) -> None:
    """Zeros before them are filled in; what is no number stays text."""
    model(here / "ck" / "steplast")
    _, read, models, _ = prepare(study({"t": TRAINING}), host=host())
    models.close()
    assert read.resolved["variants"]["t"]["sweep"]["step"] == ["0000", "0010", "0100", "last"]


def test_two_names_of_one_number_are_refused(here: Path) -> None:
    """One of the two would be passed over."""
    model(here / "ck" / "step10")
    with pytest.raises(RunFileErrors, match=r"0010 and 10 are both there, and both are 10; list the values"):
        prepare(study({"t": TRAINING}), host=host())
    _, read, models, _ = prepare(study({"t": TRAINING | {"sweep": {"step": [10]}}}), host=host())
    models.close()
    assert [step.models[0].path for step in read.variants[0].points] == [str(here / "ck" / "step10")]


def test_rates_in_names_are_numbers(here: Path) -> None:
    for name in ("1e-3", "3e-4", "0.01"):
        model(here / "rates" / f"lr{name}")
    for values in ("all", [3e-4, 1e-3, 0.01]):
        rates = {"model": {"path": "rates/lr{rate}"}, "sweep": {"rate": values}}
        _, read, models, _ = prepare(study({"t": rates}), host=host())
        models.close()
        assert read.resolved["variants"]["t"]["sweep"]["rate"] == [3e-4, 1e-3, 0.01]


def test_a_link_to_nothing_is_missing_and_hidden_names_are_passed_over(here: Path) -> None:
    model(here / "seeds" / ".cache")
    assert len(ran(study({"seeds": SEEDS}, {"use": "probe.norm"}))["seeds", "probe.norm"]["draw"]) == 5
    (here / "seeds" / "9").symlink_to(here / "gone")
    with pytest.raises(RunFileErrors, match=r"there is no directory|1 of 6 models are not there: seeds/9"):
        prepare(study({"seeds": SEEDS}), host=host())


def test_a_wrong_value_is_one_mistake(here: Path) -> None:
    with pytest.raises(RunFileErrors) as caught:
        prepare(study({"t": TRAINING | {"sweep": {"step": [0, None]}}}), host=host())
    assert "this is null" in str(caught.value)
    assert "not there" not in str(caught.value)
    assert "no directory" not in str(caught.value)


def test_the_model_itself_is_no_draw_of_its_null(here: Path) -> None:
    """Held against itself too, it would depart less than it does."""
    own = {"model": {"path": "seeds/3"}}
    whole = study({"final": [], "own": own, "seeds": SEEDS}, {"use": "probe.norm"}, against="seeds")
    told = "probe.norm of own beside seeds: seed 3 is left out, it is what is compared: the same weights"
    assert told in notes(whole)
    found = ran(whole)
    assert found.against("own", "probe.norm").attrs["draws"] == 4
    assert found.against("final", "probe.norm").attrs["draws"] == 5


def test_draws_that_are_all_equal_are_no_null(here: Path) -> None:
    for seed in range(1, 6):
        model(here / "seeds" / str(seed), seed=1)
    whole = study({"final": [], "seeds": SEEDS}, {"use": "probe.norm"}, against="seeds")
    told = "probe.norm of final beside seeds: not compared, its draws are of the same weights"
    assert told in notes(whole)
    assert ran(whole)["final", "probe.norm"].sizes["layer"] == 2


def test_one_model_is_no_null(here: Path) -> None:
    with pytest.raises(RunFileErrors, match="has one draw; name more models in its draws"):
        prepare(study({"final": [], "seeds": SEEDS | {"draws": {"seed": [1]}}}, against="seeds"), host=host())


def test_a_checkpoint_that_is_gone_when_it_is_read_fails_its_own_steps(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its loader says then: results of all other models are there, those after it too."""

    def prove(_: TinyEngine, opened: Any) -> list[Any]:
        if opened.place.endswith("step0010"):
            raise FileNotFoundError(f"{opened.place}: no such directory")
        return []

    monkeypatch.setattr(TinyEngine, "prove", prove, raising=False)
    with pytest.raises(gausslens.GausslensError, match=r"on t, step 10: .*step0010: no such directory") as caught:
        ran(study({"t": TRAINING}))
    assert "2 of 6 steps failed" in str(caught.value)
    monkeypatch.setattr(TinyEngine, "prove", lambda *_: [])
    again = perform(study({"t": TRAINING}), store="store", host=host()).outcome
    assert {step.ref.sweep for step in again.computed} == {(("step", 10),)}


def test_a_table_of_what_departs_has_rows_of_one_width(here: Path) -> None:
    """Also where one of its statistics alone was held against a second null."""
    variants = {"a": [], "chance": {"edits": [{"edit": "probe.redraw"}], "draws": 5}, "seeds": SEEDS}
    known = Departure(ran(study(variants, against=["chance", "seeds"])).statistics()[0], (0, 0))
    asked = Departure(known.statistic, (0, 0), Mock(cells=Mock(rung=np.full(known.statistic.called.shape, "seeds"))))
    assert {len(row) for row in rows([known, asked])} == {len(columns([known, asked]))}
    assert rows([known])[0] == known.row()


def test_a_checkpoint_that_fails_its_proof_fails_its_own_steps_once(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where weights alone are looked at first; those of other models go on."""
    from gausslens.measuring import execute

    proved = execute.proved

    def failing(opened: Any, todo: Any) -> Any:
        if opened.call.path.endswith("step0010"):
            raise gausslens.ModelError("what is captured is not what the model computes")
        return proved(opened, todo)

    monkeypatch.setattr(execute, "proved", failing)
    redrawn = TRAINING | {"edits": [{"edit": "probe.redraw"}], "draws": 2}
    uses = ({"use": "probe.norm"}, {"use": "probe.power", "variants": ["chance"]})
    ran = perform(study({"training": TRAINING, "chance": redrawn}, *uses), store="store", host=host())
    failed = {(f.step.ref.variant, f.step.ref.label, f.step.ref.draw, f.step.ref.sweep) for f in ran.outcome.failed}
    assert len(failed) == len(ran.outcome.failed) == 5
    assert {dict(sweep)["step"] for *_, sweep in failed} == {10}
    assert ran.outcome.counts() == {"computed": 10, "found": 0, "failed": 5}


def test_a_null_at_some_points_of_a_sweep_stands_beside_those_alone(here: Path) -> None:
    """The page and the verdicts say what they can: a trajectory of one compared step has no onset."""
    redrawn = TRAINING | {"edits": [{"edit": "probe.redraw"}], "draws": 5}
    variants = {"training": TRAINING, "chance": redrawn | {"sweep": {"step": [10]}}}
    whole = ran(study(variants, {"use": "probe.norm"}, against="chance", report=True))
    assert whole.against("training", "probe.norm")["step"].values.tolist() == [10]
    assert whole.onsets() == []
    page = (here / "store" / "report.html").read_text(encoding="utf-8")
    assert "could not be drawn" not in page
    assert "The variable norm." in page


def test_a_comparison_with_gaps_hides_nothing_else(here: Path) -> None:
    for kind in ("a", "b"):
        for step in (1, 2):
            model(here / "two" / f"{kind}{step}", layers=3 if (kind, step) == ("b", 2) else 2, seed=step)
    swept = {"model": {"path": "two/{kind}{step}"}, "sweep": {"kind": ["a", "b"], "step": [1, 2]}}
    chance = {"edits": [{"edit": "probe.redraw"}], "draws": 5}
    whole = ran(study({"t": swept, "f": [], "chance": chance}, {"use": "probe.norm"}, against="chance", report=True))
    assert [one.variant for one in whole.statistics()] == ["f"]
    with pytest.raises(gausslens.GausslensError, match="not finished at"):
        whole.against("t", "probe.norm")
