"""Measuring one twin: every analysis that looks at the model, whatever its shape, in few passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..contract.analyses import Context
from ..contract.engines import NarrowedRunner, ReadingRunner, no_texts
from ..contract.errors import ModelError
from ..contract.model import ModelInfo, NoTensor
from ..contract.reference import resolve
from .errors import jackknifed
from .outcome import Failure, Measured, Progress, labelled
from .passes import Job, cut, run_passes
from .plan import Step, step_seed

if TYPE_CHECKING:
    import xarray as xr

    from ..contract.twin import Twin
    from ..store.write_parts import PartWriter
    from .open import Opened


def measured(
    opened: Opened, twin: Twin, steps: Sequence[Step], seed: int, writers: Mapping[str, PartWriter]
) -> Iterator[Measured | Progress]:
    """The steps of one twin, each as soon as it is done; ``writers`` take the large arrays of some, by key."""
    by_shape: dict[str, list[Step]] = {"stream": [], "weights": [], "forward": []}
    for step in steps:
        by_shape[_shape(step)].append(step)
    for sharing in _sharing(by_shape["stream"]):
        yield from _streamed(opened, twin, sharing, seed, writers)
    for step in by_shape["forward"]:
        yield Measured(step, _run_forward(opened, twin, step, seed))
        yield Progress(step.ref.label)
    yield from _layer_by_layer(twin, by_shape["weights"], seed)


def units(steps: Sequence[Step], info: ModelInfo) -> int:
    """How often ``measured`` will tell of progress."""
    streams = _sharing([s for s in steps if _shape(s) == "stream"])
    shards = sum(len(cut(same[0].tokens, same[0].groups)) for same in streams if same[0].tokens)
    forward = sum(_shape(s) == "forward" for s in steps)
    weights = {n for s in steps if _shape(s) == "weights" for n in _view(s, info).layers}
    return shards + forward + len(weights)


def _sharing(steps: Sequence[Step]) -> list[list[Step]]:
    """Stream steps that see the same tokens, cut alike: they share their passes."""
    found: dict[tuple[str, int | None], list[Step]] = {}
    for step in steps:
        found.setdefault((step.ingredients["tokens"], step.groups), []).append(step)
    return list(found.values())


def _shape(step: Step) -> str:
    return step.use.analysis.descriptor.shape


def _view(step: Step, info: ModelInfo) -> ModelInfo:
    return info.narrowed(step.use.layers, step.use.heads)


def _streamed(
    opened: Opened, twin: Twin, steps: Sequence[Step], seed: int, writers: Mapping[str, PartWriter]
) -> Iterator[Measured | Progress]:
    """All stream analyses that see the same tokens, in the same passes."""
    assert opened.running is not None
    tokens = steps[0].tokens  # shuffled ones are there as long as someone holds them
    assert tokens is not None
    jobs: dict[str, Job] = {}
    for step in steps:
        try:
            jobs[step.key] = _job(step, opened, seed, writers.get(step.key))
        except Exception as error:
            yield Measured(step, Failure(step, error), len(steps))
    for text in run_passes(opened.running, twin, tokens, list(jobs.values()), steps[0].groups):
        yield Progress(text)
    for step in steps:
        if step.key in jobs:
            yield Measured(step, _result(step, jobs.pop(step.key)), len(steps))


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
        if job.groups:
            return jackknifed(job, step.ingredients["tokens"])
        return labelled(job.state.result(), job.info, job.skipped)
    except Exception as error:
        return Failure(step, error)


def _run_forward(opened: Opened, twin: Twin, step: Step, seed: int) -> xr.Dataset | Failure:
    """A forward analysis: it runs the model itself."""
    assert opened.running is not None
    try:
        info = _view(step, opened.model.info)
        tokens = step.tokens
        context = Context(info, step_seed(step, seed), tokens)
        analysis = resolve(step.use.analysis.descriptor.analysis)(step.use.parameters, context)
        reading = ReadingRunner(opened.running.runner(twin), twin.base, no_texts(step.use.analysis.descriptor))
        runner = NarrowedRunner(reading, twin, info)
        return labelled(analysis.run(runner, tokens), info)
    except Exception as error:
        return Failure(step, error)


class _Weighed:
    """A weights analysis on its way through the layers: what it made of each, and why others were skipped."""

    def __init__(self, step: Step, info: ModelInfo, seed: int) -> None:
        self.step, self.info = step, _view(step, info)
        self.layers: dict[int, xr.Dataset] = {}
        self.skipped: dict[int, str] = {}
        self.failure: Failure | None = None
        try:
            context = Context(self.info, step_seed(step, seed))
            self.analysis: Any = resolve(step.use.analysis.descriptor.analysis)(step.use.parameters, context)
        except Exception as error:
            self.failure = Failure(step, error)

    def see(self, twin: Twin, layer: int) -> None:
        """Hand it one layer, if it has it in view."""
        if self.failure is not None or layer not in self.info.layers:
            return
        try:
            self.layers[layer] = self.analysis.layer(twin.weights(layer, self.info), layer)
        except Exception as error:
            reason = _lacks(error, self.info, layer)
            if reason is None:
                self.failure = Failure(self.step, error, layer)
            else:
                self.skipped[layer] = reason

    def result(self) -> xr.Dataset | Failure:
        """All layers together."""
        import xarray as xr

        if self.failure is not None:
            return self.failure
        try:
            if not self.layers:
                reasons = "; ".join(sorted(set(self.skipped.values())))
                raise ModelError(f"no layer in view has what it reads: {reasons}")
            if hasattr(self.analysis, "join"):
                return labelled(self.analysis.join(self.layers), self.info, self.skipped)
            layers = [part.expand_dims(layer=[n]) for n, part in sorted(self.layers.items())]
            whole = xr.concat(layers, dim="layer", join="outer", combine_attrs="override")
            return labelled(whole, self.info, self.skipped)
        except Exception as error:
            return Failure(self.step, error)


def _layer_by_layer(twin: Twin, steps: Sequence[Step], seed: int) -> Iterator[Measured | Progress]:
    """Weights analyses: the edited tensors of one layer serve all of them, then are let go.

    A layer that the model says lacks something (a hybrid's), and that does not have a tensor asked for, is skipped.
    """
    weighed = [_Weighed(step, twin.info, seed) for step in steps]
    for layer in sorted({n for one in weighed for n in one.info.layers}):
        for one in weighed:
            one.see(twin, layer)
        twin.forget(layer)
        yield Progress(f"weights of layer {layer}")
    for one in weighed:
        yield Measured(one.step, one.result(), len(steps))


def _lacks(error: BaseException, info: ModelInfo, layer: int) -> str | None:
    """Why a layer does not have the tensor that was asked for, where the model says that it lacks something."""
    asked = error.__cause__ if isinstance(error, AttributeError) else error
    reasons = info.lacking.get(layer, {})
    return next(iter(reasons.values())) if isinstance(asked, NoTensor) and reasons else None
