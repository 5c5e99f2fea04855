"""What pydantic says of a value, in plain words; and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .nodes import Node
from .problems import shortened
from .scalars import scalar

WHOLE, NUMBER, TEXT, TRUTH, LIST, TABLE = "a whole number", "a number", "a text", "true or false", "a list", "a table"

_KINDS = {
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing", "int_parsing_size"), WHOLE),
    **dict.fromkeys(("float_type", "float_parsing"), NUMBER),
    **dict.fromkeys(("string_type", "string_sub_type"), TEXT),
    **dict.fromkeys(("bool_type", "bool_parsing"), TRUTH),
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"), LIST),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"), TABLE),
    "none_required": "null",
}
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


def name_pattern(pattern: str, words: str) -> str:
    """Remember how to say a pattern in words; returns the pattern."""
    _PATTERNS[pattern] = words
    return pattern


def kind(error: Mapping[str, Any]) -> str:
    """What sort of value pydantic wanted; empty where its sort was right."""
    return _KINDS.get(error["type"], "")


def worded(errors: list[Mapping[str, Any]], node: Node, choices: list[str]) -> str:
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
    wanted, value = kind(error), node.value
    if wanted == TRUTH and isinstance(value, str) and value.casefold() in _TRUTHS:
        return f"write {_TRUTHS[value.casefold()]} (YAML 1.2 reads {value} as text)"
    if wanted == TRUTH and isinstance(value, str) and isinstance(scalar(value), bool):
        return "take the quotes away"
    if wanted in (WHOLE, NUMBER) and isinstance(value, str):
        return _as_number(value, node)
    if wanted == WHOLE and isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"write {int(value)}"
    if wanted == TEXT and node.text and not isinstance(value, str):
        return f'in quotes it is a text: "{shortened(node.text)[1:-1]}"'
    if wanted == LIST and isinstance(value, str | int | float) and not isinstance(value, bool):
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
    return kind(error) or bound.format(**limits)


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
