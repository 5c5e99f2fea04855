"""Whether what a plugin's hooks return are descriptors that the host can use. Light: nothing they name is imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

from ..contract.descriptors import (
    Analysis,
    Descriptor,
    Differences,
    Edit,
    Engine,
    Loader,
    PromptSource,
    ReportSection,
    Shape,
)
from ..contract.errors import did_you_mean
from ..contract.reference import has_form

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
MOST = 3  # problems that are printed of one plugin

_PLAIN = r"[A-Za-z0-9][A-Za-z0-9_-]*"
_FORMS = {
    "plain": (re.compile(_PLAIN), "'thing': letters, digits, '_' and '-'"),
    "dotted": (re.compile(rf"{_PLAIN}\.{_PLAIN}"), "'plugin.thing'"),
    "either": (re.compile(rf"{_PLAIN}(\.{_PLAIN})?"), "'thing' or 'plugin.thing'"),
}


def problems(hook: str, returned: object, ours: bool) -> list[str]:
    """What is wrong with the descriptors that a hook returned; nothing where they are in order."""
    kind, form = HOOKS[hook]
    if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
        return [f"{hook}() returned {_shown(returned)}, not a list of {kind.__name__}"]
    found: list[str] = []
    seen: set[object] = set()
    for item in returned:
        if not isinstance(item, kind):
            found.append(f"{hook}() returned a list with {_shown(item)} in it, not only {kind.__name__}")
            continue
        wrong = _name_problem(item.name, form, ours)
        if wrong is None and item.name in seen:
            wrong = "there are two of this name"
        seen.add(item.name if wrong is None else None)
        wrongs = [wrong] if wrong else []
        wrongs += _former_problems(item, form, ours, seen)
        found += [f"{kind.__name__} {_shown(item.name)}: {text}" for text in [*wrongs, *_field_problems(item)]]
    return found


def _name_problem(name: object, form: str, ours: bool) -> str | None:
    pattern, words = _FORMS[form]
    if not isinstance(name, str) or not pattern.fullmatch(name):
        return f"its name is not of the form {words}"
    prefix = name.split(".")[0]
    if "." in name and not ours and prefix in RESERVED:
        return f"the prefix {prefix!r} is reserved for gausslens itself: use your plugin's name"
    return None


def _former_problems(item: Descriptor, form: str, ours: bool, seen: set[object]) -> Iterator[str]:
    """What is wrong with the names that it had before: they are names as others are."""
    for name in item.formerly if _names_or_nothing(item.formerly) is None else ():
        wrong = _name_problem(name, form, ours) or ("something has this name" if name in seen else None)
        seen.add(name)
        if wrong:
            yield f"formerly {_shown(name)}: {wrong}"


def _field_problems(descriptor: Descriptor) -> Iterator[str]:
    checks = {**_CHECKS, **_CHECKS_OF_ANALYSES} if isinstance(descriptor, Analysis) else _CHECKS
    for field in type(descriptor).__dataclass_fields__:
        value = getattr(descriptor, field)
        wanted = checks[field](value) if field in checks else None
        if wanted:
            yield f"{field} is {_shown(value)}, {wanted}"


def _number(value: object) -> str | None:
    return None if type(value) is int else "not an integer"


def _version(value: object) -> str | None:
    return None if type(value) is int and value >= 1 else "not an integer from 1"


def _switch(value: object) -> str | None:
    return None if type(value) is bool else "not True or False"


def _line(value: object) -> str | None:
    if isinstance(value, str) and value.strip() and len(value.splitlines()) == 1:
        return None
    return "not a line that says what it does"


def _line_or_nothing(value: object) -> str | None:
    return None if isinstance(value, str) and not value else _line(value)


def _reference(value: object) -> str | None:
    return None if isinstance(value, str) and has_form(value) else "not of the form 'package.module:name'"


def _reference_or_none(value: object) -> str | None:
    return None if value is None else _reference(value)


def _names(value: object) -> str | None:
    if isinstance(value, tuple) and all(isinstance(v, str) and v for v in value):
        return None if value else "which names nothing"
    return "not a tuple of names"


def _names_or_nothing(value: object) -> str | None:
    return None if value == () else _names(value)


def _knows(value: object) -> str | None:
    if isinstance(value, tuple) and all(v in ("variant", "draw") for v in value) and len(set(value)) == len(value):
        return None
    return "not a tuple of 'variant' and 'draw'"


def _touches(value: object) -> str | None:
    if not isinstance(value, str):
        return _names(value)
    return None if has_form(value) else f"not a tuple of names (write ({value!r},)) nor 'package.module:name'"


def _rung(value: object) -> str | None:
    if value is None or (isinstance(value, str) and (has_form(value) or _FORMS["plain"][0].fullmatch(value))):
        return None
    return "not a word of letters, digits, _ and - nor 'package.module:name'"


def _prompts(value: object) -> str | None:
    if value is None or (isinstance(value, Mapping) and isinstance(value.get("source"), str)):
        return None
    return "not a mapping with a 'source'"


def _one_of(known: Sequence[str]) -> Callable[[object], str | None]:
    return lambda value: None if value in known else f"which is none{did_you_mean(str(value), known)}"


_CHECKS: Mapping[str, Callable[[object], str | None]] = {
    "version": _version,
    "summary": _line,
    "question": _line_or_nothing,
    "rank": _number,
    "order": _number,
    **dict.fromkeys(
        ("random", "row_blocks", "column_blocks", "all_layers", "by_layer", "bulk", "texts", "any_size", "crossed"),
        _switch,
    ),
    **dict.fromkeys(("parameters", "claims", "open", "engine", "prompts", "edit", "analysis", "section"), _reference),
    **dict.fromkeys(("estimate", "settle", "model", "check", "inputs", "fingerprint"), _reference_or_none),
    "serves": _names,
    "analyses": _names,
    "touches": _touches,
    "keeps": _rung,
    "names": _names_or_nothing,
    "formerly": _names_or_nothing,
    "exchangeable": _names_or_nothing,
    "shape": _one_of(get_args(Shape)),
    "differences": _one_of(get_args(Differences)),
    "scope": _one_of(("variant", "run")),
    "knows": _knows,
}
_CHECKS_OF_ANALYSES: Mapping[str, Callable[[object], str | None]] = {"prompts": _prompts}


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str | tuple):
        text = repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
