"""The worker processes of this machine: started, watched, and replaced when they die, for as long as a run lasts.

Dask's nanny gives up on a worker that dies while it starts, so each process is ours: a Python that reads on its
standard input what it needs, and ends when that is closed, however the process that leads has ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .gpus import card_of

# Seconds between two looks at the processes; until one that started must have reached the scheduler; to end in.
LOOK, START, END = 0.2, 300, 5
# Seconds by which the pause before another start grows, where one died after another before it was there, and its most.
PAUSE, LONGEST = 0.1, 10
# What each process begins with: the path of modules first, so that it finds what this one finds.
_COMMAND = (
    "import json, sys; told = json.loads(sys.stdin.readline()); sys.path[:] = told['path']; "
    "from gausslens.spreading.in_worker import serve; serve(told)"
)


@dataclass
class _Place:
    """One of so many workers: the process that is it now, and how many died here before they reached the scheduler."""

    number: int
    early: int = 0
    process: subprocess.Popen[bytes] | None = None
    seen: Any = None  # psutil's view of it
    files: Path = Path()
    told: int = 0
    due: float = 0.0
    began: float = field(default_factory=time.monotonic)

    @property
    def reached(self) -> bool:
        """Whether it has reached the scheduler."""
        return self.files.with_suffix(".there").exists()

    def memory(self) -> int:
        """The bytes that it holds."""
        import psutil

        if self.process is None:
            return 0
        try:
            if self.seen is None or self.seen.pid != self.process.pid:
                self.seen = psutil.Process(self.process.pid)
            return int(self.seen.memory_info().rss)
        except psutil.Error:
            return 0

    def tell(self) -> None:
        """Pass on what it wrote on standard error since, once it is there; before, that is kept for its last words."""
        if not self.reached:
            return
        with suppress(OSError), self.files.with_suffix(".log").open("rb") as log:
            log.seek(self.told)
            if new := log.read():
                self.told += len(new)
                sys.stderr.write(new.decode(errors="replace"))


class WorkerProcesses:
    """So many processes at the scheduler of this process; ``trouble`` says why no more are started, once they are not.

    After ``5 n + 5`` deaths with no answer of a worker between them it is given up: nothing would come of more.
    """

    def __init__(
        self,
        number: int,
        address: str,
        scratch: Path,
        environment: dict[str, str],
        memory: int,
        cards: Sequence[str] = (),
    ) -> None:
        self._told = {"address": address, "scratch": str(scratch), "path": [p or str(Path.cwd()) for p in sys.path]}
        self._scratch, self._memory, self._cards = scratch, memory, cards
        self._environment = os.environ | {n: os.environ.get(n, value) for n, value in environment.items()}
        self._places = [_Place(each) for each in range(number)]
        self._started, self._deaths, self._most = 0, 0, 5 * number + 5
        self.trouble = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watches workers", daemon=True)
        self._thread.start()

    def well(self) -> None:
        """A worker has answered: deaths are counted anew."""
        self._deaths = 0

    def close(self) -> None:
        """End them all: gently, then not."""
        self._over.set()
        self._thread.join()
        places = [place for place in self._places if place.process is not None]
        processes = [place.process for place in places if place.process is not None]
        for process in processes:
            with suppress(OSError):
                _input(process).close()
        end = time.monotonic() + END
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        for process in processes:
            process.kill()
            process.wait()
        for place in places:
            place.tell()

    def _watch(self) -> None:
        try:
            while not self._over.wait(LOOK):
                for place in self._places:
                    with suppress(OSError):  # of starting one: there may be no memory for it now
                        self._look(place)
        except Exception as error:
            self.trouble = f"the workers are not watched any more: {type(error).__name__}: {error}"

    def _look(self, place: _Place) -> None:
        now = time.monotonic()
        process = place.process
        if process is None:
            if not self.trouble and now >= place.due:
                self._start(place)
            return
        place.tell()
        if process.poll() is not None:
            self._mourn(place, process)
        elif (now - place.began > START and not place.reached) or place.memory() > self._memory:
            process.kill()

    def _start(self, place: _Place) -> None:
        self._started += 1
        place.due = time.monotonic() + 1  # where it cannot be started
        place.files = self._scratch / f"worker-{self._started}"
        with place.files.with_suffix(".log").open("wb") as log:
            place.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", _COMMAND],
                env=self._environment | card_of(place.number, self._cards),
                stdin=subprocess.PIPE,
                stderr=log,
            )
        place.began, place.told = time.monotonic(), 0
        told = self._told | {"name": f"{os.getpid()}-{self._started}", "there": str(place.files.with_suffix(".there"))}
        with suppress(OSError):  # it is dead already
            _input(place.process).write(json.dumps(told).encode() + b"\n")
            _input(place.process).flush()

    def _mourn(self, place: _Place, process: subprocess.Popen[bytes]) -> None:
        """It died: another takes its place, after a pause that grows where they die before they are there."""
        with suppress(OSError):
            _input(process).close()
        place.process = None
        place.early = 0 if place.reached else place.early + 1
        place.due = time.monotonic() + min(PAUSE * place.early, LONGEST)
        self._deaths += 1
        if self._deaths >= self._most and not self.trouble:
            self.trouble = (
                f"{self._deaths} workers died one after another and none answered; the last {_how(process.returncode)}"
                + _last_words(place.files.with_suffix(".log"))
            )


def _input(process: subprocess.Popen[bytes]) -> Any:
    return process.stdin


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}: out of memory, or killed"
    return f"was ended by signal {-code}"


def _last_words(log: Path) -> str:
    """The last line that it wrote."""
    lines: list[str] = []
    with suppress(OSError):
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f", and its last words were: {lines[-1].strip()[:300]}" if lines else ""
