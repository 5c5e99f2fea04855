"""Say why two runs of a store differ."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..contract.errors import InputError
from .terminal import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..store.manifest import Manifest, PlannedStep
    from ..store.read_results import Results

# So many letters of a plan's digest are enough to mean it.
FEWEST_DIGITS = 6
# Values longer than this are cut on the screen; --json has them whole.
MOST_LETTERS = 60

ABSENT = object()
_Name = tuple[str, str, tuple[tuple[str, str], ...]]


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("store", metavar="STORE", help="the directory of a store, or a pack")
    parser.add_argument("one", metavar="RUN", help="a run, or the first 6 digits or more of a plan's digest")
    parser.add_argument("other", metavar="RUN", help="another")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Namespace) -> int:
    """Print which ingredient of the key differs, step by step; steps that differ alike are told once."""
    from ..store.read_results import open as open_store

    results = open_store(arguments.store)
    one, other = _plan(results, arguments.one), _plan(results, arguments.other)
    found, same = differences(one, other)
    if arguments.json:
        print(json.dumps({"same": same, "different": [_as_data(d) for d in found]}, indent=1))
        return 0
    print(f"{plain(arguments.one)} and {plain(arguments.other)}: {same} steps are the same, {len(found)} differ")
    alike: dict[Any, list[Difference]] = {}
    for difference in found:
        changes = tuple((path, repr(a), repr(b)) for path, a, b in difference.changes)
        alike.setdefault((difference.only_in, changes, difference.inputs), []).append(difference)
    for group in alike.values():
        print()
        _tell(group)
    return 0


def _plan(results: Results, name: str) -> Manifest:
    """The newest plan of a run, or the plan whose digest begins so."""
    if name in results.runs:
        return results.run(name).manifest()
    found = [m for m in results.manifests() if name and m.plan.startswith(name)]
    if found and len(name) < FEWEST_DIGITS:
        raise InputError(
            f"{results.path} has no run {name!r}; to mean a plan whose digest begins so, "
            f"give {FEWEST_DIGITS} digits or more: {found[-1].plan[:8]}"
        )
    return found[-1] if found else results.run(name).manifest()


def _tell(group: list[Difference]) -> None:
    names = [", ".join(w for w in (d.variant, d.label, d.point) if w) for d in group]
    shown, first = _some(names), group[0]
    if first.only_in is not None:
        print(f"only in {plain(first.only_in)}: {plain(shown)}")
        return
    print(plain(shown))
    for path, one, other in first.changes:
        print(f"  {plain(path)}: {_value(one)} -> {_value(other)}")
    if first.inputs:
        print(f"  reads {plain(_some(first.inputs))}")
    if not first.changes and not first.inputs:
        print("  the keys differ, and the manifests do not say why")


def _some(names: Sequence[str], most: int = 4) -> str:
    """The first of some names, and how many more there are."""
    return "; ".join(names[:most]) + (f"; and {len(names) - most} more" if len(names) > most else "")


def _value(value: Any) -> str:
    text = "(absent)" if value is ABSENT else json.dumps(value, ensure_ascii=False)
    text = plain(text)
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 3]}..."


def _as_data(difference: Difference) -> dict[str, Any]:
    def side(value: Any) -> dict[str, Any]:
        return {} if value is ABSENT else {"value": value}

    return {
        "variant": difference.variant,
        "label": difference.label,
        "point": difference.point,
        "only_in": difference.only_in,
        "inputs": list(difference.inputs),
        "changes": [{"path": p, "one": side(a), "other": side(b)} for p, a, b in difference.changes],
    }


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


def _by_name(manifest: Manifest) -> dict[_Name, PlannedStep]:
    return {(s.variant, s.label, tuple((n, repr(v)) for n, v in s.point)): s for s in manifest.steps}


def _same_step(one: Any, other: Any, names: Mapping[str, str]) -> bool:
    """Whether two values are the keys of one step of both plans: why they differ is told where that step is."""
    return all(isinstance(v, str) and v in names for v in (one, other)) and names[one] == names[other]


def _named(value: Any, names: Mapping[str, str]) -> Any:
    """Keys of results (what derived steps are made of) as the steps that they are."""
    if isinstance(value, str) and value in names:
        return f"{names[value]} ({value[:8]})"
    return [_named(v, names) for v in value] if isinstance(value, list) else value


def _words(step: PlannedStep) -> str:
    return " ".join([step.label, "on", step.variant, *(f"{n} {v}" for n, v in step.point)])
