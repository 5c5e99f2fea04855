"""One large twin for many workers: its weights analyses are cut into shares of layers, and put together afterwards.

Pure data, and no result depends on it: whoever puts the layers together takes those that are there, computes the
others, and joins them in their order, as one process does (measuring/pieces.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ..guard import is_outside
from ..store.disk import seconds_told
from .tasks import Task, cost

if TYPE_CHECKING:
    from ..runs.steps import Step

# How long a share takes at least, by the plan's estimate: GAUSSLENS_SHARE_SECONDS.
SECONDS = "GAUSSLENS_SHARE_SECONDS"
LEAST = 1.0
# Into how many shares the work of each worker may fall: what the last worker is late is one of them.
SHARES = 4


def share_seconds() -> float:
    """How long a share takes at least: GAUSSLENS_SHARE_SECONDS, 1 where it is not set, ``inf`` for no shares."""
    advice = "give seconds, 0 to cut whatever can be cut, or inf for never"
    return seconds_told(SECONDS, LEAST, lambda seconds: seconds >= 0, advice)


def cut(tasks: Sequence[Task], steps: Mapping[str, Step], workers: int, least: float) -> list[Task]:
    """The tasks for so many workers: a twin that takes more than a worker's fair share falls into shares of layers.

    A share takes at least ``least`` seconds. In place of the twin come what cannot be cut, the shares, and the task
    that waits for them and puts them together.
    """
    costs = {task: cost(steps[key] for key in task.keys) for task in tasks if not task.reads}
    most = max(sum(costs.values()) / (workers * SHARES), least)
    found: list[Task] = []
    for task in tasks:
        keys = () if task.reads or workers < 2 or not costs[task] > most else by_layers(task, steps)
        layers = sorted({n for key in keys for n in _layers(steps[key])})
        seconds = cost(steps[key] for key in keys)
        number = min(math.ceil(seconds / most) if most else len(layers), len(layers))
        found += [task] if number < 2 else _shares(task, keys, in_runs(layers, number))
    return found


def by_layers(task: Task, steps: Mapping[str, Step]) -> tuple[str, ...]:
    """The steps of a twin of which each layer can be computed by itself.

    Not where an edit is an outside plugin's, which may do to the model itself what is only seen when all is done.
    """
    if any(is_outside(call.edit.owner) for call in steps[task.keys[0]].point.edits):
        return ()
    return tuple(key for key in task.keys if _is_by_layer(steps[key]))


def _is_by_layer(step: Step) -> bool:
    descriptor = step.use.analysis.descriptor
    return descriptor.shape == "weights" and descriptor.by_layer


def _layers(step: Step) -> tuple[int, ...]:
    return step.info.narrowed(step.use.layers, step.use.heads).layers


def in_runs(layers: Sequence[int], number: int) -> list[tuple[int, ...]]:
    """All layers in order, in so many runs of them that differ in length by one at most."""
    ends = [len(layers) * i // number for i in range(number + 1)]
    return [tuple(layers[begin:end]) for begin, end in pairwise(ends)]


def _shares(task: Task, keys: tuple[str, ...], shares: Sequence[tuple[int, ...]]) -> Iterator[Task]:
    """What comes in the place of a task; together they tell of progress as often as it would have."""
    others = tuple(key for key in task.keys if key not in keys)
    left = task.units - sum(map(len, shares))
    if others:
        yield replace(task, keys=others, units=left)
    made = [replace(task, keys=keys, units=len(layers), layers=layers) for layers in shares]
    yield from made
    waits = task.waits_for.union(*(share.settles for share in made))
    yield replace(task, keys=keys, waits_for=waits, units=0 if others else left)
