"""Measuring one twin: every analysis that looks at the model, whatever its shape, in few passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..contract.analyses import Context, StepRef
from ..contract.engines import NarrowedRunner, no_texts
from ..contract.errors import ModelError
from ..contract.model import ModelInfo, NoTensor
from ..contract.reference import resolve
from ..runs.outcome import Failure, Measured, Progress, labelled
from ..runs.steps import Step, step_seed
from .errors import jackknifed
from .passes import Job, cut, run_passes

if TYPE_CHECKING:
    import xarray as xr

    from ..contract.twin import Twin
    from ..runs.open import Opened
    from ..store.write_parts import PartWriter

    Given = Mapping[StepRef, xr.Dataset]


def measured(
    opened: Opened,
    twin: Twin,
    steps: Sequence[Step],
    seed: int,
    writers: Mapping[str, PartWriter],
    given: Callable[[Step], Given],
) -> Iterator[Measured | Progress]:
    """The steps of one twin, each as soon as it is done.

    ``writers`` take the large arrays of some, by key. ``given`` makes what a step reads, which goes when it is done.
    """
    by_shape: dict[str, list[Step]] = {"stream": [], "weights": [], "forward": []}
    for step in steps:
        by_shape[_shape(step)].append(step)
    for sharing in _sharing(by_shape["stream"]):
        yield from _streamed(opened, twin, sharing, seed, writers, given)
    for step in by_shape["forward"]:
        yield Measured(step, _run_forward(opened, twin, step, seed, given(step)))
        yield Progress(step.ref.label)
    yield from _layer_by_layer(twin, by_shape["weights"], seed, given)


def units(steps: Sequence[Step], info: ModelInfo) -> int:
    """How often ``measured`` will tell of progress."""
    streams = _sharing([s for s in steps if _shape(s) == "stream"])
    shards = sum(len(cut(same[0].tokens, same[0].groups)) for same in streams if same[0].tokens)
    forward = sum(_shape(s) == "forward" for s in steps)
    weights = {n for s in steps if _shape(s) == "weights" for n in _view(s, info).layers}
    return shards + forward + len(weights)


def _sharing(steps: Sequence[Step]) -> list[list[Step]]:
    """Stream steps that see the same tokens, cut alike and in one order: they share their passes."""
    found: dict[tuple[str, int | None, bool], list[Step]] = {}
    for step in steps:
        found.setdefault((step.ingredients["tokens"], step.groups, _is_ordered(step)), []).append(step)
    return list(found.values())


def _is_ordered(step: Step) -> bool:
    return "order" in step.ingredients


def _shape(step: Step) -> str:
    return step.use.analysis.descriptor.shape


def _view(step: Step, info: ModelInfo) -> ModelInfo:
    return info.narrowed(step.use.layers, step.use.heads)


def _streamed(
    opened: Opened,
    twin: Twin,
    steps: Sequence[Step],
    seed: int,
    writers: Mapping[str, PartWriter],
    given: Callable[[Step], Given],
) -> Iterator[Measured | Progress]:
    """All stream analyses that see the same tokens, in the same passes."""
    assert opened.running is not None
    tokens = steps[0].tokens  # shuffled ones are there as long as someone holds them
    assert tokens is not None
    jobs: dict[str, Job] = {}
    for step in steps:
        try:
            jobs[step.key] = _job(step, twin, seed, given(step), writers.get(step.key))
        except Exception as error:
            yield Measured(step, Failure(step, error), len(steps))
    order = seed if _is_ordered(steps[0]) else None
    for text in run_passes(opened.running, twin, tokens, list(jobs.values()), steps[0].groups, order):
        yield Progress(text)
    for step in steps:
        if step.key in jobs:
            yield Measured(step, _result(step, jobs.pop(step.key)), len(steps))


def _context(step: Step, twin: Twin, seed: int, inputs: Given, bulk: PartWriter | None = None) -> Context:
    """What the analysis of a step is given."""
    context = Context(_view(step, twin.info), step_seed(step, seed), step.tokens, bulk, inputs)
    runs = _shape(step) in ("stream", "forward")
    return context.at(step.ref, step.use.analysis.descriptor.knows, twin if runs else None)


def _job(step: Step, twin: Twin, seed: int, inputs: Given, writer: PartWriter | None) -> Job:
    descriptor = step.use.analysis.descriptor
    context = _context(step, twin, seed, inputs, writer)
    state = resolve(descriptor.analysis)(step.use.parameters, context)
    request = state.request()
    if request.ordered != _is_ordered(step):
        raise ModelError("request() says another `ordered` than when the run was planned")
    shared = (context, context.model, context.tokens, context.bulk)
    return Job(
        name=step.key,
        title=step.ref.analysis,
        state=state,
        request=request,
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


def _run_forward(opened: Opened, twin: Twin, step: Step, seed: int, inputs: Given) -> xr.Dataset | Failure:
    """A forward analysis: it runs the model itself."""
    assert opened.running is not None
    try:
        info = _view(step, opened.model.info)
        context = _context(step, twin, seed, inputs)
        analysis = resolve(step.use.analysis.descriptor.analysis)(step.use.parameters, context)
        runner = NarrowedRunner(opened.running.runner(twin), twin, info, no_texts(step.use.analysis.descriptor))
        return labelled(analysis.run(runner, context.tokens), info)
    except Exception as error:
        return Failure(step, error)


class _Weighed:
    """A weights analysis on its way through the layers: what it made of each, and why others were skipped."""

    def __init__(self, step: Step, twin: Twin, seed: int, inputs: Given) -> None:
        self.step, self.info = step, _view(step, twin.info)
        self.layers: dict[int, xr.Dataset] = {}
        self.skipped: dict[int, str] = {}
        self.failure: Failure | None = None
        try:
            context = _context(step, twin, seed, inputs)
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


def _layer_by_layer(
    twin: Twin, steps: Sequence[Step], seed: int, given: Callable[[Step], Given]
) -> Iterator[Measured | Progress]:
    """Weights analyses: the edited tensors of one layer serve all of them, then are let go.

    A layer that the model says lacks something (a hybrid's), and that does not have a tensor asked for, is skipped.
    """
    weighed = [_Weighed(step, twin, seed, given(step)) for step in steps]
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
