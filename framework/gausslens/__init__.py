"""What training put into a transformer's attention, and what chance would have put there.

Everything that a plugin or a notebook may use is a name of this module; each is imported on first use, so that a start
is light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import VERSION as __version__

if TYPE_CHECKING:
    from .batch import HEAD_AXIS as HEAD_AXIS
    from .batch import KV_HEAD_AXIS as KV_HEAD_AXIS
    from .batch import SITES as SITES
    from .batch import Batch as Batch
    from .batch import Request as Request
    from .batch import Sink as Sink
    from .descriptors import Analysis as Analysis
    from .descriptors import Edit as Edit
    from .descriptors import Engine as Engine
    from .descriptors import Loader as Loader
    from .descriptors import PromptSource as PromptSource
    from .descriptors import ReportSection as ReportSection
    from .errors import GausslensError as GausslensError
    from .errors import InputError as InputError
    from .errors import ModelError as ModelError
    from .hookspecs import hookimpl as hookimpl
    from .model import LayerWeights as LayerWeights
    from .model import ModelInfo as ModelInfo
    from .model import ModelSpec as ModelSpec
    from .model import OpenModel as OpenModel
    from .notebook import draw as draw
    from .opening import load as load
    from .overlay import Generators as Generators
    from .overlay import Twin as Twin
    from .parameters import NoParameters as NoParameters
    from .parameters import Parameters as Parameters
    from .perform import run as run
    from .prompts import Part as Part
    from .prompts import Prompt as Prompt
    from .prompts import Tokens as Tokens
    from .shapes import Bulk as Bulk
    from .shapes import Context as Context
    from .shapes import Estimate as Estimate
    from .shapes import Finding as Finding
    from .shapes import Runner as Runner
    from .shapes import SourceContext as SourceContext
    from .shapes import StepRef as StepRef
    from .store.results import Results as Results
    from .store.results import open as open  # noqa: A004
    from .suggest import did_you_mean as did_you_mean

_HOMES = {
    "HEAD_AXIS": "batch",
    "KV_HEAD_AXIS": "batch",
    "Batch": "batch",
    "Request": "batch",
    "Sink": "batch",
    "SITES": "batch",
    "Analysis": "descriptors",
    "Edit": "descriptors",
    "Engine": "descriptors",
    "Loader": "descriptors",
    "PromptSource": "descriptors",
    "ReportSection": "descriptors",
    "GausslensError": "errors",
    "InputError": "errors",
    "ModelError": "errors",
    "hookimpl": "hookspecs",
    "LayerWeights": "model",
    "ModelInfo": "model",
    "ModelSpec": "model",
    "OpenModel": "model",
    "draw": "notebook",
    "run": "perform",
    "load": "opening",
    "Generators": "overlay",
    "Twin": "overlay",
    "NoParameters": "parameters",
    "Parameters": "parameters",
    "Part": "prompts",
    "Prompt": "prompts",
    "Tokens": "prompts",
    "Bulk": "shapes",
    "Context": "shapes",
    "Estimate": "shapes",
    "Finding": "shapes",
    "Runner": "shapes",
    "SourceContext": "shapes",
    "StepRef": "shapes",
    "Results": "store.results",
    "open": "store.results",
    "did_you_mean": "suggest",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
