"""Weights analyses: the edited tensors of one layer serve all of them, then are let go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..contract.errors import ModelError
from ..contract.model import ModelInfo, NoTensor
from ..contract.protocols import Context
from ..contract.reference import resolve
from .outcome import Failure, Finished, labelled
from .plan import Step, step_seed

if TYPE_CHECKING:
    import xarray as xr

    from .progress import Told
    from .twin import Twin


def layer_by_layer(twin: Twin, steps: Sequence[Step], seed: int, finished: Finished, told: Told) -> None:
    """Hand each layer to every analysis that has it in view, and each step to ``finished`` at the end.

    A layer that the model says lacks something (a hybrid's), and that does not have a tensor asked for, is skipped.
    """
    analyses: dict[str, Any] = {}
    views = {step.key: twin.info.narrowed(step.use.layers, step.use.heads) for step in steps}
    parts: dict[str, dict[int, xr.Dataset]] = {step.key: {} for step in steps}
    skipped: dict[str, dict[int, str]] = {step.key: {} for step in steps}
    failed: dict[str, Failure] = {}
    for step in steps:
        try:
            context = Context(views[step.key], step_seed(step, seed))
            analyses[step.key] = resolve(step.use.analysis.descriptor.analysis)(step.use.parameters, context)
        except Exception as error:
            failed[step.key] = Failure(step, error)
    for layer in sorted({n for view in views.values() for n in view.layers}):
        for step in steps:
            if step.key in failed or layer not in views[step.key].layers:
                continue
            try:
                weights = twin.weights(layer, views[step.key])
                parts[step.key][layer] = analyses[step.key].layer(weights, layer)
            except Exception as error:
                reason = _lacks(error, views[step.key], layer)
                if reason is None:
                    failed[step.key] = Failure(step, error, layer)
                else:
                    skipped[step.key][layer] = reason
        twin.forget(layer)
        told(f"weights of layer {layer}")
    for step in steps:
        outcome = failed.get(step.key) or _joined(step, analyses, parts[step.key], views[step.key], skipped[step.key])
        finished(step, outcome, None, len(steps))


def _lacks(error: BaseException, info: ModelInfo, layer: int) -> str | None:
    """Why a layer does not have the tensor that was asked for, where the model says that it lacks something."""
    asked = error.__cause__ if isinstance(error, AttributeError) else error
    reasons = info.lacking.get(layer, {})
    return next(iter(reasons.values())) if isinstance(asked, NoTensor) and reasons else None


def _joined(
    step: Step,
    analyses: Mapping[str, Any],
    parts: Mapping[int, xr.Dataset],
    info: ModelInfo,
    skipped: Mapping[int, str],
) -> xr.Dataset | Failure:
    import xarray as xr

    analysis = analyses[step.key]
    try:
        if not parts:
            raise ModelError("no layer in view has what it reads: " + "; ".join(sorted(set(skipped.values()))))
        if hasattr(analysis, "join"):
            return labelled(analysis.join(parts), info, skipped)
        layers = [part.expand_dims(layer=[n]) for n, part in sorted(parts.items())]
        return labelled(xr.concat(layers, dim="layer", join="outer", combine_attrs="override"), info, skipped)
    except Exception as error:
        return Failure(step, error)
