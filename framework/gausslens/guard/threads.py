"""Threads: many for passes of the model, one for each call of a plugin, so that results depend on no number of them.

With more than one thread, sums within matrix products, decompositions and totals are taken in another order, and last
digits change. In a pass over many tokens each number is made by one thread; one over few, as in generation, has one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

# Passes over fewer tokens have one thread.
FEW = 64


def wait_quietly() -> None:
    """Let torch's threads sleep while they wait, where it is not imported yet: what the user has set is kept.

    By default they spin, which on a shared machine took twenty times the processor time of one thread for products of
    a few hundred rows. No result depends on it.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def threads() -> int:
    """How many threads a pass of the model uses, and a plugin may: OMP_NUM_THREADS, or torch's choice, the cores.

    Within calls of a plugin numpy's linear algebra and torch have one. Work that is cut into pieces, each done by one
    thread, may use as many threads of its own: the same bits are found with any number.
    """
    return _WITHIN.most or _counted()


def asked_threads() -> int:
    """What OMP_NUM_THREADS says: its first number, of the outermost threads; 0 where it says none."""
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(asked) if asked.isdecimal() else 0


@contextmanager
def numpy_on_one_thread() -> Iterator[None]:
    """Meanwhile the BLAS of numpy and scipy has one thread; the first to come sets it, the last to go puts it back."""
    with _WITHIN.lock:
        if not _WITHIN.runs:
            _limit_numpy()
        _WITHIN.runs += 1
    try:
        yield
    finally:
        with _WITHIN.lock:
            _WITHIN.runs -= 1
            if not _WITHIN.runs:
                _WITHIN.limits.close()


@contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """Meanwhile torch has one thread, as within a call of a plugin."""
    torch: Any = sys.modules.get("torch")
    most = 1 if torch is None else torch.get_num_threads()
    if most == 1:
        yield
        return
    outer, _WITHIN.most = _WITHIN.most, max(_WITHIN.most, most)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(most)
        _WITHIN.most = outer


@contextmanager
def torch_for_tokens(tokens: int) -> Iterator[None]:
    """Meanwhile torch has the threads of a pass over so many tokens: one of few, else all, within a plugin too.

    Products of few rows gain nothing from threads, and with several their sums are cut (seen under 16 rows).
    """
    torch: Any = sys.modules.get("torch")
    if tokens < FEW:
        with torch_on_one_thread():
            yield
        return
    if torch is None or _WITHIN.most <= torch.get_num_threads():
        yield
        return
    fewer = torch.get_num_threads()
    torch.set_num_threads(_WITHIN.most)
    try:
        yield
    finally:
        torch.set_num_threads(fewer)


@dataclass
class _Within:
    """What holds within runs and within calls of plugins."""

    runs: int = 0
    most: int = 0
    limits: ExitStack = field(default_factory=ExitStack)
    lock: threading.Lock = field(default_factory=threading.Lock)


_WITHIN = _Within()


def _limit_numpy() -> None:
    import scipy.linalg  # noqa: F401  so that its library, and numpy's, are there to be found
    from threadpoolctl import ThreadpoolController

    _WITHIN.limits.enter_context(ThreadpoolController().limit(limits=1, user_api="blas"))


def _counted() -> int:
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    return asked_threads() or len(os.sched_getaffinity(0))
