"""A child that reads files which nobody here wrote, before this process does; asked one file after the other."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import weakref
from pathlib import Path

from ...contract.errors import StoreError
from .. import checksums as seal
from . import known

# Seconds by the clock for a file, beside those of the processor that the child allows itself: a machine may be busy.
_PATIENCE = 120.0
_SLOWEST = 1 << 20  # bytes per second
_CHILD = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {} import serve; serve()"


class _Child:
    """The process that examines; started when it is first needed, and again when a file has ended it."""

    def __init__(self) -> None:
        if not sys.executable:
            raise StoreError(
                "there is no Python to start (sys.executable is empty), which examines files from elsewhere"
            )
        code = _CHILD.format(f"{__package__}.examining")
        try:
            self.process = subprocess.Popen(  # noqa: S603  this Python, code of ours
                [sys.executable, "-c", code, json.dumps(sys.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        except OSError as error:
            raise StoreError(f"no process can be started to examine files from elsewhere: {error}") from None
        self.owner = os.getpid()
        weakref.finalize(self, _end, self.process, self.owner)

    def ask(self, path: Path) -> str | None:
        """What is wrong with a file, in words; None where it can be read."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        answer = b""
        try:
            self.process.stdin.write(json.dumps(os.fspath(path)).encode("ascii") + b"\n")
            self.process.stdin.flush()
            with selectors.DefaultSelector() as waiting:
                waiting.register(self.process.stdout, selectors.EVENT_READ)
                if not waiting.select(_PATIENCE + path.stat().st_size / _SLOWEST):
                    self.process.kill()
                    return "to read it took HDF5 too long"
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            pass
        if answer.endswith(b"\n"):
            wrong = json.loads(answer)
            return None if wrong is None else str(wrong)
        return _of_death(self.process.wait())


def _of_death(code: int) -> str:
    import signal

    if code == -signal.SIGXCPU:
        return "HDF5 comes to no end with it"
    return f"HDF5 does not survive it (the process that read it ended with {code})"


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:
        return
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.kill()
    process.wait()


class _Asking:
    """The child of this process, and what was refused already."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.child: _Child | None = None
        self.refused: dict[str, str] = {}

    def wrong(self, identity: str, path: Path) -> str | None:
        with self.lock:
            if identity in self.refused:
                return self.refused[identity]
            if self.child is None or self.child.owner != os.getpid() or self.child.process.poll() is not None:
                self.child = _Child()
            try:
                wrong = self.child.ask(path)
            except BaseException:  # interrupted: the answer to come would be taken for that of the next
                self.child.process.kill()
                self.child = None
                raise
            if wrong is not None:
                self.refused[identity] = wrong
            return wrong


_ASKING = _Asking()


def _begin_anew() -> None:
    """A forked process has no child, and locks are as they were at the fork."""
    _ASKING.lock = threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)


def examined(path: Path) -> None:
    """Refuse a file that HDF5 cannot be given; it lies in its place, and its seal was checked."""
    identity = seal.identity(path)
    if known.has(identity):
        return
    wrong = _ASKING.wrong(identity, path)
    if wrong is not None:
        raise StoreError(f"{path} is refused: {wrong}")
    known.add(identity)
