"""The trajectories of a variant that is swept over models: its curves, the nulls' bands, and where step 0 stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from gausslens import draw
from gausslens.figures import Line, Lines, Panels, Plots, Source, Table
from gausslens.report.page import page
from gausslens.report.page_figures import draw as drawn
from gausslens.report.svg.axes import axes_of
from gausslens.report.thinning import Most, thinned
from gausslens.runs.compare import against
from gausslens.store.read_results import open as open_store
from gausslens.testing import host_of

from .conftest import Page, Written

STEPS = (0, 1, 10, 100)
HOST = host_of()
SCORE, LOSS = "A score, training (scores)", "A loss, training (scores)"
ABOUT: dict[str, Any] = {"title": "Scores", "caption": "What is seen.", "sources": [Source("training", "v", "score")]}


def measured(seed: int, step: int, found: bool, heads: int = 8) -> xr.Dataset:
    rng = np.random.default_rng([seed, step])
    score = rng.normal(step / 10, 0.1, (3, heads))
    if found:
        score[1, 5] += step
    scores = xr.Dataset(
        {
            "score": (("layer", "head"), score, {"long_name": "a score", "units": "nat"}),
            "loss": ((), rng.normal(5.0, 0.1), {"long_name": "a loss", "units": "nat"}),
        },
        coords={"layer": np.arange(3), "head": np.arange(heads)},
    )
    error = np.full((3, heads), 0.25)
    return scores.assign(score_se=(("layer", "head"), error, {"of": "score", "against": 0, "groups": 10}))


def swept(
    written: Written,
    own_null: bool,
    steps: tuple[int, ...] = STEPS,
    compare: bool = True,
    draws: int = 8,
    rungs: dict[str, str] | None = None,
) -> Path:
    """Training at each step, in another order than of the steps; a null at its own steps, or one for all."""
    sweep = {"sweep": {"step": list(steps)}, "model": {"path": "ck/{step}"}}
    null_steps = {
        step: [measured(draw + 1, step if own_null else 7, found=False) for draw in range(draws)] for step in steps
    }
    for step in reversed(steps):
        written.result("training", "scores", measured(0, step, found=True), step=step)
    for step in steps if own_null else steps[:1]:
        for number, dataset in enumerate(null_steps[step]):
            written.result("chance", "scores", dataset, number, **({"step": step} if own_null else {}))
    for step in steps if compare else ():
        beside = against(measured(0, step, found=True), null_steps[step])
        written.result("training", "scores.against.chance", beside, null="chance", step=step)
    return written.planned(rungs=rungs, variants={"training": sweep, "chance": sweep if own_null else {}})


def figures(path: Path) -> dict[str, Any]:
    """All but the table of onsets."""
    found = draw(path, section="trajectories", host=HOST)
    return {each.figure.title: each.figure for each in found if not isinstance(each.figure, Table)}


@pytest.mark.parametrize("own_null", [True, False])
def test_every_scalar_and_every_head_has_a_curve_and_the_null_its_band(written: Written, own_null: bool) -> None:
    store = swept(written, own_null)
    found = figures(store)
    assert list(found) == [SCORE, LOSS]
    scores, loss = found.values()
    compared = open_store(store).against("training", "scores").sortby("step")
    assert isinstance(scores, Panels)
    assert isinstance(loss, Lines)
    np.testing.assert_array_equal(scores.x, STEPS)
    assert [(dial.name, tuple(dial.labels), dial.start) for dial in scores.dials] == [("layer", ("0", "1", "2"), 1)]
    for layer, curves in enumerate(scores.panels):
        null, *heads = curves
        assert sorted(line.name for line in heads) == [f"head {i}" for i in range(8)]
        assert [line.faint for line in heads] == [False] * 5 + [True] * 3
        cells = compared.sel(layer=layer)
        np.testing.assert_allclose(null.y, cells["score_null_mean"].mean("head"))
        np.testing.assert_allclose(null.low, cells["score_null_low"].min("head"))
        np.testing.assert_allclose(null.high, cells["score_null_high"].max("head"))
        for line in heads:
            np.testing.assert_allclose(line.y, cells["score"].sel(head=int(line.name[5:])))
        # Student's t of 9 degrees, 97.5 %, is 2.2622; the error is 0.25 everywhere.
        np.testing.assert_allclose(np.asarray(heads[0].high) - np.asarray(heads[0].y), 0.25 * 2.26216, rtol=1e-4)
    assert not next(line for line in scores.panels[1] if line.name == "head 5").faint
    assert [line.name for line in loss.series] == ["chance", "training"]
    np.testing.assert_allclose(loss.series[0].low, compared["loss_null_low"])
    assert ("chance at the same step" if own_null else "chance the same for every step") in scores.caption
    assert "step 0 is set apart at the left" in scores.caption


def test_two_numbers_of_one_description_are_told_apart(written: Written) -> None:
    for step in STEPS:
        found = measured(0, step, found=False)
        written.result("training", "scores", found.assign(other=found["loss"]), step=step)
    sweep = {"sweep": {"step": list(STEPS)}, "model": {"path": "ck/{step}"}}
    store = written.planned(variants={"training": sweep})
    assert list(figures(store)) == [SCORE, "A loss: loss, training (scores)", "A loss: other, training (scores)"]


def test_when_what_appears_stands_in_a_table_in_csv_and_in_a_sentence(written: Written) -> None:
    """Planted is head 5 of layer 1, by 1 nat at step 1 and more at each later one; the rest follows its null."""
    store = swept(written, own_null=True)
    results = open_store(store)
    (table,) = [
        each.figure for each in draw(store, section="trajectories", host=HOST) if isinstance(each.figure, Table)
    ]
    assert table.title == "When training comes to stay beyond chance"
    assert table.columns == ("from step", "interval", "result", "variable", "cells", "where", "side")
    assert table.rows == (("1", "(0, 1]", "scores", "score", 1, "layer 1, head 5", "above"),)
    assert "0 are beyond the null at some step and not to the last, 24 at none" in table.caption
    frame = results.frame("training", "scores", variables="score")
    cell = frame[(frame["layer"] == 1) & (frame["head"] == 5)]
    assert cell["onset"].tolist() == [1.0] * 4
    assert (cell["onset_low"].tolist(), cell["onset_high"].tolist()) == ([0.0] * 4, [1.0] * 4)
    assert set(cell["onset_kind"]) == {"later"}
    others = frame.drop(cell.index)
    assert set(others["onset_kind"]) == {"never"}
    assert others["onset"].isna().all()
    (one,) = [one for one in results.onsets() if one.statistic.variable == "score"]
    assert one.step[1, 5] == 1
    assert results.sentences()[-1].startswith(
        "Along step, of 25 numbers of training (each cell of each statistic) 1 comes to stay beyond chance, first a "
        "score at layer 1, head 5 (in scores), from step 1 on (after 0, by 1 at the latest); 24 never"
    )


def test_a_null_is_named_by_what_it_is_in_legends_captions_and_tables(written: Written) -> None:
    store = swept(written, own_null=True, rungs={"chance": "before"})
    words = "the model before training (chance)"
    found = figures(store)
    assert {panel[0].name for panel in found[SCORE].panels} == {words}
    assert [line.name for line in found[LOSS].series] == [words, "training"]
    assert f"{words} at the same step" in found[LOSS].caption
    assert found[LOSS].caption.startswith("The variable loss. ")
    (table,) = [e.figure for e in draw(store, section="trajectories", host=HOST) if isinstance(e.figure, Table)]
    assert table.title == f"When training comes to stay beyond {words}"


def test_without_a_null_there_are_the_curves_alone(written: Written) -> None:
    found = figures(swept(written, own_null=False, compare=False))
    assert [line.name for line in found[LOSS].series] == ["training"]
    assert not any(line.name == "chance" for line in found[SCORE].panels[0])
    assert "Nulls" not in found[SCORE].caption


def test_a_null_of_few_draws_has_a_mean_and_no_band(written: Written) -> None:
    store = swept(written, own_null=True, draws=3)
    loss = figures(store)[LOSS]
    assert [line.name for line in loss.series] == ["chance", "training"]
    assert loss.series[0].low is None
    results = open_store(store)
    assert {kind for one in results.onsets() for kind in one.kind.ravel()} == {"never"}
    assert results.sentences() == ["Nothing can be said: 3 draws of chance tell no probability, 5 or more do."]
    assert "could not be drawn" not in page(results, HOST)


def test_steps_within_a_decade_are_on_a_straight_axis(written: Written) -> None:
    loss = figures(swept(written, own_null=True, steps=(0, 2, 4, 20)))[LOSS]
    assert not loss.log_x
    assert "logarithmic" not in loss.caption


def test_what_is_not_swept_over_models_by_a_number_has_no_trajectories(written: Written, study: Path) -> None:
    assert "section-trajectories" not in page(open_store(study), HOST)


def test_words_are_no_trajectory(written: Written) -> None:
    for name in ("base", "tuned"):
        written.result("both", "scores", measured(0, 1, found=False), which=name)
    store = written.planned(variants={"both": {"sweep": {"which": ["base", "tuned"]}}})
    assert "section-trajectories" not in page(open_store(store), HOST)


def test_the_page_holds_a_plot_for_each_place_and_shows_one(written: Written) -> None:
    found = Page(page(open_store(swept(written, own_null=True)), HOST))
    assert any(tag == "section" and attrs.get("id") == "section-trajectories" for tag, attrs in found.elements)
    turns = [attrs for tag, attrs in found.elements if tag == "div" and attrs.get("class") == "turn"]
    assert [attrs.get("hidden") for attrs in turns] == ["hidden", None, "hidden"]
    assert any(tag == "polyline" and attrs.get("class") == "faint" for tag, attrs in found.elements)


def lines(x: list[float], **more: Any) -> Lines:
    return Lines(**ABOUT, x=x, x_name="step", series=(Line("one", np.arange(len(x))),), log_x=True, **more)


def test_step_0_stands_left_of_the_scale_on_a_logarithmic_axis() -> None:
    plot = lines([0, 10, 100, 1000]).drawing()
    across, _ = axes_of(plot, (0.0, 100.0))
    places = [across.at(x) for x in (0, 10, 100, 1000)]
    assert places == sorted(places)
    assert np.ptp(np.diff(places)) < 0.05  # as far apart as the steps are
    assert across.ticks()[0] == 0
    assert all(tick == 0 or tick > across.least for tick in across.ticks())
    assert plot.x.written == "step (logarithmic, 0 set apart)"
    text = str(drawn(lines([0, 10, 100, 1000])))
    assert text.count("<circle") == 4  # 0 is drawn too
    assert axes_of(lines([0, 5]).drawing())[0].ticks()[0] == 0


def test_an_axis_without_0_or_with_less_is_as_it_was() -> None:
    for x, dots in (([1, 10, 100], 3), ([-1, 0, 10], 1), ([0, 0], 0)):
        plot = lines([float(v) for v in x]).drawing()
        assert plot.x.zero is None
        assert plot.x.written == "step"
        assert str(drawn(lines([float(v) for v in x]))).count("<circle") == dots


def test_panels_are_shownby_matplotlib_at_the_place_that_is_asked_for(written: Written) -> None:
    store = swept(written, own_null=True)
    each = draw(store, section="trajectories", host=HOST)[1]
    for layer in (0, 2):
        (axes,) = each.plot(layer=layer).axes
        named = [line for line in axes.lines if line.get_label() == "chance"]
        np.testing.assert_allclose(named[0].get_ydata(), each.figure.panels[layer][0].y)
        assert f"layer {layer}" in axes.get_title(loc="left")
        assert axes.get_xticklabels()[0].get_text() == "0"


def test_many_plots_are_thinned_and_it_is_said() -> None:
    series = tuple(Line(f"head {i}", np.arange(30.0), faint=i > 2) for i in range(100))
    made = Panels(
        **ABOUT, x=np.arange(30.0), x_name="step", panels=(series,) * 40, dials=(_dial("layer", 20), _dial("part", 2))
    )
    fewer, note = thinned(made.drawing(), Most(faint=8, marks=100, plots=20))
    assert isinstance(fewer, Plots)
    assert len(fewer.plots) == np.prod([len(tuple(dial.labels)) for dial in fewer.dials]) < 40
    assert not fewer.plots[0].marked
    assert sum(curve.faint for curve in fewer.plots[0].curves) == 8
    assert "places of layer" in note
    assert "11 of 100 curves" in note
    assert fewer.first is fewer.plots[fewer.at([dial.start for dial in fewer.dials])]


def _dial(name: str, count: int) -> Any:
    from gausslens.figures import Dial

    return Dial(name, range(count), count - 1)
