"""Distributions that are really installed: directories with metadata and a module, on a path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# A plugin as a stranger writes it: wiring alone at the top, parameters and mathematics behind string references.
GOOD = """
from gausslens import Analysis, Edit, PromptSource, hookimpl

@hookimpl
def analyses():
    return [Analysis(name="{name}.count", version=1, shape="stream", summary="Counts.",
                     parameters="{module}_parameters:Count", analysis="{module}_counting:Count")]

@hookimpl
def edits():
    return [Edit(name="{name}.halve", version=2, summary="Halves.", edit="{module}_counting:halve", touches=("W_Q",))]

@hookimpl
def prompt_sources():
    return [PromptSource(name="{name}-text", version=1, summary="Texts.", prompts="{module}_counting:prompts")]

@hookimpl
def run_started(run):
    pass
"""
PARAMETERS = '''
from pydantic import Field
from gausslens import Parameters

class Count(Parameters):
    """How to count."""

    of: str = Field("tokens", description="What to count.")
    least: int = Field(3, ge=1, description="Fewer are not told.")
'''
COUNTING = "import numpy, pandas, torch, transformers, xarray\n"


class Shelf:
    """A directory that takes distributions."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def install(
        self, distribution: str, plugins: dict[str, str], modules: dict[str, str] | None = None, version: str = "1.0"
    ) -> None:
        """``plugins`` maps names to what their entry points name; ``modules`` maps modules to their source."""
        metadata = self.directory / f"{distribution.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir(parents=True)
        head = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n\nName: a line of the description\n"
        (metadata / "METADATA").write_text(head, encoding="utf-8")
        points = "".join(f"{name} = {value}\n" for name, value in plugins.items())
        (metadata / "entry_points.txt").write_text(
            f"[console_scripts]\nx = y:z\n\n[gausslens]\n{points}", encoding="utf-8"
        )
        for module, source in (modules or {}).items():
            (self.directory / f"{module}.py").write_text(source, encoding="utf-8")

    def plugin(self, name: str, source: str, distribution: str = "", version: str = "1.0") -> None:
        """A distribution of one plugin in one module."""
        module = name.replace("-", "_") + "_plugin"
        self.install(distribution or f"gausslens-{name}", {name: module}, {module: source}, version)

    def good(self, name: str) -> None:
        """A distribution with all that a plugin usually has."""
        module = name.replace("-", "_")
        wiring = GOOD.format(name=name, module=module)
        modules = {
            f"{module}_plugin": wiring,
            f"{module}_parameters": PARAMETERS,
            f"{module}_counting": COUNTING,
        }
        self.install(f"gausslens-{name}", {name: f"{module}_plugin"}, modules)

    def five_broken(self) -> None:
        """An import error, SystemExit, a misspelt hook, a foreign argument, and a name that is taken."""
        mark = "from gausslens import hookimpl\n@hookimpl\n"
        self.plugin("bad-import", "import no_such_module_anywhere\n")
        self.plugin("bad-exit", "import sys\nsys.exit('goodbye')\n")
        self.plugin("bad-hook", f"{mark}def analysises():\n    return []\n")
        self.plugin("bad-argument", f"{mark}def run_started(run, colour):\n    pass\n")
        self.plugin(
            "bad-name",
            f"from gausslens import PromptSource\n{mark}def prompt_sources():\n"
            "    return [PromptSource(name='text', version=1, summary='Mine.', prompts='m:texts')]\n",
        )


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """A shelf on the path of this process; what was imported from it is forgotten afterwards."""
    directory = tmp_path / "shelf"
    directory.mkdir()
    monkeypatch.syspath_prepend(str(directory))
    before = set(sys.modules)
    yield Shelf(directory)
    for name in set(sys.modules) - before:
        if str(directory) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture(scope="session")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with 30 good plugins and five broken ones."""
    made = Shelf(tmp_path_factory.mktemp("crowded"))
    for number in range(30):
        made.good(f"dummy{number:02}")
    made.five_broken()
    return made.directory


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def command() -> Command:
    """Runs the command line in a process of its own, with directories on its path and options for Python."""

    def run(
        *arguments: str, path: Path | None = None, python: tuple[str, ...] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *python, "-m", "gausslens", *arguments],
            env={**os.environ, "PYTHONPATH": str(path or ""), **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run
