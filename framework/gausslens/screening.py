"""Whether what a plugin's hooks return are descriptors that the host can use. Light: nothing they name is imported."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from .descriptors import Analysis, Descriptor, Edit, Engine, Loader, PromptSource, ReportSection, Shape
from .reference import has_form
from .suggest import did_you_mean

# Each hook that returns descriptors: their class, and the form of their names.
HOOKS: Mapping[str, tuple[type[Descriptor], str]] = {
    "loaders": (Loader, "plain"),
    "captures": (Engine, "plain"),
    "prompt_sources": (PromptSource, "plain"),
    "edits": (Edit, "dotted"),
    "analyses": (Analysis, "dotted"),
    "report_sections": (ReportSection, "either"),
}
RESERVED = ("model", "gaussian", "bilinear", "spectrum", "reinit", "attention")
MOST = 3  # problems told of one plugin

_PLAIN = r"[A-Za-z0-9][A-Za-z0-9_-]*"
_FORMS = {
    "plain": (re.compile(_PLAIN), "letters, digits, '_' and '-'"),
    "dotted": (re.compile(rf"{_PLAIN}\.{_PLAIN}"), "'plugin.thing'"),
    "either": (re.compile(rf"{_PLAIN}(\.{_PLAIN})?"), "'thing' or 'plugin.thing'"),
}
_REFERENCES = ("parameters", "claims", "open", "engine", "prompts", "edit", "analysis", "estimate", "section")
_NAMES = ("serves", "touches", "exchangeable", "analyses")
_EMPTY_ALLOWED = ("exchangeable",)
_CHOICES = {"shape": get_args(Shape), "scope": ("variant", "run")}


def problems(hook: str, returned: object, ours: bool) -> list[str]:
    """What is wrong with the descriptors that a hook returned; nothing where they are in order."""
    kind, form = HOOKS[hook]
    if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
        return [f"{hook}() returned {_shown(returned)}, not a list of {kind.__name__}"]
    found: list[str] = []
    seen: set[str] = set()
    for item in returned:
        if not isinstance(item, kind):
            found.append(f"{hook}() returned {_shown(item)} in its list, not {_a(kind)}")
            continue
        where = f"{kind.__name__} {item.name!r}"
        found += [f"{where}: {what}" for what in (*_of_name(item.name, form, ours), *_of_fields(item))]
        if isinstance(item.name, str):
            found += [f"{where} is there twice"] * (item.name in seen)
            seen.add(item.name)
    return found


def _of_name(name: object, form: str, ours: bool) -> Iterator[str]:
    pattern, words = _FORMS[form]
    if not isinstance(name, str) or not pattern.fullmatch(name):
        yield f"its name is not of the form {words}"
    elif "." in name and not ours and name.split(".")[0] in RESERVED:
        yield f"the prefix {name.split('.')[0]!r} is reserved for gausslens; use your plugin's name"


def _of_fields(descriptor: Descriptor) -> Iterator[str]:
    for name, value in vars(descriptor).items():
        if name == "name":
            continue
        if name == "version":
            if type(value) is not int or value < 1:
                yield f"version is {value!r}, not an integer from 1"
        elif name == "summary":
            if not isinstance(value, str) or not value.strip():
                yield "summary is empty: say in one line what it does"
        elif name == "prompts" and isinstance(descriptor, Analysis):
            if value is not None and not (isinstance(value, Mapping) and isinstance(value.get("source"), str)):
                yield "prompts is not a mapping with a 'source'"
        elif (name == "touches" and isinstance(value, str)) or name in _REFERENCES:
            yield from _of_reference(name, value, optional=name == "estimate")
        elif name in _NAMES:
            yield from _of_names(name, value)
        elif name in _CHOICES:
            if value not in _CHOICES[name]:
                yield f"{name} is {value!r}{did_you_mean(str(value), _CHOICES[name])}"
        else:
            wanted = int if name in ("rank", "order") else bool
            if type(value) is not wanted:
                yield f"{name} is {value!r}, not {_a(wanted)}"


def _of_reference(name: str, value: object, optional: bool) -> Iterator[str]:
    if value is None and optional:
        return
    if not isinstance(value, str) or not has_form(value):
        hint = "; for one tensor write a tuple, ('W_Q',)" if name == "touches" else ""
        yield f"{name} is {value!r}, not of the form 'package.module:name'{hint}"


def _of_names(name: str, value: object) -> Iterator[str]:
    if not isinstance(value, tuple) or not all(isinstance(v, str) and v for v in value):
        yield f"{name} is {value!r}, not a tuple of names"
    elif not value and name not in _EMPTY_ALLOWED:
        yield f"{name} is empty"


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOUaeiou' else 'a'} {kind.__name__}"


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)[:60]
    return f"a {type(value).__name__}"
