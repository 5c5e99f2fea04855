"""The errors that users meet. Anything else that reaches the command line is a defect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class GausslensError(Exception):
    """An error that is told in one screen, without a traceback. ``code`` is the exit code of the command line."""

    code = 1


class InputError(GausslensError):
    """The input is wrong: a run file, an option, a path. Nothing was computed."""

    code = 2


class StoreError(GausslensError):
    """The store cannot be read or written as asked."""


class ModelError(GausslensError):
    """A model cannot be opened, or does not have what was asked of it."""


class RunFailed(GausslensError):
    """Some steps of a run failed; the others are in the store. ``failures`` holds what went wrong, step by step."""

    def __init__(self, message: str, failures: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.failures = tuple(failures)
