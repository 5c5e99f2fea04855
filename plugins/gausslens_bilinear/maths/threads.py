"""Work on many matrices in threads: one thread for each matrix, as many at once as there are threads to use.

LAPACK gains little from several threads on one matrix of a head's or a layer's size, and loses where cores are shared;
one matrix to a thread gains all of it. What is found depends on no number of threads, for each matrix has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

from gausslens import threads

Item = TypeVar("Item")
Made = TypeVar("Made")


def in_threads(work: Callable[[Item], Made], items: Iterable[Item]) -> list[Made]:
    """``[work(item) for item in items]``, in threads, as many at most as a run may use (``gausslens.threads``)."""
    each = list(items)
    most = min(threads(), len(each))
    with _controller().limit(limits=1, user_api="blas"):
        if most < 2:
            return [work(item) for item in each]
        with ThreadPoolExecutor(most) as pool:
            return list(pool.map(work, each))


@cache
def _controller() -> ThreadpoolController:
    import numpy.linalg  # noqa: F401  so that its library is there to be found

    return ThreadpoolController()
