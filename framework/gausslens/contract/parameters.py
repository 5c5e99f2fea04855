"""The base of every parameter model: unknown keys are errors, values are not changed, defaults are documented."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter

from .digests_and_seeds import digest_of_files
from .errors import GausslensError, InputError
from .reference import resolve

# What begins so is the name of a model, and no path.
NO_PATH = ("builtin:", "hub:", "live:")


class Files:
    """Marks a parameter as the path of a file, or of a directory of which the files of these names count.

    ``path: Annotated[str, Files("*.npz")]``. The host takes a relative path from the run file, refuses what is not
    there, and puts into the key of a step what the files hold in place of where they are.
    """

    def __init__(self, *names: str) -> None:
        self.names = names


class Parameters(BaseModel):
    """Parameters of a loader, source, edit or analysis. Give each field a type, a default and a description."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)

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

    def keyed(self) -> dict[str, Any]:
        """The parameters as they go into a key: digests of what files hold in place of paths, nothing for none."""
        plain, paths = self.canonical(), self.paths()
        held = {name: digest_of_files(plain[name], files.names) for name, files in paths.items() if plain[name]}
        return {name: value for name, value in plain.items() if name not in paths} | held


def fingerprint(reference: str | None, parameters: Parameters, named: str) -> str | None:
    """What a descriptor's ``fingerprint`` says of these parameters; None without one. ``named`` begins an error."""
    if reference is None:
        return None
    try:
        found = resolve(reference)(parameters)
    except GausslensError as error:
        raise InputError(f"{named}: {error}") from error
    except Exception as error:
        raise InputError(f"{named}: its fingerprint cannot be had: {type(error).__name__}: {error}") from error
    if not isinstance(found, str) or not found:
        raise InputError(f"{named}: its fingerprint is {found!r}, and no text that says what its files hold")
    return found


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
