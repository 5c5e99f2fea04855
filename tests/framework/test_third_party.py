"""examples/third_party: an outside distribution, installed as one, tested by its own tests, run beside a null.

So is the one that was written for version 1 of the interface, as it was then: tests/archives/third_party.v1.tar.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module", params=["now", "version 1"])
def sinks(
    tmp_path_factory: pytest.TempPathFactory, root: Path, python: Python, request: pytest.FixtureRequest
) -> tuple[Path, Path]:
    """A copy of it, and a directory that it is installed in."""
    place = tmp_path_factory.mktemp("third-party")
    directory, site = place / "third_party", place / "site"
    if request.param == "now":
        shutil.copytree(root / "examples/third_party", directory, ignore=shutil.ignore_patterns("__pycache__", "store"))
    else:
        with tarfile.open(root / "tests/archives/third_party.v1.tar") as archive:
            archive.extractall(place, filter="data")
        assert "api_version = 1\n" in (directory / "gausslens_sinks/plugin.py").read_text(encoding="utf-8")
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site), "."]
    ran = python(*pip, cwd=directory, path=site)
    assert ran.returncode == 0, ran.stderr
    return directory, site


def test_its_own_tests_pass(sinks: tuple[Path, Path], python: Python) -> None:
    directory, site = sinks
    ran = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=directory, path=site)
    assert ran.returncode == 0, ran.stdout
    assert "6 passed" in ran.stdout


def test_gausslens_finds_it_and_puts_a_null_beside_it(sinks: tuple[Path, Path], tmp_path: Path, python: Python) -> None:
    directory, site = sinks
    listed = python("-m", "gausslens", "plugins", "sinks", cwd=directory, path=site)
    assert "gausslens-sinks 0.2.0" in listed.stdout, listed.stderr
    everything = python("-m", "gausslens", "plugins", cwd=directory, path=site)
    assert "written for" not in everything.stdout + everything.stderr  # nothing that it offers has changed
    store = tmp_path / "store"
    run = ["-m", "gausslens", "run", "sinks.yaml", "--store", str(store), "--set", "variants.chance.draws=3"]
    ran = python(*run, cwd=directory, path=site)
    assert ran.returncode == 0, ran.stderr
    script = (
        "import gausslens, sys\n"
        "found = gausslens.open(sys.argv[1]).against('trained', 'sinks.first-token')\n"
        "assert {'mass_z', 'mass_p', 'mass_q', 'share_z'} <= set(found), found\n"
        "assert (found['mass_null_sd'] > 0).any()\n"
    )
    read = python("-c", script, str(store), cwd=tmp_path, path=site)
    assert read.returncode == 0, read.stderr
    assert "Attention on the first token" in (store / "report.html").read_text(encoding="utf-8")


EXAMPLES = sorted(file.parent.name for file in (Path(__file__).parents[2] / "examples").glob("*/pyproject.toml"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_distributions_import_the_public_names_alone(name: str, root: Path) -> None:
    lines = [
        line.strip()
        for path in (root / "examples" / name).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip().startswith(("from gausslens", "import gausslens"))
    ]
    own = tuple(path.parent.name for path in (root / "examples" / name).glob("gausslens_*/__init__.py"))
    theirs = {module for line in lines if not (module := line.split()[1]).startswith(own)}
    shown = {"gausslens", "gausslens.figures", "gausslens.testing"}
    # The small texts that examples are trained on are read by their training scripts.
    assert {m for m in theirs if not m.startswith("gausslens.maths")} - {"gausslens_examples.small_texts"} <= shown
    assert "gausslens" in theirs
