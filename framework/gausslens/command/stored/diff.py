"""Say why two runs of a store differ, or set their values side by side."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...contract.errors import InputError, StoreError
from ...terminal import plain, print_frame, print_rows
from .. import add_quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from ...store.manifest import Manifest, PlannedStep
    from ...store.read_results import Results

# Values longer than this are cut on the screen; --json has them whole.
MOST_LETTERS = 60

ABSENT = object()
_Name = tuple[str, str, tuple[tuple[str, str], ...]]


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("store", metavar="STORE", help="the directory of a store, or a pack")
    parser.add_argument("one", metavar="RUN", help="a run, or the first 6 digits or more of a plan's digest")
    parser.add_argument("other", metavar="RUN", help="another")
    parser.add_argument("label", nargs="?", metavar="LABEL", help="of --values: every cell of this result")
    parser.add_argument("--values", action="store_true", help="set values side by side, with their errors if stored")
    parser.add_argument("--variant", metavar="NAME", help="of --values: of this variant (default: of each)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="of --values: print every row, as CSV")
    form.add_argument("--json", action="store_true", help="print JSON")
    add_quoted(parser)


def run(arguments: Namespace) -> int:
    """Print which ingredient of the key differs, step by step; steps that differ alike are told once."""
    from ...store.read_results import open as open_store

    results = open_store(arguments.store)
    if arguments.values:
        _print_values(results, arguments)
        return 0
    for option in ("label", "variant", "csv"):
        if getattr(arguments, option):
            raise InputError(f"only --values takes {option.upper() if option == 'label' else '--' + option}")
    one, other = (results.named(name).manifest() for name in (arguments.one, arguments.other))
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


def _print_values(results: Results, arguments: Namespace) -> None:
    """Print the cells of a result in both runs, or for each result that both have where it differs most."""
    if arguments.one == arguments.other:
        raise InputError(f"--values sets two runs side by side: {arguments.one!r} is named twice")
    if arguments.label is None:
        table, what = _furthest_of_all(results, arguments), "the list"
    else:
        table, what = (
            results.compare(arguments.one, arguments.other, arguments.label, arguments.variant),
            arguments.label,
        )
        _tell_left_out(table.attrs["left_out"])
    if arguments.csv or arguments.json:
        print_frame(table, arguments.json, arguments.quoted)
    else:
        print_rows(table, what)


def _tell_left_out(reasons: Iterable[object]) -> None:
    for reason in reasons:
        print(f"left out: {plain(reason)}", file=sys.stderr)


def _furthest_of_all(results: Results, arguments: Namespace) -> pd.DataFrame:
    """A row for each variable of each result that both runs have."""
    import pandas as pd

    one, other = arguments.one, arguments.other
    first, second = results.named(one), results.named(other)
    rows: list[dict[str, Any]] = []
    for variant, label in first:
        compared = first.steps(variant, label)[0].against is not None
        if compared or (variant, label) not in second or arguments.variant not in (None, variant):
            continue
        try:
            table = results.compare(one, other, label, variant)
        except StoreError as error:
            _tell_left_out([error])
            continue
        _tell_left_out(table.attrs["left_out"])
        for name, cells in table.groupby("variable", sort=False):
            rows.append({"variant": variant, "label": label, "variable": name, **_furthest(cells, one, other)})
    if not rows:
        on = "" if arguments.variant is None else f" on {arguments.variant!r}"
        raise InputError(f"{one} and {other} have finished no result in common{on}")
    return pd.DataFrame(rows)


def _furthest(cells: pd.DataFrame, one: str, other: str) -> dict[str, Any]:
    """How many cells of a variable both runs have, how many are equal, and the cell that differs most."""
    values = [f"{one}.value", f"{other}.value"]
    both = cells[values].notna().all(axis=1)
    equal = int((cells[values[0]] == cells[values[1]]).sum())
    found: dict[str, Any] = {"cells": int(both.sum()), "equal": equal, "most at": ""}
    numbers = [*values, f"{one}.se", f"{other}.se", "difference", "difference_se"]
    distance = cells["difference"].abs()
    if not distance.notna().any():
        return found
    cell = cells.loc[distance.idxmax()].dropna()
    places = [c for c in cell.index if c not in ("variant", "variable", *numbers)]
    found["most at"] = ", ".join(f"{c} {cell[c]}" for c in places)
    return found | {c: cell[c] for c in numbers if c in cell}


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
