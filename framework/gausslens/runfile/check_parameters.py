"""A table against a parameter model: the values, or every mistake at its place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ..contract.errors import near
from ..contract.parameters import former_names
from . import wording as words
from .nodes import KeyPath, Node
from .problems import MOST, instead
from .wording import union_members, written

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pydantic.fields import FieldInfo

    from .problems import Problems

M = TypeVar("M", bound=BaseModel)
Location = Sequence[str | int]


@dataclass(frozen=True)
class _Fault:
    """What pydantic found, and the node that it is about.

    ``absent`` is the key or item that is missing there; ``union`` the way to the first union that was tried, None where
    there was none; ``of_key`` whether it is the key that is wrong.
    """

    error: Any
    node: Node
    absent: str | int | None = None
    union: KeyPath | None = None
    of_key: bool = False

    @property
    def kind(self) -> str:
        return str(self.error["type"])

    @property
    def location(self) -> KeyPath:
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
    reporter = _Reporter(model, problems, tuple(also), at)
    while True:
        try:
            return model.model_validate_json(json.dumps(table.plain()), strict=True), table
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)[: 10 * MOST]
        faults = [_fault(each, table) for each in found if not _follows(each, found)]
        unknown = [f for f in faults if f.kind == "extra_forbidden" and f.union is None]
        if not unknown:
            for group in _grouped(faults):
                reporter.note(group)
            return None, table
        renames: dict[KeyPath, dict[str, str | None]] = {}
        for fault in unknown:
            names = renames.setdefault(fault.location[:-1], {})
            names[str(fault.location[-1])] = reporter.meant(fault, table, names.values())
        for above, names in renames.items():
            table = table.renamed(above, names)


def with_current_names(model: type[BaseModel], table: Node, problems: Problems) -> Node:
    """The table with parameters under the names that they have now; each former name is warned of at its place."""
    return _current([model], table, problems)


def _current(types: Sequence[Any], node: Node, problems: Problems) -> Node:
    if node.is_list:
        items = [_current([b for one in types for b in _below(one, i)], n, problems) for i, n in enumerate(node.value)]
        return replace(node, value=items)
    models = [one for one in types if _is_model(one)]
    if not node.is_table:
        return node
    live = {name for model in models for name in fields_of(model)}
    names: dict[str, str | None] = {}
    for new, old in ((new, old) for m in models for new, former in former_names(m).items() for old in former):
        held = node.get(old)
        if held is None or old in live or old in names:
            continue
        if node.get(new) is not None or new in names.values():
            problems.key(
                held, f"{old} is the name that {new} had before, and {new} is given too", "keep one of the two"
            )
        else:
            problems.warn(held.place, held.path, f"{old} is the name that {new} had before", f"write {new}")
        names[old] = None if node.get(new) is not None or new in names.values() else new
    table = node.renamed((), names) if names else node
    below = {k: _current([b for t in types for b in _below(t, k)], n, problems) for k, n in table.value.items()}
    return replace(table, value=below)


def _as_table(model: type[BaseModel], node: Node) -> str:
    """How a text, which was given alone, is written as a table."""
    first = next(iter(names_at(model, ())), None)
    return f"write {{{first}: {node.value}}}" if isinstance(node.value, str) and first and len(node.value) < 80 else ""


def _follows(error: Any, errors: Sequence[Any]) -> bool:
    """Whether a list is only too short because what is in it is wrong: the items are told of."""
    at = error["loc"]
    return error["type"] == "too_short" and any(len(e["loc"]) > len(at) and e["loc"][: len(at)] == at for e in errors)


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
    unions: dict[KeyPath, list[_Fault]] = {}
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
class _Reporter:
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

    def note(self, group: list[_Fault]) -> None:
        """Note one fault, or those that the members of a union raise about one value."""
        fault = group[0]
        node, location = fault.node, fault.location
        if fault.absent is not None:
            self.note_absent(fault, fault.absent)
        elif fault.kind == "extra_forbidden":
            hint = instead(str(location[-1]), names_at(self.model, location[:-1]))
            self.problems.key(node, "unknown key", hint)
        elif fault.of_key:
            name = Node(node.path[-1], node.place)
            self.problems.key(node, f"this key {words.of_errors([fault.error], name, [])}")
        else:
            self.note_value(group)

    def note_absent(self, fault: _Fault, name: str | int) -> None:
        message, what = "missing", ""
        if fault.node.is_list:
            message = "missing from the list"
        elif fault.kind == "union_tag_not_found":
            message = f"missing: one of {', '.join(choices_at(self.model, (*fault.location, name)))}"
        elif (field := field_at(self.model, fault.location)) is not None:
            sort = words.of_type(field.annotation)
            message = f"missing: {sort}" if sort else message
            what = (field.description or "").rstrip(".")
        self.problems.add(fault.node.place, (*fault.node.path, name), message, what[:1].lower() + what[1:])

    def note_value(self, group: list[_Fault]) -> None:
        fault = group[0]
        node, location = fault.node, fault.location
        tags = fault.error.get("ctx", {}).get("expected_tags", "")
        choices = [tag.strip(" '") for tag in tags.split(",") if tag] or choices_at(self.model, location)
        message = words.of_errors([f.error for f in group], node, choices)
        suggestion = words.remedy(fault.error, node)
        if not suggestion and isinstance(node.value, str) and near(node.value, choices):
            suggestion = instead(node.value, choices)
        field = field_at(self.model, location)
        if not suggestion and field is not None and isinstance(field.default, bool | int | float | str):
            suggestion = f"the default is {json.dumps(field.default)}"
        self.problems.value(node, f"{message} (at {self.at})" if self.at and not location else message, suggestion)


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model by the names they have in a run file."""
    return {info.validation_alias if isinstance(info.validation_alias, str) else name: info
            for name, info in model.model_fields.items()}  # fmt: skip


def types_at(model: type[BaseModel], location: Location) -> list[Any]:
    """The types that may stand at a location; several where there is a union on the way."""
    found: list[Any] = [model]
    for step in location:
        # A step that leads nowhere is the tag that pydantic puts where it tries the members of a union.
        found = [below for one in found for below in _below(one, step)] or found
    return found


def field_at(model: type[BaseModel], location: Location) -> FieldInfo | None:
    """The field at a location."""
    if not location:
        return None
    *above, name = location
    for one in types_at(model, above):
        if _is_model(one) and name in fields_of(one):
            return fields_of(one)[str(name)]
    return None


def names_at(model: type[BaseModel], location: Location) -> list[str]:
    """The keys that a table at a location may have."""
    return [name for one in types_at(model, location) if _is_model(one) for name in fields_of(one)]


def choices_at(model: type[BaseModel], location: Location) -> list[str]:
    """The values allowed at a location, where they are listed."""
    found: list[str] = []
    for one in types_at(model, location):
        if get_origin(one) is Literal:
            found += [written(value) for value in get_args(one)]
        elif isinstance(one, type) and issubclass(one, Enum):
            found += [written(member.value) for member in one]
    return found


def _below(annotation: Any, step: str | int) -> list[Any]:
    """The types under one step into a type."""
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if _is_model(annotation):
        field = fields_of(annotation).get(str(step))
        return union_members(field.annotation) if field else []
    if not isinstance(origin, type) or not arguments:
        return []
    if issubclass(origin, Mapping):
        return union_members(arguments[-1])
    if isinstance(step, int) and issubclass(origin, tuple) and arguments[-1] is not Ellipsis:
        return union_members(arguments[step]) if step < len(arguments) else []
    if isinstance(step, int) and issubclass(origin, Sequence | AbstractSet):
        return union_members(arguments[0])
    return []


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
