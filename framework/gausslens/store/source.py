"""Where results are read from: a store's directory, or a pack."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .disk import is_file
from .layout import RUNS, TYPE, NotAStore, entry_of, part_path
from .manifest import Manifest, Step, from_bytes, manifests, newest_steps

if TYPE_CHECKING:
    import xarray as xr


class Source(Protocol):
    """What ``Results`` needs of a store or a pack."""

    path: Path

    def manifests(self) -> list[Manifest]:
        """All that can be read, oldest first."""
        ...

    def finished(self, step: Step) -> bool:
        """Whether the result of a step is there."""
        ...

    def read(self, step: Step) -> xr.Dataset:
        """The result of a step."""
        ...

    def facts(self, step: Step) -> Mapping[str, Any]:
        """What made the result: the attributes of its group."""
        ...


class Directory:
    """A store."""

    def __init__(self, path: Path):
        from .store import has_index

        self.path = path.resolve()
        has_index(self.path)

    def manifests(self) -> list[Manifest]:
        """All that can be read, oldest first."""
        return manifests(self.path) if (self.path / RUNS).is_dir() else []

    def finished(self, step: Step) -> bool:
        """Whether the part is there."""
        return is_file(part_path(self.path, step.analysis, step.key))

    def read(self, step: Step) -> xr.Dataset:
        """The result of a step."""
        from .read import read_part

        return read_part(self.path, step.analysis, step.key)

    def facts(self, step: Step) -> Mapping[str, Any]:
        """What made the result."""
        from .read import read_facts

        path = part_path(self.path, step.analysis, step.key)
        return read_facts(self.path, path, entry_of(step.analysis, step.key))


class Pack:
    """A pack: manifests and results in one file."""

    def __init__(self, path: Path):
        from .hostile import follow, holds, open_checked
        from .layout import check_version
        from .read import attributes, explained

        self.path = path.resolve()
        with explained(str(path)), open_checked(os.fspath(self.path), os.fspath(self.path.parent)) as file:
            attrs = attributes(file)
            if attrs.get(TYPE) != "store-pack":
                raise NotAStore(f"{path} is not a pack: `gausslens store pack STORE FILE` makes one")
            check_version(attrs.get("encoding-version"), "the pack", path)
            names = [f"{run}/{name}" for run in file for name in follow(file, run) if name.endswith(".json")]
            found = [from_bytes(follow(file, name).asstr()[()].encode(), Path(name)) for name in names]
            self._manifests = sorted(found, key=lambda m: m.age)
            self._entries: dict[tuple[str, str], str] = {}
            for (run, variant, label), (_, steps) in newest_steps(self._manifests).items():
                for step in steps:
                    entry = f"/{run}/{variant}/{label}/{step.member}"
                    # A result of several names is at one of them; soft links lead there from the others.
                    if holds(file, entry):
                        self._entries[step.analysis, step.key] = entry

    def manifests(self) -> list[Manifest]:
        """All, oldest first."""
        return self._manifests

    def entries(self) -> dict[str, tuple[str, str]]:
        """Where each result is, with its analysis and key."""
        return {entry: named for named, entry in self._entries.items()}

    def finished(self, step: Step) -> bool:
        """Whether it was packed."""
        return (step.analysis, step.key) in self._entries

    def read(self, step: Step) -> xr.Dataset:
        """The result of a step."""
        from .read import read_result

        return read_result(self.path.parent, self.path, self._entries[step.analysis, step.key])

    def facts(self, step: Step) -> Mapping[str, Any]:
        """What made the result."""
        from .read import read_facts

        return read_facts(self.path.parent, self.path, self._entries[step.analysis, step.key])


def check_is_store(path: Path) -> None:
    """Raise where there is neither a store nor a file that may be a pack."""
    from .store import is_store

    if not is_store(path) and not path.is_file():
        raise NotAStore(f"{path}: there is no store here" + ("" if path.exists() else "; the path does not exist"))


def source(path: str | os.PathLike[str]) -> Source:
    """The store or pack at a path."""
    place = Path(path).expanduser()
    check_is_store(place)
    return Pack(place) if place.is_file() else Directory(place)
