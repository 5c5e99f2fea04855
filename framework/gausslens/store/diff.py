"""Why two runs differ: which ingredient of the key of each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .manifest import Manifest, Step

Name = tuple[str, str, tuple[tuple[str, str], ...]]
ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """A step that differs.

    ``changes`` are dotted paths with the values in the one run and in the other; ``inputs`` are the results that it
    reads and that differ themselves.
    """

    variant: str
    label: str
    point: str
    changes: tuple[tuple[str, Any, Any], ...]
    inputs: tuple[str, ...] = ()
    only_in: str | None = None


def differences(one: Manifest, other: Manifest) -> tuple[list[Difference], int]:
    """The steps that differ between two plans, in order, and how many are the same."""
    first, second = _by_name(one), _by_name(other)
    names = {key: _words(step) for steps in (first, second) for step in steps.values() for key in (step.key,)}
    found = []
    same = 0
    for name in dict.fromkeys([*first, *second]):
        a, b = first.get(name), second.get(name)
        step = a or b
        assert step is not None
        point = ", ".join(f"{n} {v}" for n, v in step.point)
        if a is None or b is None:
            run = one.run if b is None else other.run
            found.append(Difference(step.variant, step.label, point, (), only_in=run))
        elif a.key == b.key:
            same += 1
        else:
            changes = list(changed(a.ingredients, b.ingredients))
            inputs = [names[x] for _, x, y in changes if _same_step(x, y, names)]
            others = [(p, _named(x, names), _named(y, names)) for p, x, y in changes if not _same_step(x, y, names)]
            found.append(Difference(a.variant, a.label, point, tuple(others), tuple(inputs)))
    return found, same


def changed(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two ingredients differ, as dotted paths; ABSENT stands for what one of them does not have."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in dict.fromkeys([*one, *other]):
            below = f"{path}.{name}" if path else str(name)
            yield from changed(one.get(name, ABSENT), other.get(name, ABSENT), below)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (x, y) in enumerate(zip(one, other, strict=True)):
            yield from changed(x, y, f"{path}.{index}" if path else str(index))
    elif one is ABSENT or other is ABSENT or type(one) is not type(other) or one != other:
        yield path, one, other


def _by_name(manifest: Manifest) -> dict[Name, Step]:
    return {(s.variant, s.label, tuple((n, repr(v)) for n, v in s.point)): s for s in manifest.steps}


def _same_step(one: Any, other: Any, names: Mapping[str, str]) -> bool:
    """Whether two values are the keys of one step of both plans: why they differ is told where that step is."""
    return all(isinstance(v, str) and v in names for v in (one, other)) and names[one] == names[other]


def _named(value: Any, names: Mapping[str, str]) -> Any:
    """Keys of results (what derived steps are made of) as the steps that they are."""
    if isinstance(value, str) and value in names:
        return f"{names[value]} ({value[:8]})"
    return [_named(v, names) for v in value] if isinstance(value, list) else value


def _words(step: Step) -> str:
    return " ".join([step.label, "on", step.variant, *(f"{n} {v}" for n, v in step.point)])
