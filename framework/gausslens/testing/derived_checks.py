"""A check of analyses of shape ``derived``: those that read finished results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..contract.analyses import StepRef
from ..contract.descriptors import Analysis
from ..contract.parameters import Parameters
from ..contract.reference import resolve
from .result_checks import check_outputs, check_result, check_same
from .stream_checks import context_of
from .tiny_model import TinyModel

if TYPE_CHECKING:
    import xarray as xr


def check_derived(
    analysis: Analysis, inputs: Mapping[StepRef, xr.Dataset], parameters: Parameters | None = None
) -> xr.Dataset:
    """Compute a derived analysis from these results and return what it finds, after checking that

    - it picks some of them, and the order in which they come does not matter;
    - it changes none of them;
    - the result is well formed (``check_result``), and by default as the plugin lists it (``check_outputs``).
    """
    chosen = parameters or resolve(analysis.parameters)()
    context = context_of(analysis, TinyModel())

    def compute(given: Mapping[StepRef, xr.Dataset]) -> xr.Dataset:
        found: xr.Dataset = resolve(analysis.analysis)(chosen, context).compute(given)
        return found

    picked = list(resolve(analysis.analysis)(chosen, context).inputs(list(inputs)))
    assert picked, f"{analysis.name} picks none of the results it is offered"
    result = compute({ref: inputs[ref].copy(deep=True) for ref in picked})
    backwards = {ref: inputs[ref].copy(deep=True) for ref in reversed(picked)}
    check_same(compute(backwards), result, "it depends on the order in which results come")
    for ref, dataset in backwards.items():
        check_same(dataset, inputs[ref], f"it changed the result of {ref.label}")
    return check_outputs(analysis, result) if parameters is None else check_result(result)
