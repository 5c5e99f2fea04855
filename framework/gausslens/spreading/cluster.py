"""Dask clusters: one of processes on this machine for as long as a run lasts, or one that is there already."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contract.errors import InputError
from ..guard import asked_threads
from ..runs.outcome import Said
from ..runs.resources import needs
from ..terminal import size
from . import gpus, in_worker
from .by_workers import Crew
from .tasks import NOMINAL
from .worker_processes import WorkerProcesses

if TYPE_CHECKING:
    from ..runs.steps import Plan
    from .here import Event, Leading
    from .in_worker import Order

# What numerical libraries read once, when they are imported.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Seconds until a scheduler must have answered.
PATIENCE = 10
_GOES_ON = "what was finished is in the store, and the same command goes on from there"


@dataclass(frozen=True)
class Workers:
    """So many processes of this machine, or those of the scheduler at an address."""

    number: int = 0
    address: str | None = None

    @classmethod
    def asked(cls, number: int | None, address: str | os.PathLike[str] | None) -> Workers | None:
        """What the options say; None where this process is to compute."""
        if number is not None and address is not None:
            raise InputError("workers and a scheduler were both asked for: a scheduler has its own workers, give one")
        if number is None and address is None:
            return None
        return cls(number or 0, None if address is None else os.fspath(address))

    def check(self) -> None:
        """Refuse what cannot be, before anything is read."""
        if self.address is None and self.number < 1:
            raise InputError(f"{self.number} workers: give at least 1; without it one process computes everything")
        try:
            import distributed  # noqa: F401
        except ImportError:
            raise InputError(
                "workers need Dask, which is not installed: pip install 'gausslens[cluster]', or distributed; "
                "`--part k/n` shares a run out without it"
            ) from None


def computed_by_workers(leading: Leading, order: Order, workers: Workers) -> Iterator[Event]:
    """Compute the tasks of a run by workers."""
    if not leading.board.left:
        return
    import dask

    leading.workers = workers.number
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(in_worker.QUIET))
        client, told, processes = stack.enter_context(_connected(workers, leading.plan))
        yield Said(told)
        crew = Crew(client, leading, order, f"the Dask scheduler is gone: {_GOES_ON}", processes)
        stack.callback(crew.close)
        if processes is None and not client.nthreads():
            yield Said(f"the scheduler at {workers.address} has no workers yet: waiting for the first")
        crew.check()
        try:
            yield from crew.events()
        finally:
            if workers.address is not None:
                with suppress(Exception):
                    client.run(in_worker.forget, wait=False)


@contextmanager
def _connected(workers: Workers, plan: Plan) -> Iterator[tuple[Any, str, WorkerProcesses | None]]:
    """Dask's client, what is to be told of the cluster, and its processes where they are ours."""
    from distributed import Client

    in_worker.silence_dask()
    if workers.address is None:
        with _local(workers.number, gpus.cards(plan)) as (cluster, told, processes):
            client = Client(cluster, set_as_default=False)
            try:
                yield client, told + gpus.told(workers.number, plan) + _memory_note(plan, workers.number), processes
            finally:
                _close(client)
        return
    try:
        told_by_file = Path(workers.address).is_file()
        where = {"scheduler_file": workers.address} if told_by_file else {"address": workers.address}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # versions are compared by us
            client = Client(**where, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError, ImportError) as error:
        why = str(error).split("\n")[0] or type(error).__name__
        raise InputError(f"no Dask scheduler answers at {workers.address}, as tcp://host:8786: {why}") from None
    try:
        count = len(client.nthreads())
        yield client, f"{count} worker{'s' if count != 1 else ''} of the scheduler at {workers.address}", None
    finally:
        _close(client)


def _close(client: Any) -> None:
    with suppress(Exception):
        client.close(timeout=2)


def threads_each(workers: int) -> int:
    """The threads of a worker: as OMP_NUM_THREADS says, else the processors shared out."""
    return asked_threads() or max(1, len(os.sched_getaffinity(0)) // workers)


@contextmanager
def _local(number: int, cards: Sequence[str] = ()) -> Iterator[tuple[Any, str, WorkerProcesses]]:
    """A scheduler in this process and so many workers; they end with this process, however it ends."""
    import dask
    from distributed import LocalCluster
    from distributed.system import MEMORY_LIMIT

    threads, memory = threads_each(number), int(MEMORY_LIMIT * 0.95) // number
    environment = {**dict.fromkeys(THREADS, str(threads)), "MALLOC_TRIM_THRESHOLD_": "65536"}
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="gausslens-", ignore_cleanup_errors=True))
        with dask.config.set({"distributed.scheduler.allowed-failures": 3}), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cluster = LocalCluster(
                n_workers=0,
                processes=True,
                host="127.0.0.1",
                dashboard_address=None,
                silence_logs=logging.CRITICAL,
            )
        stack.callback(_end, cluster)
        # Weights are no data of Dask's, which must neither pause a worker that holds a model, nor look at its memory.
        most, place = int(memory * 0.95), Path(scratch)
        processes = WorkerProcesses(number, cluster.scheduler_address, place, environment, most, cards)
        stack.callback(processes.close)
        several = f"{number} workers, each with" if number > 1 else "1 worker with"
        told = f"{several} {threads} thread{'s' if threads > 1 else ''} and {size(memory)} of memory"
        yield cluster, told, processes


def _end(cluster: Any) -> None:
    with suppress(Exception):
        cluster.close(timeout=5)


def _memory_note(plan: Plan, number: int) -> str:
    """What the plan estimates for a twin, where it is more than a worker has."""
    from distributed.system import MEMORY_LIMIT

    most, seen = 0, set()
    for step in plan.steps:
        what = (step.ref.label, step.ref.variant)
        if what not in seen and step.opened is not None and not step.inputs:
            seen.add(what)
            with suppress(Exception):
                most = max(most, 2 * step.info.weight_bytes + needs(step, step.info, NOMINAL).memory)
    if most <= MEMORY_LIMIT * 0.9 / number:
        return ""
    return f"; a twin may need {size(most)}, by the plan: take fewer workers if they die"
