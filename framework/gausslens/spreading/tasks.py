"""The steps of a plan that are to do, as tasks: which are computed together, what each waits for, whose share it is.

Pure data, made of the plan alone: whoever plans the same run file gets the same tasks in the same order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..contract.errors import InputError
from ..measuring.execute import groups, work
from ..runs.resources import needs, together

if TYPE_CHECKING:
    from ..measuring.pieces import Kind
    from ..runs.steps import Plan, Step

# Operations a second of an imagined machine: shares of a run must not depend on the one that computes them.
NOMINAL = 5e10
# Bytes of results a second that comparisons go through there, and analyses that read results, which do more with each.
COMPARED, READ = 15e6, 2e6


@dataclass(frozen=True)
class Task:
    """Steps that are computed together, by their keys, and the keys of what must be there, or have failed, before.

    ``units`` is how often computing it tells of progress. ``reads``: it looks at results, and at no model. With
    ``numbers`` it is a share: these layers, or groups of prompts, ``of`` each of its steps, which another task puts
    together (shares.py).
    """

    keys: tuple[str, ...]
    waits_for: frozenset[str]
    units: int
    reads: bool
    of: Kind = "layer"
    numbers: tuple[int, ...] = ()

    @property
    def settles(self) -> tuple[str, ...]:
        """What others wait for: its steps, or the share by its name."""
        return (f"{self.keys[0]} {self.of} {self.numbers[0]}",) if self.numbers else self.keys


def tasks_of(plan: Plan, todo: Sequence[Step]) -> list[Task]:
    """The tasks of steps that are to do: those of a twin together, and what reads results one by one."""
    doing = {step.key for step in todo}
    found = []
    for steps in groups(plan, todo):
        read = {plan.by_ref[ref].key for step in steps for ref in (*step.inputs, *step.waits_for)}
        keys = tuple(step.key for step in steps)
        found.append(Task(keys, frozenset(read & doing - set(keys)), work(steps), bool(steps[0].inputs)))
    return found


class Board:
    """Tasks that are to do, handed out in order as soon as what they wait for is settled."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._waits = [set(task.waits_for) for task in tasks]
        self._blocks: dict[str, list[int]] = {}
        for number, waits in enumerate(self._waits):
            for key in waits:
                self._blocks.setdefault(key, []).append(number)
        self._ready = [number for number, waits in enumerate(self._waits) if not waits]
        self._numbers = {task: number for number, task in enumerate(tasks)}
        self._put_off: list[int] = []
        self.left = len(tasks)

    def take(self) -> Task | None:
        """The next that is ready; None where none is, but for those that were put off."""
        return self._tasks[heapq.heappop(self._ready)] if self._ready else None

    @property
    def ready(self) -> int:
        """How many can be taken now."""
        return len(self._ready)

    def back(self, task: Task) -> None:
        """It was taken too early."""
        heapq.heappush(self._ready, self._numbers[task])

    def put_off(self, task: Task) -> None:
        """Another computes it, or some of it: it is handed out again after ``again``."""
        self._put_off.append(self._numbers[task])

    def again(self) -> int:
        """Hand out again what was put off; how many."""
        number = len(self._put_off)
        for each in self._put_off:
            heapq.heappush(self._ready, each)
        self._put_off = []
        return number

    def settle(self, task: Task) -> None:
        """All of it is in the store, or failed."""
        self.left -= 1
        for key in task.settles:
            for number in self._blocks.pop(key, ()):
                self._waits[number].discard(key)
                if not self._waits[number]:
                    heapq.heappush(self._ready, number)


@dataclass(frozen=True)
class Part:
    """The share ``number`` of ``of``, both from 1: twins that stand together in the plan, of nearly equal cost."""

    number: int
    of: int

    @classmethod
    def read(cls, text: str) -> Part:
        """From ``k/n``."""
        number, _, of = text.partition("/")
        try:
            part = cls(int(number), int(of))
        except ValueError:
            raise InputError(f"--part {text}: write k/n, as 2/5 for the second of five parts") from None
        if not 1 <= part.number <= part.of:
            last = f": parts are counted from 1, the last is {part.of}/{part.of}" if part.of > 0 else ": write k/n"
            raise InputError(f"--part {text}: there is no such part{last}")
        return part

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def of_plan(self, plan: Plan) -> frozenset[str]:
        """The keys of its steps: its twins, and what reads these alone; the same whatever the store holds."""
        every = list({step.key: step for step in plan.steps}.values())
        owner: dict[str, int] = {}
        together = list(groups(plan, every))
        for number, steps in shared_out([steps for steps in together if not steps[0].inputs], self.of):
            owner |= dict.fromkeys((step.key for step in steps), number)
        for steps in together:
            if steps[0].inputs:
                owners = {owner.get(plan.by_ref[ref].key, 0) for ref in steps[0].inputs}
                owner[steps[0].key] = owners.pop() if len(owners) == 1 else 0
        return frozenset(key for key, number in owner.items() if number == self.number)


def shared_out(twins: Sequence[Sequence[Step]], of: int) -> Iterator[tuple[int, Sequence[Step]]]:
    """Each twin with the number of its part: neighbours together, which are of one model, cut where costs are even."""
    costs = [cost(steps) for steps in twins]
    whole, before = sum(costs), 0.0
    for steps, own in zip(twins, costs, strict=True):
        middle = (before + own / 2) / whole
        before += own
        yield 1 + min(int(middle * of), of - 1), steps


def cost(steps: Iterable[Step]) -> float:
    """What steps of a twin take, in seconds of an imagined machine; at least a little."""
    each = list(steps)
    return 0.05 + 0.01 * len(each) + together(each, NOMINAL)


def reading(step: Step, plan: Plan) -> float:
    """What a step that reads results takes, in seconds: by the bytes of them, which are estimated for the first."""
    if not step.inputs:
        return 0.0
    first = plan.by_ref[step.inputs[0]]
    try:
        size = needs(first, first.info, NOMINAL).disk if not first.inputs else 0
    except Exception:
        size = 0
    return 0.05 + len(step.inputs) * size / (COMPARED if step.against else READ)
