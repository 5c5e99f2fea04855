"""What holds for every test: no network, one thread, long and real-model tests only where they are asked for."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Before any test imports them: the libraries below read these once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
# What a developer's shell says must not change what the tests see.
for name in ("GAUSSLENS_WITHOUT", "GAUSSLENS_STORE"):
    os.environ.pop(name, None)

# Files that tests write are not remembered among those of whoever runs them.
if "GAUSSLENS_KNOWN_FILES" not in os.environ:
    _known = tempfile.mkdtemp(prefix="gausslens-tests-")
    atexit.register(shutil.rmtree, _known, ignore_errors=True)
    os.environ["GAUSSLENS_KNOWN_FILES"] = os.path.join(_known, "known-files")  # noqa: PTH118

# A busy machine is not a failed test.
settings.register_profile("house", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

REAL_MODELS = ("smollm2", "minilm")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what was not asked for; the reasons stand in QUARANTINES.md."""
    tier = os.environ.get("GAUSSLENS_FULL")
    models = os.environ.get("GAUSSLENS_MODELS")
    for item in items:
        if item.get_closest_marker("full") and not tier:
            item.add_marker(pytest.mark.skip(reason="the long tier runs where GAUSSLENS_FULL=1"))
        if item.get_closest_marker("soak") and tier != "soak":
            item.add_marker(pytest.mark.skip(reason="all of it runs where GAUSSLENS_FULL=soak"))
        if item.get_closest_marker("real_model") and not models:
            item.add_marker(pytest.mark.skip(reason="GAUSSLENS_MODELS names no directory of real weights"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The tree."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``python("-m", "gausslens", ..., cwd=..., path=...)``: this Python in a new process, other packages first."""

    def run(*arguments: str, cwd: Path, path: Path) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        environment["PYTHONPATH"] = str(path)
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def real_models() -> Path:
    """The directory with real weights; without them, a test marked real_model does not get here."""
    directory = Path(os.environ["GAUSSLENS_MODELS"])
    missing = [name for name in REAL_MODELS if not (directory / name / "config.json").is_file()]
    assert not missing, f"GAUSSLENS_MODELS={directory} lacks {', '.join(missing)}"
    return directory


def _refuse_strangers(original: Any) -> Any:
    def connect(self: socket.socket, address: Any, *rest: Any) -> Any:
        if self.family == socket.AF_UNIX or (isinstance(address, tuple) and _loopback(address[0])):
            return original(self, address, *rest)
        raise OSError(f"tests do not speak to the network: {address!r}")

    return connect


def _loopback(host: Any) -> bool:
    return host in ("localhost", "::1") or str(host).startswith("127.")


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Any:
    """Only unix sockets and the loopback can be reached."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _refuse_strangers(socket.socket.connect))
        patch.setattr(socket.socket, "connect_ex", _refuse_strangers(socket.socket.connect_ex))
        yield
