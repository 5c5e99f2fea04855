"""All that touches the disk while writing: temporary files, durable commits, locks, claims, errors explained."""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import re
import secrets
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..contract.errors import GausslensError, InputError, StoreError, advice_for
from .layout import CLAIMS, PROGRESS, TEMPORARY, claim_path, is_name, piece_path, progress_path

_ELSEWHERE = "choose another store with --store"
_SPACE = "free some space and run again; what was finished is kept"
_MISSING = "its directory is not there: was it moved or removed?"
# Names of temporary files; what is called otherwise is not ours to remove.
_OURS = re.compile(r"[0-9a-f]{16}\.(h5|json|try)")
# What no live writer can have left: a temporary file where there are no locks, progress of a step.
STALE = 7 * 24 * 3600
# How long a claim holds after its owner was last heard of, where nothing else tells that it is gone.
LEASE = "GAUSSLENS_LEASE_SECONDS"
_CARD = ".card"


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
    except StoreError as error:
        if type(error) is not StoreError or where.partition(".h5")[0] in str(error):
            raise
        raise StoreError(f"{where}: {error}") from error
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


def pieces_there(root: Path) -> dict[str, list[str]]:
    """By the keys of steps the names of those of their pieces that are in the store."""
    found: dict[str, list[str]] = {}
    with suppress(FileNotFoundError, NotADirectoryError):
        for entry in os.scandir(root / PROGRESS):
            key, _, piece = entry.name.partition(".")
            if is_name(key) and is_name(piece):
                found.setdefault(key, []).append(piece)
    return found


def drop_progress(root: Path, key: str) -> None:
    """Take away what was committed on the way of a step, and its pieces."""
    whole = progress_path(root, key)
    with suppress(OSError):
        for path in [whole, *(piece_path(root, key, piece) for piece in pieces_there(root).get(key, ()))]:
            path.unlink(missing_ok=True)


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


class Holder(NamedTuple):
    """Who computes a step: a process, and how long ago it was heard of, by the clock of the file system."""

    host: str
    pid: int
    silent: float

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Claims:
    """The steps that this process says it computes, so that others leave them to it for as long as it lives.

    ``claims/<key>`` is a hard link to one file of the process, its card: all claims are renewed together by touching
    it, and the clock that counts is that of the file system. A claim is no lock: whoever computes a step that another
    has taken over writes the same result, of which the first counts.
    """

    def __init__(self, writer: Writer) -> None:
        self.directory = writer.root / CLAIMS
        self.root = writer.root
        self.lease = lease_seconds()
        self.card = self.directory / f"{secrets.token_hex(8)}{_CARD}"
        self._own: os.stat_result | None = None
        self._end = threading.Event()

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of everything."""
        self._end.set()
        if self._own is not None:
            with suppress(OSError):
                self.release(entry.name for entry in os.scandir(self.directory) if is_name(entry.name))
                self.card.unlink()

    def take(self, keys: Iterable[str]) -> Holder | None:
        """Claim all of these steps, or none: who holds one. In one order, so that two never block each other."""
        self.enter()
        taken: list[str] = []
        for key in sorted(keys):
            holder = self._take(claim_path(self.root, key))
            if holder is not None:
                self.release(taken)
                return holder
            taken.append(key)
        return None

    def release(self, keys: Iterable[str]) -> None:
        """Let go of those that are ours still: one that ran out may be another's by now."""
        for key in keys:
            with suppress(OSError):
                path = claim_path(self.root, key)
                if self._own is not None and os.path.samestat(os.lstat(path), self._own):
                    path.unlink()

    def enter(self) -> None:
        """Write the card, once, and keep touching it; take away what dead processes left."""
        if self._own is not None:
            return
        with explain_failure("write to", self.root):
            self.directory.mkdir(exist_ok=True)
            told = {"host": platform.node(), "pid": os.getpid(), "started": _started(os.getpid()), "lease": self.lease}
            descriptor = os.open(self.card, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                write_at(descriptor, memoryview(json.dumps(told | {"within": _within()}).encode()), 0)
                self._own = os.fstat(descriptor)
            finally:
                os.close(descriptor)
        self._sweep()
        threading.Thread(target=self._renew, name="gausslens-claims", daemon=True).start()

    def _renew(self) -> None:
        while not self._end.wait(self.lease / 6):
            with suppress(OSError):
                os.utime(self.card)

    def _take(self, path: Path) -> Holder | None:
        with explain_failure("write to", self.root):
            if _linked(self.card, path):
                return None
            holder = holder_of(path, self._now())
            if holder is not None:
                return holder
            with _alone(self.directory):  # of two that see it abandoned the second looks again
                holder = holder_of(path, self._now())
                if holder is None:
                    path.unlink(missing_ok=True)
                    if _linked(self.card, path):
                        return None
                    holder = holder_of(path, self._now())
        return holder or Holder("?", 0, 0.0)

    def _now(self) -> float:
        """The time by the clock of the file system."""
        try:
            os.utime(self.card)
            return self.card.stat().st_mtime
        except FileNotFoundError:
            raise StoreError(f"{self.card} was removed: leave {self.directory} alone while runs last") from None

    def _sweep(self) -> None:
        with suppress(OSError), _alone(self.directory):
            now = self._now()
            for entry in os.scandir(self.directory):
                path = Path(entry.path)
                old = now - entry.stat(follow_symlinks=False).st_mtime > STALE
                ours = is_name(entry.name) or entry.name.endswith(_CARD)
                if old or (ours and holder_of(path, now) is None):
                    path.unlink(missing_ok=True)


def lease_seconds() -> float:
    """How long a claim holds after its process was last heard of: GAUSSLENS_LEASE_SECONDS, 120 where it is not set."""
    return seconds_told(LEASE, 120, lambda seconds: 0 < seconds < math.inf, "give seconds, more than 0")


def seconds_told(variable: str, unset: float, allowed: Callable[[float], bool], advice: str) -> float:
    """Seconds that a variable of the environment says; what is no number or not allowed is refused with the advice."""
    told = os.environ.get(variable, str(unset))
    try:
        seconds = float(told)
    except ValueError:
        seconds = math.nan
    if not allowed(seconds):
        raise InputError(f"{variable}={told!r}: {advice}")
    return seconds


def holder_of(path: Path, now: float) -> Holder | None:
    """Who holds a claim; None where nobody does, its process is gone, or it was not heard of for its lease."""
    try:
        # Opened, for then a network file system asks its server how old it is.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        silent = now - os.fstat(descriptor).st_mtime
        try:
            told = json.loads(file.read(4096))
            holder = Holder(str(told["host"]), int(told["pid"]), silent)
            if silent > float(told["lease"]) or _is_gone(told):
                return None
        except (ValueError, KeyError, TypeError):
            return None if silent > STALE else Holder("?", 0, silent)
    return holder


def claimed(root: Path) -> set[str]:
    """The keys of steps that live processes say they compute."""
    directory = root / CLAIMS
    if directory.is_symlink() or not directory.is_dir():
        return set()
    with explain_failure("read", directory):
        names = [entry.name for entry in os.scandir(directory) if is_name(entry.name)]
    if not names:
        return set()
    probe = Temporary(Writer(root), ".try")  # the time by the clock of the file system
    try:
        now = os.fstat(probe.descriptor).st_mtime
    finally:
        probe.drop()
    return {name for name in names if holder_of(directory / name, now) is not None}


def _linked(card: Path, path: Path) -> bool:
    try:
        os.link(card, path)
    except FileExistsError:
        return False
    return True


@contextmanager
def _alone(directory: Path, most: float = 2.0) -> Iterator[None]:
    """Alone at taking over, where the file system has locks and nobody stopped while having this one."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        end = time.monotonic() + most
        while time.monotonic() < end:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
        yield
    finally:
        os.close(descriptor)


@cache
def _within() -> str:
    """Which numbering of processes a number is of: of two containers, or after a start anew, one means others."""
    found = []
    with suppress(OSError):
        found.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        found.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(found)


def _started(pid: int) -> str | None:
    """When a process began, as the system counts; None where there is no such process, or it is dead already."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _is_gone(told: Any) -> bool:
    """Whether the process of a card is known to be gone; of another machine that is not known."""
    pid = int(told["pid"])
    if told["host"] != platform.node() or told["within"] != _within() or pid <= 0:
        return False
    if told["started"] is not None:
        return bool(_started(pid) != told["started"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def replace_whole(target: Path, content: bytes) -> None:
    """Write a file whole: who reads it meanwhile sees the old one or the new one, never half of one."""
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}.tmp")
    # Made by its mode and not by mkstemp: the umask of the user says who may read it.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
