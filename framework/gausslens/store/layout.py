"""Names, places and versions of the store: what lies where, and which names are allowed."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from ..contract.errors import StoreError

# The version of the format on disk, one number for every type; schemas/STORE.md says what each type holds.
VERSION = 1
TYPE = "encoding-type"
TYPE_VERSION = "encoding-version"
CONVENTIONS = "CF-1.11"

INDEX = "store.h5"
PARTS = "parts"
RUNS = "runs"
KEPT = "kept"
TEMPORARY = "tmp"
PROGRESS = "progress"
CLAIMS = "claims"
LOCK = "index.lock"

# A result has at most this many arrays, of at most this many dimensions: a limit of readers and of writers.
MOST_ARRAYS = 10_000
MOST_DIMENSIONS = 32

# Runs, variants and keys; labels and analyses also hold dots.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")
_DOTTED = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")
# What netCDF, h5netcdf and CF lists of names all take; Unicode letters are fine.
_ARRAY = re.compile(r"\w[\w.@+-]{0,199}")


class NotAStore(StoreError):
    """The path is not a store: nothing was read or written."""

    code = 2


class Unstorable(StoreError, ValueError):
    """A result holds what the store does not take: the step is at fault, not the store."""


class StoreWarning(UserWarning):
    """A part of the store is damaged and left out."""


class NewerStore(StoreError):
    """The store was written by a newer gausslens."""

    code = 2


def check_version(found: object, what: str, where: Path | str) -> None:
    """Refuse what a newer version wrote, and what has no version at all."""
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise StoreError(f"{where}: {what} has no version that can be read ({TYPE_VERSION} is {found!r})")
    if found > VERSION:
        raise NewerStore(
            f"{where}: {what} is of version {found}; this gausslens reads up to {VERSION}: upgrade gausslens to open it"
        )


def is_name(name: str, *, dotted: bool = False) -> bool:
    """Whether this may be the name of a run, variant or key, or (``dotted``) of a label or analysis."""
    return (_DOTTED if dotted else _NAME).fullmatch(name) is not None


def check_name(name: str, what: str, *, dotted: bool = False) -> str:
    """The name of a run, variant, label, analysis or key; it becomes part of a path, so little is allowed."""
    if not is_name(name, dotted=dotted):
        raise StoreError(f"{what} {name!r}: letters, digits, _ and -{' and .' if dotted else ''} only, up to 200")
    return name


def check_array_name(name: object) -> str:
    """The name of an array or a dimension."""
    if not isinstance(name, str) or not _ARRAY.fullmatch(name) or unicodedata.normalize("NFC", name) != name:
        raise Unstorable(f"array or dimension {name!r}: a name is a letter, digit or _, then also . @ + -, up to 200")
    return name


def check_shape_of_result(dimensions: Mapping[str, int]) -> None:
    """Refuse to write what readers refuse; ``dimensions`` are how many each array has."""
    if len(dimensions) > MOST_ARRAYS:
        raise Unstorable(
            f"{len(dimensions):,} arrays in one result, with the coordinates that its dimensions need; a store takes "
            f"{MOST_ARRAYS:,}: stack arrays of one shape along a dimension"
        )
    for name, many in dimensions.items():
        if many > MOST_DIMENSIONS:
            raise Unstorable(f"array {name!r} has {many} dimensions; a store takes {MOST_DIMENSIONS}")


@lru_cache(maxsize=1 << 14)
def part_path(root: Path, analysis: str, key: str) -> Path:
    """Where the part of this key is; of many parts it is asked ten times each."""
    return root / PARTS / check_name(analysis, "analysis", dotted=True) / f"{check_name(key, 'key')}.h5"


def progress_path(root: Path, key: str) -> Path:
    """Where the state of the step of this key is, while it is computed."""
    return root / PROGRESS / check_name(key, "key")


def piece_path(root: Path, key: str, piece: str) -> Path:
    """Where a piece of the step of this key is, until the step is put together."""
    return root / PROGRESS / f"{check_name(key, 'key')}.{check_name(piece, 'piece')}"


def claim_path(root: Path, key: str) -> Path:
    """Where a process says that it computes the step of this key."""
    return root / CLAIMS / check_name(key, "key")


def entry_of(analysis: str, key: str) -> str:
    """The group of a part that holds its arrays."""
    return f"/{analysis}/{key}"


def check_is_store(path: Path) -> None:
    """Raise where there is neither a store nor a file that may be a pack."""
    if not is_store(path) and not path.is_file():
        raise NotAStore(f"{path}: there is no store here" + ("" if path.exists() else "; the path does not exist"))


def is_store(path: Path) -> bool:
    """Whether a directory looks like a store."""
    return (path / PARTS).is_dir() or (path / RUNS).is_dir() or (path / INDEX).is_file()
