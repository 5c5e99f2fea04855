"""Imports go in one direction; import-linter holds the contracts that setup.cfg states."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def _lint(directory: Path) -> subprocess.CompletedProcess[str]:
    script = Path(sys.executable).with_name("lint-imports")
    paths = f"{directory / 'framework'}:{directory / 'plugins'}"
    return subprocess.run(
        [str(script), "--no-cache", "--no-logo"],
        cwd=directory,
        env={"PYTHONPATH": paths, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_layers_hold(root: Path) -> None:
    found = _lint(root)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("framework/gausslens/runs/keys.py", "import gausslens_gaussian", "The host imports no plugin"),
        ("plugins/gausslens_gaussian/plugin.py", "from gausslens.contract.reference import resolve", "public names"),
        ("plugins/gausslens_gaussian/plugin.py", "import gausslens_models", "Plugins do not import each other"),
        (
            "framework/gausslens/store/layout.py",
            "from gausslens.runfile import read",
            "Nothing downstream reads the YAML",
        ),
        ("framework/gausslens/contract/batches.py", "from gausslens.runs.plan import Plan", "One direction"),
    ],
)
def test_a_contract_bites(root: Path, tmp_path: Path, module: str, line: str, contract: str) -> None:
    for top in ("framework", "plugins"):
        shutil.copytree(root / top, tmp_path / top, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "setup.cfg", tmp_path)
    with (tmp_path / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    found = _lint(tmp_path)
    assert found.returncode != 0
    broken = [text for text in found.stdout.splitlines() if " BROKEN" in text]
    assert [text for text in broken if contract in text], found.stdout


def test_the_drawing_of_the_rooms_and_the_index_of_modules_are_fresh(root: Path) -> None:
    drawn = subprocess.run([sys.executable, str(root / "docs/draw_rooms.py"), "--check"], check=False)
    assert drawn.returncode == 0, "python docs/draw_rooms.py makes them again"
