"""With 30 more plugins and five broken ones installed, every command starts, and imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Command

HEAVY = {
    "torch",
    "transformers",
    "transformer_lens",
    "xarray",
    "pandas",
    "numpy",
    "scipy",
    "h5py",
    "rich",
    "matplotlib",
}
RUN_FILE = """
gausslens: 1
name: start
model: {path: builtin:tiny}
prompts: {source: text, text: [One two three.]}
analyses:
  - {use: gaussian.moments}
  - {use: dummy07.count, with: {least: 4}}
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "start.yaml"
    path.write_text(RUN_FILE, encoding="utf-8")
    return path


def heavy_imports(stderr: str) -> set[str]:
    lines = [line.rsplit("|", 1)[1].strip() for line in stderr.splitlines() if line.startswith("import time:")]
    assert "gausslens" in lines
    return {line.split(".")[0] for line in lines} & HEAVY


def imported(command: Command, crowded: Path, *arguments: str) -> set[str]:
    """Every module that is there when a command is done."""
    script = "import sys; from gausslens.__main__ import main; main(sys.argv[3:]); print(*sys.modules, file=sys.stderr)"
    return set(command(*arguments, path=crowded, python=("-c", script)).stderr.splitlines()[-1].split())


@pytest.mark.parametrize("command_line", [["--help"], ["plugins"], ["check", "--quick"]], ids=" ".join)
def test_nothing_heavy_is_imported(command_line: list[str], command: Command, crowded: Path, run_file: Path) -> None:
    arguments = [*command_line, str(run_file)] if command_line[0] == "check" else command_line
    done = command(*arguments, path=crowded, python=("-X", "importtime"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert heavy_imports(done.stderr) == set()
    assert {name.split(".")[0] for name in imported(command, crowded, *arguments)} & HEAVY == set()


def test_the_looks_for_heavy_imports_find_them(command: Command, crowded: Path) -> None:
    done = command("plugins", path=crowded, python=("-X", "importtime", "-c", "import numpy, gausslens"))
    assert "numpy" in heavy_imports(done.stderr)
    script = "import sys, numpy, gausslens; print(*sys.modules, file=sys.stderr)"
    assert "numpy" in command(path=crowded, python=("-c", script)).stderr.split()


def test_help_loads_no_plugin_and_the_list_no_parameters(command: Command, crowded: Path) -> None:
    helped = imported(command, crowded, "--help")
    assert not {"dummy00_plugin", "gausslens_models.plugin", "pluggy", "importlib.metadata", "pydantic"} & helped
    listed = imported(command, crowded, "plugins")
    assert {"dummy00_plugin", "gausslens_models.plugin"} <= listed
    assert not {"dummy00_parameters", "gausslens_models.parameters", "pydantic", "yaml"} & listed


def test_the_list_has_them_all(command: Command, crowded: Path) -> None:
    done = command("plugins", path=crowded)
    assert done.returncode == 0
    assert all(f"dummy{number:02}.count" in done.stdout for number in range(30))
    assert ", 5 set aside." in done.stdout


def test_check_works_and_tells_of_the_broken_on_stderr(command: Command, crowded: Path, run_file: Path) -> None:
    done = command("check", "--quick", str(run_file), path=crowded)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("set aside: plugin bad-") == 5
    assert "set aside" not in done.stdout
    quiet = command(
        "check",
        "--quick",
        str(run_file),
        path=crowded,
        GAUSSLENS_WITHOUT="bad-import,bad-exit,bad-hook,bad-argument,bad-name",
    )
    assert quiet.returncode == 0
    assert quiet.stderr == ""


def test_a_run_file_that_needs_a_broken_plugin_is_refused(command: Command, crowded: Path, run_file: Path) -> None:
    run_file.write_text(RUN_FILE.replace("dummy07.count, with: {least: 4}", "bad-import.count"), encoding="utf-8")
    done = command("check", "--quick", str(run_file), path=crowded)
    assert done.returncode == 2
    assert "start.yaml:8:" in done.stderr
    assert "plugin bad-import" in done.stderr[done.stderr.index("start.yaml:8:") :]
