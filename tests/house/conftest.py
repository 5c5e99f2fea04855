"""What the tests of the house look at: the tree, and what setup.cfg says of it."""

from __future__ import annotations

import configparser
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


@pytest.fixture(scope="session")
def packages(setup_cfg: configparser.ConfigParser) -> dict[str, Path]:
    """The directory of each package that setup.cfg lists."""
    tops = dict(line.split(" = ") for line in setup_cfg["options"]["package_dir"].strip().splitlines())
    found = {}
    for name in setup_cfg["options"]["packages"].split():
        top, *below = name.split(".")
        found[name] = ROOT.joinpath(tops[top], *below)
    return found


@pytest.fixture(scope="session")
def tracked() -> list[Path]:
    """Every file of the tree that git knows of, or would know of: not what was built."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for name in sorted(set(listed.stdout.split("\0"))) if name and (path := ROOT / name).is_file()]


@pytest.fixture(scope="session")
def sources(tracked: list[Path]) -> list[Path]:
    """The Python files of the host and of the plugins."""
    tops = (ROOT / "framework", ROOT / "plugins")
    return [path for path in tracked if path.suffix == ".py" and any(path.is_relative_to(top) for top in tops)]
