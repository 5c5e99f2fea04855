"""Say why two runs of a store differ."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from ..contract.errors import InputError
from .terminal import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..store.manifest import Difference, Manifest
    from ..store.results import Results

# So many letters of a plan's digest are enough to mean it.
FEWEST_DIGITS = 6
# Values longer than this are cut on the screen; --json has them whole.
MOST_LETTERS = 60


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("store", metavar="STORE", help="the directory of a store, or a pack")
    parser.add_argument("one", metavar="RUN", help="a run, or the first 6 digits or more of a plan's digest")
    parser.add_argument("other", metavar="RUN", help="another")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Namespace) -> int:
    """Print which ingredient of the key differs, step by step; steps that differ alike are told once."""
    from ..store.manifest import differences
    from ..store.results import open as open_store

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
    from ..store.manifest import ABSENT

    text = "(absent)" if value is ABSENT else json.dumps(value, ensure_ascii=False)
    text = plain(text)
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 3]}..."


def _as_data(difference: Difference) -> dict[str, Any]:
    from ..store.manifest import ABSENT

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
