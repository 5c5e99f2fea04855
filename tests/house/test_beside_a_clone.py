"""Python started beside a clone called gausslens: the package is imported, or what is wrong is said."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

USED = "import gausslens; from gausslens.maths import laws; print(gausslens.__file__, gausslens.InputError.__name__)"


@pytest.fixture
def above(root: Path, tmp_path: Path) -> Path:
    """A directory that holds what Python sees of a clone."""
    (tmp_path / "gausslens").mkdir()
    shutil.copy(root / "__init__.py", tmp_path / "gausslens")
    (tmp_path / "gausslens" / "framework").symlink_to(root / "framework")
    return tmp_path


def python(*arguments: str, cwd: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)


def test_what_is_installed_is_imported_beside_a_clone(root: Path, above: Path) -> None:
    for arguments in (("-c", USED), ("-m", "gausslens", "--version")):
        ran = python(*arguments, cwd=above)
        assert ran.returncode == 0, ran.stderr
    assert str(above) not in python("-c", USED, cwd=above).stdout


def test_without_the_file_a_clone_is_an_empty_package(above: Path) -> None:
    """Why there is such a file: of the finders an editable installation has its own comes last."""
    (above / "gausslens" / "__init__.py").unlink()
    hidden = python("-S", "-c", "import gausslens; print(gausslens.__file__)", cwd=above)
    assert hidden.stdout == "None\n", hidden.stderr


def test_a_package_in_the_environment_is_imported_beside_a_clone(root: Path, above: Path, tmp_path: Path) -> None:
    """-S: without what is installed, as in an environment that has a copy of the package and no more."""
    copies = tmp_path / "copies"
    copies.mkdir()
    (copies / "gausslens").symlink_to(root / "framework" / "gausslens")
    used = "import gausslens; print(gausslens.__file__, gausslens.__version__)"
    ran = python("-S", "-c", used, cwd=above, path="copies")
    assert ran.stdout.startswith(str(copies / "gausslens" / "__init__.py")), ran.stderr


def test_beside_a_clone_that_is_not_installed_it_is_said(above: Path) -> None:
    ran = python("-S", "-c", "import gausslens", cwd=above)
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: {above / 'gausslens'} is a clone of gausslens, which is not installed for ")
    assert "pip install -c constraints.txt ." in last
