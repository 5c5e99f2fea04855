"""Tasks computed by the workers of a Dask cluster: keys go out, keys come back, and what is lost is tried again.

The process that leads holds the claims, draws the bar and announces steps. A submission is tried once: where its worker
died its steps are tried one by one, so that the one that kills is told apart from those beside it.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..contract.errors import GausslensError, InputError
from ..runs.outcome import Began, Failure, Noted, Progress, Said, Settled, in_words
from . import in_worker

if TYPE_CHECKING:
    from .here import Event, Leading
    from .in_worker import Order, Row
    from .tasks import Task
    from .worker_processes import WorkerProcesses

# A step that killed its worker so often is reported, and not tried again.
DEATHS = 3
# Seconds that a submission of small tasks should take, how many it holds at most, and how many a worker is ahead.
SECONDS, MOST, AHEAD = 1.0, 64, 2
# Seconds without any worker after which a run ends.
NONE = 600


class SchedulerLost(GausslensError):
    """The scheduler of a cluster is gone, in the middle of a run."""


class WorkersLost(GausslensError):
    """There are no workers, and none can be had."""


class Elsewhere(GausslensError):
    """What a step raised in a worker, in words."""


class _Stop(GausslensError):
    """An error that ends the run, from a worker."""


@dataclass
class Submission:
    """Tasks that were sent together, the keys of each that are to be computed, and their seconds by the plan."""

    tasks: list[Task]
    keys: list[list[str]]
    estimate: float = 0.0
    future: Any = None


class Crew:
    """The workers of a cluster at the tasks of a run; ``client`` is Dask's, ``lost`` how a run ends without it.

    ``processes`` are those of the workers, where they are ours.
    """

    def __init__(
        self, client: Any, leading: Leading, order: Order, lost: str, processes: WorkerProcesses | None = None
    ) -> None:
        self.client, self.leading, self.order, self.lost, self.processes = client, leading, order, lost, processes
        self.running: list[Submission] = []
        self.again: list[Submission] = []
        self.unsettled: dict[Task, set[str]] = {}
        self.deaths: Counter[str] = Counter()
        self.task_of: dict[str, Task] = {}  # of each step that is sent, but of shares
        self.rates: dict[bool, float] = {}  # seconds that a worker takes for one that the plan estimates
        self._there: list[str] = []
        # When any worker was seen: those of a cluster may still stand in a queue, ours may not.
        self._asked, self._seen = 0.0, None if processes is None else time.monotonic()
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
        self._look()
        while len(self.running) < AHEAD * max(1, len(self._there)):
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

    def check(self) -> None:
        """Every worker that is there plans the run file again and compares, before any of them computes."""
        asked: dict[str, Any] = {}
        died = 0
        while not asked or any(future.status == "pending" for future in asked.values()):
            self._look(0.2)
            for gone in asked.keys() - set(self._there):  # it died; one in its place has another address
                asked.pop(gone).cancel()
                died += 1
            if died > 5 * len(self._there) + 5:
                raise WorkersLost(f"{died} workers died one after another while they opened the models of this run")
            for address in set(self._there) - asked.keys():
                only: dict[str, Any] = {"workers": [address], "allow_other_workers": False, "pure": False}
                asked[address] = self._call(self.client.submit, in_worker.opened, self.order, **only)
            self._wait(list(asked.values()), 0.2)
        answers = [self._opened(future) for future in asked.values()]
        wrong = [f"  {place}: {refused}" for place, refused in answers if refused]
        if wrong:
            more = [f"  and {len(wrong) - 5} more"] if len(wrong) > 5 else []
            head = f"{len(wrong)} of {len(asked)} workers cannot compute this run; nothing was computed:"
            raise InputError("\n".join([head, *wrong[:5], *more]))
        self._well()

    def _opened(self, future: Any) -> tuple[str, str]:
        """Where a worker is, and why it cannot compute what is asked for, or nothing."""
        if future.status == "error":
            error = future.exception()
            if isinstance(error, GausslensError):
                return "a worker", str(error)
            return "a worker", f"{type(error).__name__}: {error}; is gausslens installed there?"
        place, refused = self._answer(future)
        return place, refused

    def _look(self, every: float = 2.0) -> None:
        """Which workers there are now and then; a run without any for long ends, and does not wait for ever."""
        now = time.monotonic()
        if now - self._asked > every:
            self._there, self._asked = list(self._call(self.client.nthreads)), now
            self._seen = now if self._there else self._seen
        goes_on = self.lost.partition(": ")[2]
        if self.processes is not None and self.processes.trouble:
            raise WorkersLost(f"{self.processes.trouble}; {goes_on}")
        if self._seen is not None and now - self._seen > NONE:
            raise WorkersLost(f"there were no workers for {NONE} seconds: {goes_on}")

    def _well(self) -> None:
        if self.processes is not None:
            self.processes.well()

    def _batch(self) -> Generator[Event, None, Submission | None]:
        """The next tasks to send, as many as take a moment together; None where none is ours to compute."""
        board, batch = self.leading.board, Submission([], [])
        while (task := board.take()) is not None:
            if batch.tasks and not self._fits(task, batch):
                board.back(task)
                break
            steps = yield from self.leading.claimed(task)
            if steps is not None:
                batch.tasks.append(task)
                batch.keys.append([step.key for step in steps])
                self.unsettled[task] = set(batch.keys[-1])
                self.task_of |= dict.fromkeys(() if task.numbers else batch.keys[-1], task)
                batch.estimate += self.leading.estimates[task]
        return batch if batch.tasks else None

    def _fits(self, task: Task, batch: Submission) -> bool:
        """Whether a task may go with others: small ones that are alike, and no more than leaves all workers some."""
        rate = self.rates.get(task.reads)
        if rate is None or task.reads != batch.tasks[0].reads:
            return False
        fair = 1 + self.leading.board.ready // (AHEAD * max(1, len(self._there)))
        small = (batch.estimate + self.leading.estimates[task]) * rate <= SECONDS
        return small and len(batch.tasks) < min(MOST, fair)

    def _submit(self, submission: Submission) -> None:
        self._number += 1
        name = f"{self._name}-{self._number}"
        asked = [(keys, task.of, task.numbers) for task, keys in zip(submission.tasks, submission.keys, strict=True)]
        submission.future = self._call(
            self.client.submit, in_worker.compute, self.order, asked, f".{name}", key=name, pure=False
        )
        self.running.append(submission)

    def _arrived(self) -> list[Submission]:
        """Those that are done, once any is."""
        while True:
            self._look()
            self._wait([s.future for s in self.running], 1)
            done = [s for s in self.running if s.future.status in ("finished", "error")]
            if self.client.status != "running" or any(s.future.status in ("cancelled", "lost") for s in self.running):
                raise SchedulerLost(self.lost)
            if done:
                return done

    def _wait(self, futures: Sequence[Any], seconds: float) -> None:
        """Wait until one is done, for so long at most."""
        from distributed import wait

        if not futures:
            time.sleep(seconds)
            return
        with suppress(TimeoutError), self.client.as_current():
            self._call(wait, futures, timeout=seconds, return_when="FIRST_COMPLETED")

    def _answer(self, future: Any) -> Any:
        """What came of a submission; it is computed again where the worker that holds it died just now."""
        while True:
            with suppress(TimeoutError):
                return self._call(future.result, timeout=1)
            self._look()

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
        if done.future.status == "error":
            error = done.future.exception()
            if type(error).__name__ != "KilledWorker":
                raise error
            rows: Sequence[Row] = [("died",)]
        else:
            rows = self._answer(done.future)
        # Or Dask computes it again where the worker that holds the answer dies. Its mark stays, for the same reason.
        done.future.release()
        if ("died",) in rows:
            yield from self._mourned(done)
            return
        for what, *told in rows:
            if what == "note":
                yield Noted(told[0])
            elif what == "stop":
                stop = _Stop(told[0])
                stop.code = told[1]
                raise stop
            elif what == "took":
                self._learn(done, told[0])
            elif what == "shared":
                key, *share = told
                task = next(t for t in done.tasks if key in t.keys and [t.of, t.numbers] == share)
                yield from self._without(task, key)
            else:
                yield from self._one(told[0], self._result(what, *told))

    def _learn(self, done: Submission, seconds: float) -> None:
        """How long the worker took, without what stood before it in the queue: later ones are seldom slower."""
        if done.estimate:
            reads, rate = done.tasks[0].reads, seconds / done.estimate
            self.rates[reads] = min(rate, (self.rates.get(reads, rate) + rate) / 2)

    def _result(self, what: str, key: str, text: str = "", layer: int | None = None, trace: str = "") -> Settled:
        step = self.leading.steps[key]
        if what != "failed":
            return Settled(step, computed=what == "computed")
        error = Elsewhere(text)
        error.add_note(trace)
        return Settled(step, Failure(step, error, layer), computed=False)

    def _one(self, key: str, settled: Settled) -> Iterator[Event]:
        """A step is done: its claim is let go of, and its task when it was the last."""
        self._well()
        self.leading.claims.release([key])
        yield settled
        task = self.task_of.pop(key, None)
        if task is not None:
            yield from self._without(task, key)

    def _without(self, task: Task, key: str) -> Iterator[Event]:
        """A step of a task, or the share of one, is done; the task itself when it was the last."""
        self.unsettled[task].discard(key)
        if not self.unsettled[task]:
            del self.unsettled[task]
            self.leading.board.settle(task)
            yield self.leading.weighed(task, Progress(self.leading.steps[key].ref.label, task.units))

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
