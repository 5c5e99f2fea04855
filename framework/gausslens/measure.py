"""Computing the steps of one twin: stream analyses in shared passes, weights layer by layer, forward analyses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import GausslensError, ModelError
from .passes import Job, run_passes
from .plan import Step, step_seed
from .reference import resolve
from .shapes import Context

if TYPE_CHECKING:
    import xarray as xr

    from .model import ModelInfo
    from .opening import Opened
    from .overlay import Twin
    from .progress import Told
    from .store.bulk import PartWriter


@dataclass(frozen=True)
class Failure:
    """A step that failed: the error, and in which layer."""

    step: Step
    error: BaseException
    layer: int | None = None

    def __str__(self) -> str:
        ref, owner = self.step.ref, self.step.use.analysis.owner
        place = f"{ref.label} on {ref.variant}"
        place += f", draw {ref.draw}" if ref.draw is not None else ""
        place += "".join(f", {name} {value}" for name, value in ref.sweep)
        place += f", layer {self.layer}" if self.layer is not None else ""
        plain = isinstance(self.error, GausslensError)
        what = str(self.error) if plain else f"{type(self.error).__name__}: {self.error}"
        return (
            f"{self.step.use.mark}: {place}: analysis {ref.analysis} of plugin {owner.plugin} "
            f"({owner.distribution} {owner.version}): {what}"
        )


# Called with a finished dataset (or the error and the layer), and the writer of its large arrays where it has one.
Finished = Callable[[Step, "xr.Dataset | Failure", "PartWriter | None", int], None]
Begin = Callable[[Step], "PartWriter"]


def measure(
    opened: Opened, twin: Twin, steps: Sequence[Step], seed: int, begin: Begin, finished: Finished, told: Told
) -> None:
    """Compute the steps of one twin; each is handed to ``finished`` as soon as it is done."""
    by_shape: dict[str, list[Step]] = {"stream": [], "weights": [], "forward": []}
    for step in steps:
        by_shape[step.use.analysis.descriptor.shape].append(step)
    by_tokens: dict[str, list[Step]] = {}
    for step in by_shape["stream"]:
        by_tokens.setdefault(step.ingredients["tokens"], []).append(step)
    for sharing in by_tokens.values():
        _stream(opened, twin, sharing, seed, begin, finished, told)
    for step in by_shape["forward"]:
        _forward(opened, twin, step, seed, finished)
        told(step.ref.label)
    _weights(twin, by_shape["weights"], seed, finished, told)


def units(steps: Sequence[Step], info: ModelInfo) -> int:
    """How often ``measure`` will tell of progress."""
    passes = {s.ingredients["tokens"]: len(s.tokens.shards()) for s in steps if s.tokens and _shape(s) == "stream"}
    forward = sum(_shape(s) == "forward" for s in steps)
    weights = {n for s in steps if _shape(s) == "weights" for n in _view(s, info).layers}
    return sum(passes.values()) + forward + len(weights)


def _shape(step: Step) -> str:
    return step.use.analysis.descriptor.shape


def _view(step: Step, info: ModelInfo) -> ModelInfo:
    return info.narrowed(step.use.layers, step.use.heads)


def _stream(
    opened: Opened, twin: Twin, steps: Sequence[Step], seed: int, begin: Begin, finished: Finished, told: Told
) -> None:
    """All stream analyses that see the same tokens, in the same passes."""
    assert opened.running is not None
    jobs: dict[str, Job] = {}
    writers: dict[str, PartWriter] = {}
    by_key = {step.key: step for step in steps}
    for step in steps:
        try:
            if step.use.analysis.descriptor.bulk:
                writers[step.key] = begin(step)
            jobs[step.key] = _job(step, opened, seed, writers.get(step.key))
        except Exception as error:
            finished(step, Failure(step, error), writers.get(step.key), len(steps))
    try:
        tokens = steps[0].tokens
        assert tokens is not None
        run_passes(opened.running, twin, tokens, list(jobs.values()), told)
    except BaseException:
        for writer in writers.values():
            with suppress(OSError):
                writer.abandon()
        raise
    for key, job in jobs.items():
        finished(by_key[key], _result(by_key[key], job), writers.get(key), len(steps))


def _job(step: Step, opened: Opened, seed: int, writer: PartWriter | None) -> Job:
    descriptor = step.use.analysis.descriptor
    context = Context(_view(step, opened.model.info), step_seed(step, seed), step.tokens, writer)
    state = resolve(descriptor.analysis)(step.use.parameters, context)
    shared = (context, context.model, context.tokens, context.bulk)
    return Job(
        name=step.key,
        title=step.ref.analysis,
        state=state,
        request=state.request(),
        info=context.model,
        row_blocks=descriptor.row_blocks,
        all_layers=descriptor.all_layers,
        shared=shared,
    )


def _result(step: Step, job: Job) -> xr.Dataset | Failure:
    if job.error is not None:
        return Failure(step, job.error, job.layer)
    try:
        found: xr.Dataset = job.state.result()
        return labelled(found, job.info)
    except Exception as error:
        return Failure(step, error)


def _forward(opened: Opened, twin: Twin, step: Step, seed: int, finished: Finished) -> None:
    assert opened.running is not None
    try:
        info = _view(step, opened.model.info)
        context = Context(info, step_seed(step, seed), step.tokens)
        analysis = resolve(step.use.analysis.descriptor.analysis)(step.use.parameters, context)
        found = labelled(analysis.run(opened.running.runner(twin), step.tokens), info)
    except Exception as error:
        finished(step, Failure(step, error), None, 1)
    else:
        finished(step, found, None, 1)


def _weights(twin: Twin, steps: Sequence[Step], seed: int, finished: Finished, told: Told) -> None:
    """Layer by layer: the edited tensors of one layer serve all analyses, then are let go."""
    analyses: dict[str, Any] = {}
    views = {step.key: _view(step, twin.info) for step in steps}
    parts: dict[str, dict[int, xr.Dataset]] = {step.key: {} for step in steps}
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
                failed[step.key] = Failure(step, error, layer)
        twin.forget(layer)
        told(f"weights of layer {layer}")
    for step in steps:
        outcome = failed.get(step.key) or _joined(step, analyses[step.key], parts[step.key], views[step.key])
        finished(step, outcome, None, len(steps))


def _joined(step: Step, analysis: Any, parts: Mapping[int, xr.Dataset], info: ModelInfo) -> xr.Dataset | Failure:
    import xarray as xr

    try:
        if hasattr(analysis, "join"):
            return labelled(analysis.join(parts), info)
        layers = [part.expand_dims(layer=[n]) for n, part in sorted(parts.items())]
        return labelled(xr.concat(layers, dim="layer", join="outer", combine_attrs="override"), info)
    except Exception as error:
        return Failure(step, error)


def labelled(result: Any, info: ModelInfo | None) -> xr.Dataset:
    """The result of an analysis, checked, with the layers and heads in view as coordinates where it gave none."""
    import xarray as xr

    if not isinstance(result, xr.Dataset):
        raise ModelError(f"its result is a {type(result).__name__}, not an xarray.Dataset")
    dataset: xr.Dataset = result
    if not dataset.data_vars:
        raise ModelError("its result holds no variable")
    if info is None:
        return dataset
    for dim, known in (("layer", info.layers), ("head", info.heads), ("kv_head", info.kv_heads)):
        if dim in dataset.dims and dim not in dataset.coords and dataset.sizes[dim] == len(known):
            dataset = dataset.assign_coords({dim: list(known)})
    return dataset
