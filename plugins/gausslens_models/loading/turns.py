"""Two threads on one module are served one after the other: hooks and exchanged parameters are all the module's own."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_GUARD = threading.Lock()
_LOCKS: weakref.WeakKeyDictionary[torch.nn.Module, threading.RLock] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def turn_of(module: torch.nn.Module) -> Iterator[None]:
    """This thread's turn on a module, whoever opened it: for a pass with its hooks and edits, or to read it."""
    with _GUARD:
        lock = _LOCKS.get(module)
        if lock is None:
            lock = _LOCKS[module] = threading.RLock()
    with lock:
        yield
