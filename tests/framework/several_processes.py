"""A plugin that is really installed, as workers find it, and tells in a file each time that it computes something."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from gausslens.store.layout import entry_of, part_path
from gausslens.store.read_parts import read_facts

PLUGIN = """
from gausslens import Analysis, hookimpl

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
        self.environment = os.environ | {"PYTHONPATH": str(shelf), "OMP_NUM_THREADS": "1"}
        self.environment.pop("PYTEST_ADDOPTS", None)
        self.file = directory / "study.yaml"

    def write(self, draws: int = 3, more: str = "", **parameters: Any) -> None:
        """The run file: the model and draws of one null."""
        told = "".join(f", {name}: {value}" for name, value in parameters.items())
        self.file.write_text(
            "gausslens: 1\nmodel: {path: builtin:tiny}\nprompts: {source: repeated-random, prompts: 4, length: 12}\n"
            f"variants:\n  trained: []\n  before: {{edits: [{{edit: reinit.config}}], draws: {draws}}}\n"
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
        out, error = process.communicate(timeout=1200)
        return subprocess.CompletedProcess(process.args, process.returncode, out, error)

    def computed(self) -> Counter[str]:
        """How often each step was computed."""
        return Counter(self.log.read_text().splitlines() if self.log.exists() else ())


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
