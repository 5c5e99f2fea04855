"""Calls of plugins: how they may end, how long they may take, what they print, and what they leave of the process."""

from .calls import Guard as Guard
from .calls import Stopped as Stopped
from .calls import Terminated as Terminated
from .calls import is_outside as is_outside
from .calls import settled as settled
from .calls import watched_interrupts as watched_interrupts
from .output import unshown as unshown
from .threads import asked_threads as asked_threads
from .threads import numpy_on_one_thread as numpy_on_one_thread
from .threads import threads as threads
from .threads import torch_for_tokens as torch_for_tokens
from .threads import wait_quietly as wait_quietly

__all__ = [
    "Guard",
    "Stopped",
    "Terminated",
    "asked_threads",
    "is_outside",
    "numpy_on_one_thread",
    "settled",
    "threads",
    "torch_for_tokens",
    "unshown",
    "wait_quietly",
    "watched_interrupts",
]
