"""Runs of which each share is computed by itself, and what they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import layered
import probes

from gausslens import plugins
from gausslens.measuring.execute import Execution, not_in_store
from gausslens.runs.outcome import Noted, Settled
from gausslens.runs.steps import manifest_of
from gausslens.spreading.here import Leading, computed
from gausslens.spreading.prepare import prepare
from gausslens.store import Store
from gausslens.store.disk import Claims
from gausslens.testing import wiring

OURS = [
    {"use": "bilinear.spectrum", "with": {"per_head": True}},
    {"use": "bilinear.alignment"},
    {"use": "bilinear.noise"},
]
COMPUTE = Execution.compute
LAYERS = {"use": "layered.norm"}


LINES = ["one two three", "four", "five six", "a longer line than others", "x", "seven, eight", "nine", "and ten"]
STREAMS = [
    *({"use": f"attention.{name}"} for name in ("band", "kernels", "lowrank", "masks", "pooling", "roles")),
    *({"use": f"bilinear.{name}"} for name in ("head-roles", "logits")),
    *({"use": name} for name in ("gaussian.moments", "model.loss")),
    {"use": "gaussian.joint", "with": {"site": "v", "window": 2, "every": 1, "dims": 1, "permutations": 0}},
    {"use": "model.attention", "with": {"maps": "heads"}},
]
TWICE = {"use": "gaussian.moments", "as": "twice", "with": {"site": "q", "robust": True, "principal": 2}}


def host() -> plugins.Host:
    ours = ["attention", "bilinear", "gaussian", "models", "reinit"]
    return plugins.load(only=ours, extra={"tiny": wiring, "probe": probes, "layered": layered})


def study(*analyses: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "gausslens": 1,
        "name": "shared",
        "seed": 3,
        "model": {"path": "builtin:testing", "loader": "tiny"},
        "prompts": {"source": "lines"},
        "variants": {
            "trained": [],
            "turned": {"edits": [{"edit": "reinit.rotate", "by": "matrix"}], "draws": 2},
            "noise": {"edits": [{"edit": "reinit.gaussian"}]},
            "difference": {"difference": ["trained", "noise"]},
        },
        "analyses": list(analyses),
        "report": False,
    } | more


def read(*analyses: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A study of prompts, with errors over them."""
    variants = {"trained": [], "turned": {"edits": [{"edit": "reinit.rotate", "by": "matrix"}]}}
    text = {"prompts": {"source": "lines", "lines": LINES}, "errors": {"groups": 3}, "variants": variants}
    return study(*analyses, **text | more)


class Shared:
    """A run of which each share is computed by a process of its own, as far as one process can tell."""

    def __init__(self, store: Path, run: dict[str, Any], workers: int = 2) -> None:
        _, _, self.models, self.plan = prepare(run, host=host())
        self.store, self.tasks, self.events = Store(store).create(), [], []
        self.store.manifest(self.plan.study.name, manifest_of(self.plan))
        self.todo, _ = not_in_store(self.plan, self.store)
        with Claims(self.store.writer) as claims:
            self.leading = Leading(self.plan, self.todo, self.store, claims)
            self.leading.share_out(workers)
            self.claims = claims
            self.go_on()

    def go_on(self) -> None:
        while self.leading.board.left:
            task = self.leading.board.take()
            assert task is not None
            self.tasks.append(task)
            told = self.leading.claimed(task)
            while True:
                try:
                    self.events.append(next(told))
                except StopIteration as end:
                    steps = end.value
                    break
            if steps is None:
                continue
            execution = Execution(self.plan, self.store, self.todo)
            if task.numbers:
                self.events += execution.share(steps, task.of, task.numbers)
            else:
                self.events += computed(execution, steps, self.claims)
            self.leading.board.settle(task)
            execution.close()

    @property
    def failed(self) -> list[str]:
        return [str(e.failure) for e in self.events if isinstance(e, Settled) and e.failure is not None]

    @property
    def notes(self) -> list[str]:
        return [e.text for e in self.events if isinstance(e, Noted)]


def pieces(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "progress").iterdir()) if (store / "progress").is_dir() else []
