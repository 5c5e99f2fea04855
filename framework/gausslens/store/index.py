"""The index ``store.h5``: runs, variants, labels and draws as links to parts; and what a store is read by.

The index is derived, and replaced whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import h5py
from h5py import h5g

from ..contract.errors import StoreError
from . import checksums as seal
from .disk import Temporary, Writer, explain_damage, explain_failure, is_file, locked, mark_of
from .hdf5_writing import NewFile
from .layout import (
    INDEX,
    LOCK,
    PARTS,
    RUNS,
    TYPE_VERSION,
    NewerStore,
    check_is_store,
    check_version,
    entry_of,
    is_name,
    part_path,
)
from .manifest import Manifest, PlannedStep, manifests, shown_plans
from .safety import no_plugins, open_checked
from .strangers import known

if TYPE_CHECKING:
    import xarray as xr

    from .read_parts import Pieces


def links(root: Path) -> dict[str, tuple[str, str]]:
    """What the index should hold now: for each ``run/variant/label/draw`` the part and the group in it."""
    there = {entry for entry, _ in parts(root)}

    def finished(step: PlannedStep) -> bool:
        return (step.analysis, step.key) in there

    found = {}
    for run, manifest in shown_plans(manifests(root), finished).items():
        for step in filter(finished, manifest.steps):
            target = f"{PARTS}/{step.analysis}/{step.key}.h5", entry_of(step.analysis, step.key)
            found[f"{run}/{step.variant}/{step.label}/{step.member}"] = target
    return found


def parts(root: Path) -> Iterator[tuple[tuple[str, str], Path]]:
    """Analysis and key of every part there is, with its path; links and what is not named like one are left out."""
    with explain_failure("read", root):
        for directory in sorted(os.scandir(root / PARTS), key=lambda e: e.name):
            if directory.is_dir(follow_symlinks=False) and is_name(directory.name, dotted=True):
                for entry in os.scandir(directory.path):
                    key, _, end = entry.name.rpartition(".")
                    if end == "h5" and is_name(key) and entry.is_file(follow_symlinks=False):
                        yield (directory.name, key), Path(entry.path)


def build_index(writer: Writer) -> Path:
    """Make the index anew; writers take turns, readers see the old one or the new one."""
    root = writer.root
    final = root / INDEX
    with locked(root / LOCK):
        temporary = Temporary(writer, ".h5")
        try:
            with explain_failure("write", final):
                with NewFile(temporary.descriptor, "store-index", {"built": datetime.now(UTC).isoformat()}) as out:
                    for place, (filename, target) in links(root).items():
                        out.link(f"/{place}", filename, target)
                known.add(seal.seal(temporary.descriptor, ()))
            temporary.replace(final)
        finally:
            temporary.drop()
    return final


def open_index(root: Path) -> h5py.File:
    """The index, checked and open for reading; its links are not followed by us."""
    return open_checked(os.fspath(root / INDEX), os.fspath(root))


def check_index(root: Path) -> None:
    """Refuse a store of a newer version, and an index that cannot be read."""
    if seal.newer(root / INDEX):
        raise NewerStore(f"{root}: the store was written by a newer gausslens: upgrade gausslens to open it")
    with explain_damage(str(root / INDEX)), no_plugins(), open_index(root) as index:
        version = index.attrs.get(TYPE_VERSION)
        check_version(None if version is None else int(version), "the store", root)


def listed(root: Path) -> dict[str, tuple[str, str]]:
    """The links that the index holds, as they are."""
    found: dict[str, tuple[str, str]] = {}
    with explain_damage(str(root / INDEX)), no_plugins(), open_index(root) as index:
        _list(index.id, "", found, 0)
    return found


def _list(group: h5g.GroupID, above: str, found: dict[str, tuple[str, str]], depth: int) -> None:
    for name in group:
        kind = group.links.get_info(name).type
        place = f"{above}{name.decode()}"
        if kind == h5py.h5l.TYPE_EXTERNAL:
            filename, target = group.links.get_val(name)
            found[place] = filename.decode(), target.decode()
        elif kind == h5py.h5l.TYPE_HARD and depth < 3:
            _list(h5g.open(group, name), f"{place}/", found, depth + 1)
        else:
            found[place] = "", ""


def has_index(path: Path) -> bool:
    """Whether there is an index that can be read; one of a newer version is an error."""
    try:
        check_index(path)
    except NewerStore:
        raise
    except StoreError:
        return False  # it is derived: whoever writes makes it anew, who reads does without
    return True


class Reader(Protocol):
    """What ``Results`` needs of a store or a pack."""

    path: Path

    def manifests(self) -> list[Manifest]:
        """All that can be read, oldest first."""

    def finished(self, step: PlannedStep) -> bool:
        """Whether the result of a step is there."""

    def read(self, step: PlannedStep) -> xr.Dataset:
        """The result of a step."""

    def pieces(self, step: PlannedStep) -> Pieces:
        """The same as variables, of which several are stacked."""

    def mark(self, step: PlannedStep) -> tuple[Any, ...]:
        """What tells this very file from all others."""

    def facts(self, step: PlannedStep) -> Mapping[str, Any]:
        """What made the result: the attributes of its group."""


class StoreReader:
    """Reads a store."""

    def __init__(self, path: Path):
        self.path = path.resolve()
        has_index(self.path)

    def manifests(self) -> list[Manifest]:
        """All that can be read, oldest first."""
        return manifests(self.path) if (self.path / RUNS).is_dir() else []

    def finished(self, step: PlannedStep) -> bool:
        """Whether the part is there."""
        return is_file(part_path(self.path, step.analysis, step.key))

    def read(self, step: PlannedStep) -> xr.Dataset:
        """The result of a step."""
        from .read_parts import read_part

        return read_part(self.path, step.analysis, step.key)

    def pieces(self, step: PlannedStep) -> Pieces:
        """The same as variables."""
        from .read_parts import read_pieces

        named = step.analysis, step.key
        return read_pieces(self.path, part_path(self.path, *named), entry_of(*named))

    def mark(self, step: PlannedStep) -> tuple[Any, ...]:
        """What tells its part from all other files."""
        try:
            return mark_of(part_path(self.path, step.analysis, step.key))
        except OSError:
            return (step.key,)  # reading it says what is wrong

    def facts(self, step: PlannedStep) -> Mapping[str, Any]:
        """What made the result."""
        from .read_parts import read_facts

        named = step.analysis, step.key
        return read_facts(self.path, part_path(self.path, *named), entry_of(*named))


def open_reader(path: str | os.PathLike[str]) -> Reader:
    """The store or pack at a path."""
    place = Path(path).expanduser()
    check_is_store(place)
    if not place.is_file():
        return StoreReader(place)
    from .pack import PackReader

    return PackReader(place)
