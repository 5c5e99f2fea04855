"""Calls of plugins: how they may end, how long they may take, what they print, and what they leave of the process."""

from .calls import Guard as Guard
from .calls import Stopped as Stopped
from .calls import Terminated as Terminated
from .calls import is_outside as is_outside
from .calls import settled as settled
from .calls import watched_interrupts as watched_interrupts
from .output import unshown as unshown

__all__ = ["Guard", "Stopped", "Terminated", "is_outside", "settled", "unshown", "watched_interrupts"]
