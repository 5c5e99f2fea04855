"""Workers of a Dask cluster: the same results, what is compared before work, and what is lost when something dies."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from several_processes import Site, same

from gausslens.__main__ import main
from gausslens.contract.errors import InputError
from gausslens.perform import perform
from gausslens.spreading.cluster import Workers, threads_each

SPECTRA = "  - {use: bilinear.spectrum}\n  - {use: model.attention, with: {maps: none}}\n"


@contextmanager
def scheduler(site: Site, workers: int = 2) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A cluster on the loopback: the scheduler's file, and its process."""
    file = site.directory / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": site.environment}
    told = ["--no-dashboard", "--scheduler-file", str(file)]
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    leads = subprocess.Popen([*dask, *told], **quiet)
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--nworkers", str(workers), "--nthreads", "1"]
    place = ["--local-directory", str(site.directory / "scratch")]
    works = subprocess.Popen([*worker, *told, *place], **quiet) if workers else None
    try:
        end = time.monotonic() + 300
        while not (file.exists() and file.read_text().endswith("}")):
            assert time.monotonic() < end
            time.sleep(0.05)
        yield file, leads
    finally:
        for process in (works, leads):
            if process is not None:
                process.terminate()
                process.wait(60)


def below(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The worker processes that a run has started."""
    try:
        every = psutil.Process(process.pid).children(recursive=True)
        return [each for each in every if "spawn_main" in " ".join(each.cmdline())]
    except psutil.Error:
        return []


class TestBeforeAnythingIsComputed:
    def test_so_many_workers(self, tmp_path, capsys):
        (tmp_path / "run.yaml").write_text("gausslens: 1\n")
        assert main(["run", str(tmp_path / "run.yaml"), "--workers", "0"]) == 2
        assert "--workers 0: give at least 1" in capsys.readouterr().err
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

    def test_threads_are_shared_out(self, monkeypatch):
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        assert threads_each(8) == 3
        monkeypatch.delenv("OMP_NUM_THREADS")
        assert threads_each(1) == len(os.sched_getaffinity(0))
        assert threads_each(1000) == 1


@pytest.mark.full
class TestResults:
    def test_they_are_equal_with_one_process_two_workers_a_scheduler_and_five_parts(self, site):
        site.write(draws=4, more=SPECTRA)
        one = site.directory / "one"
        assert site.run(store=one).returncode == 0
        steps = site.computed()
        ran = site.run("--workers", "2", store=site.directory / "workers")
        assert ran.returncode == 0, ran.stderr
        assert ran.stderr.startswith("2 workers, each with 1 thread and ")
        assert len(ran.stderr.splitlines()) == 1
        with scheduler(site) as (file, _):
            ran = site.run("--scheduler", str(file), store=site.directory / "scheduler")
            assert ran.returncode == 0, ran.stderr
        for number in range(1, 6):
            ran = site.run("--part", f"{number}/5", store=site.directory / "parts")
            assert ran.returncode == 0, ran.stderr
        assert "left to other parts" in ran.stdout
        assert site.run(store=site.directory / "parts").returncode == 0
        for other in ("workers", "scheduler", "parts"):
            assert same(one, site.directory / other), other
            assert list((site.directory / other / "claims").iterdir()) == []
        assert site.computed() == {step: 4 * count for step, count in steps.items()}

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
    def test_thirty_workers_are_killed_and_nothing_is_lost_or_done_twice(self, site):
        site.write(draws=24, seconds=0.4)
        draw, killed, times = random.Random(19), 0, 0
        while True:
            times += 1
            assert times < 20
            process = site.start("--workers", "2")
            while process.poll() is None:
                time.sleep(draw.uniform(0.5, 5.0))
                victims = below(process) if killed < 30 and site.computed() else []
                if victims:
                    draw.choice(victims).kill()
                    killed += 1
            process.communicate()
            if process.returncode == 0:
                break
        steps = site.computed()
        assert len(steps) == 25
        # Only the step that a worker was at runs again.
        assert sum(count - 1 for count in steps.values()) <= killed
        whole = site.directory / "whole"
        assert site.run(store=whole).returncode == 0
        assert same(site.store, whole)

    @pytest.mark.soak
    def test_the_scheduler_dies_three_times(self, site):
        site.write(draws=12, seconds=0.3)
        done = 0
        for _ in range(3):
            with scheduler(site) as (file, leads):
                process = site.start("--scheduler", str(file))
                end = time.monotonic() + 600
                while len(site.computed()) < done + 3:
                    assert process.poll() is None, process.communicate()
                    assert time.monotonic() < end
                    time.sleep(0.05)
                leads.kill()
                _, error = process.communicate(timeout=300)
                assert process.returncode == 1, error
                assert "the Dask scheduler is gone: what was finished is in the store" in error
                assert "Traceback" not in error
            (site.directory / "scheduler.json").unlink()
            done = len(list(site.store.rglob("parts/logged.norm/*.h5")))
        assert site.run("--workers", "2").returncode == 0
        steps = site.computed()
        assert len(steps) == 13
        assert sum(count - 1 for count in steps.values()) <= 3 * 2

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
