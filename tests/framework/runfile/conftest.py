"""A host of the probe plugin alone, and the rich run file that tests change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gausslens import plugins
from gausslens.plugins.host import Host
from gausslens.runfile import Problem, RunFileErrors, read

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # string references of the probes name their module


@pytest.fixture(scope="session")
def host() -> Host:
    import runfile_probes

    return plugins.load(only=(), extra={"probe": runfile_probes})


@pytest.fixture(scope="session")
def rich() -> str:
    return (HERE / "rich.yaml").read_text(encoding="utf-8")


Mistakes = Callable[..., list[Problem]]


@pytest.fixture
def mistakes(host: Host, tmp_path: Path) -> Mistakes:
    """The problems of a run file given as text (or of a dict), in order."""

    def found(source: str | dict[str, object], *settings: str) -> list[Problem]:
        if isinstance(source, str):
            path = tmp_path / "run.yaml"
            path.write_text(source, encoding="utf-8")
        try:
            read(path if isinstance(source, str) else source, host, settings)
        except RunFileErrors as errors:
            return list(errors.problems)
        return []

    return found
