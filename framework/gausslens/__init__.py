"""What training put into a transformer's attention, and what chance would have put there.

Everything that a plugin or a notebook may use is a name of this module; each is imported on first use, so that a start
is light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import VERSION as __version__

if TYPE_CHECKING:
    from .contract.analyses import Bulk as Bulk
    from .contract.analyses import Context as Context
    from .contract.analyses import Estimate as Estimate
    from .contract.analyses import StepRef as StepRef
    from .contract.analyses import attributes as attributes
    from .contract.analyses import error_of as error_of
    from .contract.analyses import mean_over_prompts as mean_over_prompts
    from .contract.analyses import merge_each as merge_each
    from .contract.analyses import ragged_variables as ragged_variables
    from .contract.analyses import variable as variable
    from .contract.batches import Batch as Batch
    from .contract.batches import Request as Request
    from .contract.batches import Sink as Sink
    from .contract.descriptors import Analysis as Analysis
    from .contract.descriptors import Edit as Edit
    from .contract.descriptors import Engine as Engine
    from .contract.descriptors import Loader as Loader
    from .contract.descriptors import PromptSource as PromptSource
    from .contract.descriptors import ReportSection as ReportSection
    from .contract.engines import Finding as Finding
    from .contract.engines import Intervention as Intervention
    from .contract.engines import Interventions as Interventions
    from .contract.engines import NarrowedRunner as NarrowedRunner
    from .contract.engines import Runner as Runner
    from .contract.engines import Where as Where
    from .contract.errors import GausslensError as GausslensError
    from .contract.errors import InputError as InputError
    from .contract.errors import ModelError as ModelError
    from .contract.errors import did_you_mean as did_you_mean
    from .contract.facts import Facts as Facts
    from .contract.hooks import hookimpl as hookimpl
    from .contract.model import LayerWeights as LayerWeights
    from .contract.model import ModelInfo as ModelInfo
    from .contract.model import ModelSpec as ModelSpec
    from .contract.model import OpenAs as OpenAs
    from .contract.model import OpenModel as OpenModel
    from .contract.parameters import Files as Files
    from .contract.parameters import Formerly as Formerly
    from .contract.parameters import NoParameters as NoParameters
    from .contract.parameters import Parameters as Parameters
    from .contract.prompts import Part as Part
    from .contract.prompts import Prompt as Prompt
    from .contract.prompts import SourceContext as SourceContext
    from .contract.prompts import Tokens as Tokens
    from .contract.sites import HEAD_AXIS as HEAD_AXIS
    from .contract.sites import KV_HEAD_AXIS as KV_HEAD_AXIS
    from .contract.sites import SITES as SITES
    from .contract.sites import Site as Site
    from .contract.sites import site as site
    from .contract.twin import Generators as Generators
    from .contract.twin import Twin as Twin
    from .drawings import draw as draw
    from .guard import threads as threads
    from .notebook import load as load
    from .notebook import versus as versus
    from .perform import run as run
    from .store.read_results import Result as Result
    from .store.read_results import Results as Results
    from .store.read_results import open as open  # noqa: A004
    from .write_twin import edit as edit

_HOMES = {
    "Facts": "contract.facts",
    "attributes": "contract.analyses",
    "merge_each": "contract.analyses",
    "error_of": "contract.analyses",
    "mean_over_prompts": "contract.analyses",
    "ragged_variables": "contract.analyses",
    "variable": "contract.analyses",
    "Batch": "contract.batches",
    "Request": "contract.batches",
    "Sink": "contract.batches",
    "Analysis": "contract.descriptors",
    "Edit": "contract.descriptors",
    "Engine": "contract.descriptors",
    "Loader": "contract.descriptors",
    "PromptSource": "contract.descriptors",
    "ReportSection": "contract.descriptors",
    "GausslensError": "contract.errors",
    "InputError": "contract.errors",
    "ModelError": "contract.errors",
    "did_you_mean": "contract.errors",
    "hookimpl": "contract.hooks",
    "LayerWeights": "contract.model",
    "ModelInfo": "contract.model",
    "ModelSpec": "contract.model",
    "OpenAs": "contract.model",
    "OpenModel": "contract.model",
    "Files": "contract.parameters",
    "Formerly": "contract.parameters",
    "NoParameters": "contract.parameters",
    "Parameters": "contract.parameters",
    "Part": "contract.prompts",
    "Prompt": "contract.prompts",
    "Tokens": "contract.prompts",
    "Bulk": "contract.analyses",
    "Context": "contract.analyses",
    "Estimate": "contract.analyses",
    "Finding": "contract.engines",
    "Intervention": "contract.engines",
    "Interventions": "contract.engines",
    "NarrowedRunner": "contract.engines",
    "Runner": "contract.engines",
    "Where": "contract.engines",
    "SourceContext": "contract.prompts",
    "StepRef": "contract.analyses",
    "HEAD_AXIS": "contract.sites",
    "KV_HEAD_AXIS": "contract.sites",
    "SITES": "contract.sites",
    "Site": "contract.sites",
    "site": "contract.sites",
    "threads": "guard",
    "draw": "drawings",
    "load": "notebook",
    "versus": "notebook",
    "edit": "write_twin",
    "run": "perform",
    "Generators": "contract.twin",
    "Twin": "contract.twin",
    "Result": "store.read_results",
    "Results": "store.read_results",
    "open": "store.read_results",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
