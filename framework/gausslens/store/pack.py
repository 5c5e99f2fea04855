"""A pack: all results of a store and its manifests in one portable file, with real groups in place of links."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from zlib_ng.zlib_ng import crc32

from ..contract.errors import StoreError
from . import checksums as seal
from .codec import TEXT, crc_of
from .disk import explain_damage, explain_failure, mark_of, sync_directory
from .hdf5_writing import NewFile, write_values
from .index import parts
from .layout import CONVENTIONS, TYPE, NotAStore, check_version, entry_of, part_path
from .manifest import Manifest, PlannedStep, by_label, from_bytes, manifests, shown_plans
from .read_parts import (
    Pieces,
    check_element_type,
    dims_of_stored,
    read_attributes,
    read_facts,
    read_pieces,
    read_result,
    read_values,
)
from .safety import arrays_of, follow, holds, no_plugins, open_checked
from .strangers import known

if TYPE_CHECKING:
    import xarray as xr

_BLOCK = 1 << 25


def pack(root: Path, target: Path) -> int:
    """Write the finished results of the plan that each run shows into one new file; returns how many.

    Values are checked on the way.
    """
    if target.exists():
        raise StoreError(f"{target} exists: choose another name, or remove it")
    there = {named for named, _ in parts(root)}

    def finished(step: PlannedStep) -> bool:
        return (step.analysis, step.key) in there

    shown = shown_plans(manifests(root), finished)
    with explain_failure("write", target):
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            attrs = {"Conventions": CONVENTIONS, "created": datetime.now(UTC).isoformat()}
            with NewFile(descriptor, "store-pack", attrs) as out:
                packing = _Packing(root, out)
                for run, manifest in shown.items():
                    for step in filter(finished, manifest.steps):
                        packing.add(f"/{run}/{step.variant}/{step.label}/{step.member}", step)
                    packing.add_manifest(manifest)
            known.add(seal.seal(descriptor, packing.extents))
            os.fsync(descriptor)
            os.link(temporary, target)
        finally:
            os.close(descriptor)
            with suppress(OSError):
                temporary.unlink()
        sync_directory(target.parent)
    return len(packing.places)


class _Packing:
    """A pack being written."""

    def __init__(self, root: Path, out: NewFile):
        self.root = root
        self.out = out
        self.extents: list[seal.Extent] = []
        self.places: dict[tuple[str, str], str] = {}

    def add(self, place: str, step: PlannedStep) -> None:
        """Copy a result; what is there already under another name is linked to."""
        known = self.places.setdefault((step.analysis, step.key), place)
        if known != place:
            self.out.link(place, None, known)
            return
        path = part_path(self.root, step.analysis, step.key)
        entry = entry_of(step.analysis, step.key)
        with explain_damage(str(path)), no_plugins(), open_checked(os.fspath(path), os.fspath(self.root)) as file:
            source = follow(file, entry)
            attrs = read_attributes(source)
            check_element_type(attrs, "step-result", f"{path}{entry}")
            arrays = arrays_of(source, path.stat().st_size)
            self.extents += copy_arrays(file, arrays, self.out, self.out.group(place, attrs))

    def add_manifest(self, manifest: Manifest) -> None:
        """A manifest, as text beside the variants of its run."""
        text = np.array(manifest.path.read_text(encoding="utf-8"), dtype=object)
        write_values(self.out.array(self.out.id, f"{manifest.run}/{manifest.path.name}", (), TEXT), text)


def copy_arrays(file: Any, arrays: Mapping[str, Any], out: NewFile, group: Any) -> list[seal.Extent]:
    """Copy the arrays of a result into a group of another file, checked; returns where the contiguous ones lie."""
    made: dict[str, Any] = {}
    extents = []
    for name, array in arrays.items():
        made[name] = out.array(group, name, array.shape, array.dtype)
        own = read_attributes(array)
        crc = _copy_values(array, made[name])
        if crc != own["crc32"]:
            raise StoreError(f"{file.filename}{array.name} does not match its crc32: the file was damaged")
        out.set(made[name], own)
        if array.dtype != TEXT and array.size:
            extents.append((made[name].get_offset(), array.nbytes, crc))
    out.scales(made, {name: dims_of_stored(file, array) for name, array in arrays.items()})
    return extents


def _copy_values(source: Any, target: Any) -> int:
    """Copy the values of an array, a stretch at a time; returns their crc32."""
    if source.dtype == TEXT or source.nbytes <= _BLOCK or not source.ndim:
        values = read_values(source)
        write_values(target, values)
        return crc_of(values)
    crc = 0
    step = max(1, _BLOCK * source.shape[0] // source.nbytes)
    whole = h5py.Dataset(target)
    for start in range(0, source.shape[0], step):
        values = np.ascontiguousarray(source[start : start + step])
        whole[start : start + step] = values
        crc = crc32(values.data.cast("B"), crc)
    return crc


class PackReader:
    """Reads a pack."""

    def __init__(self, path: Path):
        self.path = path.resolve()
        with explain_damage(str(path)), open_checked(os.fspath(self.path), os.fspath(self.path.parent)) as file:
            attrs = read_attributes(file)
            if attrs.get(TYPE) != "store-pack":
                raise NotAStore(f"{path} is not a pack: `gausslens store pack STORE FILE` makes one")
            check_version(attrs.get("encoding-version"), "the pack", path)
            names = [f"{run}/{name}" for run in file for name in follow(file, run) if name.endswith(".json")]
            found = [from_bytes(follow(file, name).asstr()[()].encode(), Path(name)) for name in names]
            self._manifests = sorted(found, key=lambda m: m.age)
            self._entries: dict[tuple[str, str], str] = {}
            # Packs had several plans of a run once; each place is of the newest of them.
            newest = {(m.run, *name): steps for m in self._manifests for name, steps in by_label(m).items()}
            for (run, variant, label), steps in newest.items():
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

    def finished(self, step: PlannedStep) -> bool:
        """Whether it was packed."""
        return (step.analysis, step.key) in self._entries

    def read(self, step: PlannedStep) -> xr.Dataset:
        """The result of a step."""
        return read_result(self.path.parent, self.path, self._entries[step.analysis, step.key])

    def pieces(self, step: PlannedStep) -> Pieces:
        """The same as variables."""
        return read_pieces(self.path.parent, self.path, self._entries[step.analysis, step.key])

    def mark(self, step: PlannedStep) -> tuple[Any, ...]:
        """What tells it from all other results."""
        return (*mark_of(self.path), step.analysis, step.key)

    def facts(self, step: PlannedStep) -> Mapping[str, Any]:
        """What made the result."""
        return read_facts(self.path.parent, self.path, self._entries[step.analysis, step.key])
