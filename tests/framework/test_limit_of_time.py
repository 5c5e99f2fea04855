"""A limit of time interrupts Python code in any thread: in the main one, and in those that workers compute in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from gausslens.guard import Guard, Stopped


def forever(*caught: type[BaseException]) -> None:
    """Python code without an end, which catches what it may."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            sum(range(100))
        except caught:
            continue
    raise AssertionError("nobody interrupted it")


def in_thread(call: Callable[[], Any]) -> Any:
    """What a call in another thread gives, or what it raises."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)
        for _ in range(1000):  # nothing comes behind it
            time.sleep(0)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def raised(call: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as told:  # noqa: PT011 - which it is, the caller asks
        call()
    return told.value


@pytest.mark.parametrize("where", [raised, in_thread])
@pytest.mark.parametrize("caught", [(), (Exception,)])
def test_python_code_is_interrupted(where, caught):
    guard = Guard(limit=0.1)
    began = time.process_time()
    error = where(lambda: guard.call(forever, *caught))
    assert isinstance(error, Stopped)
    assert "longer than its limit of 0.1 s" in str(error)
    assert time.process_time() - began < 30
    assert isinstance(where(lambda: guard.call(int)), Stopped)  # its time is over


def watching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "limit of time"]


@pytest.mark.parametrize("where", [lambda call: call(), in_thread])
def test_what_ends_in_time_is_not_interrupted_and_watched_no_more(where):
    guard = Guard(limit=60)
    assert where(lambda: sum(guard.call(lambda: 1) for _ in range(20))) == 20
    assert not watching()


@pytest.mark.parametrize("where", [raised, in_thread])
@pytest.mark.parametrize(("outer", "inner", "whose"), [(0.1, 60, 0.1), (60, 0.1, 0.1)])
def test_a_call_within_a_call(where, outer, inner, whose):
    """An edit that is made within an analysis: each has a limit of its own."""
    error = where(lambda: Guard(limit=outer).call(lambda: Guard(limit=inner).call(forever)))
    assert isinstance(error, Stopped)
    assert f"limit of {whose:g} s" in str(error)
    assert not watching()
