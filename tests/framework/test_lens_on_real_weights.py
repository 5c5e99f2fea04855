"""examples/gausslens-lens on real weights: patching is what plain hooks of torch do, for each site, head, position."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gausslens.testing import host_of

LAYER = 14


@pytest.fixture
def lens(root: Path) -> Iterator[tuple[Any, Any]]:
    """The plugin, as if it were installed, and the script that holds it against hooks."""
    place = str(root / "examples/gausslens-lens")
    sys.path.insert(0, place)
    try:
        yield importlib.import_module("gausslens_lens.plugin"), importlib.import_module("against_hooks")
    finally:
        sys.path.remove(place)


@pytest.mark.full
@pytest.mark.real_model
def test_patching_a_real_model_is_what_plain_hooks_do(lens: tuple[Any, Any], real_models: Path) -> None:
    plugin, against_hooks = lens
    host = host_of("models", lens=plugin)
    found = against_hooks.compared(real_models / "smollm2", [LAYER], host=host)
    assert set(found) == {"resid_pre", "mlp_out", "q", "k", "v", "z"}
    for site, (worst, _, largest, *_) in found.items():
        assert worst <= 1e-6, site
        assert largest > 1e-2, site
