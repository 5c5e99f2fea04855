"""Words for people: the types that parameters have, what pydantic says of a value, and what to write instead.

``TYPES`` is the one place where a type gets its words: a new one is a row there. Errors, remedies and the lists of
`gausslens plugins NAME` all take theirs from it.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from ..contract.parameters import now_called
from .nodes import Node
from .problems import shortened
from .text import scalar

if TYPE_CHECKING:
    from ..contract.parameters import Parameters

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Type:
    """A type that a parameter may have, and all that is said of it.

    ``classes`` are those of its annotation; ``one`` and ``many`` its name in sentences. ``schema`` is what JSON Schema
    calls it (its ``format``, where it is a text of a form), ``listed`` what a list of parameters calls it. ``errors``
    are the sorts of error by which pydantic says that a value is none.
    """

    classes: tuple[type, ...]
    one: str
    many: str
    schema: str
    listed: str
    errors: tuple[str, ...]


TRUTH = Type((bool,), "true or false", "true or false", "boolean", "true | false", ("bool_type", "bool_parsing"))
WHOLE = Type(
    (int,),
    "a whole number",
    "whole numbers",
    "integer",
    "integer",
    ("int_type", "int_from_float", "int_parsing", "int_parsing_size"),
)
NUMBER = Type((float,), "a number", "numbers", "number", "number", ("float_type", "float_parsing"))
TEXT = Type((str,), "a text", "texts", "string", "string", ("string_type", "string_sub_type"))
TABLE = Type(
    (Mapping, BaseModel),
    "a table",
    "tables",
    "object",
    "mapping",
    ("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"),
)
LIST = Type(
    (Sequence, AbstractSet),
    "a list",
    "lists",
    "array",
    "list",
    ("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"),
)
NULL = Type((types.NoneType,), "null", "null", "null", "null", ("none_required",))
# The first that fits counts: True is an integer too, and a text a sequence.
TYPES = (TRUTH, WHOLE, NUMBER, TEXT, TABLE, LIST, NULL)

_BY_ERROR = {error: each for each in TYPES for error in each.errors}
_BY_SCHEMA = {each.schema: each for each in TYPES}
_BOUNDS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "finite_number": "a finite number",
}
_LENGTHS = {
    "too_short": "should have at least {min_length} items, has {actual_length}",
    "too_long": "should have at most {max_length} items, has {actual_length}",
    "string_too_short": "should have at least {min_length} characters",
    "string_too_long": "should have at most {max_length} characters",
}
_PATTERNS: dict[str, str] = {}
_TRUTHS = {**dict.fromkeys(("yes", "on", "y", "t"), "true"), **dict.fromkeys(("no", "off", "n", "f"), "false")}
_BARE = re.compile(r"[A-Za-z_][\w./-]*")  # text that YAML needs no quotes for
_SIGNS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def name_pattern(pattern: str, words: str) -> str:
    """Remember how to say a pattern in words; returns the pattern."""
    _PATTERNS[pattern] = words
    return pattern


def of_type(annotation: Any, many: bool = False) -> str:
    """``a whole number``, ``a list of numbers``; empty where there are no plain words for it."""
    words = []
    for one in union_members(annotation):
        if get_origin(one) is Literal:
            words.append("one of " + ", ".join(map(written, get_args(one)[:12])))
        elif isinstance(one, type) and issubclass(one, Enum):
            words.append("one of " + ", ".join(written(member.value) for member in list(one)[:12]))
        elif (found := _typed(one)) is not None and found is not NULL:
            within = of_type(get_args(one)[0], many=True) if found is LIST and get_args(one) else ""
            words.append((found.many if many else found.one) + (f" of {within}" if within else ""))
    return " or ".join(words)


def union_members(annotation: Any) -> list[Any]:
    """The members of a union; the type itself where it is none."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return union_members(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [member for argument in get_args(annotation) for member in union_members(argument)]
    return [annotation]


def written(value: Any) -> str:
    """A value that is listed as a choice, as YAML writes it."""
    return {None: "null", True: "true", False: "false"}[value] if value in (None, True, False) else str(value)


def _typed(annotation: Any) -> Type | None:
    """The type of an annotation; None for one that has no words."""
    origin = get_origin(annotation) or annotation
    return next((t for t in TYPES if issubclass(origin, t.classes)), None) if isinstance(origin, type) else None


def of_errors(errors: list[Mapping[str, Any]], node: Node, choices: list[str]) -> str:
    """The sentence about a value. Several errors are those of the members of one union."""
    wanted = list(dict.fromkeys(filter(None, map(_wanted, errors))))
    listed = [e for e in errors if e["type"] in ("literal_error", "enum", "union_tag_invalid")]
    if listed and choices:
        wanted.append(f"one of {', '.join(choices[:12])}" if len(choices) > 1 else choices[0])
    if wanted:
        return f"should be {' or '.join(wanted)}, is {node.described()}"
    return _other(errors[0], node)


def remedy(error: Mapping[str, Any], node: Node) -> str:
    """What to write instead, where YAML's reading of a value is likely to surprise."""
    wanted, value = _BY_ERROR.get(error["type"]), node.value
    if wanted is TRUTH and isinstance(value, str) and value.casefold() in _TRUTHS:
        return f"write {_TRUTHS[value.casefold()]} (YAML 1.2 reads {value} as text)"
    if wanted is TRUTH and isinstance(value, str) and isinstance(scalar(value), bool):
        return "take the quotes away"
    if wanted in (WHOLE, NUMBER) and isinstance(value, str):
        return _as_number(value, node)
    if wanted is WHOLE and isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"write {int(value)}"
    if wanted is TEXT and node.text and not isinstance(value, str):
        return f'in quotes it is a text: "{shortened(node.text)[1:-1]}"'
    if wanted is LIST and isinstance(value, str | int | float) and not isinstance(value, bool):
        return f"write [{shortened(str(value))[1:-1]}]"
    return ""


def _as_number(value: str, node: Node) -> str:
    if node.text is None and not isinstance(scalar(value), str | None):
        return "take the quotes away"
    bare = re.sub(r"(?<=\d)[_,](?=\d{3})", "", value)
    without_zeros = re.sub(r"^([-+]?)0+(?=\d)", r"\1", bare)
    if without_zeros != value and not isinstance(scalar(without_zeros), str | None):
        why = "a leading zero makes it a text" if bare == value else "numbers have no separators"
        return f"write {without_zeros} ({why})"
    return ""


def _wanted(error: Mapping[str, Any]) -> str:
    bound = _BOUNDS.get(error["type"], "")
    limits = {
        name: int(n) if isinstance(n, float) and n.is_integer() else n for name, n in error.get("ctx", {}).items()
    }
    found = _BY_ERROR.get(error["type"])
    return found.one if found else bound.format(**limits)


def _other(error: Mapping[str, Any], node: Node) -> str:
    what, context = error["type"], error.get("ctx", {})
    if what in _LENGTHS:
        said = _LENGTHS[what].format(**context)
        return re.sub(r"\b1 (item|character)s", r"1 \1", said)
    if what == "string_pattern_mismatch":
        wanted = _PATTERNS.get(context["pattern"], f"a text that matches {context['pattern']}")
        return f"should be {wanted}, is {node.described()}"
    if what in ("value_error", "assertion_error"):
        return str(context.get("error") or error["msg"].partition(", ")[2])
    said = str(error["msg"])
    for theirs, ours in (("Input should", "should"), ("object", "table"), ("array", "list"), ("valid ", "")):
        said = said.replace(theirs, ours)
    return said[:1].lower() + said[1:]


@dataclass(frozen=True)
class Parameter:
    """One parameter; a nested one has a dotted name. ``default`` is as in a run file, None where one must be given."""

    name: str
    type: str
    default: str | None
    text: str
    formerly: tuple[str, ...] = ()


def parameters(model: type[Parameters]) -> list[Parameter]:
    """Every parameter of a model, in the order in which it declares them."""
    schema = model.model_json_schema()
    return list(_flat(schema, schema.get("$defs", {}), ""))


def of_schema(schema: Schema, definitions: Schema) -> str:
    """The type that a schema states, in words: ``integer >= 1``, ``list of string``, ``a | b``."""
    found = _followed(schema, definitions)
    if "anyOf" in found:
        return " | ".join(of_schema(each, definitions) for each in found["anyOf"])
    if "const" in found or "enum" in found:
        return " | ".join(_as_in_a_run_file(value) for value in found.get("enum", [found.get("const")]))
    kind = _BY_SCHEMA.get(str(found.get("format"))) or _BY_SCHEMA.get(str(found.get("type")))
    if kind is None:
        return "anything"
    if kind is LIST:
        return _list(found, definitions)
    if kind is TABLE and isinstance(inner := found.get("additionalProperties"), Mapping):
        return f"{kind.listed} to {of_schema(inner, definitions)}"
    bounds = " and ".join(f"{sign} {found[key]:g}" for key, sign in _SIGNS.items() if key in found)
    return f"{kind.listed} {bounds}".strip()


def _flat(schema: Schema, definitions: Schema, prefix: str) -> Iterator[Parameter]:
    properties = schema.get("properties", {})
    for name, each in properties.items():
        if each.get("deprecated"):
            continue
        was = now_called(name)
        former = tuple(n for n, e in properties.items() if e.get("deprecated") and e.get("description") == was)
        found = _followed(each, definitions)
        default = _as_in_a_run_file(each["default"]) if "default" in each else None
        text = each.get("description") or found.get("description", "")
        yield Parameter(prefix + name, of_schema(each, definitions), default, " ".join(text.split()), former)
        if prefix.count(".") < 4:  # a model may hold itself
            yield from _flat(found, definitions, f"{prefix}{name}.")


def _list(schema: Schema, definitions: Schema) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(of_schema(each, definitions) for each in schema['prefixItems'])}]"
    kind, item = LIST.listed, of_schema(schema.get("items", {}), definitions)
    item = f"({item})" if " | " in item else item
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if most is not None:
        size = f"{least}" if least == most else f"{least} to {most}"
        return f"{kind} of {size} {item}"
    return f"{kind} of {item}, at least {least}" if least else f"{kind} of {item}"


def _followed(schema: Schema, definitions: Schema) -> Schema:
    """A schema with its reference followed."""
    if "$ref" in schema:
        found: Schema = definitions.get(schema["$ref"].rsplit("/", 1)[-1], {})
        return found
    return schema


def _as_in_a_run_file(value: Any) -> str:
    """A value in the flow style of YAML."""
    if isinstance(value, list):
        return f"[{', '.join(map(_as_in_a_run_file, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_as_in_a_run_file(each)}' for key, each in value.items())}}}"
    if isinstance(value, str) and _BARE.fullmatch(value) and value not in ("true", "false", "null"):
        return value
    return json.dumps(value, ensure_ascii=False)
