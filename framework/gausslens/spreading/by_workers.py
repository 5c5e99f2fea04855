"""Tasks computed by the workers of a Dask cluster: keys go out, keys come back, and what is lost is tried again.

The process that leads holds the claims, draws the bar and announces steps. A submission is tried once: where its worker
died its steps are tried one by one, so that the one that kills is told apart from those beside it.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..contract.errors import GausslensError
from ..runs.outcome import Began, Failure, Noted, Progress, Said, Settled, in_words
from . import in_worker

if TYPE_CHECKING:
    from .here import Event, Leading
    from .in_worker import Order, Row
    from .tasks import Task

# A step that killed its worker so often is reported, and not tried again.
DEATHS = 3
# Seconds that a submission of small tasks should take, how many it holds at most, and how many a worker is ahead.
SECONDS, MOST, AHEAD = 0.5, 64, 2
# Seconds without any worker after which a run ends.
NONE = 600
# Seconds after which a worker that died is replaced by us: Dask's nanny gives up on one that dies while it starts.
GRACE = 30


class SchedulerLost(GausslensError):
    """The scheduler of a cluster is gone, in the middle of a run."""


class Elsewhere(GausslensError):
    """What a step raised in a worker, in words."""


class _Stop(GausslensError):
    """An error that ends the run, from a worker."""


@dataclass
class Submission:
    """Tasks that were sent together, and the keys of each that are to be computed."""

    tasks: list[Task]
    keys: list[list[str]]
    future: Any = None
    began: float = field(default_factory=time.monotonic)


class Crew:
    """The workers of a cluster at the tasks of a run; ``client`` is Dask's, ``lost`` how a run ends without it.

    ``hire`` starts so many more workers, where they are ours.
    """

    def __init__(
        self, client: Any, leading: Leading, order: Order, lost: str, hire: Callable[[int], object] | None = None
    ) -> None:
        self.client, self.leading, self.order, self.lost, self.hire = client, leading, order, lost, hire
        self._wanted, self._complete = 0, time.monotonic()
        self.running: list[Submission] = []
        self.again: list[Submission] = []
        self.unsettled: dict[Task, set[str]] = {}
        self.deaths: Counter[str] = Counter()
        self.seconds: dict[bool, float] = {}
        self._workers, self._asked, self._seen = 1, 0.0, time.monotonic()
        self._name = f"gausslens-{secrets.token_hex(4)}"
        self._number = 0
        self._began: set[str] = set()

    def events(self) -> Iterator[Event]:
        """Compute all tasks."""
        self.leading.share_out(len(self._call(self.client.nthreads)))
        board = self.leading.board
        try:
            while board.left or self.running:
                yield from self._send()
                if not self.running:
                    yield from self.leading.waited()
                    continue
                for done in self._arrived():
                    self.running.remove(done)
                    yield from self._settled(done)
        finally:
            for submission in self.running:
                with suppress(Exception):
                    submission.future.cancel()

    def close(self) -> None:
        """Take away the marks of submissions; what still runs on a cluster finishes its steps."""
        with suppress(OSError):
            for path in self.leading.claims.directory.glob(f".{self._name}-*"):
                path.unlink(missing_ok=True)

    def _send(self) -> Iterator[Event]:
        """Keep every worker busy, and no more: what is not sent may be computed by another run."""
        self._count()
        while len(self.running) < AHEAD * self._workers:
            if self.again:
                self._submit(self.again.pop())
                continue
            batch = yield from self._batch()
            if batch is None:
                return
            new = [key for keys in batch.keys for key in keys if key not in self._began]
            self._began.update(new)
            yield from (Began(self.leading.steps[key]) for key in new)
            self._submit(batch)

    def _count(self) -> None:
        """How many workers there are now and then; a run without any for long ends, and does not wait for ever."""
        now = time.monotonic()
        if now - self._asked > 2:
            number = len(self._call(self.client.nthreads))
            self._workers, self._asked = max(1, number), now
            self._seen = now if number else self._seen
            self._wanted = max(self._wanted, number)
            self._complete = now if number == self._wanted else self._complete
            if self.hire is not None and now - self._complete > GRACE:
                self.hire(self._wanted - number)
                self._complete = now
            if now - self._seen > NONE:
                raise SchedulerLost(f"there were no workers for {NONE} seconds: {self.lost.partition(': ')[2]}")

    def _batch(self) -> Generator[Event, None, Submission | None]:
        """The next tasks to send, as many as take a moment together; None where none is ours to compute."""
        board, batch, size = self.leading.board, Submission([], []), 1
        while len(batch.tasks) < size and (task := board.take()) is not None:
            if batch.tasks and task.reads != batch.tasks[0].reads:
                board.back(task)
                break
            steps = yield from self.leading.claimed(task)
            if steps is not None:
                batch.tasks.append(task)
                batch.keys.append([step.key for step in steps])
                self.unsettled[task] = set(batch.keys[-1])
                each = self.seconds.get(task.reads)
                fair = 1 + board.ready // (AHEAD * self._workers)
                size = 1 if each is None else max(1, min(int(SECONDS / max(each, 1e-4)), MOST, fair))
        return batch if batch.tasks else None

    def _submit(self, submission: Submission) -> None:
        self._number += 1
        name = f"{self._name}-{self._number}"
        asked = [(keys, task.of, task.numbers) for task, keys in zip(submission.tasks, submission.keys, strict=True)]
        submission.began = time.monotonic()
        submission.future = self._call(
            self.client.submit, in_worker.compute, self.order, asked, f".{name}", key=name, pure=False
        )
        self.running.append(submission)

    def _arrived(self) -> list[Submission]:
        """Those that are done, once any is."""
        from distributed import wait

        while True:
            self._count()
            with suppress(TimeoutError), self.client.as_current():
                self._call(wait, [s.future for s in self.running], timeout=1, return_when="FIRST_COMPLETED")
            done = [s for s in self.running if s.future.status in ("finished", "error")]
            if self.client.status != "running" or any(s.future.status in ("cancelled", "lost") for s in self.running):
                raise SchedulerLost(self.lost)
            if done:
                return done

    def _call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        """Call something of Dask's; where its scheduler is gone that is said."""
        try:
            return function(*arguments, **named)
        except TimeoutError:
            raise
        except Exception as error:
            gone = type(error).__name__ in ("CancelledError", "FutureCancelledError", "CommClosedError")
            if self.client.status == "running" and not gone:
                raise
            raise SchedulerLost(self.lost) from error

    def _settled(self, done: Submission) -> Iterator[Event]:
        took = (time.monotonic() - done.began) / len(done.tasks)
        if done.future.status == "error":
            error = done.future.exception()
            if type(error).__name__ != "KilledWorker":
                raise error
            rows: Sequence[Row] = [("died",)]
        else:
            rows = done.future.result()
        # Or Dask computes it again where the worker that holds the answer dies. Its mark stays, for the same reason.
        done.future.release()
        if ("died",) in rows:
            yield from self._mourned(done)
            return
        before = self.seconds.get(done.tasks[0].reads, took)
        self.seconds[done.tasks[0].reads] = min(took, (before + took) / 2)
        for what, *told in rows:
            if what == "note":
                yield Noted(told[0])
            elif what == "stop":
                stop = _Stop(told[0])
                stop.code = told[1]
                raise stop
            elif what == "shared":
                key, *share = told
                task = next(t for t in done.tasks if key in t.keys and [t.of, t.numbers] == share)
                yield from self._without(task, key)
            else:
                yield from self._one(told[0], self._result(what, *told))

    def _result(self, what: str, key: str, text: str = "", layer: int | None = None, trace: str = "") -> Settled:
        step = self.leading.steps[key]
        if what != "failed":
            return Settled(step, computed=what == "computed")
        error = Elsewhere(text)
        error.add_note(trace)
        return Settled(step, Failure(step, error, layer), computed=False)

    def _one(self, key: str, settled: Settled) -> Iterator[Event]:
        """A step is done: its claim is let go of, and its task when it was the last."""
        self.leading.claims.release([key])
        yield settled
        task = next((task for task, keys in self.unsettled.items() if key in keys and not task.numbers), None)
        if task is not None:
            yield from self._without(task, key)

    def _without(self, task: Task, key: str) -> Iterator[Event]:
        """A step of a task, or the share of one, is done; the task itself when it was the last."""
        self.unsettled[task].discard(key)
        if not self.unsettled[task]:
            del self.unsettled[task]
            self.leading.board.settle(task)
            yield Progress(self.leading.steps[key].ref.label, task.units)

    def _mourned(self, done: Submission) -> Iterator[Event]:
        """The worker of a submission died: what it had finished stays, the rest is tried one by one, or given up."""
        lacking = 0
        for task, keys in zip(done.tasks, done.keys, strict=True):
            for key in keys:
                step = self.leading.steps[key]
                if self.leading.store.has(step.folder, key) and not task.numbers:
                    yield from self._one(key, Settled(step))
                    continue
                share = f"{key} {task.settles[0]}" if task.numbers else key
                self.deaths[share] += 1
                if self.deaths[share] >= DEATHS:
                    yield from self._given_up(task, key)
                else:
                    lacking += 1
                    self.again.append(Submission([task], [[key]]))
        if lacking:
            first = in_words(self.leading.steps[self.again[-1].keys[0][0]].ref)
            more = f" and {lacking - 1} more are" if lacking > 1 else " is"
            yield Said(f"a worker died: {first}{more} tried again, one by one")

    def _given_up(self, task: Task, key: str) -> Iterator[Event]:
        """A step that kills its workers fails; its other shares are not computed, and it is not put together."""
        step = self.leading.steps[key]
        what = f"its worker died {DEATHS} times while computing it: out of memory, or killed"
        failed = Settled(step, Failure(step, Elsewhere(what)), computed=False)
        if task.numbers:
            if key not in self.leading.given_up:
                self.leading.given_up.add(key)
                self.leading.claims.release([key])
                yield failed
            yield from self._without(task, key)
        else:
            yield from self._one(key, failed)
