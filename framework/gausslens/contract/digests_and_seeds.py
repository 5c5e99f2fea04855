"""Digests of canonical JSON, and seeds derived from what a thing is: equal across processes, orders and machines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import InputError


def canonical(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, no NaN, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 of canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()


def derive(*what: Any) -> int:
    """A seed of 63 bits (torch takes no more) for this thing: ``derive(run_seed, "edit", {...}, draw, "0.W_Q")``."""
    return int(digest(list(what))[:16], 16) >> 1


def digest_of_files(path: str, names: Sequence[str] = ()) -> str:
    """What a file holds; of a directory, names and contents of its files that one of ``names`` fits."""
    place = Path(path)
    if not place.is_dir():
        return _digest_of_file(place)
    files = {file.name: file for name in names or ("*",) for file in place.glob(name) if file.is_file()}
    if not files:
        raise InputError(f"{path}: none of its files is called {' or '.join(names) or 'anything'}")
    return digest({name: _digest_of_file(file) for name, file in files.items()})


def _digest_of_file(file: Path) -> str:
    try:
        told = file.stat()
        return _digest_while_same(file, (told.st_size, told.st_mtime_ns, told.st_ctime_ns, told.st_ino))
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error


@lru_cache(maxsize=256)
def _digest_while_same(file: Path, marks: object) -> str:  # noqa: ARG001
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
