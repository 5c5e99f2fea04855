"""What is shown while something is computed: a bar on a terminal and in a notebook, else lines for a log; time left."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from html import escape
from importlib import import_module
from typing import Any

from .store.disk import seconds_told
from .terminal import plain

# Seconds between two lines of a log, and until the first: GAUSSLENS_LOG_SECONDS.
SECONDS = "GAUSSLENS_LOG_SECONDS"
QUIET = 15.0


class TimeLeft:
    """How long the rest of a work takes, from what its parts were estimated to cost and what those done have taken.

    Parts are of kinds, as of twins and of comparisons, and an estimate of a kind is off by a factor of its own: that
    factor is what the parts of the kind that are done have taken over their estimate. Of a kind of which nothing is
    done it is the factor of all that is done. ``estimates`` are seconds by kind, on any machine.
    """

    def __init__(self, estimates: dict[str, float], began: float) -> None:
        self._left, self._last = dict(estimates), began
        self._done = dict.fromkeys(estimates, 0.0)
        self._took = dict.fromkeys(estimates, 0.0)

    def part(self, kind: str, estimate: float, now: float, found: bool = False) -> None:
        """A part is done; or it was ``found`` done by another, which tells nothing of how long one takes."""
        self._left[kind] = max(self._left.get(kind, 0.0) - estimate, 0.0)
        if not found:
            self._done[kind] = self._done.get(kind, 0.0) + estimate
            self._took[kind] = self._took.get(kind, 0.0) + now - self._last
        self._last = now

    def share(self) -> float:
        """Which part of the estimated work is done or found, from 0 to 1."""
        left = self._seconds(lambda _: 1.0)
        done = sum(self._done.values())
        return done / (done + left) if done + left else 1.0

    def seconds(self, now: float) -> float | None:
        """Seconds that are left; None while nothing is done."""
        done, took = sum(self._done.values()), sum(self._took.values())
        if not done or not took:
            return None
        left = self._seconds(lambda kind: self._took[kind] / self._done[kind] if self._done.get(kind) else took / done)
        # What is being done now has begun when the last part ended. If that takes longer than all that was left was
        # thought to take, nobody knows: half of it is told until it ends.
        return max(left - (now - self._last), left / 2)

    def _seconds(self, factor: Callable[[str], float]) -> float:
        return sum(estimate * factor(kind) for kind, estimate in self._left.items() if estimate)


class Bar:
    """What is done of a work, and what is being done; nothing of it is shown but by ``progress`` below."""

    def __init__(self, title: str, steps: int, left: TimeLeft) -> None:
        self.title, self.steps, self.settled, self.doing = title, steps, 0, "begins"
        self.left = left
        self.write = _to_stderr

    def __call__(self, doing: str, estimate: float = 1.0, kind: str = "", found: bool = False) -> None:
        """A part of the work is done, of so many estimated seconds."""
        self.doing = doing
        self.left.part(kind, estimate, time.monotonic(), found)

    def step(self, doing: str) -> None:
        """A step is settled."""
        self.settled += 1
        self.doing = doing

    def one(self, doing: str) -> None:
        """A step is settled, where all are alike."""
        self.step(doing)
        self(doing)

    def say(self, text: str) -> None:
        """A line on stderr, to be read while the work goes on."""
        self.write(plain(text))

    def told(self) -> tuple[str, str]:
        """``36 %, 45 of 126 steps`` and ``about 2 min left``; nothing while no steps are known."""
        if not self.steps:
            return "", ""
        seconds = self.left.seconds(time.monotonic())
        done = self.left.share()
        share = f"{min(99, int(100 * done))} %, " if self.settled < self.steps or done < 1 else ""
        return f"{share}{self.settled} of {self.steps}", "" if seconds is None else f"{clock(seconds)} left"


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def clock(seconds: float) -> str:
    """Seconds that are not known well: ``40 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 95:
        return f"{max(5, round(seconds / 5) * 5)} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60 // 10 * 10} min"


@contextmanager
def progress(
    title: str, steps: int, estimates: dict[str, float] | TimeLeft | None = None, shown: bool | None = None
) -> Iterator[Bar]:
    """Show how far a work of so many steps is, on stderr: a bar where someone looks, else a line now and then.

    ``shown`` None: a bar on a terminal and in a notebook, lines elsewhere; True: a bar; False: neither. Without
    ``estimates``, seconds by kind, the parts of the work are its steps, all alike. The time that is left of a work
    goes on in another bar.
    """
    if not isinstance(estimates, TimeLeft):
        estimates = TimeLeft({"": float(steps)} if estimates is None else estimates, time.monotonic())
    bar = Bar(title, steps, estimates)
    if shown is False or not steps:
        yield bar
    elif in_notebook():
        yield from _in_cell(bar)
    else:
        yield from _told(bar, shown)


@contextmanager
def before(title: str, doing: str, shown: bool | None = None) -> Iterator[None]:
    """Show what is being done before the steps of a work are known; a cell of a notebook is busy anyway."""
    if shown is False or in_notebook():
        yield
        return
    bar = Bar(title, 0, TimeLeft({"": 1.0}, time.monotonic()))
    bar.doing = doing
    yield from _told(bar, shown)


def _told(bar: Bar, shown: bool | None) -> Iterator[Any]:
    """On a terminal or where it is asked for a bar, else lines."""
    yield from _drawn(bar) if shown or sys.stderr.isatty() else _logged(bar, log_seconds())


def in_notebook() -> bool:
    """Whether a cell of a notebook runs this."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def log_seconds() -> float:
    """Seconds between two lines of a log: GAUSSLENS_LOG_SECONDS, 15 where it is not set, ``inf`` for none."""
    return seconds_told(SECONDS, QUIET, lambda seconds: seconds > 0, "give seconds, more than 0, or inf for no lines")


@contextmanager
def _every(seconds: float, tell: Callable[[], object]) -> Iterator[None]:
    """Tell every so many seconds, whether or not anything was done since.

    The thread is run in the context of the caller, by which a kernel knows whose output it is.
    """
    ended = threading.Event()

    def again() -> None:
        while not ended.wait(min(seconds, threading.TIMEOUT_MAX)):
            tell()

    teller = threading.Thread(target=copy_context().run, args=(again,), name="progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def _logged(bar: Bar, seconds: float) -> Iterator[Bar]:
    """A line every so many seconds."""
    with _every(seconds, lambda: bar.say(_line(bar))):
        yield bar


def _line(bar: Bar) -> str:
    far, left = bar.told()
    return f"{bar.title}: " + ", ".join(filter(None, (far, left, bar.doing)))


def _in_cell(bar: Bar) -> Iterator[Bar]:
    """One output of the cell, changed twice a second, at the end a line that stays; nothing but IPython is needed."""
    display = import_module("IPython.display").display  # a kernel has it

    def seen(words: str, done: float | None) -> dict[str, str]:
        drawn = "" if done is None else f'<progress value="{done:.3f}" style="vertical-align: middle"></progress> '
        return {"text/plain": words, "text/html": f"<small>{drawn}{escape(words)}</small>"}

    def now() -> dict[str, str]:
        return seen(plain(_line(bar)), bar.left.share())

    began = time.monotonic()
    output = display(now(), raw=True, display_id=True)
    try:
        with _every(0.5, lambda: output.update(now(), raw=True)):
            yield bar
    finally:
        took = clock(time.monotonic() - began)
        output.update(seen(plain(f"{bar.title}: {bar.settled} of {bar.steps} in {took}"), None), raw=True)


def _drawn(bar: Bar) -> Iterator[Bar]:
    """A bar that is drawn anew several times a second, so that it tells of time while a long part is computed."""
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, TextColumn
    from rich.progress import Progress as Drawn
    from rich.table import Column
    from rich.text import Text

    class Told(ProgressColumn):
        def __init__(self, what: Callable[[], str]) -> None:
            super().__init__(Column(no_wrap=True, overflow="ellipsis"))
            self._what = what

        def render(self, task: Any) -> Text:
            task.completed = bar.left.share()
            return Text(plain(self._what()))

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        Told(lambda: " ".join(bar.told())),
        Told(lambda: bar.doing),
    )
    with Drawn(*columns, console=console, transient=True) as drawn:
        drawn.add_task(plain(bar.title), total=1.0)
        bar.write = lambda line: console.print(line, markup=False, highlight=False)
        yield bar
