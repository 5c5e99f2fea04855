"""The settings of the process that others depend on, put back after each call of an outside plugin.

Each is a pair of functions, which read it and set it. What no module imported has no settings yet. What cannot be put
back is not here: threads that were started, files that were closed, functions of other modules that were exchanged.
"""

from __future__ import annotations

import gc
import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .torch_modes import of_modes

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP, signal.SIGUSR1)
# Hooks that torch calls for every module.
GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_parameter_registration_hooks",
    "_global_module_registration_hooks",
    "_global_buffer_registration_hooks",
)


@contextmanager
def kept_settings() -> Iterator[None]:
    """What is set meanwhile is put back afterwards."""
    # Signals first, for an alarm without a handler ends the program; what torch sets may set the environment.
    settings = (*_of_signals(), *_of_torch(), *of_modes(), *_of_numpy(), *_of_xarray(), *_of_python())
    held = [(read, set_, read()) for read, set_ in settings]
    try:
        yield
    finally:
        for read, set_, before in held:
            if _differs(read, before):
                set_(before)


def _differs(read: Callable[[], Any], before: Any) -> bool:
    try:
        return bool(read() != before)
    except Exception:  # a directory that is gone, say
        return True


def _of_python() -> list[Setting]:
    return [
        (_directory, lambda path: None if path is None else os.chdir(path)),
        (lambda: dict(os.environ), _set_environment),
        (lambda: list(warnings.filters), _set_filters),
        (lambda: warnings.showwarning, lambda shown: setattr(warnings, "showwarning", shown)),
        (lambda: sys.excepthook, lambda hook: setattr(sys, "excepthook", hook)),
        (sys.getrecursionlimit, sys.setrecursionlimit),
        (sys.gettrace, sys.settrace),
        (sys.getprofile, sys.setprofile),
        (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        (gc.get_threshold, lambda most: gc.set_threshold(*most)),
        (lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
        (lambda: logging.root.manager.disable, logging.disable),
        (_umask, os.umask),
    ]


def _of_signals() -> list[Setting]:
    if threading.current_thread() is not threading.main_thread():
        return []
    return [(lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0, _stop_alarm), (_handlers, _set_handlers)]


def _directory() -> Path | None:
    try:
        return Path.cwd()
    except OSError:
        return None


def _set_environment(before: dict[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _set_filters(before: list[Any]) -> None:
    warnings.resetwarnings()  # it tells the module that they changed
    warnings.filters[:] = before  # type: ignore[index]


def _umask() -> int:
    found = os.umask(0o077)
    os.umask(found)
    return found


def _handlers() -> list[Any]:
    return [signal.getsignal(number) for number in SIGNALS]


def _set_handlers(before: list[Any]) -> None:
    for number, handler in zip(SIGNALS, before, strict=True):
        if handler is not None:
            signal.signal(number, handler)


def _stop_alarm(was_set: bool) -> None:
    if not was_set:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _of_numpy() -> list[Setting]:
    np: Any = sys.modules.get("numpy")
    if np is None:
        return []
    return [
        (np.geterr, lambda kinds: np.seterr(**kinds)),
        (np.get_printoptions, lambda options: np.set_printoptions(**options)),
    ]


def _of_xarray() -> list[Setting]:
    xr: Any = sys.modules.get("xarray")
    return [] if xr is None else [(lambda: dict(xr.get_options()), lambda before: _set_options(xr, before))]


def _set_options(xr: Any, before: dict[str, Any]) -> None:
    now = xr.get_options()
    xr.set_options(**{name: value for name, value in before.items() if now[name] != value})


def _of_torch() -> list[Setting]:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return []
    deterministic = (torch.are_deterministic_algorithms_enabled, torch.is_deterministic_algorithms_warn_only_enabled)
    modules: Any = sys.modules["torch.nn.modules.module"]
    hooks = [getattr(modules, name) for name in GLOBAL_HOOKS if hasattr(modules, name)]
    return [
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_default_device, lambda device: torch.set_default_device(None if device.type == "cpu" else device)),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_num_threads, torch.set_num_threads),
        (
            lambda: [read() for read in deterministic],
            lambda both: torch.use_deterministic_algorithms(both[0], warn_only=both[1]),
        ),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.is_anomaly_enabled, lambda on: torch.autograd.set_detect_anomaly(on)),
        (_flushes, torch.set_flush_denormal),
        (lambda: [dict(each) for each in hooks], lambda before: _set_hooks(hooks, before)),
    ]


def _set_hooks(hooks: list[Any], before: list[Any]) -> None:
    for each, was in zip(hooks, before, strict=True):
        each.clear()
        each.update(was)


_TINY = [5e-324, 1.0]


def _flushes() -> bool:
    """Whether the processor takes the smallest numbers for 0: torch sets it, and does not tell."""
    return _TINY[0] * _TINY[1] == 0


@dataclass(frozen=True)
class Random:
    """The states of the global generators of Python, numpy and torch."""

    python: Any
    numpy: Any
    torch: Any

    @classmethod
    def now(cls) -> Random:
        """As they are."""
        np: Any = sys.modules.get("numpy")
        torch: Any = sys.modules.get("torch")
        return cls(
            random.getstate(),
            np.random.get_state() if np is not None else None,
            torch.random.get_rng_state() if torch is not None else None,
        )

    @staticmethod
    def seed(seed: int) -> None:
        """Begin them anew."""
        np: Any = sys.modules.get("numpy")
        torch: Any = sys.modules.get("torch")
        random.seed(seed)
        if np is not None:
            np.random.seed(seed % 2**32)
        if torch is not None:
            torch.manual_seed(seed % 2**63)

    def plain(self) -> list[Any]:
        """The same as lists and numbers, as JSON takes them."""
        numpy = None if self.numpy is None else [self.numpy[0], self.numpy[1].tolist(), *self.numpy[2:]]
        return [self.python, numpy, None if self.torch is None else self.torch.tolist()]

    @classmethod
    def of_plain(cls, plain: Sequence[Any]) -> Random:
        """From what ``plain`` gave."""
        python, numpy, states = plain
        torch: Any = sys.modules.get("torch")
        version, internal, gauss = python
        return cls(
            (version, tuple(internal), gauss),
            None if numpy is None else tuple(numpy),
            None if states is None or torch is None else torch.tensor(states, dtype=torch.uint8),
        )

    def put_back(self) -> None:
        """Set them as they were."""
        np: Any = sys.modules.get("numpy")
        torch: Any = sys.modules.get("torch")
        random.setstate(self.python)
        if self.numpy is not None:
            np.random.set_state(self.numpy)
        if self.torch is not None:
            torch.random.set_rng_state(self.torch)
