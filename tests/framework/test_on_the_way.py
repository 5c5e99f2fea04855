"""Passes that commit on the way: killed anywhere, they come to the same bits, and run again only what was not seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import probes
import pytest
import resuming
import torch
import xarray as xr

from gausslens import plugins
from gausslens.contract.errors import InputError
from gausslens.contract.prompts import Tokens
from gausslens.contract.reference import resolve
from gausslens.measuring import on_the_way, passes
from gausslens.measuring.held_weights import HeldWeights
from gausslens.measuring.on_the_way import OnTheWay, Reached, read_reached, write_reached
from gausslens.perform import perform
from gausslens.store import Store
from gausslens.store.disk import STALE
from gausslens.store.maintain import remove, superseded, verify
from gausslens.testing import check_stream, wiring

LINES = ["one two three", "four", "five six", "a longer line than others", "x", "seven, eight", "nine", "and ten"]
# What is outside, and in order; ours, merged, of two passes; what does not commit.
WALK = {"use": "resuming.walk"}
SUMS = {"use": "resuming.sums"}
OURS = {"use": "gaussian.moments", "with": {"site": "q", "robust": True, "principal": 2}}
POWER = {"use": "probe.power"}
# Others of ours: many small arrays, a second pass that has what the first one fixed, losses, sums of rows.
OTHERS = (
    {"use": "model.attention", "with": {"maps": "heads"}},
    {"use": "gaussian.joint", "with": {"site": "v", "window": 2, "every": 1, "dims": 1, "permutations": 0}},
    {"use": "model.loss"},
    {"use": "bilinear.head-roles"},
)


class Killed(BaseException):
    """The process is gone."""


def host() -> plugins.Host:
    return plugins.load(
        only=["bilinear", "gaussian", "models"], extra={"tiny": wiring, "probe": probes, "resuming": resuming}
    )


def study(*analyses: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "gausslens": 1,
        "name": "resumed",
        "seed": 3,
        "model": {"path": "builtin:testing", "loader": "tiny"},
        "prompts": {"source": "lines", "lines": LINES},
        "variants": {"trained": []},
        "analyses": list(analyses),
        "errors": {"groups": 3},
        "report": False,
    } | more


def do(store: Path, *analyses: dict[str, Any], **more: Any) -> Any:
    return perform(study(*analyses, **more), store=store, host=host())


def results(ran: Any) -> dict[str, xr.Dataset]:
    store = Store(ran.path)
    return {s.ref.label: store.read(s.folder, s.key).load() for s in ran.plan.steps}


def told(ran: Any) -> list[str]:
    return [note for note in ran.notes if "commit" in note]


def same(ran: Any, whole: dict[str, xr.Dataset]) -> None:
    found = results(ran)
    assert found.keys() == whole.keys()
    for label, dataset in found.items():
        xr.testing.assert_identical(dataset, whole[label])
        for name, variable in dataset.variables.items():
            if variable.dtype != "O":
                assert variable.values.tobytes() == whole[label].variables[name].values.tobytes()


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Tokens.shards
    monkeypatch.setattr(Tokens, "shards", lambda self, size=16, among=None: real(self, size, among))
    monkeypatch.setenv("GAUSSLENS_COMMIT_SECONDS", "0")


class Shards:
    """Counts shards that run, and is killed before one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran, self.last = 0, -1
        real = passes._run_shards

        def counted(*arguments: Any) -> Any:
            if self.ran == self.last:
                raise Killed
            self.ran += 1
            return real(*arguments)

        monkeypatch.setattr(passes, "_run_shards", counted)

    def until(self, last: int) -> None:
        self.ran, self.last = 0, last


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> Shards:
    return Shards(monkeypatch)


def progress(store: Path) -> list[Path]:
    return sorted((store / "progress").iterdir()) if (store / "progress").is_dir() else []


@pytest.mark.parametrize("analysis", [WALK, SUMS, OURS], ids=lambda a: a["use"])
def test_killed_before_any_shard_it_comes_to_the_same_bits(shards, tmp_path, analysis, monkeypatch):
    monkeypatch.setenv("GAUSSLENS_COMMIT_SECONDS", "inf")
    whole = results(do(tmp_path / "whole", analysis))
    total = shards.ran
    assert total > 8
    assert progress(tmp_path / "whole") == []
    monkeypatch.setenv("GAUSSLENS_COMMIT_SECONDS", "0")
    for last in range(1, total, 3):
        store = tmp_path / str(last)
        shards.until(last)
        with pytest.raises(Killed):
            do(store, analysis)
        assert len(progress(store)) == 1
        shards.until(-1)
        ran = do(store, analysis)
        assert shards.ran == total - last
        assert ["goes on after pass" in note for note in told(ran)] == [True]
        same(ran, whole)
        assert progress(store) == []
        assert verify(store) == []


def test_killed_again_and_again(shards, tmp_path):
    whole = results(do(tmp_path / "whole", SUMS, OURS))
    ran = None
    for _ in range(100):
        shards.until(2)
        try:
            ran = do(tmp_path / "store", SUMS, OURS)
            break
        except Killed:
            continue
    assert ran is not None
    same(ran, whole)


def test_a_shared_pass_runs_what_someone_needs_and_feeds_no_one_twice(shards, tmp_path, monkeypatch):
    whole = results(do(tmp_path / "whole", SUMS, OURS, POWER))
    total = shards.ran
    one_pass = total // 2
    shards.until(one_pass + 2)
    with pytest.raises(Killed):
        do(tmp_path / "store", SUMS)
    shards.until(3)
    with pytest.raises(Killed):
        do(tmp_path / "store", OURS)
    fed = []
    update = resuming.Sums.update
    monkeypatch.setattr(resuming.Sums, "update", lambda self, batch: (fed.append(1), update(self, batch))[1])
    shards.until(-1)
    same(do(tmp_path / "store", SUMS, OURS), {name: whole[name] for name in ("resuming.sums", "gaussian.moments")})
    assert shards.ran == total - 3  # those that moments had not seen
    assert len(fed) == one_pass - 2
    shards.until(one_pass + 2)
    with pytest.raises(Killed):
        do(tmp_path / "other", SUMS, POWER)
    shards.until(-1)
    same(do(tmp_path / "other", SUMS, POWER), {name: whole[name] for name in ("resuming.sums", "probe.power")})
    assert shards.ran == total - 2  # all of the first pass, for what does not commit


SLOW = {"with": {"seconds": 0.02}}
KILLED = {
    "probes": (WALK | SLOW, SUMS | SLOW),
    "ours": (SUMS | {"with": {"seconds": 0.1}}, *OTHERS),
}
SCRIPT = """
import sys
from pathlib import Path
import test_on_the_way as tests
from gausslens.contract.prompts import Tokens
real = Tokens.shards
Tokens.shards = lambda self, size=16, among=None: real(self, size, among)
tests.do(Path(sys.argv[1]), *tests.KILLED[sys.argv[2]])
"""


def kill_once(store: Path, which: str, committed: int) -> None:
    """Run in a process of its own, and kill it a little after it has committed so many steps."""
    paths = os.pathsep.join(p for p in sys.path if p)
    command = [sys.executable, "-c", SCRIPT, str(store), which]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths})
    before = {(path, path.stat().st_mtime_ns) for path in progress(store)}
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        now = {(path, path.stat().st_mtime_ns) for path in progress(store) if path.exists()}
        if len(now - before) >= committed:
            break
        time.sleep(0.01)
    time.sleep(np.random.default_rng().uniform(0, 0.3))
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("which", KILLED)
def test_kill_9_of_a_process(tmp_path, which):
    whole = results(do(tmp_path / "whole", *KILLED[which]))
    store, ours = tmp_path / "store", which == "ours"
    for _ in range(1 if ours else 2):
        kill_once(store, which, len(KILLED[which]) if ours else 1)
    assert verify(store) == []
    ran = do(store, *KILLED[which])
    if ours:
        assert ["goes on after pass" in note for note in told(ran)] == [True] * len(KILLED[which])
    same(ran, whole)
    assert progress(store) == []


def killed(shards: Shards, store: Path, *analyses: dict[str, Any], after: int = 5) -> Path:
    shards.until(after)
    with pytest.raises(Killed):
        do(store, *analyses)
    shards.until(-1)
    [path] = progress(store)
    return path


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("spoil", [damaged, short, lambda path: path.write_bytes(b"")])
def test_what_is_damaged_is_not_used_and_told_once(shards, tmp_path, spoil):
    whole = results(do(tmp_path / "whole", WALK))
    spoil(killed(shards, tmp_path / "store", WALK))
    ran = do(tmp_path / "store", WALK)
    assert told(ran) == [
        "resuming.walk on trained begins anew; what was committed on the way is not used: the file is damaged",
    ]
    same(ran, whole)


def test_what_is_of_another_step_or_another_cut_is_not_used(shards, tmp_path, monkeypatch):
    whole = results(do(tmp_path / "whole", SUMS))
    path = killed(shards, tmp_path / "store", SUMS)
    other = killed(shards, tmp_path / "other", SUMS, after=6)
    other.replace(path)  # the same step and cut: it may go on from there
    same(do(tmp_path / "store", SUMS), whole)
    foreign = killed(shards, tmp_path / "foreign", WALK)
    path = killed(shards, tmp_path / "third", SUMS)
    foreign.replace(path)
    ran = do(tmp_path / "third", SUMS)
    assert [("of other prompts, another step" in note) for note in told(ran)] == [True]
    same(ran, whole)
    killed(shards, tmp_path / "fourth", SUMS)
    monkeypatch.setattr(on_the_way, "distributions", lambda: {"torch": "9"})
    ran = do(tmp_path / "fourth", SUMS)
    assert ["begins anew" in note for note in told(ran)] == [True]
    same(ran, whole)


def test_a_restore_that_fails_begins_anew_with_the_same_draws(shards, tmp_path):
    fails = WALK | {"with": {"give": "nothing"}}
    whole = results(do(tmp_path / "whole", fails))
    killed(shards, tmp_path / "store", fails)
    ran = do(tmp_path / "store", fails)
    assert told(ran) == [
        "resuming.walk on trained begins anew; what was committed on the way is not used: ValueError: not today",
    ]
    same(ran, whole)


def test_a_state_that_is_no_arrays_or_a_disk_that_is_full_costs_no_result(tmp_path, monkeypatch):
    whole = results(do(tmp_path / "whole", WALK))
    ran = do(tmp_path / "objects", WALK | {"with": {"give": "objects"}})
    assert ran.outcome.counts()["computed"] == 1
    [note] = told(ran)
    assert "resuming.walk on trained does not commit on the way: TypeError: state()['at'] is an array of object" in note

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(on_the_way, "write_at", full)
    ran = do(tmp_path / "full", WALK)
    assert ["No space left on device" in note for note in told(ran)] == [True]
    same(ran, whole)


def test_a_step_that_fails_by_its_own_code_leaves_nothing(shards, tmp_path, monkeypatch):
    killed(shards, tmp_path / "store", SUMS)
    with monkeypatch.context() as patch:
        patch.setattr(resuming.Sums, "merge", lambda *_: 1 / 0)
        assert do(tmp_path / "store", SUMS).outcome.counts()["failed"] == 1
    assert progress(tmp_path / "store") == []


def test_nothing_is_committed_while_weights_are_not_what_they_were(tmp_path, monkeypatch):
    monkeypatch.setattr("gausslens.measuring.held_weights.HeldWeights.intact", lambda self: False)
    written = []
    monkeypatch.setattr(on_the_way, "write_reached", lambda *_: written.append(1))
    do(tmp_path / "store", SUMS)
    assert not written


def test_weights_that_someone_changed_are_seen_and_left_as_they_are() -> None:
    weight = torch.ones(3)
    model = SimpleNamespace(held=lambda: {"W": weight}, close=lambda: None)
    held = HeldWeights(SimpleNamespace(model=model, call=SimpleNamespace(path="live:x")))  # type: ignore[arg-type]
    assert held.intact()  # no one could have reached them
    held.note()
    assert held.intact()
    weight.mul_(2)
    assert not held.intact()
    assert not held.intact()
    assert (weight == 2).all()
    assert held.changed() == ["W"]


def test_gc_removes_what_is_finished_or_old(shards, tmp_path):
    store = tmp_path / "store"
    ran = do(store, POWER)
    young = killed(shards, store, SUMS)
    assert superseded(store).progress == ()
    done = young.with_name(ran.plan.steps[0].key)
    done.write_bytes(b"left by a run that was killed after its result was committed")
    old = young.with_name("0123")
    old.write_bytes(b"old")
    os.utime(old, (time.time() - STALE - 60,) * 2)
    found = superseded(store)
    assert set(found.progress) == {done, old}
    assert remove(store, found) == 2
    assert progress(store) == [young]


def test_a_file_holds_arrays_of_every_kind(tmp_path):
    store = Store(tmp_path / "store").create()
    shared = np.arange(12.0).reshape(3, 4)
    kinds: list[np.ndarray] = [np.array(values) for values in (3, True, 1j, "naïve", b"x", [], [[]], np.float16(2))]
    arrays = {str(i): array for i, array in enumerate(kinds)} | {"turned": shared.T, "big": np.array([1, 2], ">i4")}
    written = Reached(1, 7, {"a": shared}, {0: arrays, 2: {"a": shared}}, [[3, [1, 2], None], None, [1, 2]])
    write_reached(store.writer, "key", written, "agreed")
    found = read_reached(store.path / "progress/key", "agreed")
    assert (found.index, found.shards, found.random) == (1, 7, written.random)
    assert found.began is not None
    for held, wanted in [(found.began, written.began), *((found.groups[g], written.groups[g]) for g in (0, 2))]:
        assert wanted is not None
        assert held.keys() == wanted.keys()
        for name, array in wanted.items():
            assert (held[name].dtype, held[name].shape) == (array.dtype, array.shape)
            assert held[name].flags.f_contiguous == array.flags.f_contiguous
            np.testing.assert_array_equal(held[name], array)
    assert (store.path / "progress/key").stat().st_size < 2 * shared.nbytes + 1500


@pytest.mark.parametrize("told", ["soon", "-1", "nan", ""])
def test_seconds_that_are_none_are_refused(tmp_path, monkeypatch, told):
    monkeypatch.setenv("GAUSSLENS_COMMIT_SECONDS", told)
    with pytest.raises(InputError, match="give seconds, 0 to commit after each shard, or inf for never"):
        do(tmp_path / "store", SUMS)


def test_it_is_committed_when_it_is_time(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(on_the_way.time, "monotonic", lambda: now[0])
    way = OnTheWay(Store(tmp_path / "store").create().writer, 10, last=0.0)
    job = passes.Job("k", "k", resuming.Walk(resuming.Slow(), None), None, None, can_commit=True)  # type: ignore[arg-type]
    written = []
    monkeypatch.setattr(on_the_way, "write_reached", lambda *_: written.append(now[0]))
    monkeypatch.setattr(passes.Job, "reached", lambda *_: None)
    job.request = job.state.request()
    for now[0] in (1.0, 9.0, 10.0, 11.0, 19.0, 21.0):
        way.commit([job], 0, 1, {"k": {0: job.state}}, str)
    assert written == [10.0, 21.0]


class Forgets(resuming.Walk):
    def restore(self, state: Any) -> None:
        super().restore(state)
        self.at.pop(0)


class Counts(resuming.Walk):
    def state(self) -> dict[str, Any]:
        self.at = {n: at + 1 for n, at in self.at.items()}
        return super().state()


class Objects(resuming.Walk):
    def state(self) -> dict[str, Any]:
        return {"at": self.at}


class Shares(resuming.Walk):
    kept: ClassVar[dict[int, Any]] = {}

    def restore(self, state: Any) -> None:
        super().restore(state)
        Shares.kept = Shares.kept or self.at
        self.at = Shares.kept


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Forgets, r"what goes on by restore\(\) from state\(\) after shard 1 of pass 1 gives another result"),
        (Counts, r"asking for state\(\) changes the result"),
        (Objects, r"state\(\)\['at'\] is a dict"),
        (Shares, r"what goes on by restore\(\)"),
    ],
)
def test_check_stream_catches_what_is_wrong(made, said, monkeypatch):
    monkeypatch.setattr(resuming, "noise", lambda: 0.0)
    monkeypatch.setattr(resuming, "Wrong", made, raising=False)
    resolve.cache_clear()
    with pytest.raises(AssertionError, match=said):
        check_stream(resuming.analysis("resuming.wrong", "Wrong"))
