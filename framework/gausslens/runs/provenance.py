"""Provenance: with what a result was made. Never part of a key."""

from __future__ import annotations

import platform
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from ..guard import threads

if TYPE_CHECKING:
    from .steps import Plan, Step

DISTRIBUTIONS = ("gausslens", "torch", "transformers", "transformer-lens", "numpy", "scipy", "h5py", "xarray")


@dataclass
class Stopwatch:
    """Wall and CPU time since it was made."""

    wall: float = field(default_factory=time.monotonic)
    cpu: float = field(default_factory=time.process_time)

    def read(self) -> dict[str, float]:
        """Seconds so far."""
        wall, cpu = time.monotonic() - self.wall, time.process_time() - self.cpu
        return {"wall_seconds": round(wall, 4), "cpu_seconds": round(cpu, 4)}


def now() -> str:
    """The time, UTC, ISO 8601, fine enough to tell which of two plans is newer."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


@cache
def distributions() -> Mapping[str, str]:
    """Versions of what the numbers went through."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def of_step(
    plan: Plan, step: Step, watch: Stopwatch, sharing: int, parity: Mapping[str, float] | None
) -> dict[str, Any]:
    """The provenance of one result; ``sharing`` steps used the same pass, whose times are told.

    ``parity`` is what the engine's proof found: the largest differences from the model's own answers.
    """
    owner = step.use.analysis.owner
    told: dict[str, Any] = {
        "ingredients": dict(step.ingredients),
        "run_file": dict(plan.study.resolved),
        "seed": plan.study.seed,
        "plugin": {"name": owner.plugin, "distribution": owner.distribution, "version": owner.version},
        "distributions": dict(distributions()),
        "python": platform.python_version(),
        "machine": {"system": platform.system(), "processor": platform.machine(), "host": platform.node()},
        "threads": threads(),
        "threads_in_analyses": 1,
        "steps_in_pass": sharing,
        "peak_memory_bytes": peak_memory(),
        **watch.read(),
    }
    if step.opened is not None:
        info = step.info
        names = ("name", "family", "fingerprint", "dtype")
        told["model"] = {name: getattr(info, name) for name in names} | {"path": step.opened.call.path}
        # The key/value head that each head reads: the page chooses both at once.
        told["model"]["kv_of_head"] = list(info.kv_of_head)
        told["device"] = step.opened.call.device
    if parity:
        told["parity"] = dict(parity)
    return told


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
