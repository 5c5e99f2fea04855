"""One large twin whose groups of prompts are seen by several processes: the same bits, each shard once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from several_processes import same
from shared import OURS, STREAMS, TWICE, Shared, host, pieces, read

from gausslens.contract.prompts import Tokens
from gausslens.contract.reference import resolve
from gausslens.measuring import passes
from gausslens.measuring.execute import Execution
from gausslens.perform import perform
from gausslens.spreading import shares
from gausslens.spreading.prepare import prepare
from gausslens.spreading.tasks import tasks_of
from gausslens.store import Store


@pytest.fixture(autouse=True)
def _whatever_can_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shares.SECONDS, "0")


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, tuple[int, ...]]]:
    """How often each job was fed each shard, of shards that are small."""
    real, counted = Tokens.shards, Counter()
    monkeypatch.setattr(Tokens, "shards", lambda self, size=16, among=None: real(self, size, among))
    run = passes._run_shards

    def count(engine: Any, now: Any, tokens: Any, feeds: Any, jobs: Any) -> None:
        counted.update((job.name, tuple(feed.shard)) for feed in feeds for job in jobs)
        run(engine, now, tokens, feeds, jobs)

    monkeypatch.setattr(passes, "_run_shards", count)
    return counted


class TestPrompts:
    def test_groups_of_prompts_are_shared_to_the_same_bits_each_seen_once(self, tmp_path, fed, monkeypatch):
        each = {"weights": 8.0, "stream": 1.0}  # so that both kinds are cut
        monkeypatch.setattr(shares, "cost", lambda ss: sum(each[s.use.analysis.descriptor.shape] for s in ss))
        run = read(*STREAMS, OURS[1])
        del run["variants"]["trained"]
        whole = perform(run, store=tmp_path / "one", host=host())
        assert not whole.outcome.failed
        once = Counter(fed)
        fed.clear()
        ran = Shared(tmp_path / "two", run)
        assert not ran.failed
        assert not ran.notes
        assert fed == once
        assert set(fed.values()) == {1}
        assert Counter(task.of for task in ran.tasks if task.numbers) == {"group": 3, "layer": 2}
        uncut = tasks_of(ran.plan, list(ran.leading.steps.values()))
        assert sum(task.units for task in ran.tasks) == sum(task.units for task in uncut)
        assert same(tmp_path / "one", tmp_path / "two")
        assert pieces(tmp_path / "two") == []

    def test_one_process_takes_up_groups_and_commits_on_the_way(self, tmp_path, fed, monkeypatch):
        run = read(STREAMS[-1], {"use": "model.loss"}, variants={"trained": []})
        perform(run, store=tmp_path / "one", host=host())
        fed.clear()
        _, _, _, plan = prepare(run, host=host())
        store = Store(tmp_path / "two").create()
        execution = Execution(plan, store, plan.steps)
        list(execution.share(plan.steps, "group", (1,)))
        list(execution.share(plan.steps[:1], "group", (0, 1)))
        assert len(pieces(tmp_path / "two")) == 3
        assert set(fed.values()) == {1}
        # It goes on, commits, and is killed; a piece that it had taken up is gone when it goes on from there.
        monkeypatch.setenv("GAUSSLENS_COMMIT_SECONDS", "0")
        with monkeypatch.context() as patch:
            real, calls = passes._run_shards, Counter()

            def killed(*arguments: Any) -> None:
                calls["run"] += 1
                if calls["run"] == 3:
                    raise KeyboardInterrupt
                real(*arguments)

            patch.setattr(passes, "_run_shards", killed)
            with pytest.raises(KeyboardInterrupt):
                perform(run, store=tmp_path / "two", host=host())
        for path in (tmp_path / "two/progress").glob("*.group-1"):
            path.unlink()
        perform(run, store=tmp_path / "two", host=host())
        assert same(tmp_path / "one", tmp_path / "two")
        assert pieces(tmp_path / "two") == []

    @pytest.mark.parametrize(
        "run",
        [
            read(STREAMS[-1], TWICE),
            read(STREAMS[-1], errors=False),
            read(STREAMS[-1], {"use": "probe.power"}),
        ],
        ids=["two-passes", "no-groups", "not-ours"],
    )
    def test_what_shares_a_pass_is_cut_together_or_not_at_all(self, run):
        *_, plan = prepare(run, host=host())
        assert list(shares.divisible([step for step in plan.steps if step.ref.variant == "trained"])) == []

    def test_a_model_under_a_limit_is_read_once_for_all_prompts(self):
        *_, plan = prepare(read(STREAMS[-1]), host=host())
        [made] = shares.divisible(plan.steps[:1])
        assert set(made.units) == {0, 1, 2}
        limited = replace(plan.steps[0], opened=SimpleNamespace(max_memory=1 << 30))
        assert list(shares.divisible([limited])) == []

    def test_what_fails_says_the_same(self, tmp_path, fed, monkeypatch):
        real = resolve("gausslens_models.analyses.loss:Loss")
        update = real.update

        def updated(self: Any, batch: Any) -> None:
            if 3 in batch.prompts:
                raise ValueError(f"a prompt that it does not like, of {len(batch.prompts)}")
            update(self, batch)

        monkeypatch.setattr(real, "update", updated)
        run = read({"use": "model.loss"}, STREAMS[-1], variants={"trained": []})
        whole = perform(run, store=tmp_path / "one", host=host())
        ran = Shared(tmp_path / "two", run)
        assert len(ran.failed) == 1
        assert ran.failed == list(map(str, whole.outcome.failed))
        assert same(tmp_path / "one", tmp_path / "two")
