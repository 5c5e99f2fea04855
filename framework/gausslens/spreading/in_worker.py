"""What a worker process does: it plans the run file again, compares, and computes the keys that it is sent.

Keys come in, keys go out: results are written to the store by the process that computed them, and models are opened
here. All that travels is plain data.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import chdir, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ..contract.errors import GausslensError, InputError
from ..guard import Stopped, numpy_on_one_thread, unshown, watched_interrupts
from ..measuring.execute import Execution, not_in_store
from ..runs.outcome import Noted, Settled
from ..runs.provenance import distributions
from ..store.layout import CLAIMS
from .here import computed
from .prepare import RunFile, prepare

if TYPE_CHECKING:
    from ..measuring.pieces import Kind
    from ..plugins import Host
    from ..runs.steps import Plan, Step
    from ..store import Store
    from ..store.disk import Claims

# A row of what comes back: what it is about, and what is told.
Row = tuple[Any, ...]
# Seconds that a worker whose run is over has to clean up; between two signs of life to the scheduler, which misses
# them after 300, and sees a process that ended at once.
LINGER, BEAT = 3, 15
# So many seconds of the clock are worth one of a processor: on a busy machine much of the clock is waiting.
BUSY = 10
# What Dask measures of itself many times a second, whether there is work or not: 35 ms of processors in each second.
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.system-monitor.interval": "60s",
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.tick.cycle": "60s",
    "distributed.client.scheduler-info-interval": "60s",
    "distributed.scheduler.active-memory-manager.start": False,
    # It takes the size of each message by a sample, with Python's global generator, which a plugin may be at.
    "distributed.comm.offload": False,
}


@dataclass(frozen=True)
class Order:
    """What a process must know to compute steps of a plan, and what must be the same there."""

    source: Any
    directory: str
    sets: tuple[str, ...]
    without: tuple[str, ...]
    store: str
    card: str
    plan: str
    versions: Mapping[str, str]
    plugins: Mapping[str, str]
    fingerprints: Mapping[str, str]

    @classmethod
    def of(cls, source: RunFile, sets: Sequence[str], host: Host, plan: Plan, claims: Claims) -> Order:
        """That of a plan, of which this process holds claims in the store: a worker that sees them sees the store."""
        claims.enter()
        plain = dict(source) if isinstance(source, Mapping) else str(Path(source).absolute())
        return cls(
            plain,
            str(Path.cwd()),
            tuple(sets),
            host.left_out,
            str(claims.root),
            claims.card.name,
            plan.digest,
            _versions(),
            _plugins(host),
            _fingerprints(plan),
        )


class NotTheSame(InputError):
    """A worker would compute something else than what was asked for."""


class Session:
    """A plan in this process, with its models, for as long as tasks of it come."""

    def __init__(self, order: Order) -> None:
        from ..store import Store

        _check_place(order)
        _check_same(order.versions, _versions(), "versions differ")
        with chdir(order.directory):
            from .. import plugins

            left_out = [name for name in order.without if name in _installed()]
            host = plugins.load(without=left_out)
            _check_same(order.plugins, _plugins(host), "plugins differ")
            _, _, self.models, self.plan = prepare(order.source, order.sets, host=host)
        try:
            _check_same(order.fingerprints, _fingerprints(self.plan), "models differ")
            if self.plan.digest != order.plan:
                raise NotTheSame("the run file plans other steps here: was it, or a file that it names, changed?")
        except BaseException:
            self.models.close()
            raise
        self.store: Store = Store(order.store)
        todo, _ = not_in_store(self.plan, self.store)
        self.steps: dict[str, Step] = {}
        for step in self.plan.steps:
            self.steps.setdefault(step.key, step)
        self.execution = Execution(self.plan, self.store, todo)

    def close(self) -> None:
        """Let go of the models."""
        self.execution.close()
        self.models.close()

    def compute(self, keys: Sequence[str], of: Kind = "layer", numbers: tuple[int, ...] = ()) -> Iterator[Row]:
        """Compute the steps of these keys that are not in the store, or a share of each; what became of them."""
        steps = [self.steps[key] for key in keys]
        lacking = [step for step in steps if not self.store.has(step.folder, step.key)]
        if numbers:
            told = self.execution.share(lacking, of, numbers) if lacking else ()
            yield from (("note", event.text) for event in told)
            yield from (("shared", key, of, numbers) for key in keys)
            return
        yield from (("found", step.key) for step in steps if step not in lacking)
        for event in computed(self.execution, lacking):
            if isinstance(event, Noted):
                yield "note", event.text
            elif isinstance(event, Settled):
                yield _row(event)


_alone = threading.Lock()
_open: list[tuple[Order, Session]] = []


def opened(order: Order) -> tuple[str, str]:
    """Plan here, and compare: where this is, and why it cannot compute what is asked for, or nothing."""
    with _alone:
        try:
            _session(order)
        except GausslensError as error:
            return _place(), str(error)
        return _place(), ""


def compute(order: Order, tasks: Sequence[tuple[list[str], Kind, tuple[int, ...]]], mark: str) -> list[Row]:
    """Compute tasks, or shares of such, one after another: what became of each, and how many seconds all took.

    These are seconds of the processor, and a tenth of the clock's where that is more. ``mark`` names this attempt:
    one that was begun before killed its worker.
    """
    with _alone:
        try:
            os.close(os.open(Path(order.store) / CLAIMS / mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
        except FileExistsError:
            return [("died",)]
        try:
            session, began, busy = _session(order), time.monotonic(), time.process_time()
            with numpy_on_one_thread():
                rows = [row for task in tasks for row in session.compute(*task)]
            took = max(time.process_time() - busy, (time.monotonic() - began) / BUSY)
            return [*rows, *(("note", text) for text in unshown()), ("took", took)]
        except GausslensError as error:  # it ends the run, as it would have ended it in one process
            return [("stop", f"{_place()}: {error}", error.code)]


class MainThread(Executor):
    """Calls what it is given in the main thread, where a limit of time can interrupt Python code."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Call it later."""
        future: Future[Any] = Future()
        self._calls.put((future, partial(function, *arguments, **named)))
        return future

    def shutdown(self, *_: Any, **__: Any) -> None:
        """Nothing more comes."""
        self._calls.put(None)

    def run(self) -> None:
        """Make the calls, until nothing more comes."""
        while (call := self._calls.get()) is not None:
            future, function = call
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except Exception as error:
                    future.set_exception(error)


def serve(told: Mapping[str, Any]) -> None:
    """Be a worker of the scheduler at ``address`` until it is gone, or until standard input is closed.

    Ctrl-C is for the process that leads, which ends its workers; when that is gone, however it ended, so are they.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lifeline = os.dup(0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    work = MainThread()

    def watch() -> None:
        os.read(lifeline, 1)
        work.shutdown()
        time.sleep(LINGER)  # for what is to be cleaned up
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    threading.Thread(target=lambda: asyncio.run(_answer(told, work)), daemon=True).start()
    with watched_interrupts():
        work.run()
    forget()


def silence_dask() -> None:
    """Deaths are told in our own words: Dask's loggers, several of which have a level of their own, say nothing."""
    for name in ["distributed", *logging.root.manager.loggerDict]:
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)


async def _answer(told: Mapping[str, Any], work: MainThread) -> None:
    import dask

    place = {"host": "127.0.0.1", "local_directory": told["scratch"], "name": told["name"]}
    try:
        with dask.config.set(QUIET):
            from distributed import Worker  # which reads some of it once

            silence_dask()
            worker = Worker(told["address"], nthreads=1, memory_limit=0, executor=work, death_timeout=60, **place)
            async with worker:
                Path(told["there"]).touch()
                worker.periodic_callbacks["heartbeat"].stop()
                beating = asyncio.create_task(_beat(worker))
                await worker.finished()
                beating.cancel()
    finally:
        work.shutdown()


async def _beat(worker: Any) -> None:
    """Give signs of life, less often than twice a second, which is Dask's own measure."""
    while True:
        await asyncio.sleep(BEAT)
        await worker.heartbeat()


def forget() -> None:
    """The run is over: models are let go of."""
    with _alone:
        _close()


def _close() -> None:
    while _open:
        with suppress(Exception):
            _open.pop()[1].close()


def _session(order: Order) -> Session:
    if not _open or _open[0][0] != order:
        _close()
        _open.append((order, Session(order)))
    return _open[0][1]


def _row(event: Settled) -> Row:
    failure = event.failure
    if failure is None:
        return ("computed" if event.computed else "found"), event.step.key
    error = failure.error
    plain = isinstance(error, GausslensError | Stopped)
    text = str(error) if plain else f"{type(error).__name__}: {error}"
    return "failed", event.step.key, text, failure.layer, "".join(traceback.format_exception(error))


def _place() -> str:
    return f"process {os.getpid()} on {platform.node()}"


def _check_place(order: Order) -> None:
    card = Path(order.store) / CLAIMS / order.card
    if not card.is_file():
        raise NotTheSame(f"{order.store} is not the store of the run here: is its directory mounted, at the same path?")
    if isinstance(order.source, str) and not Path(order.source).is_file():
        raise NotTheSame(f"there is no {order.source} here: is its directory mounted, at the same path?")
    if not Path(order.directory).is_dir():
        raise NotTheSame(f"there is no directory {order.directory} here: paths of the run begin there")


def _check_same(asked: Mapping[str, str], found: Mapping[str, str], what: str) -> None:
    differ = [name for name in {**asked, **found} if asked.get(name) != found.get(name)]
    if differ:
        lacking = "not there"
        told = [
            f"{name} is {found.get(name, lacking)[:40]}, and {asked.get(name, lacking)[:40]} where the run was started"
            for name in differ[:5]
        ]
        more = f" and {len(differ) - 5} more" if len(differ) > 5 else ""
        raise NotTheSame(f"{what}: {', '.join(told)}{more}; make them the same, or the results would differ")


def _versions() -> dict[str, str]:
    return {"python": ".".join(platform.python_version_tuple()[:2]), **distributions()}


def _plugins(host: Host) -> dict[str, str]:
    return {f"plugin {p.plugin}": f"{p.distribution} {p.version}".strip() for p in host.plugins}


def _fingerprints(plan: Plan) -> dict[str, str]:
    return {opened.call.path: str(opened.model.info.fingerprint) for opened in plan.models if not opened.is_difference}


def _installed() -> set[str]:
    from ..plugins.discover import candidates

    return {each.plugin for each in candidates()[0]}
