"""The base of every parameter model: unknown keys are errors, values are not changed, defaults are documented."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter

from ..guard import Guard, Stopped
from .digests_and_seeds import digest_of_files
from .errors import GausslensError, InputError
from .reference import resolve

if TYPE_CHECKING:
    from .descriptors import Owned

# What begins so is the name of a model, and no path.
NO_PATH = ("builtin:", "hub:", "live:")


class Files:
    """Marks a parameter as the path of a file, or of a directory of which the files of these names count.

    ``path: Annotated[str, Files("*.npz")]``. The host takes a relative path from the run file, refuses what is not
    there, and puts into the key of a step what the files hold in place of where they are.
    """

    def __init__(self, *names: str) -> None:
        self.names = names


class Formerly:
    """Marks a parameter that had other names before, the first one first: ``Annotated[int, Formerly("k")]``.

    Run files that use them go on working; the key of a step has the first name, so that nothing is computed again.
    """

    def __init__(self, *names: str) -> None:
        self.names = names


def former_names(model: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """The parameters of a model that had other names, and these."""
    marks = {name: [m for m in field.metadata if isinstance(m, Formerly)] for name, field in model.model_fields.items()}
    return {name: found[0].names for name, found in marks.items() if found and found[0].names}


def now_called(name: str) -> str:
    """How a schema describes the former name of a parameter."""
    return f"Now called {name}."


class Parameters(BaseModel):
    """Parameters of a loader, source, edit or analysis. Give each field a type, a default and a description."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        """The schema, with former names as deprecated ones."""
        found: dict[str, Any] = handler(core)
        schema = handler.resolve_ref_schema(found)  # the definition itself, where ``found`` refers to it
        properties, required = schema.get("properties", {}), schema.get("required", [])
        for name, former in former_names(cls).items():
            told = {"deprecated": True, "description": now_called(name)}
            properties |= {old: {k: v for k, v in properties[name].items() if k != "default"} | told for old in former}
            if name in required:
                required.remove(name)
                either = {"anyOf": [{"required": [each]} for each in (name, *former)]}
                schema["allOf"] = [*schema.get("allOf", []), either]
        if not required:
            schema.pop("required", None)
        return found

    def canonical(self) -> dict[str, Any]:
        """The parameters with their defaults, as plain data: what goes into a key."""
        plain: dict[str, Any] = TypeAdapter(Any).dump_python(_ordered(self.model_dump()), mode="json")
        return plain

    @classmethod
    def paths(cls) -> dict[str, Files]:
        """The parameters that are paths."""
        marks = {name: [m for m in field.metadata if isinstance(m, Files)] for name, field in cls.model_fields.items()}
        return {name: found[0] for name, found in marks.items() if found}

    def located(self, directory: Path) -> Self:
        """The same parameters with paths that are relative to this directory made absolute."""
        given = {name: getattr(self, name) for name in self.paths()}
        found = {
            name: os.path.normpath(directory / Path(text).expanduser())
            for name, text in given.items()
            if isinstance(text, str) and not text.startswith(NO_PATH)
        }
        return self.model_copy(update=found) if found else self

    def keyed(self, without: Collection[str] = ()) -> dict[str, Any]:
        """The parameters as they go into a key, ``without`` some: digests of what files hold in place of paths.

        Nothing for a path that is not given; and each under the first name that it had.
        """
        plain, paths = self.canonical(), self.paths()
        held = {name: digest_of_files(plain[name], files.names) for name, files in paths.items() if plain[name]}
        counted = {name: value for name, value in plain.items() if name not in paths} | held
        return self.first_named({name: value for name, value in counted.items() if name not in without})

    def first_named(self, plain: Mapping[str, Any]) -> dict[str, Any]:
        """These parameters, or some of them, as plain data under the first names that they had."""
        named: dict[str, Any] = _first_named(self, dict(plain))
        return named


def _first_named(value: Any, plain: Any) -> Any:
    """Plain data of a value, keys of models within it under the first names that they had."""
    if isinstance(value, BaseModel) and isinstance(plain, dict):
        former = former_names(type(value))
        inner = {name: _first_named(getattr(value, name, None), held) for name, held in plain.items()}
        return {former.get(name, (name,))[0]: held for name, held in inner.items()}
    if isinstance(value, list | tuple) and isinstance(plain, list) and len(value) == len(plain):
        return [_first_named(v, p) for v, p in zip(value, plain, strict=True)]
    if isinstance(value, dict) and isinstance(plain, dict):
        return {key: _first_named(value.get(key), held) for key, held in plain.items()}
    return plain


def fingerprint(owned: Owned[Any], parameters: Parameters, named: str) -> str | None:
    """What a descriptor's ``fingerprint`` says of these parameters; None without one. ``named`` begins an error."""
    reference, guard = owned.descriptor.fingerprint, Guard.of(owned.owner)
    if reference is None:
        return None
    own = parameters.model_copy(deep=True) if guard.outside else parameters
    try:
        found = guard.call(lambda: resolve(reference)(own))
    except GausslensError as error:
        raise InputError(f"{named}: {error}") from error
    except Exception as error:
        kind = "" if isinstance(error, Stopped) else f"{type(error).__name__}: "
        raise InputError(f"{named}: its fingerprint cannot be had: {kind}{error}") from error
    if not isinstance(found, str) or not found:
        raise InputError(f"{named}: its fingerprint is {found!r}, and no text that says what its files hold")
    return "".join((found,))  # plain text, whatever class it was


def _ordered(value: Any) -> Any:
    """Sets as sorted lists, wherever they are: their own order differs from process to process."""
    if isinstance(value, set | frozenset):
        return sorted((_ordered(v) for v in value), key=repr)
    if isinstance(value, dict):
        return {key: _ordered(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_ordered(v) for v in value]
    return value


class NoParameters(Parameters):
    """There is nothing to choose."""
