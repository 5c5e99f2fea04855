"""All that touches the disk while writing: temporary files, durable commits, locks, errors explained."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..contract.errors import GausslensError, StoreError, advice_for
from .layout import TEMPORARY

_ELSEWHERE = "choose another store with --store"
_SPACE = "free some space and run again; what was finished is kept"
_MISSING = "its directory is not there: was it moved or removed?"
# Names of temporary files; what is called otherwise is not ours to remove.
_OURS = re.compile(r"[0-9a-f]{16}\.(h5|json|try)")
# What no live writer can have left: a temporary file where there are no locks, progress of a step.
STALE = 7 * 24 * 3600


@contextmanager
def explain_failure(doing: str, path: Path | str) -> Iterator[None]:
    """Turn an error of the system into one StoreError that says what failed, where, and what to do."""
    try:
        yield
    except OSError as error:
        advice = advice_for(error, _ELSEWHERE, _SPACE, _MISSING) or error.strerror or str(error)
        raise StoreError(f"cannot {doing} {path}: {advice}") from error


def write_at(descriptor: int, data: memoryview, place: int) -> None:
    """Write all of it."""
    while data:
        written = os.pwrite(descriptor, data, place)
        data, place = data[written:], place + written


class Writer:
    """A live writer of a store: it holds a shared lock on ``tmp/``, so that others leave its files alone.

    ``made`` are the directories that it has made durable.
    """

    def __init__(self, root: Path):
        self.root = root
        self.made: set[Path] = set()
        self._lock: int | None = None

    def enter(self) -> None:
        """Take the lock, once; a killed writer loses it. Whoever is alone first removes what killed ones left."""
        if self._lock is not None:
            return
        with explain_failure("write to", self.root):
            with suppress(FileExistsError):
                (self.root / TEMPORARY).mkdir()  # tools that copy a store drop what is empty
            lock = os.open(self.root / TEMPORARY, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._lock = lock
        weakref.finalize(self, os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._sweep(0)
        except BlockingIOError:
            pass  # others are writing: nothing is swept
        except OSError:
            self._sweep(STALE)  # a file system without locks
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)

    def _sweep(self, age: float) -> None:
        for entry in os.scandir(self.root / TEMPORARY):
            with suppress(OSError):
                if _OURS.fullmatch(entry.name) and time.time() - entry.stat(follow_symlinks=False).st_mtime >= age:
                    Path(entry.path).unlink()


class Temporary:
    """A file in ``tmp/``, on its way to its final name."""

    def __init__(self, writer: Writer, suffix: str):
        writer.enter()
        self.writer = writer
        self.root = writer.root
        self.open = True
        self.path = self.root / TEMPORARY / f"{secrets.token_hex(8)}{suffix}"
        with explain_failure("write to", self.root):
            self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, data: bytes) -> None:
        """Write a small file whole."""
        with explain_failure("write to", self.root):
            write_at(self.descriptor, memoryview(data), 0)

    def commit(self, final: Path) -> bool:
        """Make it durable under its final name; False where another was first. Either way it is then durable."""
        with explain_failure("commit", final):
            os.fchmod(self.descriptor, 0o444)
            os.fsync(self.descriptor)
            make_directory(final.parent, self.root, self.writer.made)
            try:
                os.link(self.path, final)
                first = True
            except FileExistsError:
                first = False
            self.drop()
            sync_directory(final.parent)
            if not first and not is_file(final):
                raise StoreError(f"{final} is not a regular file: remove it")
        return first

    def replace(self, final: Path) -> None:
        """Put it in the place of what is there: for what is derived."""
        with explain_failure("replace", final):
            os.fchmod(self.descriptor, 0o644)
            os.fsync(self.descriptor)
            self.path.replace(final)
            self.drop()
            sync_directory(final.parent)

    def drop(self) -> None:
        """Take the temporary name away and close; a second time does nothing."""
        if self.open:
            self.open = False
            os.close(self.descriptor)
            with suppress(OSError):
                self.path.unlink()


@contextmanager
def explain_damage(where: str) -> Iterator[None]:
    """HDF5's and Python's complaints about a bad file, as one StoreError."""
    try:
        yield
    except GausslensError:
        raise
    except (
        OSError,
        RuntimeError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        MemoryError,
    ) as error:
        raise StoreError(f"{where} cannot be read: {error!r}; `gausslens store verify` says more") from error


def mark_of(path: Path) -> tuple[str | int, ...]:
    """What tells a file from what may stand in its place later."""
    state = path.stat()
    return (str(path), state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


def is_file(path: Path) -> bool:
    """A regular file, not a link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def make_directory(path: Path, root: Path, made: set[Path]) -> None:
    """Make a directory below the root, durable; each is synced once by each writer, whoever made it."""
    if path == root or path in made:
        return
    make_directory(path.parent, root, made)
    path.mkdir(exist_ok=True)
    if path.is_symlink():
        raise StoreError(f"{path} is a link: a store is written to only within its own directory")
    sync_directory(path.parent)
    made.add(path)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file, waiting for whoever holds it; a killed holder lets go."""
    with explain_failure("lock", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except BaseException:
            os.close(descriptor)
            raise
    try:
        yield
    finally:
        os.close(descriptor)
