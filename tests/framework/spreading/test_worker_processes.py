"""Worker processes that die while they start: others take their place, or a run is given up by name, and soon."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import psutil
import pytest

from gausslens.spreading import worker_processes
from gausslens.spreading.in_worker import MainThread
from gausslens.spreading.worker_processes import WorkerProcesses

# A worker that reaches its scheduler and waits; one whose library is missing; one that waits before it is there.
WELL = (
    "import json, sys, pathlib; told = json.loads(sys.stdin.readline()); pathlib.Path(told['there']).touch(); "
    "sys.stdin.read()"
)
DIES = "import sys; print('ImportError: no such library', file=sys.stderr); sys.exit(3)"
HANGS = "import time; time.sleep(600)"


def until(what: Any) -> None:
    end = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """``begin(number, command)``: such processes."""
    begun = []

    def start(number: int, command: str, memory: int = 1 << 40) -> WorkerProcesses:
        monkeypatch.setattr(worker_processes, "_COMMAND", command)
        begun.append(WorkerProcesses(number, "tcp://127.0.0.1:9", tmp_path, {"OMP_NUM_THREADS": "1"}, memory))
        return begun[-1]

    monkeypatch.setattr(worker_processes, "LOOK", 0.01)
    monkeypatch.setattr(worker_processes, "PAUSE", 0.001)
    yield start
    for each in begun:
        each.close()


def there(tmp_path) -> int:
    return len(list(tmp_path.glob("*.there")))


def children(command: str) -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children():
        with suppress(psutil.Error):  # it is dead
            found += [each] if command in each.cmdline() else []
    return found


def kill(process: psutil.Process) -> None:
    with suppress(psutil.Error):  # it is dead
        process.kill()


def test_one_that_dies_is_replaced_as_often_as_it_takes(begin, tmp_path):
    processes = begin(2, WELL)
    draw = random.Random(3)
    for number in range(12):
        until(lambda: len(children(WELL)) == 2)
        time.sleep(draw.uniform(0, 0.05))  # some before they are there
        for victim in children(WELL)[: draw.randint(1, 2)]:
            kill(victim)
        processes.well()
        assert not processes.trouble, number
    until(lambda: len(children(WELL)) == 2)
    processes.close()
    assert children(WELL) == []


def test_where_every_one_dies_it_is_given_up_with_the_last_words(begin):
    began = time.monotonic()
    processes = begin(2, DIES)
    until(lambda: processes.trouble)
    assert processes.trouble == (
        "15 workers died one after another and none answered; the last ended with code 3, "
        "and its last words were: ImportError: no such library"
    )
    assert time.monotonic() - began < 60
    until(lambda: not children(DIES))
    time.sleep(0.1)
    assert children(DIES) == []  # none is started any more


def test_one_that_is_killed_again_and_again_is_given_up_too(begin, tmp_path):
    processes = begin(1, WELL)
    while not processes.trouble:
        for victim in children(WELL):
            kill(victim)
        time.sleep(0.01)
    assert "10 workers died one after another and none answered; the last was ended by SIGKILL" in processes.trouble


def test_what_one_says_on_standard_error_is_passed_on_once_it_is_there(begin, tmp_path, capsys):
    begin(1, "import sys; print('an old library', file=sys.stderr, flush=True); " + WELL)
    until(lambda: there(tmp_path) == 1)
    until(lambda: "an old library" in capsys.readouterr().err)


def test_one_that_never_gets_there_is_ended(begin, monkeypatch):
    monkeypatch.setattr(worker_processes, "START", 0.2)
    processes = begin(1, HANGS)
    until(lambda: processes.trouble)
    assert "SIGKILL" in processes.trouble


def test_one_that_takes_more_memory_than_its_share_is_ended(begin, tmp_path):
    processes = begin(1, WELL, memory=1)
    until(lambda: processes.trouble)
    assert "SIGKILL: out of memory, or killed" in processes.trouble


def test_they_end_with_the_process_that_leads_however_it_ends(tmp_path):
    leads = (
        "import sys, time, pathlib\n"
        "from gausslens.spreading import worker_processes as module\n"
        f"module._COMMAND = {WELL!r}\n"
        f"module.WorkerProcesses(2, 'tcp://127.0.0.1:9', pathlib.Path({str(tmp_path)!r}), {{}}, 1 << 40)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", leads])
    until(lambda: there(tmp_path) == 2)
    started = psutil.Process(process.pid).children()
    assert len(started) == 2
    process.kill()
    process.wait()
    gone, alive = psutil.wait_procs(started, timeout=60)
    assert (len(gone), alive) == (2, [])


def test_calls_are_made_in_the_main_thread_and_what_they_raise_is_told():
    work = MainThread()
    found: list[Future[Any]] = []

    def ask() -> None:
        found.append(work.submit(threading.get_ident))
        found.append(work.submit(int, "x"))
        found.append(work.submit(divmod, 7, 2))
        work.shutdown(wait=True)

    asks = threading.Thread(target=ask)
    asks.start()
    work.run()
    asks.join()
    assert found[0].result() == threading.get_ident()
    assert isinstance(found[1].exception(), ValueError)
    assert found[2].result() == (3, 1)


@pytest.mark.full
class TestRuns:
    def test_a_run_goes_on_when_workers_are_killed_while_they_start(self, site):
        site.write(draws=3)
        draw, killed, due = random.Random(7), 0, {}
        process = site.start("--workers", "2")
        while process.poll() is None:
            every = psutil.Process(process.pid).children() if process.poll() is None else []
            for each in every:
                at = due.setdefault(each.pid, time.monotonic() + draw.uniform(0, 3))
                if killed < 5 and time.monotonic() >= at:
                    due[each.pid] = float("inf")
                    os.kill(each.pid, signal.SIGKILL)
                    killed += 1
            time.sleep(0.02)
        out, error = process.communicate()
        print(f"killed {killed} while they started")
        assert process.returncode == 0, error
        assert killed == 5
        assert "5 steps: 5 computed" in out
        assert set(site.computed().values()) == {1}

    def test_a_run_ends_by_name_where_no_worker_can_be_started_and_keeps_what_is_finished(self, site):
        site.write(draws=3)
        assert site.run("--part", "1/2").returncode == 0
        before = site.computed()
        (site.directory / "shelf/sitecustomize.py").write_text(
            "import os, sys\n"
            "if any('in_worker' in each for each in sys.orig_argv):\n"
            "    print('ImportError: no such library', file=sys.stderr, flush=True)\n"
            "    os._exit(3)\n"
        )
        began = time.monotonic()
        ran = site.run("--workers", "2")
        assert ran.returncode == 1
        assert "15 workers died one after another and none answered; the last ended with code 3" in ran.stderr
        assert "ImportError: no such library; what was finished is in the store, and the same command" in ran.stderr
        assert "Traceback" not in ran.stderr
        assert time.monotonic() - began < 300
        assert site.computed() == before
        assert len(list(site.store.rglob("parts/logged.norm/*.h5"))) == sum(before.values())
        assert list((site.store / "claims").iterdir()) == []
