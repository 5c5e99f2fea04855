"""What steps and edits read of other steps: in their keys, in order, from the store, of any shape."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from test_run import by_label, do, host, study

import gausslens
from gausslens.contract.errors import InputError
from gausslens.runs.plan import PlanError
from gausslens.spreading.prepare import prepare

READERS = ("probe.along", "probe.beside", "probe.centred")


def trained(**changes: Any) -> dict[str, Any]:
    """A direction trained on a stream, read by an analysis of each shape, and by an edit of another variant."""
    whole = study(
        variants={
            "without": [{"edit": "probe.taken_out", "variant": "trained"}],  # it stands before what it reads
            "trained": [],
            "dose": [{"edit": "probe.scale", "sweep": {"alpha": [0.5, 2.0]}}],
        },
        analyses=[
            *({"use": name} for name in READERS),
            {"use": "probe.train", "as": "train"},
            {"use": "probe.doubled", "with": {"of": "probe.along"}},
            {"use": "probe.norm"},
        ],
    )
    del whole["against"]
    return whole | changes


def with_train(**chosen: Any) -> dict[str, Any]:
    analyses = [dict(use) for use in trained()["analyses"]]
    analyses[3]["with"] = chosen
    return trained(analyses=analyses)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return do(trained(), tmp_path_factory.mktemp("inputs") / "store")


def test_what_one_step_trained_another_of_each_shape_reads_and_so_does_an_edit(ran):
    assert ran.outcome.counts()["failed"] == 0
    read = gausslens.open(ran.path)
    direction = read["trained", "train"]["direction"].values
    for variant in ("trained", "without"):
        assert (read[variant, "probe.along"]["value"] != 0).all()
    # The edit took it out of W_Q of its own twin: nothing of W_Q reads it there, and the twin trained its own.
    assert (read["trained", "probe.beside"]["value"] > 1e-3).all()
    assert np.abs(read["without", "train"]["direction"].values[0] - direction[0]).max() < 1e-12  # before the first W_Q
    assert float(read["without", "probe.beside"]["value"][0]) < 1e-6
    assert (read["without", "probe.norm"]["norm"] < read["trained", "probe.norm"]["norm"]).all()
    # Derived steps read those that read results, as any other.
    np.testing.assert_allclose(read["trained", "probe.doubled"]["value"], 2 * read["trained", "probe.along"]["value"])


def test_each_reads_what_is_of_its_own_twin(ran):
    steps = [s for s in ran.plan.steps if s.ref.label in READERS]
    assert len(steps) == 4 * len(READERS)
    for step in steps:
        [ref] = step.given
        assert (ref.variant, ref.draw, ref.sweep) == (step.ref.variant, step.ref.draw, step.ref.sweep)
        assert step.ingredients["inputs"] == [ran.plan.by_ref[ref].key]


def test_a_change_of_what_is_read_changes_the_keys_of_all_that_read_it_and_of_no_other(ran):
    *_, plan = prepare(with_train(megabytes=1), host=host())
    before = by_label(ran)
    after: dict[str, set[str]] = {}
    for step in plan.steps:
        after.setdefault(f"{step.ref.label}/{step.ref.variant}", set()).add(step.key)
    same = {name for name in before if before[name] == after[name]}
    # An edit's inputs are in the key of every step of its twin.
    assert same == {"probe.norm/trained", "probe.norm/dose"}


def test_keys_of_steps_that_read_nothing_have_no_word_of_it(ran):
    [norm] = [s for s in ran.plan.steps if s.ref.label == "probe.norm" and s.ref.variant == "trained"]
    assert set(norm.ingredients) == {"host", "model", "twin", "analysis"}
    [dose, _] = [s for s in ran.plan.steps if s.ref.label == "probe.norm" and s.ref.variant == "dose"]
    assert "inputs" not in dose.ingredients["twin"]["edits"][0]


def test_a_run_again_computes_nothing_and_one_that_is_cut_short_goes_on(ran, tmp_path):
    assert str(do(trained(), ran.path).outcome) == f"{len(ran.plan.steps)} found in the store"
    store = tmp_path / "store"
    do(trained(analyses=[{"use": "probe.train", "as": "train"}]), store)
    ran_on = do(trained(), store)
    assert ran_on.outcome.counts()["found"] == 4
    for name in (("without", "probe.along"), ("dose", "probe.centred")):
        assert gausslens.open(store)[name].equals(gausslens.open(ran.path)[name])


def test_where_what_is_read_fails_the_step_is_not_computed_and_says_so(tmp_path):
    ran = do(with_train(fails=True), tmp_path / "store")
    told = [str(failure) for failure in ran.outcome.failed]
    assert any("probe.along on trained" in t and "not computed, because train on trained failed" in t for t in told)
    # The whole twin of the edit waits for it.
    assert any("probe.norm on without" in t and "not computed, because train on trained failed" in t for t in told)
    assert {(s.ref.label, s.ref.variant) for s in ran.outcome.computed} == {
        ("probe.norm", "trained"),
        ("probe.norm", "dose"),
    }


def test_edits_that_wait_for_each_other_are_refused_by_name():
    around = {
        "a": [{"edit": "probe.taken_out", "variant": "b"}],
        "b": [{"edit": "probe.taken_out", "variant": "a"}],
    }
    said = r"edits wait for each other: a reads results of b, b reads results of a"
    with pytest.raises(PlanError, match=said):
        prepare(trained(variants=around), host=host())


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        (
            {"a": [{"edit": "probe.taken_out", "of": "trian"}], "b": []},
            r"finds none of what it reads; it may read .*train on b",
        ),
        ({"a": [{"edit": "probe.taken_out"}]}, r"finds none of what it reads; it may read none"),
        (
            {"a": [{"edit": "probe.taken_out", "variant": "b"}], "b": [], "c": {"difference": ["a", "b"]}},
            r"reads results: it cannot be on a side of a difference",
        ),
    ],
)
def test_what_an_edit_cannot_read_is_told_at_plan(variants, said):
    with pytest.raises(PlanError, match=said):
        prepare(trained(variants=variants, analyses=[{"use": "probe.train", "as": "train"}]), host=host())


def test_reading_results_while_planning_is_refused():
    with pytest.raises(PlanError, match=r"probe\.early: context\.inputs is read while the step is planned"):
        prepare(trained(analyses=[{"use": "probe.train", "as": "train"}, {"use": "probe.early"}]), host=host())


def test_a_step_that_finds_nothing_to_read_is_told_at_plan():
    *_, plan = prepare(
        trained(analyses=[{"use": "probe.norm"}, {"use": "probe.along"}], variants={"a": []}), host=host()
    )
    assert any("probe.along reads no results; the labels planned before it: probe.norm" in n for n in plan.notes)


def test_draws_of_an_edit_read_the_same_draw_of_another_variant():
    variants = {
        "chance": {"edits": [{"edit": "probe.redraw"}], "draws": 2},
        "spliced": {"edits": [{"edit": "probe.redraw"}, {"edit": "probe.taken_out", "variant": "chance"}], "draws": 2},
    }
    *_, plan = prepare(trained(variants=variants), host=host())
    spliced = [s for s in plan.steps if s.ref.variant == "spliced"]
    assert {(s.ref.draw, *(r.draw for r in s.of_edits[1])) for s in spliced if s.of_edits} == {(0, 0), (1, 1)}


def test_names_of_what_is_read_are_in_no_key_and_change_no_seed(ran):
    from gausslens.runs.steps import step_seed

    analyses = [dict(use) for use in trained()["analyses"]]
    for use in analyses[:3]:
        use["with"] = {"of": "renamed"}
    analyses[3]["as"] = "renamed"
    variants = dict(trained()["variants"]) | {"without": [{"edit": "probe.taken_out", "of": "renamed"}]}
    *_, plan = prepare(trained(analyses=analyses, variants=variants), host=host())
    for ref, step in plan.by_ref.items():
        if ref.variant == "trained" and ref.label != "renamed":
            assert step.key == ran.plan.by_ref[ref].key
            assert step.inputs or step_seed(step, 3) == step_seed(ran.plan.by_ref[ref], 3)


def test_a_twin_that_reads_results_cannot_be_written_as_a_checkpoint(tmp_path):
    with pytest.raises(InputError, match="reads results of the run"):
        gausslens.edit(trained(), "without", tmp_path / "out", host=host())


def test_large_arrays_are_read_as_they_are_used_and_held_once(tmp_path):
    megabytes = 128
    whole = with_train(megabytes=megabytes)
    whole["analyses"] = [use for use in whole["analyses"] if use["use"] in ("probe.train", *READERS)]
    whole["variants"] = {"trained": []}
    do(whole | {"analyses": [whole["analyses"][-1]]}, tmp_path / "store")
    tracemalloc.start()
    try:
        ran = do(whole, tmp_path / "store")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ran.outcome.counts() == {"computed": 3, "found": 1, "failed": 0}
    assert megabytes << 20 < peak < (megabytes << 20) * 1.5


def test_show_tells_the_size_of_what_was_stored(tmp_path, capsys):
    from gausslens.__main__ import main

    do(with_train(megabytes=2), tmp_path / "store")
    assert main(["show", str(tmp_path / "store"), "train", "--variant", "trained"]) == 0
    assert "feature 524288" in capsys.readouterr().out
