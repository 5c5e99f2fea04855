"""Descriptors and their parameters in words: what ``gausslens plugins NAME`` shows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from .reference import has_form, resolve
from .schema_words import Parameter, parameters

if TYPE_CHECKING:
    from .descriptors import Descriptor
    from .owner import Owned

_TOLD_ELSEWHERE = ("name", "version", "summary", "parameters")
# How a run file uses each kind; {more} are its parameters that must be given.
_USES = {
    "analysis": "analyses: [{{use: {name}{with_more}}}]",
    "edit": "variants: {{edited: [{{edit: {name}{more}}}]}}",
    "loader": "model: {{path: ..., loader: {name}{more}}}",
    "source": "prompts: {{source: {name}{more}}}",
}


def as_text(kind: str, owned: Owned[Any], width: int) -> str:
    """One descriptor in full: whose it is, what it does, its parameters, and how a run file uses it."""
    descriptor, owner = owned.descriptor, owned.owner
    head = f"{descriptor.name}   {kind}, version {descriptor.version}"
    lines = [f"{head}, of plugin {owner.plugin} ({f'{owner.distribution} {owner.version}'.strip()})"]
    lines += textwrap.wrap(descriptor.summary, width, initial_indent="  ", subsequent_indent="  ")
    lines += [f"  {line}" for line in _facts(descriptor)]
    try:
        found = parameters(resolve(descriptor.parameters))
    except Exception as error:
        return "\n".join([*lines, f"  its parameters cannot be read: {type(error).__name__}: {error}"])
    lines += ["", *_table(found, width)] if found else ["  no parameters"]
    required = [p.name for p in found if p.default is None and "." not in p.name]
    if kind in _USES:
        lines += ["", f"  in a run file:  {_use(kind, descriptor.name, required)}"]
    return "\n".join(lines)


def as_data(kind: str, owned: Owned[Any]) -> dict[str, Any]:
    """The same as plain data, with the JSON Schema of the parameters."""
    descriptor, owner = owned.descriptor, owned.owner
    told: dict[str, Any] = {"kind": kind, **vars(descriptor), **vars(owner), "version": descriptor.version}
    told["distribution_version"] = owner.version
    try:
        told["schema"] = resolve(descriptor.parameters).model_json_schema()
    except Exception as error:
        told["schema"], told["trouble"] = None, f"{type(error).__name__}: {error}"
    return told


def _facts(descriptor: Descriptor) -> Iterator[str]:
    """What else the descriptor declares, where it is not the default; then what stands behind it."""
    declared, behind = [], []
    for field in fields(descriptor):
        value = getattr(descriptor, field.name)
        if field.name in _TOLD_ELSEWHERE or value == field.default or value is None:
            continue
        if isinstance(value, str) and has_form(value):
            behind += [value] * (field.default is MISSING)
        elif value is True:
            declared.append(field.name.replace("_", " "))
        else:
            text = ", ".join(value) if isinstance(value, tuple) else str(value)
            declared.append(f"{field.name} {text}")
    if declared:
        yield "; ".join(declared)
    yield f"code {', '.join(behind)}"


def _table(found: list[Parameter], width: int) -> Iterator[str]:
    """Names in one column; beside each its type and default, and beneath what it is for."""
    name = max(len(p.name) for p in found)
    margin = " " * (name + 6)
    for parameter in found:
        default = "required" if parameter.default is None else f"default {parameter.default}"
        first = f"    {parameter.name:<{name}}  "
        yield from textwrap.wrap(f"{parameter.type}; {default}", width, initial_indent=first, subsequent_indent=margin)
        yield from textwrap.wrap(parameter.text, width, initial_indent=margin, subsequent_indent=margin)


def _use(kind: str, name: str, required: list[str]) -> str:
    given = ", ".join(f"{r}: ..." for r in required)
    with_more = f", with: {{{given}}}" if given else ""
    return _USES[kind].format(name=name, more=f", {given}" if given else "", with_more=with_more)
