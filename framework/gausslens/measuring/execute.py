"""Execution of a plan: what is not in the store is computed, twin by twin, and handed out as soon as it is done.

Nothing here is called back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..contract.analyses import Context, StepRef
from ..contract.digests_and_seeds import digest
from ..contract.errors import GausslensError
from ..contract.twin import Twin
from ..guard import Guard, is_outside, settled
from ..runs.compare import against
from ..runs.inputs import Results, lost, waves
from ..runs.lending import analysis_of, lent_context, taken
from ..runs.open import proved
from ..runs.outcome import Began, Failure, Finished, Measured, Noted, Progress, labelled
from ..runs.provenance import Stopwatch, of_step
from ..runs.steps import Plan, Step, step_seed
from ..store.disk import drop_progress
from .held_weights import HeldWeights
from .on_the_way import OnTheWay, commit_seconds
from .shards import check_device
from .twin import measured, share_of_groups, share_of_layers, units

if TYPE_CHECKING:
    import xarray as xr

    from ..runs.open import Opened
    from ..store import Store
    from ..store.write_parts import PartWriter
    from .pieces import Kind


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


def groups(plan: Plan, todo: Sequence[Step]) -> Iterator[list[Step]]:
    """The steps that are computed together, in order: those of a twin share it; what reads results comes by itself.

    Each model is used for all its twins and let go before the next; steps that read results come after what they read.
    """
    for wave in waves(todo, plan.by_ref):
        for _, measuring in _models(wave):
            yield from _twins(measuring)
        yield from ([step] for step in wave if step.inputs)


def work(steps: Sequence[Step]) -> int:
    """How often ``Execution`` will tell of progress with steps that are computed together."""
    return len(steps) if steps[0].inputs else units(steps, steps[0].info)


class Execution:
    """Computes steps of a plan that are not in the store, as they come: those of a twin together, or some that read.

    It hands out events: whoever runs it commits each result before the next one is asked for (later steps read it from
    the store), shows progress and tells plugins. The model that was used last stays open, with its proof, which is for
    all that is to do.
    """

    def __init__(self, plan: Plan, store: Store, todo: Sequence[Step]) -> None:
        self.plan, self.store, self.todo = plan, store, todo
        self._proofs: dict[Opened, Mapping[str, float] | Exception | None] = {}
        self._held: HeldWeights | None = None
        self._opened: Opened | None = None

    def close(self) -> None:
        """Let go of the model."""
        if self._opened is not None:
            self._opened.close()
        self._opened = self._held = None

    def compute(self, steps: Sequence[Step]) -> Iterator[Began | Progress | Noted | Finished]:
        """Compute steps that ``groups`` put together, or some of them; whoever runs it lets numpy have one thread."""
        if not steps[0].inputs:
            yield from self._measure(list(steps))
            return
        self.close()
        for step in steps:
            yield Began(step)
            watch = Stopwatch()
            result = _read_and_computed(self.plan, step, self.store)
            yield Finished(step, result, _made_by(self.plan, step, watch, 1, None))
            yield Progress(step.ref.label)

    def share(self, steps: Sequence[Step], of: Kind, numbers: Sequence[int]) -> Iterator[Noted]:
        """Compute some layers, or groups of prompts, of steps of a twin, for whoever computes these to put together.

        What cannot be computed is left to them, and so is saying why.
        """
        opened, proof, held = self._ready(steps)
        ready = [step for step in steps if lost(step.waits_for, self.plan.by_ref, self.store) is None]
        if ready and not isinstance(proof, Exception):
            twin = _twin_of(self.plan, steps, opened, self.store)
            given, seed, writer = _given(self.plan, self.store), self.plan.study.seed, self.store.writer
            if of == "layer":
                yield from share_of_layers(twin, ready, numbers, seed, held, given, writer)
            else:
                yield from share_of_groups(opened, twin, ready, numbers, seed, given, writer)

    def _measure(self, steps: list[Step]) -> Iterator[Began | Progress | Noted | Finished]:
        opened, proof, held = self._ready(steps)
        if isinstance(proof, Exception):
            # A checkpoint that is gone or damaged fails its own steps; those of other models go on.
            yield from (Finished(step, Failure(step, proof)) for step in steps)
        else:
            yield from _twin(self.plan, steps, opened, self.store, proof, held)

    def _ready(self, steps: Sequence[Step]) -> tuple[Opened, Mapping[str, float] | Exception | None, HeldWeights]:
        """The model of some steps, its proof or why there is none, and its weights."""
        opened = steps[0].opened
        assert opened is not None
        if opened is not self._opened:
            self.close()
            self._opened, self._held = opened, HeldWeights(opened)
        if opened not in self._proofs:
            self._proofs[opened] = _proof(self.plan, opened, self.todo)
        assert self._held is not None
        return opened, self._proofs[opened], self._held


def _proof(plan: Plan, opened: Opened, todo: Sequence[Step]) -> Mapping[str, float] | Exception | None:
    """The proof of a model for all steps that look at it; or why there is none, where others have other models."""
    measuring = [step for step in todo if step.opened is opened and not step.inputs]
    try:
        check_device(opened)
        return proved(opened, measuring) if any(step.reads for step in measuring) else None
    except BaseException as stopped:
        error = settled(stopped)
        if len(plan.models) == 1:
            raise error from None
        return error


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


def _twin_of(plan: Plan, steps: Sequence[Step], opened: Opened, store: Store) -> Twin:
    """The twin that steps look at, with what its edits read."""
    read = [Results(store, {ref: plan.by_ref[ref] for ref in refs}) for refs in steps[0].of_edits]
    point = steps[0].point
    return Twin(opened.model, point.edits, plan.study.seed, steps[0].ref.draw, read, plan.study.limit)


def _given(plan: Plan, store: Store) -> Callable[[Step], Results]:
    """What the analysis of a step reads, for each step."""
    return lambda step: Results(store, {ref: plan.by_ref[ref] for ref in step.given})


def _twin(
    plan: Plan,
    steps: list[Step],
    opened: Opened,
    store: Store,
    proof: Mapping[str, float] | None,
    held: HeldWeights,
) -> Iterator[Began | Progress | Noted | Finished]:
    """All steps of one twin."""
    twin = _twin_of(plan, steps, opened, store)
    watch = Stopwatch()
    writers: dict[str, PartWriter] = {}
    try:
        for step in steps:
            yield Began(step)
        refused = set()
        for step in steps:
            reason = lost(step.waits_for, plan.by_ref, store)
            if reason is not None:
                refused.add(step.key)
                yield Finished(step, Failure(step, _InputFailed(reason)))
        for step in (s for s in steps if _writes_large_arrays(s) and s.key not in refused):
            made_by = _made_by(plan, step, watch, len(steps), proof)
            try:
                writers[step.key] = store.begin(step.folder, step.key, made_by)
            except Exception as error:
                refused.add(step.key)
                yield Finished(step, Failure(step, error), made_by)
        ready = [step for step in steps if step.key not in refused]

        way = OnTheWay(store.writer, commit_seconds(), held.intact)
        for done in measured(opened, twin, ready, plan.study.seed, writers, held, _given(plan, store), way):
            if isinstance(done, Measured):
                if isinstance(done.result, Failure) and _is_another_next_time(done.step):
                    drop_progress(store.path, done.step.key)
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


def _is_another_next_time(step: Step) -> bool:
    """Whether the code of a step that failed may have been changed when it runs again, with no version to tell."""
    return step.use.analysis.descriptor.shape == "weights" and is_outside(step.use.analysis.owner)


def _finished(
    plan: Plan, done: Measured, writer: PartWriter | None, watch: Stopwatch, proof: Mapping[str, float] | None
) -> Finished:
    if isinstance(done.result, Failure) and writer is not None:
        writer.abandon()
        writer = None
    return Finished(done.step, done.result, _made_by(plan, done.step, watch, done.sharing, proof), writer)


def _read_and_computed(plan: Plan, step: Step, store: Store) -> xr.Dataset | Failure:
    """A derived step or a comparison, from results in the store."""
    reason = lost(step.inputs, plan.by_ref, store)
    if reason is not None:
        return Failure(step, _InputFailed(reason))
    inputs = {ref: plan.by_ref[ref] for ref in step.inputs}
    try:
        results = {ref: store.read(read.folder, read.key) for ref, read in inputs.items()}
        return _compared(step, results) if step.against else _derived(plan, step, results)
    except Exception as error:
        return Failure(step, error)


def _derived(plan: Plan, step: Step, results: dict[StepRef, xr.Dataset]) -> xr.Dataset:
    seed = step_seed(step, plan.study.seed)
    guard = Guard.of(step.use.analysis.owner, seed, step.use.limit)
    if guard.outside:
        results = {ref: found.copy(deep=True) for ref, found in results.items()}
    context = Context(step.info, seed, inputs=results).at(step.ref, step.use.analysis.descriptor.knows)
    analysis = analysis_of(step.use, lent_context(context) if guard.outside else context, guard)
    return taken(guard, lambda: labelled(analysis.compute(results), step.info))


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
        "analysis": step.folder,
        "version": step.use.analysis.descriptor.version,
        "plugin": owner.plugin,
        "plugin_version": owner.version,
        "provenance": of_step(plan, step, watch, sharing, proof if step.reads else None),
    }


class _InputFailed(GausslensError):
    """What a step reads was not computed."""
