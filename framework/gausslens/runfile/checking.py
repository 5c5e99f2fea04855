"""A table against a parameter model: the values, or every mistake at its place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..contract.errors import near
from . import wording
from .fields import choices_at, field_at, names_at, type_in_words
from .nodes import Node, Path
from .problems import MOST, instead

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from .problems import Problems

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class _Fault:
    """What pydantic found, and the node that it is about.

    ``absent`` is the key or item that is missing there; ``union`` the way to the first union that was tried, None where
    there was none; ``of_key`` whether it is the key that is wrong.
    """

    error: Any
    node: Node
    absent: str | int | None = None
    union: Path | None = None
    of_key: bool = False

    @property
    def kind(self) -> str:
        return str(self.error["type"])

    @property
    def location(self) -> Path:
        return tuple(self.error["loc"])

    @property
    def depth(self) -> int:
        return len(self.node.path) + (self.absent is not None)


def checked(
    model: type[M], table: Node, problems: Problems, also: Iterable[str] = (), at: str = ""
) -> tuple[M | None, Node]:
    """The values of a table, and the table with misspelt keys put right, so that what they name is checked too.

    ``also`` are keys that belong beside those of the model; ``at`` says at which point of a sweep it is.
    """
    if not table.is_table:
        problems.value(table, f"should be a table, is {table.described()}", _as_table(model, table))
        return None, table
    telling = _Telling(model, problems, tuple(also), at)
    while True:
        try:
            return model.model_validate_json(json.dumps(table.plain()), strict=True), table
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)[: 10 * MOST]
        faults = [_fault(each, table) for each in found]
        unknown = [f for f in faults if f.kind == "extra_forbidden" and f.union is None]
        if not unknown:
            for group in _grouped(faults):
                telling.of(group)
            return None, table
        renames: dict[Path, dict[str, str | None]] = {}
        for fault in unknown:
            names = renames.setdefault(fault.location[:-1], {})
            names[str(fault.location[-1])] = telling.meant(fault, table, names.values())
        for above, names in renames.items():
            table = table.renamed(above, names)


def _as_table(model: type[BaseModel], node: Node) -> str:
    """How a text, which was given alone, is written as a table."""
    first = next(iter(names_at(model, ())), None)
    return f"write {{{first}: {node.value}}}" if isinstance(node.value, str) and first and len(node.value) < 80 else ""


def _fault(error: Any, table: Node) -> _Fault:
    node, union, steps = table, None, error["loc"]
    for index, step in enumerate(steps):
        below = node.step(step)
        if below is not None:
            node = below
        elif step == "[key]":
            return _Fault(error, node, union=union, of_key=True)
        elif error["type"] == "missing" and index == len(steps) - 1:
            return _Fault(error, node, step, union)
        elif union is None:
            union = tuple(steps[:index])  # pydantic names the member of the union where no step of the file is
    if error["type"] == "union_tag_not_found":
        tag = error["ctx"]["discriminator"].strip("'")
        misspelt = near(tag, node.value, most=1)
        if misspelt:
            error = {"type": "extra_forbidden", "loc": (*steps, misspelt[0])}
            return _Fault(error, node.value[misspelt[0]], union=union)
        return _Fault(error, node, tag, union)
    if error["type"] == "union_tag_invalid":
        node = node.get(error["ctx"]["discriminator"].strip("'")) or node
    return _Fault(error, node, union=union)


def _grouped(faults: list[_Fault]) -> list[list[_Fault]]:
    """Each fault alone; of those that the members of a union raise, together the ones that came furthest."""
    groups = [[fault] for fault in faults if fault.union is None]
    unions: dict[Path, list[_Fault]] = {}
    for fault in faults:
        if fault.union is not None:
            unions.setdefault(fault.union, []).append(fault)
    for tried in unions.values():
        places: dict[Any, list[_Fault]] = {}
        deepest = max(fault.depth for fault in tried)
        for fault in tried:
            if fault.depth == deepest and not _is_twin(fault, tried):
                what = fault.kind if fault.kind in ("missing", "extra_forbidden") else ""
                places.setdefault((fault.node.path, fault.absent, what), []).append(fault)
        groups += places.values()
    return groups


def _is_twin(fault: _Fault, others: list[_Fault]) -> bool:
    """Whether a key is missing only because it is misspelt."""
    if fault.absent is None:
        return False
    strangers = [
        o.location[-1] for o in others if o.kind == "extra_forbidden" and o.location[:-1] == fault.location[:-1]
    ]
    return any(near(str(name), [str(fault.absent)]) for name in strangers)


@dataclass(frozen=True)
class _Telling:
    """Says what is wrong, in the terms of one model."""

    model: type[BaseModel]
    problems: Problems
    also: tuple[str, ...]
    at: str

    def meant(self, fault: _Fault, table: Node, taken: Collection[str | None]) -> str | None:
        """Note an unknown key; return the key that it was meant to be, where that one is near and free."""
        *above, name = fault.location
        ours = names_at(self.model, above)
        known = [*ours, *(() if above else self.also)]
        self.problems.key(fault.node, "unknown key", instead(str(name), known) or "there are none here")
        beside = table
        for step in above:
            beside = beside.step(step) or beside
        near_one = near(str(name), known, most=1)
        is_free = bool(near_one) and near_one[0] in ours and near_one[0] not in taken and not beside.get(near_one[0])
        return near_one[0] if is_free else None

    def of(self, group: list[_Fault]) -> None:
        """Note one fault, or those that the members of a union raise about one value."""
        fault = group[0]
        node, location = fault.node, fault.location
        if fault.absent is not None:
            self.of_absent(fault, fault.absent)
        elif fault.kind == "extra_forbidden":
            hint = instead(str(location[-1]), names_at(self.model, location[:-1]))
            self.problems.key(node, "unknown key", hint)
        elif fault.of_key:
            name = Node(node.path[-1], node.place)
            self.problems.key(node, f"this key {wording.worded([fault.error], name, [])}")
        else:
            self.of_value(group)

    def of_absent(self, fault: _Fault, name: str | int) -> None:
        message, what = "missing", ""
        if fault.node.is_list:
            message = "missing from the list"
        elif fault.kind == "union_tag_not_found":
            message = f"missing: one of {', '.join(choices_at(self.model, (*fault.location, name)))}"
        elif (field := field_at(self.model, fault.location)) is not None:
            sort = type_in_words(field.annotation)
            message = f"missing: {sort}" if sort else message
            what = (field.description or "").rstrip(".")
        self.problems.add(fault.node.place, (*fault.node.path, name), message, what[:1].lower() + what[1:])

    def of_value(self, group: list[_Fault]) -> None:
        fault = group[0]
        node, location = fault.node, fault.location
        tags = fault.error.get("ctx", {}).get("expected_tags", "")
        choices = [tag.strip(" '") for tag in tags.split(",") if tag] or choices_at(self.model, location)
        message = wording.worded([f.error for f in group], node, choices)
        suggestion = wording.remedy(fault.error, node)
        if not suggestion and isinstance(node.value, str) and near(node.value, choices):
            suggestion = instead(node.value, choices)
        field = field_at(self.model, location)
        if not suggestion and field is not None and isinstance(field.default, bool | int | float | str):
            suggestion = f"the default is {json.dumps(field.default)}"
        self.problems.value(node, f"{message} (at {self.at})" if self.at and not location else message, suggestion)
