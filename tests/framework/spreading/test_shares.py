"""One large twin in shares: each layer once, in order; the same bits; what is there is not computed again."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from several_processes import Site, same
from shared import COMPUTE, LAYERS, OURS, Shared, host, pieces, study

from gausslens.contract.errors import InputError
from gausslens.measuring import twin
from gausslens.measuring.execute import Execution
from gausslens.measuring.pieces import read_layer, write_layer
from gausslens.perform import perform
from gausslens.spreading import shares
from gausslens.spreading.prepare import prepare
from gausslens.spreading.tasks import Board, Task
from gausslens.store import Store
from gausslens.store.disk import Claims, Writer
from gausslens.store.maintain import remove, superseded, verify


@pytest.fixture(autouse=True)
def _whatever_can_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shares.SECONDS, "0")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int | None, str, int]]:
    """How often each layer of each step was computed."""
    counted: Counter[tuple[str, int | None, str, int]] = Counter()
    real = twin._Weighed._of

    def of(self: Any, now: Any, layer: int) -> Any:
        counted[self.step.ref.variant, self.step.ref.draw, self.step.ref.label, layer] += 1
        return real(self, now, layer)

    monkeypatch.setattr(twin._Weighed, "_of", of)
    return counted


class TestHowWorkIsCut:
    @given(layers=st.lists(st.integers(0, 200), unique=True, max_size=60).map(sorted), data=st.data())
    def test_every_layer_is_in_one_run_and_in_order(self, layers, data):
        number = data.draw(st.integers(1, max(1, len(layers))))
        runs = shares.in_runs(layers, number)
        assert [n for run in runs for n in run] == layers
        assert len(runs) == number
        assert max(map(len, runs)) - min(map(len, runs)) <= 1

    @given(
        twins=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3), st.floats(0.01, 1000)), min_size=1, max_size=8),
        workers=st.integers(1, 50),
        least=st.floats(0, 100),
    )
    def test_whatever_is_cut_is_covered_once_and_put_together_last(self, twins, workers, least):
        tasks, steps, seconds = [], {}, {}
        for number, (layers, others, each) in enumerate(twins):
            keys = (f"w{number}", f"v{number}", *(f"o{number}-{i}" for i in range(others)))
            for key in keys:
                steps[key] = step(key, layers, by_layer=key[0] in "wv")
                seconds[key] = each
            tasks.append(Task(keys, frozenset({"before"}), layers + others, False))
        tasks.append(Task(("end",), frozenset(steps), 1, True))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shares, "cost", lambda some: sum(seconds[one.key] for one in some))
            made = shares.cut(tasks, steps, workers, least)
        assert sum(task.units for task in made) == sum(task.units for task in tasks)
        assert all(task.units >= 0 for task in made)
        whole = Counter(key for task in made if not task.numbers for key in task.keys)
        assert whole == Counter(key for task in tasks for key in task.keys)
        for number, (layers, _, each) in enumerate(twins):
            cut = [task for task in made if task.numbers and f"w{number}" in task.keys]
            if cut:
                assert [n for task in cut for n in task.numbers] == list(range(layers))
                last = next(t for t in made if not t.numbers and f"w{number}" in t.keys)
                assert last.waits_for == {"before", *(name for task in cut for name in task.settles)}
                assert 2 * each / len(cut) * 2 >= least
        if workers == 1:
            assert made == tasks
        board, order = Board([*made, Task(("before",), frozenset(), 0, False)]), []
        while (task := board.take()) is not None:
            order.append(task)
            board.settle(task)
        assert not board.left

    def test_what_takes_little_is_left_whole(self, monkeypatch):
        tasks = [Task((f"w{i}",), frozenset(), 8, False) for i in range(3)]
        steps = {task.keys[0]: step(task.keys[0], 8, by_layer=True) for task in tasks}
        monkeypatch.setattr(shares, "cost", lambda some: sum(9.0 for _ in some))
        assert shares.cut(tasks, steps, 2, float("inf")) == tasks
        assert shares.cut(tasks, steps, 2, 9.0) == tasks
        assert len(shares.cut(tasks, steps, 2, 3.0)) == 3 * (3 + 1)
        # So many twins that workers are busy with them alone.
        many = [Task((f"m{i}",), frozenset(), 8, False) for i in range(8)]
        steps |= {task.keys[0]: step(task.keys[0], 8, by_layer=True) for task in many}
        assert shares.cut(many, steps, 2, 1.0) == many

    @pytest.mark.parametrize("told", ["-1", "nan", "soon"])
    def test_seconds_are_a_number(self, monkeypatch, told):
        monkeypatch.setenv(shares.SECONDS, told)
        with pytest.raises(InputError, match="give seconds, 0 to cut whatever can be cut"):
            shares.share_seconds()


def step(key: str, layers: int, by_layer: bool) -> Any:
    """As much of a step as is looked at."""
    descriptor = SimpleNamespace(shape="weights", by_layer=by_layer)
    use = SimpleNamespace(analysis=SimpleNamespace(descriptor=descriptor), layers=None, heads=None)
    info = SimpleNamespace(narrowed=lambda *_: SimpleNamespace(layers=tuple(range(layers))))
    return SimpleNamespace(key=key, use=use, info=info, point=SimpleNamespace(edits=()))


class TestResults:
    def test_they_are_equal_and_every_layer_is_computed_once(self, tmp_path, seen):
        whole = perform(study(*OURS, LAYERS, {"use": "bilinear.difference"}), store=tmp_path / "one", host=host())
        assert not whole.outcome.failed
        once = Counter(seen)
        seen.clear()
        ran = Shared(tmp_path / "two", study(*OURS, LAYERS, {"use": "bilinear.difference"}), workers=4)
        assert not ran.failed
        assert not ran.notes
        assert seen == once
        # trained, two draws, noise, and the difference; each of two layers, and what cannot be cut.
        assert Counter(bool(task.numbers) for task in ran.tasks) == {True: 10, False: 10}
        assert same(tmp_path / "one", tmp_path / "two")
        assert pieces(tmp_path / "two") == []
        assert list((tmp_path / "two/claims").iterdir()) == []

    def test_one_process_takes_up_what_shares_have_left(self, tmp_path, seen, monkeypatch):
        run = study(*OURS)
        perform(run, store=tmp_path / "one", host=host())
        seen.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Execution, "compute", stopped)
            with pytest.raises(KeyboardInterrupt):
                Shared(tmp_path / "two", run)
        before = Counter(seen)
        assert before
        assert len(pieces(tmp_path / "two")) == sum(label != "bilinear.noise" for _, _, label, _ in before)
        assert all(damage.harmless for damage in verify(tmp_path / "two"))
        perform(run, store=tmp_path / "two", host=host())
        assert seen[next(iter(before))] == 1
        assert max(count for (*_, label, _), count in seen.items() if label != "bilinear.noise") == 1
        assert same(tmp_path / "one", tmp_path / "two")
        assert pieces(tmp_path / "two") == []

    def test_a_share_that_was_killed_computes_what_is_lacking(self, tmp_path, seen):
        run = study(OURS[0], variants={"trained": []})
        Shared(tmp_path / "one", run)
        ran = Shared.__new__(Shared)
        _, _, ran.models, ran.plan = prepare(run, host=host())
        store = Store(tmp_path / "two").create()
        execution = Execution(ran.plan, store, ran.plan.steps)
        seen.clear()
        list(execution.share(ran.plan.steps, "layer", (1,)))
        list(execution.share(ran.plan.steps, "layer", (0, 1)))
        assert set(seen.values()) == {1}
        assert len(seen) == 2

    @pytest.mark.parametrize("fails", ["layer", "made", "join", "odd", "draws", "spoils"])
    def test_what_fails_or_cannot_be_shared_says_and_gives_the_same(self, tmp_path, fails):
        variants = {"trained": [], "noise": {"edits": [{"edit": "reinit.gaussian"}]}}
        run = study(LAYERS | {"with": {"does": fails}}, OURS[1], variants=variants)
        whole = perform(run, store=tmp_path / "one", host=host())
        ran = Shared(tmp_path / "two", run)
        assert sorted(ran.failed) == sorted(map(str, whole.outcome.failed))
        assert bool(ran.failed) == (fails not in ("odd", "draws"))
        assert ["is not shared out" in note for note in ran.notes] == [True] * len(ran.notes)
        assert bool(ran.notes) == (fails == "odd")
        assert same(tmp_path / "one", tmp_path / "two")
        assert pieces(tmp_path / "two") == []

    def test_a_limit_is_of_all_layers_whoever_computed_them(self, tmp_path):
        run = study(LAYERS, variants={"trained": []}, limit=60)
        *_, plan = prepare(run, host=host())
        store = Store(tmp_path).create()
        list(Execution(plan, store, plan.steps).share(plan.steps, "layer", (0, 1)))
        for layer in (0, 1):
            made = read_layer(tmp_path, plan.steps[0].key, layer)
            assert made is not None
            write_layer(store.writer, plan.steps[0].key, layer, replace(made, spent=40.0))
        [failure] = perform(run, store=tmp_path, host=host()).outcome.failed
        assert "layered.norm on trained, layer 1" in str(failure)
        assert "it took longer than its limit of 60 s" in str(failure)
        assert pieces(tmp_path) == []

    def test_an_edit_of_an_outside_plugin_is_not_cut(self, tmp_path):
        edited = {"ours": [{"edit": "layered.double"}]}
        ran = Shared(tmp_path / "two", study(OURS[0], variants=edited))
        assert not any(task.numbers for task in ran.tasks)

    def test_gc_leaves_pieces_of_what_is_computed_and_removes_the_others(self, tmp_path):
        run = study(OURS[0], variants={"trained": []})
        ran = Shared(tmp_path, run)
        key = ran.plan.steps[0].key
        for name in (f"{key}.layer-1", "another.layer-0", "another", "not.ours.at-all"):
            (tmp_path / "progress" / name).write_bytes(b"left")
        assert [path.name for path in superseded(tmp_path).progress] == [f"{key}.layer-1"]
        for name in ("another", "another.layer-0"):
            os.utime(tmp_path / "progress" / name, (0, 0))
        with Claims(Writer(tmp_path)) as claims:
            assert claims.take(["another"]) is None
            assert [path.name for path in superseded(tmp_path).progress] == [f"{key}.layer-1"]
        assert remove(tmp_path, superseded(tmp_path)) == 3
        assert pieces(tmp_path) == ["not.ours.at-all"]


def stopped(execution: Execution, steps: Any) -> Any:
    """The end comes before anything is put together."""
    if any(step.use.analysis.descriptor.by_layer for step in steps):
        raise KeyboardInterrupt
    return COMPUTE(execution, steps)


@pytest.mark.full
class TestWorkers:
    MORE = (
        "  - {use: bilinear.spectrum}\n  - {use: bilinear.alignment}\n  - {use: model.attention, with: {maps: none}}\n"
    )

    def test_two_workers_share_twins_and_give_the_same(self, site: Site):
        site.environment[shares.SECONDS] = "0"
        site.write(draws=2, more=self.MORE)
        one = site.directory / "one"
        assert site.run(store=one).returncode == 0
        steps = site.computed()
        ran = site.run("--workers", "2")
        assert ran.returncode == 0, ran.stderr
        assert same(one, site.store)
        assert pieces(site.store) == []
        assert list((site.store / "claims").iterdir()) == []
        # No layer is computed again: while a plugin computes, nothing else draws from the generators that are its own.
        assert site.computed() == {step: 2 * count for step, count in steps.items()}

    def test_a_layer_that_kills_its_worker_is_reported_and_the_rest_completes(self, site: Site):
        site.environment[shares.SECONDS] = "0"
        site.write(draws=2, more=self.MORE, kills="before 0")
        ran = site.run("--workers", "2")
        assert ran.returncode == 1
        assert "logged.norm on before, draw 0" in ran.stderr
        assert "its worker died 3 times while computing it" in ran.stderr
        assert site.computed()["before 0"] == 3
        assert len(list(site.store.rglob("parts/*/*.h5"))) >= 3 * 4 - 1
