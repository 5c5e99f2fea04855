"""Claims on steps: who gets them, when they end, and what may be taken over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gausslens.store.disk as disk
from gausslens.contract.errors import InputError, StoreError
from gausslens.store import Store
from gausslens.store.disk import Claims, claimed

HOLDS = """
import sys, time
from gausslens.store import Store
from gausslens.store.disk import Claims
claims = Claims(Store(sys.argv[1]).writer)
print(claims.take(sys.argv[2:]), flush=True)
time.sleep(600)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store").create()


def other(store: Store, *keys: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDS, str(store.path), *keys]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline().strip() == "None"
    return process


def age(claims: Claims, seconds: float) -> None:
    """As if its process had not been heard of for so long."""
    then = time.time() - seconds
    os.utime(claims.card, (then, then))


def test_all_or_none_and_again_when_they_are_let_go(store):
    with Claims(store.writer) as one, Claims(store.writer) as two:
        assert one.take(["b", "a"]) is None
        holder = two.take(["c", "b"])
        assert holder is not None
        assert holder.pid == os.getpid()
        assert claimed(store.path) == {"a", "b"}  # c was given back
        two.release(["a"])  # not its own
        assert two.take(["a"]) is not None
        one.release(["a", "b"])
        assert two.take(["a", "b", "c"]) is None
    assert list((store.path / "claims").iterdir()) == []


@given(st.lists(st.tuples(st.booleans(), st.sets(st.sampled_from("abcd"), min_size=1)), max_size=20))
def test_no_step_is_ever_of_two(tmp_path_factory, wanted):
    store = Store(tmp_path_factory.mktemp("two") / "store").create()
    with Claims(store.writer) as one, Claims(store.writer) as two:
        held: dict[bool, set[str]] = {False: set(), True: set()}
        for which, keys in wanted:
            claims = two if which else one
            if keys <= held[which]:
                claims.release(keys)
                held[which] -= keys
            elif not keys & held[which]:
                assert (claims.take(keys) is None) == (not keys & held[not which])
                held[which] |= set() if keys & held[not which] else keys
            assert claimed(store.path) == held[False] | held[True]


def test_what_a_killed_process_held_is_free_at_once(store):
    process = other(store, "a")
    with Claims(store.writer) as claims:
        assert claims.take(["a"]) is not None
        process.kill()
        process.wait()
        assert claimed(store.path) == set()
        assert claims.take(["a"]) is None
    assert [path.suffix for path in (store.path / "claims").iterdir()] == [".card"]  # that of the dead
    with Claims(store.writer) as claims:
        claims.enter()
    assert list((store.path / "claims").iterdir()) == []


def test_a_process_that_is_killed_and_not_waited_for_is_gone_too(store):
    process = other(store, "a")
    process.kill()
    while Path(f"/proc/{process.pid}/stat").exists() and " Z " not in Path(f"/proc/{process.pid}/stat").read_text():
        time.sleep(0.01)
    assert claimed(store.path) == set()
    process.wait()


def test_a_stopped_process_loses_its_claims_after_the_lease_and_takes_none_back(store, monkeypatch):
    monkeypatch.setenv(disk.LEASE, "1")
    process = other(store, "a", "b")
    with Claims(store.writer) as claims:
        process.send_signal(signal.SIGSTOP)
        assert claims.take(["a"]) is not None
        end = time.monotonic() + 30
        while claims.take(["a"]) is not None:
            assert time.monotonic() < end
            time.sleep(0.1)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.5)  # it touches its card: b is its own again, a is not
        holder = Claims(store.writer).take(["a"])
        assert holder is not None
        assert holder.pid == os.getpid()
        process.terminate()
        process.wait()


def test_another_machine_is_waited_for_until_its_lease_is_over(store):
    with Claims(store.writer) as there, Claims(store.writer) as here:
        assert there.take(["a"]) is None
        there.card.write_text(json.dumps(json.loads(there.card.read_text()) | {"host": "elsewhere", "pid": 1}))
        assert str(here.take(["a"])) == "process 1 on elsewhere"
        age(there, 100)
        assert here.take(["a"]) is not None
        age(there, 130)
        assert here.take(["a"]) is None
        there.release(["a"])  # it is here's by now
        assert claimed(store.path) == {"a"}


def test_without_locks_of_files_claims_hold_as_well(store, monkeypatch):
    def no_locks(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(disk.fcntl, "flock", no_locks)
    with Claims(store.writer) as one, Claims(store.writer) as two:
        assert one.take(["a"]) is None
        assert two.take(["a"]) is not None
        age(one, 1000)
        assert two.take(["a"]) is None


def test_a_lease_is_seconds(store, monkeypatch):
    for wrong in ("0", "-1", "inf", "soon"):
        monkeypatch.setenv(disk.LEASE, wrong)
        with pytest.raises(InputError, match=f"{disk.LEASE}="):
            Claims(store.writer)


def test_who_removes_the_claims_of_a_live_run_is_told(store):
    with Claims(store.writer) as claims:
        assert claims.take(["a"]) is None
        claims.card.unlink()
        with pytest.raises((StoreError, FileNotFoundError)):
            claims.take(["a"])
