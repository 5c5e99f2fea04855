"""A site for several processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from several_processes import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)
