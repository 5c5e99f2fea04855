"""Stores in temporary directories, and child processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from store.stored import fill

from gausslens.store import Store

HERE = Path(__file__).parent


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "store").create()


@pytest.fixture
def filled(tmp_path: Path) -> Store:
    """A store that holds a run."""
    return fill(tmp_path / "store")


@pytest.fixture(scope="session")
def filled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that holds a run, for tests that change nothing."""
    return fill(tmp_path_factory.mktemp("filled") / "store").path


@pytest.fixture
def child() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script of ``children/`` (or code) in another process and return what it did; it has a minute."""

    def run(script: str, *arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
        what = [str(HERE / "children" / script)] if script.endswith(".py") else ["-c", script]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent), **(more.pop("environment", None) or {})}
        return subprocess.run(
            [sys.executable, *what, *map(str, arguments)],
            capture_output=True, text=True, timeout=more.pop("timeout", 60), env=environment, check=False, **more,
        )  # fmt: skip

    return run
