"""Execution of a plan: what is not in the store is computed, twin by twin, and handed out as soon as it is done.

It is an iterator: whoever runs it commits each result, shows progress and tells plugins. Nothing here is called back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..contract.analyses import Context, StepRef
from ..contract.digests_and_seeds import digest
from ..contract.twin import Twin
from ..guard import Guard, settled
from ..runs.compare import against
from ..runs.lending import analysis_of, lent_context
from ..runs.open import proved
from ..runs.outcome import Began, Failure, Finished, Measured, Progress, labelled
from ..runs.plan import Plan, Step, step_seed
from ..runs.provenance import Stopwatch, of_step
from .held_weights import HeldWeights
from .twin import measured, units

if TYPE_CHECKING:
    import xarray as xr

    from ..runs.open import Opened
    from ..store import Store
    from ..store.write_parts import PartWriter


def not_in_store(plan: Plan, store: Store) -> tuple[list[Step], list[Step]]:
    """The steps that must be computed, and those that are there (computed before, or for another label of this run)."""
    todo: dict[str, Step] = {}
    found = []
    for step in plan.steps:
        if step.key in todo or store.has(step.folder, step.key):
            found.append(step)
        else:
            todo[step.key] = step
    return list(todo.values()), found


def work(todo: Sequence[Step]) -> int:
    """How often ``execute`` will tell of progress."""
    reading = sum(bool(step.inputs) for step in todo)
    measuring = (group for opened, steps in _models(todo) for group in _twins(steps))
    return reading + sum(units(group, group[0].info) for group in measuring)


def execute(plan: Plan, todo: Sequence[Step], store: Store) -> Iterator[Began | Progress | Finished]:
    """Compute steps that are not in the store; those that read results come after what they read.

    Each model is used for all its twins and let go before the next. A result must be committed before the next one is
    asked for: later steps read it from the store.
    """
    for opened, measuring in _models(todo):
        proof: Mapping[str, float] | None = None
        try:
            proof = proved(opened, measuring) if any(step.reads for step in measuring) else None
        except BaseException as stopped:
            error = settled(stopped)
            if len(plan.models) == 1:
                raise error from None
            # A checkpoint that is gone or damaged fails its own steps; those of other models go on.
            yield from (Finished(step, Failure(step, error)) for step in measuring)
        else:
            held = HeldWeights(opened)
            for steps in _twins(measuring):
                yield from _twin(plan, steps, opened, store, proof, held)
        opened.model.close()
    for step in todo:
        if step.inputs:
            yield Began(step)
            watch = Stopwatch()
            result = _read_and_computed(plan, step, store)
            yield Finished(step, result, _made_by(plan, step, watch, 1, None))
            yield Progress(step.ref.label)


def _models(todo: Sequence[Step]) -> list[tuple[Opened, list[Step]]]:
    """The steps that look at a model, together with those of the same model, in the order of the plan."""
    groups: dict[Opened, list[Step]] = {}
    for step in todo:
        if step.opened is not None and not step.inputs:
            groups.setdefault(step.opened, []).append(step)
    return list(groups.items())


def _twins(measuring: Sequence[Step]) -> list[list[Step]]:
    """Those of the same twin of a model together: it is made once, then dropped."""
    groups: dict[str, list[Step]] = {}
    for step in measuring:
        groups.setdefault(digest(step.ingredients["twin"]), []).append(step)
    return list(groups.values())


def _twin(
    plan: Plan,
    steps: list[Step],
    opened: Opened,
    store: Store,
    proof: Mapping[str, float] | None,
    held: HeldWeights,
) -> Iterator[Began | Progress | Finished]:
    """All steps of one twin."""
    seed = plan.study.seed
    twin = Twin(opened.model, steps[0].point.edits, seed, steps[0].ref.draw, plan.study.limit)
    watch = Stopwatch()
    writers: dict[str, PartWriter] = {}
    try:
        for step in steps:
            yield Began(step)
        refused = set()
        for step in filter(_writes_large_arrays, steps):
            made_by = _made_by(plan, step, watch, len(steps), proof)
            try:
                writers[step.key] = store.begin(step.folder, step.key, made_by)
            except Exception as error:
                refused.add(step.key)
                yield Finished(step, Failure(step, error), made_by)
        ready = [step for step in steps if step.key not in refused]
        for done in measured(opened, twin, ready, seed, writers, held):
            if isinstance(done, Measured):
                yield _finished(plan, done, writers.pop(done.step.key, None), watch, proof)
            else:
                yield done
    finally:
        for writer in writers.values():
            with suppress(OSError):
                writer.abandon()


def _writes_large_arrays(step: Step) -> bool:
    descriptor = step.use.analysis.descriptor
    return descriptor.bulk and descriptor.shape == "stream"


def _finished(
    plan: Plan, done: Measured, writer: PartWriter | None, watch: Stopwatch, proof: Mapping[str, float] | None
) -> Finished:
    if isinstance(done.result, Failure) and writer is not None:
        writer.abandon()
        writer = None
    return Finished(done.step, done.result, _made_by(plan, done.step, watch, done.sharing, proof), writer)


def _read_and_computed(plan: Plan, step: Step, store: Store) -> xr.Dataset | Failure:
    """A derived step or a comparison, from results in the store."""
    inputs = {ref: plan.by_ref[ref] for ref in step.inputs}
    lost = {f"{r.label} on {r.variant}" for r, read in inputs.items() if not store.has(read.folder, read.key)}
    if lost:
        return Failure(step, _InputFailed(f"not computed, because {', '.join(sorted(lost))} failed"))
    try:
        results = {ref: store.read(read.folder, read.key) for ref, read in inputs.items()}
        return _compared(step, results) if step.against else _derived(plan, step, results)
    except Exception as error:
        return Failure(step, error)


def _derived(plan: Plan, step: Step, results: dict[StepRef, xr.Dataset]) -> xr.Dataset:
    seed = step_seed(step, plan.study.seed)
    guard = Guard.of(step.use.analysis.owner, seed, step.use.limit)
    context = Context(step.info, seed)
    if guard.outside:
        context = lent_context(context)
        results = {ref: found.copy(deep=True) for ref, found in results.items()}
    analysis = analysis_of(step.use, context, guard)
    found = labelled(guard.call(analysis.compute, results), step.info)
    return found.copy(deep=True) if guard.outside else found


def _compared(step: Step, results: dict[StepRef, xr.Dataset]) -> xr.Dataset:
    of, *null = [results[ref] for ref in step.inputs]
    return against(of, null, step.use.analysis.descriptor.exchangeable, step.as_sets)


def _made_by(
    plan: Plan, step: Step, watch: Stopwatch, sharing: int, proof: Mapping[str, float] | None
) -> dict[str, Any]:
    """What the store keeps beside a result: who made it, and how."""
    owner = step.use.analysis.owner
    return {
        "object_id": step.key[:32],
        "analysis": step.ref.analysis,
        "version": step.use.analysis.descriptor.version,
        "plugin": owner.plugin,
        "plugin_version": owner.version,
        "provenance": of_step(plan, step, watch, sharing, proof if step.reads else None),
    }


class _InputFailed(Exception):
    """What a step reads was not computed."""
