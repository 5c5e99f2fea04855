"""JSON Schemas in words: each parameter's name, type, default and what it is for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..contract.parameters import Parameters

Schema = Mapping[str, Any]

_PLAIN = {"string": "string", "boolean": "true | false", "null": "null"}
_BARE = re.compile(r"[A-Za-z_][\w./-]*")  # text that YAML needs no quotes for
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


@dataclass(frozen=True)
class Parameter:
    """One parameter; a nested one has a dotted name. ``default`` is as in a run file, None where one must be given."""

    name: str
    type: str
    default: str | None
    text: str


def parameters(model: type[Parameters]) -> list[Parameter]:
    """Every parameter of a model, in the order in which it declares them."""
    schema = model.model_json_schema()
    return list(_flat(schema, schema.get("$defs", {}), ""))


def words(schema: Schema, definitions: Schema) -> str:
    """The type that a schema states, in words: ``integer >= 1``, ``list of string``, ``a | b``."""
    found = _followed(schema, definitions)
    if "anyOf" in found:
        return " | ".join(words(each, definitions) for each in found["anyOf"])
    if "const" in found or "enum" in found:
        return " | ".join(_as_in_a_run_file(value) for value in found.get("enum", [found.get("const")]))
    kind = found.get("type")
    if kind in ("number", "integer"):
        bounds = " and ".join(f"{sign} {found[key]:g}" for key, sign in _BOUNDS.items() if key in found)
        return f"{kind} {bounds}".strip()
    if kind == "array":
        return _list(found, definitions)
    if kind == "object":
        inner = found.get("additionalProperties")
        return f"mapping to {words(inner, definitions)}" if isinstance(inner, Mapping) else "mapping"
    return _PLAIN.get(str(kind), "anything")


def _flat(schema: Schema, definitions: Schema, prefix: str) -> Iterator[Parameter]:
    for name, each in schema.get("properties", {}).items():
        found = _followed(each, definitions)
        default = _as_in_a_run_file(each["default"]) if "default" in each else None
        text = each.get("description") or found.get("description", "")
        yield Parameter(prefix + name, words(each, definitions), default, " ".join(text.split()))
        if prefix.count(".") < 4:  # a model may hold itself
            yield from _flat(found, definitions, f"{prefix}{name}.")


def _list(schema: Schema, definitions: Schema) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(words(each, definitions) for each in schema['prefixItems'])}]"
    item = words(schema.get("items", {}), definitions)
    item = f"({item})" if " | " in item else item
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if most is not None:
        size = f"{least}" if least == most else f"{least} to {most}"
        return f"list of {size} {item}"
    return f"list of {item}, at least {least}" if least else f"list of {item}"


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
