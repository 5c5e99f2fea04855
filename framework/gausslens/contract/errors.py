"""The errors that users meet. Anything else that reaches the command line is a defect."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Mark(NamedTuple):
    """A place in a run file, at which an error points. (A dataclass would cost each start ten milliseconds.)"""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        # What comes from Python has no lines.
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


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


def near(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names that look like this one, nearest first; case does not matter."""
    by_folded = {k.casefold(): k for k in known}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=most, cutoff=0.6)
    return [by_folded[f] for f in found]


def did_you_mean(name: str, known: Iterable[str], most: int = 12) -> str:
    """``": did you mean x or y?"``; where nothing is near, ``most`` known names; nothing where there are none."""
    names = list(known)
    found = near(name, names)
    if found:
        return f": did you mean {' or '.join(found)}?"
    if not names:
        return ""
    shown = ", ".join(sorted(names)[:most]) + (", ..." if len(names) > most else "")
    return f"; there are {shown}"


# What an error of the system means, and what to do; the callers say how another place, or more space, is had.
_ADVICE = {
    errno.ENOENT: "{missing}",
    errno.ESTALE: "its directory is not there any more: was it moved or removed?",
    errno.ENOTDIR: "a file is where a directory should be: {elsewhere}",
    errno.EISDIR: "it is a directory: name a file",
    errno.ENAMETOOLONG: "the name is too long: choose a shorter one",
    errno.ELOOP: "its links lead in a circle",
    errno.EACCES: "no permission: change it, or {elsewhere}",
    errno.EPERM: "not permitted: change it, or {elsewhere}",
    errno.EROFS: "the disk is read-only: {elsewhere}",
    errno.ENOSPC: "the disk is full: {space}",
    errno.EDQUOT: "the quota of this disk is used up: {space}",
    errno.EFBIG: "the file would be larger than this disk or process allows: raise `ulimit -f`, or {elsewhere}",
    errno.EMLINK: "this file system takes no more links: {elsewhere}",
    errno.EMFILE: "too many open files: raise `ulimit -n`",
    errno.EIO: "the disk failed to read or write: check it",
}


def advice_for(
    error: OSError,
    elsewhere: str = "name another place",
    space: str = "free some space, or name another place",
    missing: str = "it, or the directory that it should be in, does not exist",
) -> str | None:
    """What an error of the system means and what to do about it; None where it is not for users to change."""
    advice = _ADVICE.get(error.errno or 0)
    return None if advice is None else advice.format(elsewhere=elsewhere, space=space, missing=missing)
