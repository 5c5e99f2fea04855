"""Computing the steps of one twin: stream analyses in shared passes, weights layer by layer, forward analyses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..contract.protocols import Context
from ..contract.reference import resolve
from .layers import layer_by_layer
from .outcome import Failure, Finished, labelled
from .passes import Job, run_passes
from .plan import Step, step_seed

if TYPE_CHECKING:
    import xarray as xr

    from ..contract.model import ModelInfo
    from ..store.write import PartWriter
    from .open import Opened
    from .progress import Told
    from .twin import Twin


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
    layer_by_layer(twin, by_shape["weights"], seed, finished, told)


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
        return labelled(job.state.result(), job.info, job.skipped)
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
