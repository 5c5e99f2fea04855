"""A bank of results: what one machine has computed is copied into the store of another, which computes it no more."""

from .copying import Copied, Copying, carry_out, copy, intend
from .sources import open_source

__all__ = ["Copied", "Copying", "carry_out", "copy", "intend", "open_source"]
