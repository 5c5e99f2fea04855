"""Copies from store to store: the same bytes or nothing, whoever is killed, writes meanwhile, or is hostile."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from store.attacks import ATTACKS
from store.stored import META, every_type, fill, key, manifest, small, step
from store.test_failing_disks import CAN_MOUNT, tiny_disk  # noqa: F401  a fixture
from store.test_hostile import surroundings

import gausslens
from gausslens.__main__ import main
from gausslens.contract.errors import StoreError
from gausslens.store import Store
from gausslens.store.bank import copy, copying, intend, open_source
from gausslens.store.maintain import kept, remove, superseded, verify
from gausslens.store.pack import pack

Child = Callable[..., "subprocess.CompletedProcess[str]"]


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted((root / "parts").rglob("*")) if p.is_file()}


def same_results(one: Path, other: Path) -> None:
    before, after = gausslens.open(one), gausslens.open(other)
    assert set(after) == set(before)
    for name in before:
        left, right = before.draws(*name), after.draws(*name)
        assert list(left) == list(right)
        for point in left:
            xr.testing.assert_identical(left[point].load(), right[point].load())
        assert after.facts(*name) == before.facts(*name)


def sound(root: Path) -> bool:
    return [f for f in verify(root) if not f.harmless] == []


def planned(store: Store, run: str, *names: str, plan: str | None = None, created: str = META["created"]) -> str:
    """Plan a run and finish it; returns its plan."""
    body = manifest(plan or f"{run}-{'-'.join(names)}", [step("v", n, n) for n in names], created)
    store.manifest(run, body)
    for name in names:
        store.commit("probe.score", key(name), small(len(name)), META)
    store.reindex()
    return str(body["plan"])


def test_a_copy_is_the_store_again(tmp_path: Path) -> None:
    store = fill(tmp_path / "one")
    store.manifest("every", manifest("p2", [step("v", "every", "e")]))
    store.commit("probe.score", key("e"), every_type(), META)
    (store.path / "tmp/0123456789abcdef.h5").write_bytes(b"half of a part that is being written")
    before = {p: p.stat().st_mtime_ns for p in store.path.rglob("*")}
    heard: list[str] = []
    done = copy(store.path, tmp_path / "other", tell=heard.append)
    assert {p: p.stat().st_mtime_ns for p in store.path.rglob("*")} == before
    assert contents(tmp_path / "other") == contents(store.path)
    assert len(heard) == len(done.results) == len(contents(store.path)) == 15
    assert done.bytes == sum(map(len, contents(store.path).values()))
    assert [m.run for m in done.runs] == ["first", "every"]
    assert verify(tmp_path / "other") == []
    assert gausslens.open(tmp_path / "other").name == gausslens.open(store.path).name == "every"
    for run in ("first", "every"):
        same = [gausslens.open(root).run(run) for root in (store.path, tmp_path / "other")]
        assert same[0].table().equals(same[1].table())
    same_results(store.path, tmp_path / "other")
    again = copy(store.path, tmp_path / "other")
    assert (again.results, again.runs, len(again.there)) == ([], [], 15)
    back = copy(tmp_path / "other", store.path)  # each knows what the other has
    assert (back.results, back.runs, len(back.there)) == ([], [], 15)


def test_a_pack_becomes_parts_again(tmp_path: Path) -> None:
    store = fill(tmp_path / "one")
    store.manifest("every", manifest("p2", [step("v", "every", "e"), step("v", "again", "t")]))
    store.commit("probe.score", key("e"), every_type(), META)
    pack(store.path, tmp_path / "p.h5")
    with open_source(tmp_path / "p.h5") as source:
        told = intend(source, tmp_path / "other")
        assert not (tmp_path / "other").exists()
    done = copy(tmp_path / "p.h5", tmp_path / "other")
    assert len(done.results) == 15
    assert 0.5 * done.bytes < told.bytes < 2 * done.bytes
    assert verify(tmp_path / "other") == []
    same_results(store.path, tmp_path / "other")
    assert copy(store.path, tmp_path / "other").results == []
    assert copy(store.path, tmp_path / "other").runs == []


def test_copies_by_key_bring_no_run_and_gc_leaves_them_alone(tmp_path: Path) -> None:
    store = fill(tmp_path / "one")
    wanted = {("probe.score", key(n)) for n in ("t", "c0", "c1", "missing")}
    with open_source(store.path) as source:
        told = intend(source, tmp_path / "bank", wanted)
    assert told.lacking == {("probe.score", key("missing"))}
    assert told.bytes == sum(len(contents(store.path)[f"parts/probe.score/{key(n)}.h5"]) for n in ("t", "c0", "c1"))
    done = copy(store.path, tmp_path / "bank", wanted)
    assert {k for _, k in done.results} == {key(n) for n in ("t", "c0", "c1")}
    assert gausslens.open(tmp_path / "bank").runs == ()
    found = superseded(tmp_path / "bank")
    assert (found.parts, len(found.kept)) == ({}, 3)
    bank = Store(tmp_path / "bank").create()
    planned(bank, "mine", "t")
    assert (superseded(bank.path).parts, len(superseded(bank.path).kept)) == ({}, 2)
    assert copy(store.path, bank.path, wanted).results == []
    assert len(kept(bank.path)) == 1
    asked = superseded(bank.path, copied=True)
    assert {p.stem for p in asked.parts} == {key("c0"), key("c1")}
    copy(store.path, bank.path, wanted | {("probe.score", key("c2"))})  # meanwhile: it has a record of its own
    assert remove(bank.path, asked) == 1
    assert verify(bank.path) == [f for f in verify(bank.path) if f.harmless]
    assert {Path(p).stem for p in contents(bank.path)} == {key(n) for n in ("t", "c0", "c1", "c2")}
    assert remove(bank.path, superseded(bank.path, copied=True)) == 4
    assert {Path(p).stem for p in contents(bank.path)} == {key("t")}


def test_a_run_comes_along_by_its_plan(tmp_path: Path) -> None:
    store = Store(tmp_path / "one").create()
    first, second = planned(store, "a", "x"), planned(store, "a", "x", "y")
    keys = [(s.analysis, s.key) for s in gausslens.open(store.path).manifest().steps]
    done = copy(store.path, tmp_path / "other", keys, [second])
    assert [m.plan for m in done.runs] == [second] != [first]
    assert gausslens.open(tmp_path / "other")["v", "y"]["mass"] == 1
    assert kept(tmp_path / "other") == {}


def test_what_came_last_is_newest(tmp_path: Path) -> None:
    """Also where a run was planned again, bit by bit, with clocks that say otherwise, and from a copy of a copy."""
    one, other, third = (Store(tmp_path / name).create() for name in ("one", "other", "third"))
    clock = [f"2026-01-0{9 - i}T00:00:00+00:00" for i in range(8)]
    for i, (run, name) in enumerate([("a", "x"), ("b", "x"), ("a", "y"), ("c", "x"), ("b", "x"), ("a", "x")]):
        planned(one, run, name, created=clock[i])
        if i % 2:
            copy(one.path, other.path)
            copy(other.path, third.path)
        for root in (other.path, third.path) if i % 2 else ():
            assert gausslens.open(root).name == run
            assert gausslens.open(root).manifest().plan == gausslens.open(one.path).manifest().plan
    copy(third.path, one.path)
    assert [m.run for m in gausslens.open(one.path).manifests()] == list("abacba")
    assert {m.sequence for m in gausslens.open(third.path).manifests()} == set(range(1, 7))
    assert sound(third.path)


def test_what_was_planned_here_stays_newest_of_its_run(tmp_path: Path) -> None:
    one, here = Store(tmp_path / "one").create(), Store(tmp_path / "here").create()
    theirs, ours = planned(one, "a", "x", plan="p1"), planned(here, "a", "x", plan="p2")
    planned(one, "b", "z")
    done = copy(one.path, here.path)
    assert [(m.run, m.sequence) for m in done.runs] == [("a", None), ("b", 2)]
    results = gausslens.open(here.path)
    assert results.name == "b"
    assert results.run("a").manifest().plan == ours
    assert results.run("a", theirs[:8])["v", "x"]["mass"] == 1
    # Neither is superseded by the other unless it is asked for; and then it does not come back as the newest.
    assert superseded(here.path).manifests == ()
    assert len(superseded(here.path).kept_manifests) == 1
    assert [m.plan for m in superseded(here.path, copied=True).manifests] == [theirs]
    remove(here.path, superseded(here.path, copied=True))
    copy(one.path, here.path)
    assert gausslens.open(here.path).run("a").manifest().plan == ours
    assert superseded(here.path).manifests == ()
    # Their answer to ours is newer than ours.
    copy(here.path, one.path)
    newest = planned(one, "a", "x", plan="p3")
    copy(one.path, here.path)
    assert gausslens.open(here.path).name == "a"
    assert gausslens.open(here.path).manifest().plan == newest


FLAWS: dict[str, Callable[[bytearray], bytes]] = {
    "a bit of an array": lambda b: bytes(b[:-1500]) + bytes([b[-1500] ^ 1]) + bytes(b[-1499:]),
    "a bit of the head": lambda b: bytes(b[:40]) + bytes([b[40] ^ 8]) + bytes(b[41:]),
    "a bit of the seal": lambda b: bytes(b[:-60]) + bytes([b[-60] ^ 1]) + bytes(b[-59:]),
    "cut short": lambda b: bytes(b[: len(b) // 2]),
    "nothing": lambda _: b"",
    "something else": lambda _: b"no part",
    "added to": lambda b: bytes(b) + b"x",
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_damaged_part_is_told_and_left_out(tmp_path: Path, flaw: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = fill(tmp_path / "one")
    path = store.path / f"parts/probe.score/{key('c1')}.h5"
    path.chmod(0o644)
    path.write_bytes(FLAWS[flaw](bytearray(path.read_bytes())))
    assert main(["store", "copy", str(store.path), str(tmp_path / "other")]) == 1
    out = capsys.readouterr().out
    assert f"left out: probe.score/{key('c1')}: " in out
    assert f"{tmp_path}/other/tmp/" not in out
    assert "13 copied" in out
    assert "0 there already, 1 left out as damaged" in out
    assert sound(tmp_path / "other")
    assert list((tmp_path / "other/tmp").iterdir()) == []
    assert gausslens.open(tmp_path / "other").unfinished("chance", "score") == ["draw 1"]


def test_a_part_under_another_s_name_is_not_believed(tmp_path: Path) -> None:
    store = fill(tmp_path / "one")
    folder = store.path / "parts/probe.score"
    shutil.copy(folder / f"{key('c1')}.h5", folder / f"{key('stranger')}.h5")
    (folder / f"{key('link')}.h5").symlink_to(folder / f"{key('c1')}.h5")
    os.mkfifo(folder / f"{key('fifo')}.h5")
    (folder / "..h5").write_bytes(b"")
    (folder / "\x1b[31m.h5").write_bytes(b"")
    (store.path / "parts/elsewhere").symlink_to(folder)
    (store.path / "runs/linked").symlink_to(store.path / "runs/first")
    (store.path / "runs/broken").mkdir()
    (store.path / f"runs/broken/{key('p')}.json").write_text("{")
    done = copy(store.path, tmp_path / "other")
    assert len(done.results) == 14
    told = {Path(d.where).name.removesuffix(".h5"): d.what for d in done.wrong}
    assert "says that it is" in told[key("stranger")]
    for name in (key("link"), key("fifo"), "elsewhere", "linked"):
        assert "is not a regular file" in told[name]
    assert "not JSON" in told[f"{key('p')}.json"]
    assert "letters, digits" in told["."] + told["\x1b[31m"]
    assert len(done.wrong) == len(told) == 8
    assert sound(tmp_path / "other")
    only = copy(store.path, tmp_path / "third", {("probe.score", key("c1")), ("probe.score", key("fifo"))})
    assert (len(only.results), len(only.wrong)) == (1, 1)


def test_a_pack_with_one_damaged_array(tmp_path: Path) -> None:
    store = Store(tmp_path / "one").create()
    store.manifest("run", manifest("p", [step("v", n, n) for n in "kl"]))
    for i, name in enumerate("kl"):
        store.commit("probe.score", key(name), small(i), META)
    pack(store.path, tmp_path / "p.h5")
    whole = bytearray((tmp_path / "p.h5").read_bytes())
    place = bytes(whole).index(small(1)["score"].values.tobytes())
    whole[place] ^= 1
    (tmp_path / "p.h5").write_bytes(bytes(whole))
    done = copy(tmp_path / "p.h5", tmp_path / "other")
    assert done.results == [("probe.score", key("k"))]
    assert [d.where for d in done.wrong] == [f"probe.score/{key('l')}"]
    assert "does not match its crc32" in done.wrong[0].what
    assert sound(tmp_path / "other")


HOSTILE = """
import os, signal, sys
from contextlib import suppress
from pathlib import Path
from gausslens import GausslensError
from gausslens.store.bank import copy
for where in sorted(Path(sys.argv[1]).iterdir()):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        with suppress(GausslensError):
            copy(where / "store", where / "other")
        os._exit(0)
    code = os.waitpid(pid, 0)[1]
    if code:
        print(where.name, code)
"""


def test_hostile_stores_are_not_followed(tmp_path: Path, child: Child) -> None:
    before = {}
    whole = fill(tmp_path / "whole").path
    for name, attack in ATTACKS.items():
        outside = surroundings(tmp_path / "all" / name)
        attack(shutil.copytree(whole, tmp_path / "all" / name / "store"), outside)
        before[name] = listing(outside)
    done = child(HOSTILE, tmp_path / "all", timeout=500)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for name in ATTACKS:
        where = tmp_path / "all" / name
        assert listing(where / "outside") == before[name]
        other = where / "other"
        assert not other.exists() or sound(other), name
        assert all(p.is_file() and not p.is_symlink() for p in other.glob("parts/*/*")), name
        copied = {p.stem for p in other.glob("parts/*/*")} if other.exists() else set()
        assert len(copied) >= (0 if name == "analysis_is_a_link" else 13), name


def listing(root: Path) -> dict[str, Any]:
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else p.lstat().st_mode for p in root.rglob("*")}


MANY = 60
WRITING = """
import sys, time
from store.stored import *
store = Store(sys.argv[1]).create()
first, last = int(sys.argv[2]), int(sys.argv[3])
store.manifest(sys.argv[4], manifest(sys.argv[4], [step("v", "s", f"n{i}", draw=i) for i in range(first, last)]))
print("ready", flush=True)
for i in range(first, last):
    if not store.has("probe.score", key(f"n{i}")):
        store.commit("probe.score", key(f"n{i}"), small(i), META)
    time.sleep(0.002)
store.reindex()
"""


def test_both_stores_are_written_meanwhile(tmp_path: Path) -> None:
    """One run goes on in the source, another that shares some of its steps in the target."""
    one, other = tmp_path / "one", tmp_path / "other"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITING, str(root), str(first), str(first + MANY), run],
            stdout=subprocess.PIPE, env=environment, text=True,
        )
        for root, first, run in ((one, 0, "there"), (other, MANY // 2, "here"))
    ]  # fmt: skip
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        rounds = 0
        while rounds == 0 or any(w.poll() is None for w in writers):
            before = set(contents(one))
            assert copy(one, other).wrong == []
            assert before <= set(contents(other))
            assert sound(other)
            rounds += 1
    finally:
        for writer in writers:
            writer.wait(60)
            writer.stdout.close()  # type: ignore[union-attr]
    copy(one, other)
    assert {p: b for p, b in contents(other).items() if p in contents(one)}.keys() == contents(one).keys()
    assert len(contents(other)) == 3 * MANY // 2
    for i in range(0, 3 * MANY // 2, 7):
        xr.testing.assert_identical(Store(other).read("probe.score", key(f"n{i}")).load(), small(i))
    results = gausslens.open(other)
    assert sorted(results.runs) == ["here", "there"]
    assert all(results.run(r)["v", "s"].sizes["draw"] == MANY for r in results.runs)


COPYING = "import sys; from gausslens.store.bank import copy; print('go', flush=True); copy(sys.argv[1], sys.argv[2])"


@pytest.mark.parametrize("kills", [5, pytest.param(150, marks=pytest.mark.full)])
def test_killed_at_random_moments(tmp_path: Path, kills: int) -> None:
    store = Store(tmp_path / "one").create()
    for run in ("a", "b"):
        planned(store, run, *(f"{run}{i}" for i in range(40)))
    pack(store.path, tmp_path / "p.h5")
    rng = random.Random(kills)
    other = tmp_path / "other"
    cut = 0
    for number in range(kills):
        source = (store.path, tmp_path / "p.h5")[number % 2]
        process = subprocess.Popen([sys.executable, "-c", COPYING, source, other], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        there = contents(other) if other.exists() else {}
        cut += 0 < len(there) < 80
        if other.exists():
            assert sound(other)
        if kills > 20 and len(there) > 60:
            shutil.rmtree(other)
    assert cut > 0
    done = copy(store.path, other)
    assert done.wrong == []
    assert contents(other).keys() == contents(store.path).keys()
    assert [m.run for m in gausslens.open(other).manifests()] == ["a", "b"]
    assert list((other / "tmp").iterdir()) == []
    for name in ("a", "b"):
        assert len(gausslens.open(other).run(name)) == 40


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["pwrite", "fsync", "link"])
def test_an_error_of_any_call_is_told_and_copying_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    store = fill(tmp_path / "one")
    pack(store.path, tmp_path / "p.h5")
    genuine = getattr(os, call)
    for nth, source in ((3, store.path), (12, store.path), (9, tmp_path / "p.h5")):
        other = tmp_path / f"other{nth}"
        calls = itertools.count(1)

        def failing(*arguments: Any, nth: int = nth, calls: Iterator[int] = calls) -> Any:
            if next(calls) == nth:
                raise OSError(number, os.strerror(number))
            return genuine(*arguments)

        monkeypatch.setattr(os, call, failing)
        with pytest.raises(StoreError, match="full" if number == errno.ENOSPC else "disk failed"):
            copy(source, other)
        monkeypatch.setattr(os, call, genuine)
        assert sound(other)
        assert list((other / "tmp").iterdir()) == []
        assert copy(source, other).wrong == []
        same_results(store.path, other)


def test_a_source_that_cannot_be_read_is_not_the_target_s_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fill(tmp_path / "one")
    bad = (store.path / f"parts/probe.score/{key('c1')}.h5").stat().st_ino
    pread = os.pread

    def failing(descriptor: int, *rest: Any) -> bytes:
        if os.fstat(descriptor).st_ino == bad:
            raise OSError(errno.EIO, "Input/output error")
        return pread(descriptor, *rest)

    monkeypatch.setattr(os, "pread", failing)
    done = copy(store.path, tmp_path / "other")
    assert [(d.where, d.what) for d in done.wrong] == [
        (f"probe.score/{key('c1')}", "cannot be read: input/output error")
    ]
    assert len(done.results) == 13


def test_what_goes_away_meanwhile_is_no_damage(tmp_path: Path) -> None:
    store = fill(tmp_path / "one")
    with open_source(store.path) as source:
        told = intend(source, tmp_path / "other")
        (store.path / f"parts/probe.score/{key('c1')}.h5").unlink()
        done = copying.carry_out(told)
    assert (done.vanished, done.wrong, len(done.results)) == ([("probe.score", key("c1"))], [], 13)


@pytest.mark.skipif(not CAN_MOUNT, reason="this machine may not mount a small disk")
def test_a_disk_that_fills_up(tiny_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    store = Store(tmp_path / "one").create()
    planned(store, "a", *(f"a{i}" for i in range(120)))
    monkeypatch.setattr(copying, "check_space", lambda _: None)  # somebody else fills it after it was looked at
    with pytest.raises(StoreError, match="the disk is full: free some space"):
        copy(store.path, tiny_disk / "other")
    assert 10 < len(contents(tiny_disk / "other")) < 120
    assert sound(tiny_disk / "other")
    assert list((tiny_disk / "other/tmp").iterdir()) == []
