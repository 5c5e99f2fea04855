"""All that touches the disk while writing: temporary files, durable commits, errors told clearly.

HDF5 never writes to the disk itself: where a write fails under it (a full disk), closing the file kills the process.
It writes to a ``Sink``, which keeps the first error and goes on as if all were well; the error is raised when HDF5 is
done, and the temporary file is thrown away.
"""

from __future__ import annotations

import errno
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

from zlib_ng.zlib_ng import crc32

from ..contract.errors import StoreError
from .layout import TEMPORARY

_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space and run again; what was finished is kept",
    errno.EDQUOT: "the quota of this disk is used up: free some space and run again; what was finished is kept",
    errno.EFBIG: "the file would be larger than this disk or process allows; what was finished is kept",
    errno.EROFS: "the disk is read-only: choose another store with --store",
    errno.EACCES: "no permission: change it, or choose another store with --store",
    errno.EPERM: "not permitted here: change it, or choose another store with --store",
    errno.ENOENT: "its directory is not there: was it moved or removed?",
    errno.ESTALE: "its directory is not there: was it moved or removed?",
    errno.ENOTDIR: "a file is where a directory should be: choose another store with --store",
    errno.ENAMETOOLONG: "the name is too long",
    errno.EMLINK: "this file system takes no more links: choose another store with --store",
    errno.EMFILE: "too many open files: raise `ulimit -n`",
    errno.EIO: "the disk failed to read or write: check it",
}

# Bytes that stay in the processor's cache between two uses.
_STRETCH = 1 << 18
# Names of temporary files; what is called otherwise is not ours to remove.
_OURS = re.compile(r"[0-9a-f]{16}\.(h5|json|try)")
# Where a file system has no locks, a temporary file this old is stale.
_STALE = 7 * 24 * 3600


@contextmanager
def told(doing: str, path: Path | str) -> Iterator[None]:
    """Turn an error of the system into one StoreError that says what failed, where, and what to do."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, error.strerror or str(error))
        raise StoreError(f"cannot {doing} {path}: {advice}") from error


def write_at(descriptor: int, data: memoryview, place: int) -> None:
    """Write all of it."""
    while data:
        written = os.pwrite(descriptor, data, place)
        data, place = data[written:], place + written


class Sink:
    """A file for HDF5 (h5py's file-object driver) whose writes never fail; ``error`` is the first that did.

    Nor may an interrupt fly through HDF5: it is kept likewise, and raised by ``check``.
    """

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self.place = 0
        self.error: BaseException | None = None

    def check(self) -> None:
        """Raise what a write has met."""
        if self.error is not None:
            raise self.error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move; sizes are the disk's."""
        if whence == os.SEEK_END:
            offset += os.fstat(self.descriptor).st_size
        elif whence == os.SEEK_CUR:
            offset += self.place
        self.place = offset
        return offset

    def tell(self) -> int:
        """The place of the next read or write."""
        return self.place

    def write(self, data: memoryview) -> int:
        """Write all of it, or keep the error."""
        view = memoryview(data)
        if self.error is None:
            try:
                write_at(self.descriptor, view, self.place)
            except BaseException as error:
                self.error = error
        self.place += view.nbytes
        return view.nbytes

    def put(self, data: memoryview, place: int) -> int:
        """Write bytes where they belong, a stretch at a time, and return their crc32: so they are fetched once."""
        self.place, crc = place, 0
        for start in range(0, len(data), _STRETCH):
            stretch = data[start : start + _STRETCH]
            self.write(stretch)
            crc = crc32(stretch, crc)
        return crc

    def read(self, size: int = -1) -> bytes:
        """What h5py knows a file by; HDF5 itself reads into buffers."""
        raise NotImplementedError

    def readinto(self, buffer: memoryview) -> int:
        """Read; past the end (after a failed write) there are zeros."""
        view = memoryview(buffer)
        data = b""
        with suppress(OSError):
            data = os.pread(self.descriptor, view.nbytes, self.place)
        view[: len(data)] = data
        view[len(data) :] = bytes(view.nbytes - len(data))
        self.place += len(data)
        return int(view.nbytes)

    def truncate(self, size: int | None = None) -> int:
        """Set the size, or keep the error."""
        size = self.place if size is None else size
        try:
            os.ftruncate(self.descriptor, size)
        except BaseException as error:
            self.error = self.error or error
        return size

    def flush(self) -> None:
        """Nothing is held back."""


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
        with told("write to", self.root):
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
            self._sweep(_STALE)  # a file system without locks
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
        with told("write to", self.root):
            self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, data: bytes) -> None:
        """Write a small file whole."""
        with told("write to", self.root):
            write_at(self.descriptor, memoryview(data), 0)

    def commit(self, final: Path) -> bool:
        """Make it durable under its final name; False where another was first. Either way it is then durable."""
        with told("commit", final):
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
        with told("replace", final):
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
    with told("lock", path):
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
