"""One way to call a plugin: whatever it raises is an error of its step, and a limit of time holds for Python code.

Within a call torch has one thread (``threads``). Plugins that are not ours are called with the settings of the process
kept (``process_state``), and what they print is shown up to a number of lines (``output``).
"""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from .output import counted_output
from .process_state import Random, kept_settings
from .threads import torch_on_one_thread

T = TypeVar("T")
OURS = "gausslens"
# Seconds between two reminders to code that catches the first.
AGAIN = 0.05


class Owner(Protocol):
    """Who contributes something."""

    @property
    def plugin(self) -> str:
        """Its name."""
        ...

    @property
    def distribution(self) -> str:
        """What it was installed with."""
        ...


class Stopped(Exception):
    """A plugin tried to end the program, or took longer than it may."""


class Terminated(KeyboardInterrupt):
    """The process was asked to end, by SIGTERM: at the end of its time, say. It ends as after Ctrl-C."""

    number = signal.SIGTERM


class HungUp(Terminated):
    """The terminal went away: SIGHUP."""

    number = signal.SIGHUP


# What ends a run where nobody else has a use for it.
ENDING = {each.number: each for each in (Terminated, HungUp)}


def is_outside(owner: Owner) -> bool:
    """Whether a plugin is not one of ours: it may do what no test of ours has seen."""
    return owner.distribution != OURS


class _Late(BaseException):
    """The time of a call is over. No Exception, so that `except Exception` in a plugin lets it pass."""

    def __init__(self, guard: Guard) -> None:
        super().__init__("its time is over")
        self.guard = guard


@dataclass
class _Interrupts:
    watched: bool = False
    asked: type[KeyboardInterrupt] | None = None


_INTERRUPTS = _Interrupts()


@contextmanager
def watched_interrupts() -> Iterator[None]:
    """While a run lasts it is known whether a KeyboardInterrupt came from Ctrl-C, or a plugin raised it.

    SIGTERM and SIGHUP end a run in the same way, where nobody else has a use for them (nohup ignores SIGHUP).
    """
    if _INTERRUPTS.watched or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    # One that is ignored, as of a process in the background: nobody asks.
    handlers: dict[signal.Signals, Any] = {signal.SIGINT: before} if callable(before) else {}
    handlers |= {number: signal.SIG_DFL for number in ENDING if signal.getsignal(number) is signal.SIG_DFL}

    def asked(number: int, frame: Any) -> None:
        _INTERRUPTS.asked = ENDING.get(signal.Signals(number), KeyboardInterrupt)
        if number in ENDING:
            raise _INTERRUPTS.asked
        handlers[signal.SIGINT](number, frame)

    _INTERRUPTS.watched = True
    try:
        for number in handlers:
            signal.signal(number, asked)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _INTERRUPTS.watched, _INTERRUPTS.asked = False, None


def _check_interrupted() -> None:
    """What a plugin caught of Ctrl-C is raised again."""
    if _INTERRUPTS.asked is not None:
        raise _INTERRUPTS.asked


def settled(error: BaseException) -> Exception:
    """What code of a plugin raised, as an error of its step; a Ctrl-C, and what ends the run, is raised again."""
    _check_interrupted()
    if isinstance(error, Exception):
        return error
    if isinstance(error, _Late) or (isinstance(error, KeyboardInterrupt) and not _INTERRUPTS.watched):
        raise error
    try:
        said = f"({', '.join(map(repr, error.args))})" if error.args else ""
    except BaseException:
        said = ""
    return Stopped(f"it raised {type(error).__name__}{said}, which would have ended the program: a plugin may not")


def _can_be_told(error: Exception) -> bool:
    try:
        return isinstance(str(error), str) and isinstance(repr(error), str)
    except BaseException:
        return False


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Have Python raise this in a thread; None: nothing, of what has not been raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error) if error else None)


@dataclass
class Guard:
    """How the calls of one step, edit or other piece of a plugin are made.

    ``seed`` is that of the global generators of torch, numpy and Python within calls of an outside plugin: they go on
    from call to call, and the run's own are put back. ``limit`` are the seconds that all its calls may take together.
    """

    whose: str = ""
    outside: bool = False
    seed: int | None = None
    limit: float | None = None
    spent: float = 0.0
    _random: Random | None = field(default=None, repr=False)

    @classmethod
    def of(cls, owner: Owner, seed: int | None = None, limit: float | None = None) -> Guard:
        """That of what a plugin contributes."""
        return cls(f"plugin {owner.plugin} ({owner.distribution})", is_outside(owner), seed, limit)

    @property
    def random(self) -> list[Any] | None:
        """The generators that its calls see, as plain lists; None where they have none of their own."""
        return None if self._random is None else self._random.plain()

    @random.setter
    def random(self, plain: list[Any] | None) -> None:
        self._random = None if plain is None else Random.of_plain(plain)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call it; what it raises is an Exception, unless the run itself is to end."""
        try:
            with torch_on_one_thread():
                found = self._kept(function, arguments) if self.outside else self._timed(function, arguments)
        except _Late as late:
            if late.guard is not self:
                raise
            raise self.too_long() from None
        except BaseException as error:
            raised = settled(error)
            if self.outside and not _can_be_told(raised):
                raise Stopped(f"it raised {type(error).__name__}, of which no text can be had") from None
            if raised is error:
                raise
            raise raised from error
        _check_interrupted()
        return found

    def _kept(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        with kept_settings(), counted_output(self.whose):
            outer = Random.now()
            if self._random is not None:
                self._random.put_back()
            elif self.seed is not None:
                Random.seed(self.seed)
            try:
                return self._timed(function, arguments)
            finally:
                self._random = None if self.seed is None else Random.now()
                outer.put_back()

    def _timed(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        if self.limit is None:
            return function(*arguments)
        began = time.monotonic()
        try:
            if self.spent >= self.limit:
                raise self.too_long()
            with self._alarm(self.limit - self.spent):
                found = function(*arguments)
        finally:
            self.spent += time.monotonic() - began
        if self.spent > self.limit:  # code that Python could not interrupt, or that caught it
            raise self.too_long()
        return found

    @contextmanager
    def _alarm(self, seconds: float) -> Iterator[None]:
        """Interrupt this thread when the time is over, again and again: the main one by a signal."""
        if threading.current_thread() is not threading.main_thread():
            with self._alarm_of_thread(seconds):
                yield
            return
        running = True

        def late(number: int, frame: Any) -> None:
            if running and left and left < seconds / 2 and callable(before):
                before(number, frame)  # of the call around this one, which had used most of its time before
            if running:
                raise _Late(self)

        left, _ = signal.getitimer(signal.ITIMER_REAL)
        before = signal.signal(signal.SIGALRM, late)
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, seconds if not left else min(seconds, left), AGAIN)
        try:
            yield
        finally:
            running = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if left:
                signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), AGAIN), AGAIN)

    @contextmanager
    def _alarm_of_thread(self, seconds: float) -> Iterator[None]:
        """The same in another thread, as workers of a scheduler have: Python raises there what this one is told to.

        It does so between two steps of Python code; a call that waits in C is not cut short, as a signal would.
        """
        own, over, guard = threading.get_ident(), threading.Event(), self

        class Late(_Late):  # of which Python makes the exception by itself
            def __init__(self) -> None:
                super().__init__(guard)

        def watch() -> None:
            wait = seconds
            while not over.wait(wait):
                _raise_in(own, Late)
                wait = AGAIN

        watching = threading.Thread(target=watch, name="limit of time", daemon=True)
        watching.start()
        try:
            yield
        finally:
            self._end(over, watching, own)

    def _end(self, over: threading.Event, watching: threading.Thread, thread: int) -> None:
        """End the watch on a thread, whatever still comes of it; what is of another guard is raised again."""
        of_another = None
        while True:
            try:
                over.set()
                watching.join()
                _raise_in(thread, None)
                break
            except _Late as late:
                of_another = of_another if late.guard is self else late
        if of_another is not None:
            raise of_another

    def too_long(self) -> Stopped:
        """The error of one that takes longer than its limit."""
        return Stopped(f"it took longer than its limit of {self.limit:g} s (`limit:` in the run file)")
