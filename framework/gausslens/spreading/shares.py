"""One large twin for many workers: what can be computed in pieces is cut into shares, and put together afterwards.

Analyses of weights fall into layers, stream analyses into the groups of prompts of their errors. Pure data, and no
result depends on it: whoever puts pieces together takes those that are there, computes the others, and joins or merges
them in their order, as one process does (measuring/pieces.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ..contract.reference import resolve
from ..guard import is_outside
from ..measuring.passes import cut as cut_prompts
from ..measuring.twin import sharing
from ..runs.lending import asked_of
from ..runs.requests import offers_state
from ..store.disk import seconds_told
from .tasks import Task, cost

if TYPE_CHECKING:
    from ..measuring.pieces import Kind
    from ..runs.steps import Step

# How long a share takes at least, by the plan's estimate. Sending one takes 5 ms of a processor, writing a piece and
# reading it back 4 to 10: with ten pieces a tenth of this.
SECONDS = "GAUSSLENS_SHARE_SECONDS"
LEAST = 1.0
# Into how many shares the work of each worker may fall: what the last worker is late is one of them.
SHARES = 4


def share_seconds() -> float:
    """How long a share takes at least: GAUSSLENS_SHARE_SECONDS, 1 where it is not set, ``inf`` for no shares."""
    advice = "give seconds, 0 to cut whatever can be cut, or inf for never"
    return seconds_told(SECONDS, LEAST, lambda seconds: seconds >= 0, advice)


@dataclass(frozen=True)
class Divisible:
    """Steps of a twin that can be computed together in pieces: the pieces, and how often each tells of progress."""

    keys: tuple[str, ...]
    of: Kind
    units: Mapping[int, int]


def cut(tasks: Sequence[Task], steps: Mapping[str, Step], workers: int, least: float) -> list[Task]:
    """The tasks for so many workers: a twin that takes more than a worker's fair share falls into shares.

    A share takes at least ``least`` seconds. In place of the twin come what cannot be cut, the shares, and the task
    that waits for them and puts them together.
    """
    costs = {task: cost(steps[key] for key in task.keys) for task in tasks if not task.reads}
    most = max(sum(costs.values()) / (workers * SHARES), least)
    found: list[Task] = []
    for task in tasks:
        shares: list[Task] = []
        if workers > 1 and not task.reads and costs[task] > most:
            for one in divisible([steps[key] for key in task.keys]):
                seconds = cost(steps[key] for key in one.keys)
                number = min(math.ceil(seconds / most) if most else len(one.units), len(one.units))
                runs = in_runs(sorted(one.units), number) if number > 1 else []
                shares += [_share(task, one, numbers) for numbers in runs]
        found += _with(task, shares) if shares else [task]
    return found


def divisible(steps: Sequence[Step]) -> Iterator[Divisible]:
    """The steps of a twin that can be computed in pieces.

    Not where an edit is an outside plugin's, which may do to the model itself what is only seen when all is done.
    """
    if any(is_outside(call.edit.owner) for call in steps[0].point.edits):
        return
    by_layer = [step for step in steps if _has_layers_apart(step)]
    if by_layer:
        layers = {n for step in by_layer for n in step.info.narrowed(step.use.layers, step.use.heads).layers}
        yield Divisible(tuple(step.key for step in by_layer), "layer", dict.fromkeys(layers, 1))
    for same in sharing([step for step in steps if step.use.analysis.descriptor.shape == "stream"]):
        if same[0].tokens is not None and all(map(_has_groups_apart, same)):  # they share a pass: all or none
            shards = Counter(group for group, _ in cut_prompts(same[0].tokens, same[0].groups))
            yield Divisible(tuple(step.key for step in same), "group", shards)


def _has_layers_apart(step: Step) -> bool:
    descriptor = step.use.analysis.descriptor
    return descriptor.shape == "weights" and descriptor.by_layer


def _has_groups_apart(step: Step) -> bool:
    """Whether it is one of ours that sees groups of prompts in one pass, of a model that is in memory."""
    analysis = step.use.analysis
    if step.groups is None or analysis.descriptor.bulk or is_outside(analysis.owner):
        return False
    if step.opened is None or step.opened.max_memory is not None:
        return False
    with suppress(Exception):  # it fails, and says why, when it is computed
        request = asked_of(step.use, step.planned)
        return request.passes == 1 and not request.ordered and offers_state(resolve(analysis.descriptor.analysis))
    return False


def in_runs(numbers: Sequence[int], runs: int) -> list[tuple[int, ...]]:
    """All of these in order, in so many runs of them that differ in length by one at most."""
    ends = [len(numbers) * i // runs for i in range(runs + 1)]
    return [tuple(numbers[begin:end]) for begin, end in pairwise(ends)]


def _share(task: Task, one: Divisible, numbers: tuple[int, ...]) -> Task:
    return replace(task, keys=one.keys, units=sum(one.units[n] for n in numbers), of=one.of, numbers=numbers)


def _with(task: Task, shares: Sequence[Task]) -> Iterator[Task]:
    """What comes in the place of a task; together they tell of progress as often as it would have."""
    keys = {key for share in shares for key in share.keys}
    shared = tuple(key for key in task.keys if key in keys)
    others = tuple(key for key in task.keys if key not in keys)
    left = task.units - sum(share.units for share in shares)
    if others:
        yield replace(task, keys=others, units=left)
    yield from shares
    waits = task.waits_for.union(*(share.settles for share in shares))
    yield replace(task, keys=shared, waits_for=waits, units=0 if others else left)
