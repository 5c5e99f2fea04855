"""What the system refuses: paths that are not there, may not be used, or cannot be."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ..contract.errors import InputError, advice_for

_PACKAGE = Path(__file__).parent.parent
# What the user named cannot be: the input is wrong, exit code 2. Else it could be, and does not work now: 1.
_CANNOT_BE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}


def refused(error: OSError) -> tuple[str, int] | None:
    """An error of the system as one line that names the path, and the exit code; None where it is a defect.

    It is one where no path is named, the path is of this package itself, or the reason is not for users to change.
    Only a full disk needs no path: what is printed may go to one.
    """
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"cannot write: {advice_for(error)}", 1
    if not isinstance(error.filename, str | bytes):
        return None
    path = os.fsdecode(error.filename)
    advice = advice_for(error)
    if advice is None or _PACKAGE in Path(path).parents:
        return None
    return f"cannot read or write {path}: {advice}", 2 if error.errno in _CANNOT_BE else 1


def outside(target: Path, store: Path) -> Path:
    """The target, unless it is a store or a pack itself, or where a store keeps its own files."""
    from ..store.layout import INDEX, LOCK, PARTS, RUNS, TEMPORARY

    root, place = store.resolve(), target.resolve()
    if place == root:
        raise InputError(f"{target} is the store itself: choose another name")
    if place.is_relative_to(root) and place.relative_to(root).parts[0] in (PARTS, RUNS, TEMPORARY, INDEX, LOCK):
        raise InputError(f"{target} is where the store keeps its own files: choose a place outside {store}")
    return target
