"""Which files HDF5 may be given at once: those that this user's runs wrote, and those that were examined."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

# The oldest half is forgotten where the list is longer: 120,000 files.
MOST_BYTES = 8 << 20
_LINE = 65


class _Known:
    """The list as it was last read."""

    def __init__(self) -> None:
        self.place: Path | None = None
        self.names: set[str] = set()
        self.read_up_to = 0
        self.lock = threading.Lock()


_KNOWN = _Known()


def place() -> Path | None:
    """Where the list is kept: GAUSSLENS_KNOWN_FILES, or below XDG_CACHE_HOME or ~/.cache; None where nothing is set."""
    if told := os.environ.get("GAUSSLENS_KNOWN_FILES"):
        return Path(told)
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        try:
            base = str(Path.home() / ".cache")
        except RuntimeError:  # no HOME, and the system does not know the user, as in some containers
            return None
    return Path(base) / "gausslens" / "known-files"


def has(identity: str) -> bool:
    """Whether a file of this identity (``checksums.identity``) was written or examined by this user."""
    with _KNOWN.lock:
        if identity not in _KNOWN.names:
            _read_on()
        return identity in _KNOWN.names


def add(identity: str) -> None:
    """Remember one; where there is no place for the list, as long as the process lasts."""
    with _KNOWN.lock:
        if identity in _KNOWN.names:
            return
        _KNOWN.names.add(identity)
        target = place()
        if target is None:
            return
        with suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            # One write of one line: what several processes append does not mix.
            how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(target, how, 0o600)
            try:
                os.write(descriptor, f"{identity}\n".encode("ascii"))
                long = os.fstat(descriptor).st_size > MOST_BYTES
            finally:
                os.close(descriptor)
            if long:
                _forget_half(target)


def _read_on() -> None:
    """What was added to the list since it was last read; all of it where it is another."""
    target = place()
    if target != _KNOWN.place:
        _KNOWN.place, _KNOWN.read_up_to = target, 0
    if target is None:
        return
    with suppress(OSError), target.open("rb") as file:
        if os.fstat(file.fileno()).st_size < _KNOWN.read_up_to:
            _KNOWN.read_up_to = 0
        file.seek(_KNOWN.read_up_to)
        lines = file.read(2 * MOST_BYTES).splitlines(keepends=True)
        _KNOWN.names.update(line[:-1].decode("ascii", "replace") for line in lines if len(line) == _LINE)
        _KNOWN.read_up_to += sum(map(len, lines))


def _forget_half(target: Path) -> None:
    kept = target.read_bytes()[-MOST_BYTES // 2 :]
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    temporary.write_bytes(kept[kept.find(b"\n") + 1 :])
    temporary.chmod(0o600)
    temporary.replace(target)
