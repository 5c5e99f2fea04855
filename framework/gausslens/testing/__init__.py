"""Tools for the tests of plugins.

    from gausslens.testing import check_references, check_stream

    def test_everything_that_is_named_exists():
        check_references(my_plugin)

    def test_it_does_not_matter_how_prompts_are_cut():
        result = check_stream(my_plugin.MY_ANALYSIS)

This module is also a pytest plugin, loaded in every test run where gausslens is installed: so it imports nothing heavy
until a name or a fixture is used. Its fixtures are ``gausslens_host``, ``gausslens_model`` and ``gausslens_run``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..plugins import Host
    from ..store.read_results import Results
    from . import wiring as wiring
    from .derived_checks import check_derived as check_derived
    from .figure_checks import check_figure as check_figure
    from .figure_checks import check_section as check_section
    from .forward_checks import check_forward as check_forward
    from .forward_checks import check_interventions as check_interventions
    from .plugin_checks import check_references as check_references
    from .plugin_checks import host_of as host_of
    from .result_checks import check_outputs as check_outputs
    from .result_checks import check_result as check_result
    from .result_checks import check_round_trip as check_round_trip
    from .result_checks import check_same as check_same
    from .stream_checks import check_stream as check_stream
    from .tiny_engine import TinyEngine as TinyEngine
    from .tiny_engine import TinyRunner as TinyRunner
    from .tiny_model import TinyModel as TinyModel
    from .tiny_parameters import TinyParameters as TinyParameters
    from .weights_checks import check_edit as check_edit
    from .weights_checks import check_weights as check_weights

_HOMES = {
    "TinyEngine": "tiny_engine",
    "TinyRunner": "tiny_engine",
    "TinyParameters": "tiny_parameters",
    "check_references": "plugin_checks",
    "host_of": "plugin_checks",
    "check_outputs": "result_checks",
    "check_result": "result_checks",
    "check_round_trip": "result_checks",
    "check_same": "result_checks",
    "check_derived": "derived_checks",
    "check_figure": "figure_checks",
    "check_forward": "forward_checks",
    "check_interventions": "forward_checks",
    "check_section": "figure_checks",
    "check_stream": "stream_checks",
    "TinyModel": "tiny_model",
    "check_edit": "weights_checks",
    "check_weights": "weights_checks",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@pytest.fixture
def gausslens_host() -> Callable[..., Host]:
    """``gausslens_host("reinit", mine=my_plugin)``: a host of exactly these plugins and the tiny model."""
    from .plugin_checks import host_of

    return host_of


@pytest.fixture
def gausslens_model() -> Any:
    """A tiny model with its weights as they are made: TinyModel()."""
    from .tiny_model import TinyModel

    return TinyModel()


@pytest.fixture
def gausslens_run(tmp_path: Path) -> Callable[..., Results]:
    """``gausslens_run({"analyses": [...]}, "models", mine=my_plugin)``: a run with a host of exactly these plugins.

    It runs on the tiny model unless the study says otherwise, and into a store of this test's own.
    """
    from ..perform import run
    from .plugin_checks import host_of

    def running(study: Mapping[str, Any], *installed: str, **given: Any) -> Results:
        whole = {"gausslens": 1, "name": "test", "model": {"path": "builtin:testing"}, **study}
        return run(whole, store=tmp_path / "store", host=host_of(*installed, **given), shown=False)

    return running
