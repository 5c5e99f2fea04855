"""Tools for the tests of plugins.

    from gausslens.testing import check_references, check_stream

    def test_everything_that_is_named_exists():
        check_references(my_plugin)

    def test_it_does_not_matter_how_prompts_are_cut():
        result = check_stream(my_plugin.MY_ANALYSIS)

This module is also a pytest plugin, loaded in every test run where gausslens is installed: so it imports nothing heavy
until a name or a fixture is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .derived import check_derived as check_derived
    from .engine import TinyEngine as TinyEngine
    from .engine import TinyRunner as TinyRunner
    from .forward import check_forward as check_forward
    from .parameters import TinyParameters as TinyParameters
    from .references import check_references as check_references
    from .references import host_of as host_of
    from .result import check_result as check_result
    from .result import check_round_trip as check_round_trip
    from .result import check_same as check_same
    from .stream import check_stream as check_stream
    from .tiny import TinyModel as TinyModel
    from .weights import check_edit as check_edit
    from .weights import check_weights as check_weights

_HOMES = {
    "TinyEngine": "engine",
    "TinyRunner": "engine",
    "TinyParameters": "parameters",
    "check_references": "references",
    "host_of": "references",
    "check_result": "result",
    "check_round_trip": "result",
    "check_same": "result",
    "check_derived": "derived",
    "check_forward": "forward",
    "check_stream": "stream",
    "TinyModel": "tiny",
    "check_edit": "weights",
    "check_weights": "weights",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
