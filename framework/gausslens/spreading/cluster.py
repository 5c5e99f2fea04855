"""Dask clusters: one of processes on this machine for as long as a run lasts, or one that is there already."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contract.errors import GausslensError, InputError
from ..runs.outcome import Said
from ..runs.resources import needs
from ..terminal import size
from . import gpus, in_worker
from .by_workers import Crew
from .tasks import NOMINAL

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

    def check(self) -> None:
        """Refuse what cannot be, before anything is read."""
        if self.address is None and self.number < 1:
            raise InputError(f"--workers {self.number}: give at least 1; without it one process computes everything")
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
    with ExitStack() as stack:
        client, told, hire = stack.enter_context(_connected(workers, leading.plan))
        yield Said(told)
        if not client.nthreads():
            yield Said(f"the scheduler at {workers.address} has no workers yet: waiting for the first")
            client.wait_for_workers(1)
        _check_workers(client, order)
        crew = Crew(client, leading, order, f"the Dask scheduler is gone: {_GOES_ON}", hire)
        stack.callback(crew.close)
        try:
            yield from crew.events()
        finally:
            if workers.address is not None:
                with suppress(Exception):
                    client.run(in_worker.forget, wait=False)


def _check_workers(client: Any, order: Order) -> None:
    """Every worker plans the run file again and compares, before any of them computes."""
    addresses = list(client.nthreads())
    asked = [
        client.submit(in_worker.opened, order, workers=[a], allow_other_workers=False, pure=False) for a in addresses
    ]
    wrong = []
    for future in asked:
        try:
            place, refused = future.result()
        except GausslensError as error:
            place, refused = "a worker", str(error)
        except Exception as error:
            place, refused = "a worker", f"{type(error).__name__}: {error}; is gausslens installed there?"
        if refused:
            wrong.append(f"  {place}: {refused}")
    if wrong:
        more = [f"  and {len(wrong) - 5} more"] if len(wrong) > 5 else []
        head = f"{len(wrong)} of {len(asked)} workers cannot compute this run; nothing was computed:"
        raise InputError("\n".join([head, *wrong[:5], *more]))


@contextmanager
def _connected(workers: Workers, plan: Plan) -> Iterator[tuple[Any, str, Callable[[int], object] | None]]:
    """Dask's client, what is to be told of the cluster, and what starts more workers of it."""
    from distributed import Client

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # deaths of workers are told in our own words
    if workers.address is None:
        with _local(workers.number, {gpus.SHARED: ",".join(gpus.cards(plan))}) as (cluster, told):
            client = Client(cluster, set_as_default=False)
            try:
                hire = partial(_hire, cluster)
                yield client, told + gpus.told(workers.number, plan) + _memory_note(plan, workers.number), hire
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


def _hire(cluster: Any, more: int) -> None:
    cluster.scale(len(cluster.worker_spec) + more)


def _close(client: Any) -> None:
    with suppress(Exception):
        client.close(timeout=2)


def threads_each(workers: int) -> int:
    """The threads of a worker: as OMP_NUM_THREADS says, else the processors shared out."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdigit() and int(told) else max(1, len(os.sched_getaffinity(0)) // workers)


@contextmanager
def _local(number: int, told_to_each: Mapping[str, str]) -> Iterator[tuple[Any, str]]:
    """A cluster of processes; they end with this one, however it ends."""
    import dask
    from distributed import LocalCluster
    from distributed.system import MEMORY_LIMIT

    threads, memory = threads_each(number), int(MEMORY_LIMIT * 0.95) // number
    before = {**dict.fromkeys(THREADS, str(threads)), "MALLOC_TRIM_THRESHOLD_": "65536", **told_to_each}
    before["DASK_LOGGING__DISTRIBUTED"] = "critical"
    settings = {
        "distributed.nanny.pre-spawn-environ": before,
        # Weights are no data of Dask's: it must not pause a worker that holds a model.
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.pause": False,
        "distributed.worker.memory.terminate": 0.95,
        "distributed.scheduler.allowed-failures": 3,
        "distributed.worker.preload": [in_worker.__name__],
        "distributed.admin.system-monitor.gil.enabled": False,
    }
    with tempfile.TemporaryDirectory(prefix="gausslens-", ignore_cleanup_errors=True) as scratch:
        with dask.config.set(settings), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cluster = LocalCluster(
                n_workers=number,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address=None,
                memory_limit=memory,
                local_directory=scratch,
                silence_logs=logging.CRITICAL,
            )
        several = f"{number} workers, each with" if number > 1 else "1 worker with"
        try:
            yield cluster, f"{several} {threads} thread{'s' if threads > 1 else ''} and {size(memory)} of memory"
        finally:
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
