"""A plugin that is really installed, as workers find it, and tells in a file each time that it computes something."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil

from gausslens.store.layout import entry_of, part_path
from gausslens.store.read_parts import read_facts

PLUGIN = """
import os

from gausslens import Analysis, hookimpl

if "LOGGED_COMMITS" in os.environ:  # every step of every plugin that this process has finished: failures are none
    from gausslens.spreading import here

    committed = here.committed

    def logged(done, store):
        failure, first = committed(done, store)
        if failure is None:
            told = os.open(os.environ["LOGGED_COMMITS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(told, f"{done.step.key} {first}\\n".encode())
            os.close(told)
        return failure, first

    here.committed = logged

@hookimpl
def analyses():
    return [Analysis(name="logged.norm", version=1, shape="weights", summary="Norms, and a line in a log.",
                     parameters="logged_parameters:Log", analysis="logged_analysis:Norm", by_layer=True,
                     knows=("variant", "draw"))]
"""
PARAMETERS = '''
from pydantic import Field
from gausslens import Parameters

class Log(Parameters):
    """Where, and how long."""

    log: str = Field(description="Where each computation is told.")
    seconds: float = Field(0.0, description="How long a layer takes.")
    kills: str = Field("", description="The step whose process is killed.")
'''
ANALYSIS = """
import os, signal, time
import xarray as xr

class Norm:
    def __init__(self, parameters, context):
        self.parameters, self.step = parameters, f"{context.variant} {context.draw}"

    def layer(self, weights, layer):
        asked = self.parameters
        if layer == 0:
            told = os.open(asked.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(told, f"{self.step}\\n".encode())
            os.close(told)
            if asked.kills == self.step:
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(asked.seconds)
        attrs = {"units": "1", "long_name": "norm"}
        return xr.Dataset({"norm": ("head", weights.W_Q.flatten(1).norm(dim=1).numpy(), attrs)})
"""


class Site:
    """A directory with a run file, a store, and the plugin on the path of every process that it starts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "log.txt"
        self.store = directory / "store"
        shelf = directory / "shelf"
        told = shelf / "logged-1.0.dist-info"
        told.mkdir(parents=True)
        (told / "METADATA").write_text("Metadata-Version: 2.1\nName: logged\nVersion: 1.0\n")
        (told / "entry_points.txt").write_text("[gausslens]\nlogged = logged_plugin\n")
        for name, text in (("plugin", PLUGIN), ("parameters", PARAMETERS), ("analysis", ANALYSIS)):
            (shelf / f"logged_{name}.py").write_text(text)
        self.commits = directory / "commits.txt"
        self.environment = os.environ | {"PYTHONPATH": str(shelf), "OMP_NUM_THREADS": "1"}
        self.environment["LOGGED_COMMITS"] = str(self.commits)
        self.environment.pop("PYTEST_ADDOPTS", None)
        self.file = directory / "study.yaml"

    def write(
        self, draws: int = 3, more: str = "", model: str = "builtin:tiny", nulls: str = "", **parameters: Any
    ) -> None:
        """The run file: the model and draws of one null, and more of both."""
        told = "".join(f", {name}: {value}" for name, value in parameters.items())
        self.file.write_text(
            f"gausslens: 1\nmodel: {{path: {model}}}\nprompts: {{source: repeated-random, prompts: 4, length: 12}}\n"
            f"variants:\n  trained: []\n  before: {{edits: [{{edit: reinit.config}}], draws: {draws}}}\n{nulls}"
            f"analyses:\n  - {{use: logged.norm, with: {{log: {self.log}{told}}}}}\n{more}"
            "against: before\nreport: false\n"
        )

    def command(self, *arguments: str, store: Path | None = None) -> list[str]:
        return [
            sys.executable,
            "-m",
            "gausslens",
            "run",
            str(self.file),
            "--store",
            str(store or self.store),
            *arguments,
        ]

    def start(self, *arguments: str, store: Path | None = None, **more: Any) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = self.command(*arguments, store=store)
        return subprocess.Popen(command, env=self.environment, cwd=self.directory, **pipes, **more)

    def run(self, *arguments: str, store: Path | None = None) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, store=store)
        out, error = process.communicate(timeout=3600)
        return subprocess.CompletedProcess(process.args, process.returncode, out, error)

    def computed(self) -> Counter[str]:
        """How often each step was computed."""
        return Counter(self.log.read_text().splitlines() if self.log.exists() else ())

    def committed(self) -> Counter[str]:
        """How often each step was finished, by its key."""
        told = self.commits.read_text().split("\n")[:-1] if self.commits.exists() else []
        return Counter(line.split()[0] for line in told)


def arrays(store: Path) -> dict[str, Any]:
    """Every array of every part of a store, in plain bytes."""
    found = {}
    for path in sorted(store.rglob("parts/*/*.h5")):
        with h5py.File(path) as file:

            def take(name: str, item: Any, part: str = f"{path.parent.name}/{path.stem}") -> None:
                if isinstance(item, h5py.Dataset):
                    value = item[()]
                    plain = value.tolist() if item.dtype.kind == "O" else np.asarray(value).tobytes()
                    found[f"{part}/{name}"] = (item.dtype.str, item.shape, plain)

            file.visititems(take)
    return found


def same(one: Path, other: Path) -> bool:
    """Whether two stores hold the same results, bit for bit."""
    parts = [sorted(path.relative_to(root) for path in root.rglob("parts/*/*.h5")) for root in (one, other)]
    assert parts[0] == parts[1]
    names = [(path.parent.name, path.stem) for path in parts[0]]
    content = [
        [read_facts(root, part_path(root, *name), entry_of(*name))["content"] for name in names]
        for root in (one, other)
    ]
    return bool(names) and content[0] == content[1]


@contextmanager
def scheduler(site: Site, workers: int = 2) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A cluster on the loopback: the scheduler's file, and its process."""
    file = site.directory / "scheduler.json"
    file.unlink(missing_ok=True)  # of one before
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
                process.wait(300)


def below(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The worker processes that a run has started."""
    try:
        every = psutil.Process(process.pid).children(recursive=True)
        return [each for each in every if "in_worker" in " ".join(each.cmdline())]
    except psutil.Error:
        return []
