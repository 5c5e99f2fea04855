"""What a live module computes besides its tensors, as digests: code, plain values, and the hooks that hang on it."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from .fingerprint import fingerprint

if TYPE_CHECKING:
    import torch

# Hooks that a capture, or the library that runs the module, hangs on it: they change nothing that it computes.
_NOT_THE_CALLERS = ("gausslens.", "gausslens_models.", "transformers.", "accelerate.", "transformer_lens.")

# Where a module keeps its hooks.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def digest_of_code(module: torch.nn.Module) -> str:
    """The code of a module's classes, and the plain values that they hold."""
    classes = {type(m) for m in module.modules()}
    own = sorted(c for c in ((c.__qualname__, source(c)) for c in classes if not c.__module__.startswith("torch.")))
    values = [(path, _plain(vars(m))) for path, m in module.named_modules()]
    kinds = [(path, type(m).__qualname__) for path, m in module.named_modules()]
    return _digest((own, values, kinds))


def digest_of_hooks(module: torch.nn.Module) -> dict[str, str]:
    """{"hooks": digest} of the caller's forward hooks, and of a ``forward`` in place of a class's own; {} of none."""
    found = []
    for path, one in module.named_modules():
        for kind in ("_forward_pre_hooks", "_forward_hooks"):
            found += [(path, kind, _written(hook)) for hook in getattr(one, kind).values() if _is_the_callers(hook)]
        forward = vars(one).get("forward")
        if forward is not None and _is_the_callers(forward):
            found.append((path, "forward", _written(forward)))
    return {"hooks": _digest(found)} if found else {}


def parts(module: torch.nn.Module) -> dict[str, Any]:
    """What a module computes with beside its tensors, by name, as it is now: hooks, ``forward`` of its own, numbers.

    Numbers are of modules whose class is transformers' own or torch's: others may count what they do.
    """
    found: dict[str, Any] = {}
    for path, one in module.named_modules():
        values = vars(one)
        found[f"class of {path}"] = type(one)
        for kind in _HOOKS:
            hooks = [item for item in values[kind].items() if _is_the_callers(item[1])]
            if hooks:
                found[f"{kind[1:]} of {path}"] = hooks
        if "forward" in values and _is_the_callers(values["forward"]):
            found[f"forward of {path}"] = values["forward"]
        if is_constant(one):
            found |= {f"{n} of {path}": v for n, v in values.items() if n[0] != "_" and _is_number(n, v)}
    config = getattr(module, "config", None)
    values = {} if config is None else vars(config)
    return found | {f"{n} of config": v for n, v in values.items() if n[0] != "_" and _is_number(n, v)}


def put_parts(module: torch.nn.Module, before: Mapping[str, Any]) -> None:
    """Put back what ``parts`` gave before; classes are not exchanged."""
    now = parts(module)
    places: dict[str, Any] = dict(module.named_modules())
    for name in [name for name in now.keys() | before.keys() if now.get(name) != before.get(name)]:
        what, _, path = name.partition(" of ")
        place = module.config if path == "config" and path not in places else places.get(path)
        if place is None or what == "class":
            continue
        if f"_{what}" in _HOOKS:
            held = vars(place)[f"_{what}"]
            for key, _ in now.get(name, ()):
                del held[key]
            held.update(before.get(name, ()))
        elif name in before:
            setattr(place, what, before[name])
        else:
            delattr(place, what)


def is_constant(one: torch.nn.Module) -> bool:
    """Whether the numbers and buffers of a module stay as they are while it runs."""
    if not type(one).__module__.startswith(("transformers.models.", "torch.nn.")):
        return False
    return not any(kind in str(getattr(one, "rope_type", "")) for kind in ("dynamic", "longrope"))


def _is_number(name: str, value: Any) -> bool:
    return name != "training" and isinstance(value, bool | int | float)


def source(what: Any) -> str:
    """The source of a class or function; of one typed in where none is kept, its compiled code."""
    try:
        return inspect.getsource(what)
    except (OSError, TypeError):
        functions = vars(what).values() if isinstance(what, type) else [what]
        return repr([_compiled(f.__code__) for f in functions if inspect.isfunction(f)])


def _is_the_callers(hook: Any) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return not str(home).startswith(_NOT_THE_CALLERS)


def _written(what: Any) -> Any:
    """A function: its code, and what it reads that is not in it; of an object that is called, its class and values."""
    if isinstance(what, partial):
        return [_written(what.func), [_held(each) for each in what.args], _table(what.keywords)]
    if inspect.ismethod(what):
        return [_written(what.__func__), type(what.__self__).__qualname__, _plain(_values(what.__self__))]
    if not inspect.isfunction(what):
        return [source(type(what)), _table(_values(what))]
    read = inspect.getclosurevars(what)
    # Several lambdas may stand in one line, which is then the source of each.
    code = _compiled(what.__code__) if what.__name__ == "<lambda>" else ()
    given = [_held(each) for each in what.__defaults__ or ()]
    return [source(what), code, given, _table(what.__kwdefaults__ or {}), _table(read.nonlocals), _table(read.globals)]


def _table(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted((name, _held(value)) for name, value in values.items() if not name.startswith("__"))


def _held(value: Any) -> Any:
    """As ``_plain``, and of arrays their content: a hook may add a direction that it holds."""
    import numpy as np
    import torch

    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, torch.Tensor):
        return fingerprint({}, [("", value)])
    return source(value) if inspect.isfunction(value) else _plain(value)


def _values(what: Any) -> dict[str, Any]:
    """What an object holds; of a module its plain values alone, for its tensors are in the fingerprint."""
    return dict(getattr(what, "__dict__", {}))


def _plain(value: Any) -> Any:
    """Numbers and texts, also in lists, tables and objects that only hold such (a dataclass); else the type alone."""
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if dataclasses.is_dataclass(value) or isinstance(value, SimpleNamespace):
        value = getattr(value, "__dict__", {})
    if isinstance(value, dict):
        kept = {str(k): v for k, v in value.items() if not str(k).startswith("_") and k != "training"}
        return {name: _plain(kept[name]) for name in sorted(kept)}
    if inspect.isroutine(value):  # an activation that a module holds, say
        return f"{value.__module__}.{value.__qualname__}"
    return type(value).__qualname__


def _compiled(code: Any) -> Any:
    """Compiled code; code within it by its own, for its name has its address."""
    return (code.co_name, code.co_code.hex(), code.co_names, list(_constants(code)))


def _constants(code: Any) -> Iterator[Any]:
    for constant in code.co_consts:
        if isinstance(constant, frozenset):  # in another order in each process
            constant = sorted(constant, key=repr)
        yield _compiled(constant) if inspect.iscode(constant) else repr(constant)


def _digest(told: Any) -> str:
    return hashlib.sha256(repr(told).encode("utf-8", "surrogatepass")).hexdigest()
