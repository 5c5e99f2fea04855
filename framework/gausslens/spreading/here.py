"""Tasks computed in this process, one after another, beside other runs that may compute some of them: each once."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from ..guard import is_outside, numpy_on_one_thread, settled
from ..measuring.execute import Execution
from ..measuring.twin import units
from ..runs.outcome import Began, Failure, Finished, Noted, Progress, Said, Settled, in_words, twin_in_words
from .shares import cut, share_seconds
from .tasks import Board, Part, Task, cost, reading, tasks_of

if TYPE_CHECKING:
    from ..runs.steps import Plan, Step
    from ..store import Store
    from ..store.disk import Claims, Holder

# What a run tells whoever leads it: announcements, progress, and what became of each step.
Event: TypeAlias = "Began | Progress | Noted | Said | Settled"
# Seconds between two looks at what others compute.
SOONEST, LATEST = 0.1, 2.0


def computed_here(leading: Leading) -> Iterator[Event]:
    """Compute the tasks of a run in this process.

    Steps that another run has claimed are left to it, and come last: what it gives up is computed then.
    """
    execution = Execution(leading.plan, leading.store, leading.todo)
    try:
        with numpy_on_one_thread():
            while leading.board.left:
                task = leading.board.take()
                if task is None:
                    yield from leading.waited()
                    continue
                claimed = yield from leading.claimed(task)
                if claimed is not None:
                    for event in computed(execution, claimed, leading.claims):
                        yield leading.weighed(task, event) if isinstance(event, Progress) else event
                    leading.board.settle(task)
    finally:
        execution.close()


def computed(execution: Execution, steps: Sequence[Step], claims: Claims | None = None) -> Iterator[Event]:
    """Compute steps of a task, commit each, and let go of the claim on it."""
    for event in execution.compute(steps) if steps else ():
        if not isinstance(event, Finished):
            yield event
            continue
        failure, first = committed(event, execution.store)
        if claims is not None:
            claims.release([event.step.key])
        yield Settled(event.step, failure, first)
        if not event.step.inputs:
            yield from _left_out(event)


def committed(done: Finished, store: Store) -> tuple[Failure | None, bool]:
    """Commit: why it failed, and whether it is ours; another may have been first.

    A result that cannot be written fails its step, a store that cannot be written fails the run.
    """
    if isinstance(done.result, Failure):
        return done.result, False
    step = done.step
    try:
        if done.writer is not None:
            return None, done.writer.commit(done.result)
        return None, store.commit(step.folder, step.key, done.result, done.made_by)
    except (TypeError, ValueError) as error:
        return Failure(step, error), False
    except BaseException as stopped:  # text that is a class of a plugin's own, and ends the program when it is read
        if isinstance(stopped, Exception) or not is_outside(step.use.analysis.owner):
            raise
        return Failure(step, settled(stopped)), False


def _left_out(done: Finished) -> Iterator[Noted]:
    told = {} if isinstance(done.result, Failure) else done.result.attrs
    for attribute, words in (("skipped_layers", "skips"), ("no_errors", "has no errors over prompts of")):
        if attribute in told:
            yield Noted(f"{done.step.ref.label} {words} {told[attribute]}")


class Leading:
    """The tasks of a run, which of them are ready, and which others compute: for whoever hands them out."""

    def __init__(
        self, plan: Plan, todo: Sequence[Step], store: Store, claims: Claims, part: Part | None = None
    ) -> None:
        self.plan, self.todo, self.store, self.claims = plan, todo, store, claims
        self.steps = {step.key: step for step in todo}
        self.tasks = tasks_of(plan, todo)
        self.left: list[Step] = []
        if part is not None:
            self.tasks = self._share(self.tasks, part.of_plan(plan))
        self.estimates = self._estimates()
        self.board = Board(self.tasks)
        self.workers = 1
        self.given_up: set[str] = set()  # steps that failed in a share
        self._held: set[str] = set()  # steps of which shares are computed: claimed already
        self._holders: dict[str, Holder] = {}
        self._told: set[tuple[str, int]] = set()
        self._pause = SOONEST

    def _share(self, tasks: Sequence[Task], own: frozenset[str]) -> list[Task]:
        """The tasks of a part, without those that wait for what is not of it: these are ``left``, with all others."""
        kept: list[Task] = []
        there: set[str] = set()
        for task in tasks:
            if own.issuperset(task.keys) and there.issuperset(task.waits_for):
                kept.append(task)
                there.update(task.keys)
            else:
                self.left += [self.steps[key] for key in task.keys]
        return kept

    def _estimates(self) -> dict[Task, float]:
        """Seconds of each task on an imagined machine: of a share its part, and of putting shares together none."""
        shared = {key for task in self.tasks if task.numbers for key in task.keys}
        found: dict[Task, float] = {}
        for task in self.tasks:
            steps = [self.steps[key] for key in task.keys]
            if task.reads:
                found[task] = sum(reading(step, self.plan) for step in steps)
            elif task.numbers:
                found[task] = cost(steps) * task.units / max(units(steps, steps[0].info), 1)
            else:
                found[task] = 0.0 if shared.issuperset(task.keys) else cost(steps)
        return found

    def estimated(self) -> dict[str, float]:
        """Estimated seconds of all tasks, by their kind."""
        found: dict[str, float] = {}
        for task, seconds in self.estimates.items():
            kind = self._kind(task)
            found[kind] = found.get(kind, 0.0) + seconds
        return found

    def _kind(self, task: Task) -> str:
        """What it does, as far as estimates of its time are alike: how long an edit draws weights nobody estimates."""
        return "results" if task.reads else f"twins of {self.steps[task.keys[0]].ref.variant}"

    def weighed(self, task: Task, event: Progress) -> Progress:
        """Progress with a task, with its part of what the task was estimated to take."""
        text = event.text if task.reads else f"{twin_in_words(self.steps[task.keys[0]].ref)}: {event.text}"
        estimate = self.estimates[task] * event.units / max(task.units, 1)
        return replace(event, text=text, estimate=estimate, kind=self._kind(task))

    def share_out(self, there: int) -> None:
        """Cut what is large, before any task is taken, for the workers that are asked for or there."""
        self.tasks = cut(self.tasks, self.steps, max(there, self.workers), share_seconds())
        self.board = Board(self.tasks)
        self.estimates = self._estimates()

    def claimed(self, task: Task) -> Generator[Event, None, list[Step] | None]:
        """The steps of a task that are ours to compute now; None where another computes any, or all are there."""
        lacking = [key for key in task.keys if key not in self.given_up and not self._has(key)]
        new = [key for key in lacking if key not in self._held]
        holder = self.claims.take(new) if new else None
        if holder is not None:
            self._holders[task.keys[0]] = holder
            self.board.put_off(task)
            return None
        self._holders.pop(task.keys[0], None)
        # Who finishes a step commits it and then lets go of it: it may have come since.
        ours = [key for key in lacking if not self._has(key)]
        self.claims.release(set(lacking) - set(ours))
        if task.numbers:
            self._held.update(ours)
        else:
            there = (key for key in task.keys if key not in ours and key not in self.given_up)
            yield from (Settled(self.steps[key], computed=False) for key in there)
        if len(ours) < len(task.keys):
            self._pause = SOONEST
        if not ours:
            yield self.weighed(task, Progress("found", task.units, found=True))
            self.board.settle(task)
            return None
        return [self.steps[key] for key in ours]

    def waited(self) -> Iterator[Event]:
        """Wait for others a moment, and say for whom, once; then look at what they had again."""
        told = {(holder.host, holder.pid): holder for holder in self._holders.values()}
        new = [holder for whose, holder in told.items() if whose not in self._told]
        if new:
            self._told |= told.keys()
            steps = [step for key, step in self.steps.items() if key in self._holders]
            more = f" and {len(steps) - 1} more" if len(steps) > 1 else ""
            names = ", ".join(map(str, new[:3])) + (f" and {len(new) - 3} more" if len(new) > 3 else "")
            yield Said(f"waiting for what {names} is computing: {in_words(steps[0].ref)}{more}")
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, LATEST)
        self.board.again()

    def _has(self, key: str) -> bool:
        return self.store.has(self.steps[key].folder, key)
