"""What a parameter model expects at a place within it: its fields, their types in words, and their choices."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Location = Sequence[str | int]


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
            found += [_written(value) for value in get_args(one)]
        elif isinstance(one, type) and issubclass(one, Enum):
            found += [_written(member.value) for member in one]
    return found


def type_in_words(annotation: Any, many: bool = False) -> str:
    """``a whole number``, ``a list of numbers``; empty where there are no plain words for it."""
    plain = {bool: ("true or false", "true or false"), int: ("a whole number", "whole numbers")}
    plain |= {float: ("a number", "numbers"), str: ("a text", "texts")}
    words = []
    for one in _members(annotation):
        origin = get_origin(one) or one
        if one is type(None):
            continue
        if one in plain:
            words.append(plain[one][many])
        elif origin is Literal:
            words.append("one of " + ", ".join(_written(value) for value in get_args(one)[:12]))
        elif isinstance(origin, type) and issubclass(origin, Mapping | BaseModel):
            words.append("tables" if many else "a table")
        elif isinstance(origin, type) and issubclass(origin, Sequence | AbstractSet):
            within = [type_in_words(a, many=True) for a in get_args(one)[:1]]
            words.append(("lists" if many else "a list") + (f" of {within[0]}" if within and within[0] else ""))
    return " or ".join(words)


def _below(annotation: Any, step: str | int) -> list[Any]:
    """The types under one step into a type."""
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if _is_model(annotation):
        field = fields_of(annotation).get(str(step))
        return _members(field.annotation) if field else []
    if not isinstance(origin, type) or not arguments:
        return []
    if issubclass(origin, Mapping):
        return _members(arguments[-1])
    if isinstance(step, int) and issubclass(origin, tuple) and arguments[-1] is not Ellipsis:
        return _members(arguments[step]) if step < len(arguments) else []
    if isinstance(step, int) and issubclass(origin, Sequence | AbstractSet):
        return _members(arguments[0])
    return []


def _members(annotation: Any) -> list[Any]:
    """The members of a union; the type itself where it is none."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _members(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [member for argument in get_args(annotation) for member in _members(argument)]
    return [annotation]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _written(value: Any) -> str:
    """A value as YAML writes it."""
    return {None: "null", True: "true", False: "false"}[value] if value in (None, True, False) else str(value)
