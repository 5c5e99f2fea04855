"""Runs of a store are told apart: what is read is one plan of one run, the newest by sequence, whatever clocks say."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store.stored import META, key, small, step
from store.test_commands import said

import gausslens
from gausslens import GausslensError, Results
from gausslens.__main__ import main
from gausslens.contract.digests_and_seeds import digest
from gausslens.store import Store
from gausslens.store import manifest as manifests
from gausslens.store.layout import StoreWarning
from gausslens.store.maintain import remove, superseded, verify
from gausslens.store.manifest import read_manifest
from gausslens.store.pack import pack

LABELS = {"x": 0, "y": 1, "x.against.chance": 2}
DRAWS = 2


def planned(model: int, labels: tuple[str, ...]) -> dict[str, Any]:
    """A plan on a model: each number of it says of which."""
    steps = []
    for label in labels:
        against = "chance" if "against" in label else None
        for draw in range(DRAWS):
            steps.append(step("v", label, f"{model} {label} {draw}", draw=draw, against=against))
    resolved = {"model": {"path": f"model-{model}"}}
    return {"plan": digest([model, labels]), "resolved": resolved, "steps": steps}


def finish(store: Store, model: int, label: str, draw: int) -> None:
    number = 100 * model + 10 * LABELS[label] + draw
    store.commit("probe.score", key(f"{model} {label} {draw}"), small(number), META)


def whole(store: Store, run: str, model: int, labels: tuple[str, ...] = ("x",), created: str | None = None) -> None:
    """A run from its plan to its end."""
    store.manifest(run, planned(model, labels) | ({"created": created} if created else {}))
    for label in labels:
        for draw in range(DRAWS):
            finish(store, model, label, draw)
    store.reindex()


def models_in(view: Results) -> set[int]:
    """The models whose numbers are anywhere in what a view gives."""
    found = set()
    for variant, label in view:
        found |= {int(m) // 100 for m in view[variant, label]["mass"].values.ravel()}
        frame = view.frame(variant, label)
        found |= {int(m) // 100 for m in frame[frame["variable"] == "mass"]["value"]}
        found |= {int(d["mass"]) // 100 for d in view.draws(variant, label).values()}
    for node in view.tree().leaves:
        if "mass" in node:
            found |= {int(m) // 100 for m in node["mass"].values.ravel()}
    return found


class Shadow:
    """What was planned and finished, in plain lists: what the store is to show."""

    def __init__(self) -> None:
        self.plans: list[tuple[str, int, tuple[str, ...]]] = []
        self.done: set[tuple[int, str, int]] = set()

    def finished(self, plan: tuple[str, int, tuple[str, ...]]) -> set[tuple[int, str, int]]:
        _, model, labels = plan
        return {(model, label, draw) for label in labels for draw in range(DRAWS)} & self.done

    def shown(self, run: str | None = None) -> tuple[str, int, tuple[str, ...]] | None:
        mine = [p for p in self.plans if run in (None, p[0])]
        return next((p for p in reversed(mine) if self.finished(p)), mine[-1] if mine else None)

    def needed(self) -> set[tuple[int, str, int]]:
        """What gc must keep: the newest plan of each run, the one it shows, and the newest whole one of each label."""
        kept = set()
        for run in {p[0] for p in self.plans}:
            mine = [p for p in self.plans if p[0] == run]
            chosen = [mine[-1], self.shown(run)]
            for label in LABELS:
                has = [p for p in mine if label in p[2]]
                full = [p for p in has if all((p[1], label, draw) in self.done for draw in range(DRAWS))]
                chosen += full[-1:]
            kept |= {found for p in chosen if p is not None for found in self.finished(p)}
        return kept


RUNS = st.sampled_from(["a", "b", "c"])
SOME = st.sampled_from([("x",), ("x", "y"), ("y",), ("x", "x.against.chance"), ("x", "y", "x.against.chance")])
CLOCK = st.integers(-10_000, 10_000)
ACTS = st.one_of(
    st.tuples(st.just("plan"), RUNS, st.integers(0, 2), SOME, CLOCK),
    st.tuples(st.just("finish"), st.integers(0, 2), st.sampled_from(list(LABELS)), st.integers(0, DRAWS - 1)),
    st.tuples(st.just("whole"), RUNS, st.integers(0, 2), SOME, CLOCK),
    st.tuples(st.just("gc")),
)


def acted(store: Store, shadow: Shadow, act: tuple[Any, ...]) -> None:
    if act[0] == "finish":
        if any(act[1] == model and act[2] in labels for _, model, labels in shadow.plans):
            finish(store, *act[1:])
            shadow.done.add(act[1:])
        return
    if act[0] == "gc":
        before = {path.stem for path in (store.path / "parts").rglob("*.h5")}
        remove(store.path, superseded(store.path))
        gone = before - {path.stem for path in (store.path / "parts").rglob("*.h5")}
        lost = {found for found in shadow.done if key("{} {} {}".format(*found)) in gone}
        assert not lost & shadow.needed()
        shadow.done -= lost
        there = {(m.run, m.plan) for m in gausslens.open(store.path).manifests()}
        shadow.plans = [p for p in shadow.plans if (p[0], digest([p[1], p[2]])) in there]
        return
    _, run, model, labels, clock = act
    created = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=clock)).isoformat()
    store.manifest(run, planned(model, labels) | {"created": created})
    if shadow.plans[-1:] != [(run, model, labels)]:
        shadow.plans.append((run, model, labels))
    if act[0] == "whole":
        for label in labels:
            for draw in range(DRAWS):
                finish(store, model, label, draw)
                shadow.done.add((model, label, draw))


def checked(results: Results, shadow: Shadow) -> None:
    """What is read, by itself and run by run, is what was planned last and finished anything, and nothing else."""
    expected = shadow.shown()
    assert results.name == (expected[0] if expected else "")
    for name, view in {results.name: results, **results.all_runs()}.items():
        plan = shadow.shown(name)
        if plan is None:
            continue
        done = shadow.finished(plan)
        assert view.manifest().plan == digest([plan[1], plan[2]])
        assert {label for _, label in view} == {label for _, label, _ in done}
        assert models_in(view) == {model for model, *_ in done}
        table = view.table()
        assert set(table["run"]) == {name}
        assert set(table["key"]) == {key(f"{plan[1]} {label} {d}") for label in plan[2] for d in range(DRAWS)}
        assert [*view.tree().children] == ([name] if done else [])


@settings(max_examples=20)
@given(acts=st.lists(ACTS, min_size=2, max_size=9))
def test_nothing_mixes_two_runs_whatever_was_planned_finished_and_removed(acts: list[tuple[Any, ...]]) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        store, shadow = Store(root / "s").create(), Shadow()
        for act in acts:
            acted(store, shadow, act)
            expected = shadow.shown()
            assert gausslens.open(store.path).name == (expected[0] if expected else "")
        store.reindex()
        checked(gausslens.open(store.path), shadow)
        assert verify(store.path) == []
        pack(store.path, root / "p.h5")
        checked(gausslens.open(root / "p.h5"), shadow)
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize(
    ("order", "days"), [*((order, -1) for order in permutations("abc")), (("b", "c", "a"), 0), (("c", "a", "b"), 1)]
)
def test_the_run_planned_last_is_read_by_any_clock(
    store: Store, monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...], days: int
) -> None:
    class Clock(datetime):
        at = datetime(2026, 6, 1, tzinfo=UTC)

        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            Clock.at += timedelta(days=days)
            return Clock.at

    monkeypatch.setattr(manifests, "datetime", Clock)
    for run in order:
        whole(store, run, "abc".index(run))
        results = gausslens.open(store.path)
        assert results.name == run
        assert models_in(results) == {"abc".index(run)}
        assert superseded(store.path).parts == {}
    assert results.runs == order
    assert [m.sequence for m in results.manifests()] == [1, 2, 3]


def test_a_run_that_is_planned_again_is_the_newest_and_nothing_is_computed(store: Store) -> None:
    for run, model in (("a", 0), ("b", 1), ("a", 0), ("a", 0)):
        whole(store, run, model)
    results = gausslens.open(store.path)
    assert results.name == "a"
    assert [(m.run, m.sequence, m.path.name.count(".")) for m in results.manifests()] == [
        ("a", 1, 1), ("b", 2, 1), ("a", 3, 2),
    ]  # fmt: skip
    assert results.runs == ("b", "a")
    found = superseded(store.path)
    assert [(m.run, m.sequence) for m in found.manifests] == [("a", 1)]
    assert found.parts == {}


def test_a_run_that_finished_nothing_hides_nothing(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    whole(store, "good", 0)
    store.manifest("refused", planned(1, ("x",)))
    results = gausslens.open(store.path)
    assert results.name == "good"
    assert results.notes() == ["other runs in this store: refused (model model-1, nothing finished)"]
    assert results.run("refused").unfinished("v", "x") == ["draw 0", "draw 1"]
    # nor does a plan of the same run
    store.manifest("good", planned(2, ("x",)))
    results = gausslens.open(store.path)
    assert models_in(results) == {0}
    newest = digest([2, ("x",)])[:8]
    assert results.notes()[1] == f"the newest plan of run good, {newest}, has finished nothing yet"
    assert superseded(store.path).parts == {}
    text = said(capsys, "show", store.path)
    assert "run good, the newest that finished anything; not shown:" in text
    assert "refused (model model-1, nothing finished)" in text
    assert f"the newest plan of run good, {newest}, has finished nothing yet" in text


def test_one_name_for_two_models_is_two_plans(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    whole(store, "study", 0, ("x", "y"))
    whole(store, "study", 1, ("x",))
    results = gausslens.open(store.path)
    assert models_in(results) == {1}
    assert ("v", "y") not in results
    old = digest([0, ("x", "y")])[:8]
    assert results.notes() == [f"run study has results of other plans too: {old} (model model-0)"]
    assert models_in(results.run("study", plan=old)) == {0}
    assert models_in(results.named(old)) == {0}
    assert models_in(results.run("study").run("study")) == {1}
    table = results.compare("study", old, "x", variables="mass")
    assert table["difference"].tolist() == [-100, -100]
    text = said(capsys, "show", store.path, "--run", old[:6])
    assert f"study   planned {results.run('study', old).manifest().created[:19]}, plan {old}, model model-0" in text
    assert "run study has results of other plans too" in text
    listed = said(capsys, "runs", store.path)
    assert f"another plan of the run: --run {old} shows it" in listed
    assert "results of 1 other plans of these runs are not in it" in said(
        capsys, "store", "pack", store.path, store.path / "p.h5"
    )


def old_form(path: Path, created: str) -> None:
    """A manifest as it was before there was a sequence."""
    body = json.loads(path.read_text())
    del body["sequence"], body["digest"]
    body["created"] = created
    path.chmod(0o644)
    path.write_text(json.dumps(body | {"digest": digest(body)}))


def test_manifests_without_a_sequence_come_first_in_the_order_of_their_clocks(store: Store) -> None:
    for run, model, created in (("late", 0, "2030-01-01T00:00:00"), ("early", 1, "2029-01-01T00:00:00+00:00")):
        whole(store, run, model)
        old_form(next((store.path / "runs" / run).iterdir()), created)
    assert gausslens.open(store.path).name == "late"
    whole(store, "new", 2, created="2001-01-01T00:00:00+00:00")
    results = gausslens.open(store.path)
    assert results.runs == ("early", "late", "new")
    assert results.name == "new"
    assert results.manifest().sequence == 1
    assert verify(store.path) == []


def test_a_pack_with_several_plans_of_a_run_is_read_plan_by_plan(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Packs held the newest plan of each label once."""
    whole(store, "study", 0, ("x", "y"))
    whole(store, "study", 1, ("x",))
    old, new = manifests.manifests(store.path)
    kept = replace(old, steps=tuple(s for s in old.steps if s.label == "y"))

    class Both:
        def items(self) -> list[tuple[str, manifests.Manifest]]:
            return [("study", kept), ("study", new)]

    monkeypatch.setattr("gausslens.store.pack.shown_plans", lambda *_: Both())
    assert pack(store.path, tmp_path / "p.h5") == 4
    results = gausslens.open(tmp_path / "p.h5")
    assert results.manifest().plan == new.plan
    assert models_in(results) == {1}
    assert [*results] == [("v", "x")]
    assert [*results.run("study", plan=old.plan)] == [("v", "y")]
    assert models_in(results.run("study", plan=old.plan)) == {0}
    assert verify(tmp_path / "p.h5") == []


@pytest.mark.parametrize("sequence", [0, -1, True, 1.0, "2", [1], {}])
def test_a_sequence_that_is_none_is_damage(store: Store, sequence: object) -> None:
    whole(store, "good", 0)
    whole(store, "bad", 1)
    path = next((store.path / "runs/bad").iterdir())
    body = json.loads(path.read_text()) | {"sequence": sequence}
    del body["digest"]
    path.chmod(0o644)
    path.write_text(json.dumps(body | {"digest": digest(body)}))
    with pytest.raises(GausslensError, match="sequence"):
        read_manifest(path)
    with pytest.warns(StoreWarning, match="a run is left out"):
        assert gausslens.open(store.path).name == "good"


def test_what_another_run_has_is_told(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    whole(store, "one", 0, ("x", "y"))
    whole(store, "two", 1)
    results = gausslens.open(store.path)
    with pytest.raises(GausslensError, match=r"no result 'y'; there are x; it is in run one: \.run\(name\) reads it"):
        results["v", "y"]
    assert "no finished result 'y'" in (text := said(capsys, "show", store.path, "y", code=2))
    assert "it is in run one: --run shows it" in text
    with pytest.raises(GausslensError, match="no run 'tow': did you mean two"):
        results.run("tow")
    assert main(["report", str(store.path), "--run", "tow"]) == 1


def test_show_has_one_run_in_a_table_and_all_with_a_column(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    whole(store, "one", 0)
    whole(store, "two", 1, ("x", "y"))
    for argv, masses in (([], {100, 101}), (["--run", "one"], {0, 1})):
        assert main(["show", str(store.path), "x", "mass", "--json", *argv]) == 0
        out, err = capsys.readouterr()
        cells = json.loads(out)
        assert {cell["value"] for cell in cells} == masses
        assert "run" not in cells[0]
        assert ("other runs in this store: one (model model-0)" in err) == (argv == [])
    cells = json.loads(said(capsys, "show", store.path, "x", "mass", "--json", "--all"))
    assert {(cell["run"], cell["value"]) for cell in cells} == {("one", 0), ("one", 1), ("two", 100), ("two", 101)}
    cells = json.loads(said(capsys, "show", store.path, "y", "mass", "--json", "--all"))
    assert {cell["run"] for cell in cells} == {"two"}
    assert {row["run"] for row in json.loads(said(capsys, "show", store.path, "--json"))} == {"two"}
    assert {row["run"] for row in json.loads(said(capsys, "show", store.path, "--json", "--all"))} == {"one", "two"}
    text = said(capsys, "show", store.path, "--all")
    assert text.index("one   planned") < text.index("two   planned")
    text = said(capsys, "show", store.path, "x", "--all")
    assert text.index("run one: v, x") < text.index("run two: v, x")
    assert "no variant 'w'" in said(capsys, "show", store.path, "--all", "--variant", "w", code=1)
    assert "say which with --run" in said(capsys, "show", store.path, "x", "--all", "--png", "a.png", code=2)
    assert "not allowed with" in said(capsys, "show", store.path, "--all", "--run", "one", code=2)


def test_runs_are_listed(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no run yet" in said(capsys, "runs", store.path)
    whole(store, "one", 0, created="2030-01-01T00:00:00+00:00")
    whole(store, "two", 1, ("x", "y"), created="2020-01-01T00:00:00+00:00")
    store.manifest("three", planned(2, ("x",)) | {"created": "2010-01-01T00:00:00+00:00"})
    rows = json.loads(said(capsys, "runs", store.path, "--json"))
    assert [(r["sequence"], r["run"], r["model"], r["finished"], r["steps"]) for r in rows] == [
        (1, "one", "model-0", 2, 2), (2, "two", "model-1", 4, 4), (3, "three", "model-2", 0, 2),
    ]  # fmt: skip
    assert [row["planned"][:4] for row in rows] == ["2030", "2020", "2010"]
    assert [row["note"][:6] for row in rows] == ["", "newest", ""]
    lines = said(capsys, "runs", store.path).splitlines()
    assert lines[3].split()[:4] == ["2", "two", digest([1, ("x", "y")])[:8], "model-1"]
    assert "newest: shown unless another is asked for" in lines[3]


def test_names_of_models_send_the_terminal_nothing(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for model, run in enumerate(("one", "two")):
        body = planned(model, ("x",)) | {"resolved": {"model": {"path": "\x1b[2J\u202e"}}}
        store.manifest(run, body)
        finish(store, model, "x", 0)
    for resolved in ({"model": 3}, {"model": {"path": [1]}}, {"model": None}):
        store.manifest("odd", planned(2, ("x",)) | {"resolved": resolved, "plan": digest(repr(resolved))})
    for argv in (["runs"], ["show"]):
        text = said(capsys, argv[0], store.path)
        assert all(c.isprintable() or c == "\n" for c in text)
        assert "\\x1b[2J" in text
