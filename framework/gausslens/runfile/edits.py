"""One edit of a variant: its parameters, and every combination of the values that it sweeps."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..contract.errors import near
from ..runs.study import EditCall
from . import blocks
from .fields import names_at
from .names import find
from .parts import part, with_name
from .problems import instead

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..contract.descriptors import Edit
    from ..plugins.host import Owned
    from .nodes import Node
    from .parts import Reading

MOST_POINTS = 10_000
# Dimensions that results have already: a sweep must not make a second one.
DIMENSIONS = ("draw", "layer", "head", "kv_head", "query", "key", "position", "token", "prompt", "feature", "d_model")
KEYS = blocks.keys(blocks.EditBlock)

Values = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class EditRead:
    """An edit as read: a call for each combination of swept values, and how it reads with every default filled in."""

    edit: Owned[Edit] | None
    choices: tuple[tuple[Values, EditCall], ...] = ()
    resolved: Mapping[str, Any] | None = None


def read_edit(reading: Reading, entry: Node) -> EditRead:
    """One entry of a list of edits."""
    entry = with_name(entry, blocks.EditBlock, reading.problems)
    edit = find("edit", entry.get("edit"), reading.host, reading.problems)
    model = reading.model(edit, entry) if edit is not None else None
    known = names_at(model, ()) if model is not None else None
    values, ours, rest = part(entry, blocks.EditBlock, reading.problems, known)
    if edit is None or known is None:
        return EditRead(edit)
    sweep = ours.get("sweep")
    swept = _known(reading, sweep, rest, known) if sweep is not None and sweep.is_table else {}
    lists = [_checked_values(reading, node) for node in swept.values()]
    if math.prod(map(len, lists)) > MOST_POINTS:
        reading.problems.key(entry, f"its sweep has more than {MOST_POINTS:,} points")
        lists = [items[:1] for items in lists]
    layers, heads = (indices(values.layers), indices(values.heads)) if values else (None, None)
    choices = []
    for items in itertools.product(*lists):
        given = dict(zip(swept, items, strict=True))
        table = replace(rest, value=rest.value | given)
        at = ", ".join(f"{name} {node.described()}" for name, node in given.items())
        parameters = reading.parameters(edit, table, KEYS, at)
        if parameters is not None:
            taken = tuple((name, _taken(parameters.canonical().get(name), node)) for name, node in given.items())
            choices.append((taken, EditCall(edit, parameters, layers, heads, entry.place)))
    return EditRead(edit, tuple(choices), _resolved(edit, choices, list(swept)))


def _known(reading: Reading, sweep: Node, rest: Node, known: list[str]) -> dict[str, Node]:
    """The swept parameters by name; a misspelt one is told and put right."""
    found: dict[str, Node] = {}
    for written, node in sweep.value.items():
        name = written
        if name not in known:
            reading.problems.key(node, "there is no such parameter to sweep", instead(name, known))
            meant = near(name, [k for k in known if k not in sweep.value and rest.get(k) is None], most=1)
            if not meant:
                continue
            name = meant[0]
        elif name in DIMENSIONS:
            reading.problems.key(node, "cannot be swept: results have a dimension of this name already")
        elif rest.get(name) is not None:
            reading.problems.key(node, "is swept here and given as well", "keep one of the two")
        found[name] = node
    return found


def _checked_values(reading: Reading, node: Node) -> list[Node]:
    """The values of one sweep that can be a dimension: scalars of one sort, all different."""
    if not node.is_list:
        return [node]  # told already; it is checked as the one value
    if not node.value:
        reading.problems.value(node, "a sweep needs at least one value")
    sorts = Counter(_sort(item.value) for item in node.value)
    seen: set[Any] = set()
    found = []
    for item in node.value:
        if item.value is None or isinstance(item.value, dict | list):
            wanted = "a swept value is a number, a text, true or false"
            reading.problems.value(item, f"{wanted}; this is {item.described()}")
        elif _sort(item.value) is not sorts.most_common(1)[0][0]:
            reading.problems.value(item, f"the values of a sweep are of one sort, and this is {item.described()}")
        elif item.value in seen:
            reading.problems.value(item, f"{item.described()} is swept twice", "keep one")
        else:
            seen.add(item.value)
            found.append(item)
    return found or node.value[:1]


def _sort(value: Any) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def _taken(canonical: Any, node: Node) -> Any:
    """The swept value as the parameters hold it: 1 is 1.0 where a number is wanted."""
    return canonical if isinstance(canonical, bool | int | float | str) else node.value


def indices(values: list[int] | None) -> tuple[int, ...] | None:
    """Layers or heads in order, each once."""
    return tuple(sorted(set(values))) if values else None


def _each(values: Iterable[Any]) -> list[Any]:
    """Each value once; lists too, which are no keys of a dict."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _resolved(edit: Owned[Edit], choices: list[tuple[Values, EditCall]], swept: list[str]) -> dict[str, Any]:
    if not choices:
        return {}
    call = choices[0][1]
    return {
        "edit": edit.descriptor.name,
        "layers": list(call.layers) if call.layers else None,
        "heads": list(call.heads) if call.heads else None,
        "sweep": {name: _each(dict(values)[name] for values, _ in choices) for name in swept},
        **{name: value for name, value in call.parameters.canonical().items() if name not in swept},
    }
