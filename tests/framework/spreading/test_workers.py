"""Workers of a Dask cluster: the same results, what is compared before work, and what is lost when something dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from several_processes import Site, scheduler

import gausslens
from gausslens.__main__ import main
from gausslens.contract.errors import InputError
from gausslens.perform import perform
from gausslens.spreading import in_worker
from gausslens.spreading.by_workers import Crew, Submission
from gausslens.spreading.cluster import Workers, threads_each
from gausslens.spreading.tasks import Board, Task
from gausslens.store.layout import CLAIMS

SPECTRA = "  - {use: bilinear.spectrum}\n  - {use: model.attention, with: {maps: none}}\n"


class TestBeforeAnythingIsComputed:
    def test_so_many_workers(self, tmp_path, capsys):
        (tmp_path / "run.yaml").write_text("gausslens: 1\n")
        assert main(["run", str(tmp_path / "run.yaml"), "--workers", "0"]) == 2
        assert "0 workers: give at least 1" in capsys.readouterr().err
        assert main(["run", str(tmp_path / "run.yaml"), "--workers", "2", "--part", "1/2"]) == 2
        assert "not allowed with" in capsys.readouterr().err
        assert main(["run", str(tmp_path / "run.yaml"), "--part", "6/5"]) == 2
        assert "the last is 5/5" in capsys.readouterr().err

    def test_without_dask_it_is_said_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "distributed", None)
        with pytest.raises(InputError, match=r"pip install 'gausslens\[cluster\]'"):
            Workers(2).check()

    def test_a_live_model_stays_in_its_process(self):
        with pytest.raises(InputError, match="a live object, which workers cannot see"):
            perform({}, model=object(), workers=Workers(2))

    def test_in_python_they_are_asked_for_by_name(self, monkeypatch):
        with pytest.raises(InputError, match="0 workers: give at least 1"):
            gausslens.run({}, workers=0)
        with pytest.raises(InputError, match="a scheduler has its own workers, give one"):
            gausslens.run({}, workers=2, scheduler="tcp://127.0.0.1:9")
        monkeypatch.setitem(sys.modules, "distributed", None)
        for asked in ({"workers": 2}, {"scheduler": "tcp://127.0.0.1:9"}):
            with pytest.raises(InputError, match=r"pip install 'gausslens\[cluster\]'"):
                gausslens.run({}, **asked)

    def test_threads_are_shared_out(self, monkeypatch):
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        assert threads_each(8) == 3
        monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
        assert threads_each(8) == 4
        monkeypatch.delenv("OMP_NUM_THREADS")
        assert threads_each(1) == len(os.sched_getaffinity(0))
        assert threads_each(1000) == 1


class TestQuiet:
    def test_what_dask_is_asked_for_is_what_it_knows(self):
        import dask
        import distributed

        assert distributed.__version__
        for name, value in in_worker.QUIET.items():
            assert dask.config.get(name) != value, name  # KeyError where Dask calls it otherwise

    def test_a_worker_takes_no_samples_of_messages(self):
        """Their sizes are estimated by Python's global generator, which is a plugin's while it computes."""
        program = (
            "import dask, random\n"
            "from gausslens.spreading.in_worker import QUIET\n"
            "with dask.config.set(QUIET):\n"
            "    from distributed.comm.utils import to_frames\n"
            "import asyncio\n"
            "before = random.getstate()\n"
            "asyncio.run(to_frames({'metrics': {str(n): n for n in range(100)}}))\n"
            "assert random.getstate() == before\n"
        )
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        loud = program.replace("with dask.config.set(QUIET):", "if True:")
        ran = subprocess.run([sys.executable, "-c", loud], capture_output=True, text=True, check=False)
        assert "AssertionError" in ran.stderr

    def test_waiting_counts_as_a_tenth_of_computing(self, tmp_path, monkeypatch):
        def waits(*_: Any) -> Iterator[tuple[str, str]]:
            time.sleep(0.5)
            yield "computed", "key"

        (tmp_path / CLAIMS).mkdir()
        monkeypatch.setattr(in_worker, "_session", lambda _: SimpleNamespace(compute=waits))
        order: Any = SimpleNamespace(store=str(tmp_path))
        computed, took = in_worker.compute(order, [(["key"], "layer", ())], ".mark")
        assert computed == ("computed", "key")
        assert took[0] == "took"
        assert 0.05 <= took[1] < 0.5
        assert in_worker.compute(order, [(["key"], "layer", ())], ".mark") == [("died",)]


@pytest.mark.full
class TestHowMuchIsSent:
    """Small tasks go together, by what workers said that they took; a large one goes by itself."""

    @staticmethod
    def crew(estimates: list[float], workers: int = 1) -> tuple[Crew, Callable[[], Submission]]:
        tasks = [Task((str(n),), frozenset(), 1, reads=False) for n in range(len(estimates))]

        def claimed(task: Task) -> Iterator[Any]:
            yield from ()
            return [SimpleNamespace(key=task.keys[0])]

        leading = SimpleNamespace(
            board=Board(tasks), estimates=dict(zip(tasks, estimates, strict=True)), claimed=claimed
        )
        crew = Crew(None, leading, None, "")
        crew._there = [str(n) for n in range(workers)]

        def batch() -> Submission:
            events = crew._batch()
            while True:
                try:
                    next(events)
                except StopIteration as end:
                    return end.value

        return crew, batch

    def test_one_by_one_until_a_worker_has_said_how_long_it_took(self):
        crew, batch = self.crew([0.125] * 400)
        first = batch()
        assert len(first.tasks) == len(batch().tasks) == 1
        crew._learn(first, 0.0625)  # half of the estimate: 16 in a second
        assert len(batch().tasks) == 16

    def test_however_small_they_are_every_worker_gets_some(self):
        crew, batch = self.crew([0.125] * 41, workers=2)
        crew._learn(batch(), 1e-4)
        assert len(batch().tasks) == 8  # of 40: both workers are two ahead

    def test_what_the_plan_expects_to_be_large_goes_by_itself(self):
        crew, batch = self.crew([0.125, *[0.125] * 5, 60.0, *[0.125] * 100])
        crew._learn(batch(), 0.0625)
        assert [len(batch().tasks) for _ in range(3)] == [5, 1, 16]

    def test_a_worker_that_was_slow_once_is_not_thought_slow_for_good(self):
        crew, batch = self.crew([0.125] * 400)
        for seconds in (10.0, 0.03125):
            crew._learn(batch(), seconds)
        assert len(batch().tasks) == 32
        crew._learn(Submission([], []), 5.0)  # what is tried again tells nothing
        assert len(batch().tasks) == 32


class TestResults:
    def test_a_script_without_a_main_guard_runs_by_workers_once(self, site):
        site.write(draws=2)
        script = site.directory / "script.py"
        script.write_text(
            "import gausslens, pathlib, sys\n"
            "with pathlib.Path('began.txt').open('a') as began:\n    began.write('once\\n')\n"
            "results = gausslens.run('study.yaml', store='store', workers=1, shown=False)\n"
            "print(float(results['trained', 'logged.norm'].norm.sum()))\n"
        )
        command = [sys.executable, str(script)]
        ran = subprocess.run(command, cwd=site.directory, env=site.environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert float(ran.stdout) > 0
        assert (site.directory / "began.txt").read_text() == "once\n"
        assert set(site.computed().values()) == {1}

    def test_a_limit_of_time_interrupts_a_step_in_a_worker(self, site):
        site.write(draws=2, seconds=100_000, more="limit: 0.5\n")
        ran = site.run("--workers", "1")
        assert ran.returncode == 1
        assert "logged.norm on trained" in ran.stderr
        assert "limit" in ran.stderr
        assert set(site.computed().values()) == {1}

    def test_a_worker_without_the_plugin_is_refused_by_name(self, site):
        site.write()
        there = Site(site.directory / "there")
        there.environment.pop("PYTHONPATH")
        with scheduler(there, 1) as (file, _):
            ran = site.run("--scheduler", str(file))
        assert ran.returncode == 2
        assert "1 of 1 workers cannot compute this run; nothing was computed" in ran.stderr
        assert "plugin logged is not there, and logged 1.0 where the run was started" in ran.stderr
        assert site.computed() == {}

    def test_no_scheduler_at_an_address(self, site):
        site.write()
        ran = site.run("--scheduler", "tcp://127.0.0.1:9")
        assert ran.returncode == 2
        assert "no Dask scheduler answers at tcp://127.0.0.1:9" in ran.stderr
        assert "Traceback" not in ran.stderr


@pytest.mark.full
class TestDeath:
    def test_a_step_that_kills_its_worker_is_reported_and_the_rest_completes(self, site):
        site.write(draws=4, more=SPECTRA, kills="before 2")
        ran = site.run("--workers", "2")
        assert ran.returncode == 1
        assert "logged.norm on before, draw 2" in ran.stderr
        assert "its worker died 3 times while computing it" in ran.stderr
        assert "1 failed" in ran.stdout or "2 failed" in ran.stdout  # and what compares with it
        assert site.computed()["before 2"] == 3
        assert len(list(site.store.rglob("parts/*/*.h5"))) >= 5 * 3 - 1

    @pytest.mark.soak
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
    def test_no_process_is_left_of_a_run_that_ends(self, site, number, code):
        site.write(draws=12, seconds=0.5)
        process = site.start(
            "--workers", "2", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
        )
        end = time.monotonic() + 600
        while not list(site.store.rglob("parts/logged.norm/*.h5")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(number)
        _, error = process.communicate(timeout=300)
        assert process.returncode == code, error
        gone, alive = psutil.wait_procs(children, timeout=60)
        assert not alive
        assert gone
        assert number == signal.SIGKILL or "the same command goes on from there" in error
        before = site.computed()
        assert site.run("--workers", "2").returncode == 0
        assert sum(count - 1 for count in site.computed().values()) <= 2, (before, site.computed())


def test_the_examples_are_as_their_tools_read_them(root, tmp_path):
    examples = root / "examples/many-machines"
    for path in examples.glob("*.sh"):
        assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    for path in examples.glob("*.py"):
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
    told = "\n".join(path.read_text(encoding="utf-8") for path in examples.iterdir())
    for option in ("--part", "--scheduler"):
        assert option in told
