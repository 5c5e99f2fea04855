"""Checks of a plugin as a whole: that all it names exists and has the form that the host calls."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from ..contract.descriptors import Analysis, Descriptor, Edit, Engine, Loader, PromptSource, ReportSection
from ..contract.parameters import Parameters, former_names
from ..contract.reference import BadReference, resolve
from ..plugins import Host, load

HEAVY = ("torch", "transformers", "transformer_lens", "xarray", "pandas", "numpy", "scipy", "h5py")
# What the classes behind the descriptors must have; the number of arguments, self not counted.
METHODS = {
    "stream": {"request": 0, "update": 1, "result": 0},
    "weights": {"layer": 2},
    "forward": {"run": 2},
    "derived": {"inputs": 1, "compute": 1},
    "engine": {"sites": 1, "run": 5, "runner": 1},
}
# What an analysis may have besides; an ordered one needs no merge, which shows when it is asked what it wants.
OPTIONAL = {
    "stream": {"merge": 1, "end_pass": 1, "inputs": 1},
    "weights": {"join": 1, "inputs": 1},
    "forward": {"inputs": 1},
    "derived": {},
}


def host_of(*installed: str, **given: ModuleType | Any) -> Host:
    """A host of exactly these plugins, and of the tiny model (``builtin:testing``).

    ``host_of("models", "reinit", sinks=gausslens_sinks.plugin)``: installed plugins by name, others as their modules.
    """
    from . import wiring

    host = load(only=installed, extra={"tiny": wiring, **given})
    assert not host.broken, "; ".join(f"{b.plugin}: {b.cause}" for b in host.broken)
    return host


def check_references(plugin: ModuleType | Any) -> Host:
    """Check a plugin, given as the module that its entry point names, and return a host of it alone. Checked are that

    - the host takes it: hooks, names and descriptors are in order;
    - every string reference resolves, to something of the form that the host calls;
    - every parameter has a description, and a default that is valid;
    - importing the plugin and its parameter models imports no heavy library, so that a start stays light.
    """
    host = host_of(plugin=plugin)
    mine = [
        owned.descriptor
        for owned_by_name in (host.analyses, host.edits, host.loaders, host.engines, host.sources, host.sections)
        for owned in owned_by_name.values()
        if owned.owner.plugin == "plugin"
    ]
    wrong = [f"{type(d).__name__} {d.name}: {what}" for d in mine for what in _problems(d)]
    assert not wrong, "\n".join(wrong)
    if isinstance(plugin, ModuleType):
        modules = {plugin.__name__, *(d.parameters.split(":")[0] for d in mine)}
        _check_light(sorted(modules))
    return host


def _problems(descriptor: Descriptor) -> Iterator[str]:
    try:
        yield from _of_parameters(resolve(descriptor.parameters))
        yield from _of_kind(descriptor)
    except (BadReference, ImportError) as error:
        yield str(error)


def _of_parameters(model: Any) -> Iterator[str]:
    if not (isinstance(model, type) and issubclass(model, Parameters)):
        yield f"its parameter model {model!r} is not a subclass of gausslens.Parameters"
        return
    for name, field in model.model_fields.items():
        if not field.description:
            yield f"parameter {name} has no description"
    seen = set(model.model_fields)
    for name, former in former_names(model).items():
        for old in former:
            if old in seen:
                yield f"parameter {name} was formerly {old}, which is the name of another"
            seen.add(old)
    if not any(field.is_required() for field in model.model_fields.values()):
        try:
            model()
        except ValidationError as error:
            # That one of several is needed the model says as a whole: no default is wrong then.
            if any(found["loc"] for found in error.errors()):
                raise


def _of_kind(descriptor: Descriptor) -> Iterator[str]:
    if isinstance(descriptor, Analysis | Edit | PromptSource) and descriptor.fingerprint:
        yield from _of_call(descriptor.fingerprint, 1)
    if isinstance(descriptor, Analysis):
        has = getattr(resolve(descriptor.analysis), "__dict__", {})
        more = {name: count for name, count in OPTIONAL[descriptor.shape].items() if name in has}
        yield from _of_class(descriptor.analysis, 2, METHODS[descriptor.shape] | more)
        for optional in (descriptor.estimate, descriptor.settle):
            if optional:
                yield from _of_call(optional, 3)
    elif isinstance(descriptor, Engine):
        yield from _of_class(descriptor.engine, 0, METHODS["engine"])
    elif isinstance(descriptor, Edit):
        yield from _of_call(descriptor.edit, 3)
        if isinstance(descriptor.touches, str):
            yield from _of_call(descriptor.touches, 1)
        for optional in (descriptor.check, descriptor.inputs):
            if optional:
                yield from _of_call(optional, 2)
    elif isinstance(descriptor, Loader):
        yield from _of_call(descriptor.claims, 1)
        yield from _of_call(descriptor.open, 1)
    elif isinstance(descriptor, PromptSource):
        yield from _of_call(descriptor.prompts, 2)
        if descriptor.model:
            yield from _of_call(descriptor.model, 1)
    elif isinstance(descriptor, ReportSection):
        yield from _of_call(descriptor.section, 1)


def _of_class(reference: str, arguments: int, methods: dict[str, int]) -> Iterator[str]:
    found = resolve(reference)
    if not isinstance(found, type):
        yield f"{reference} is not a class"
        return
    yield from _of_call(reference, arguments)
    for name, count in methods.items():
        method = getattr(found, name, None)
        if not callable(method):
            yield f"{reference} has no method {name}"
        elif not _takes(method, count + 1):
            yield f"{reference}.{name} cannot be called with {count} arguments"


def _of_call(reference: str, arguments: int) -> Iterator[str]:
    found = resolve(reference)
    if not callable(found):
        yield f"{reference} cannot be called"
    elif not _takes(found, arguments):
        yield f"{reference} cannot be called with {arguments} arguments"


def _takes(function: Any, arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def _check_light(modules: list[str]) -> None:
    """Import these in a new process and see what came along."""
    script = f"import sys, {', '.join(modules)}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    environment_path = [path for path in sys.path if path]
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {environment_path!r}; {script}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert ran.returncode == 0, f"{', '.join(modules)} cannot be imported in a new process:\n{ran.stderr}"
    came = ran.stdout.split()
    assert not came, f"importing {', '.join(modules)} imports {', '.join(came)}: import inside functions instead"
