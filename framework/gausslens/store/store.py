"""Writing to a store: parts that appear whole or not at all, and the manifests of runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contract.errors import StoreError
from .disk import Temporary, Writer, is_file, told
from .layout import INDEX, LOCK, PARTS, RUNS, TEMPORARY, NewerStore, NotAStore, entry_of, part_path

if TYPE_CHECKING:
    import xarray as xr

    from .bulk import PartWriter


class Store:
    """A store that is written to. ``compression`` ("lzf" or "gzip") is for arrays of 64 KiB and more; none by default.

    A step is finished when ``has`` says so: ask it after the manifest is committed, for then ``gc`` keeps its parts.
    """

    def __init__(self, path: str | os.PathLike[str], compression: str | None = None):
        if compression not in (None, "lzf", "gzip"):
            raise StoreError(f"compression {compression!r}: None, 'lzf' or 'gzip'")
        self.path = Path(path).expanduser().absolute()
        self.compression = compression
        self._writer = Writer(self.path)

    def create(self) -> Store:
        """Make the store, or check that this gausslens can write to the one there; sweep what killed writers left."""
        with told("create the store", self.path):
            # What is in it is read first: another process may be making the store.
            if self.path.exists() and any(self.path.iterdir()) and not is_ours(self.path):
                raise NotAStore(f"{self.path} is not a store and not empty: choose another directory with --store")
            self.path.mkdir(parents=True, exist_ok=True)
            for name in (PARTS, RUNS, TEMPORARY):
                (self.path / name).mkdir(exist_ok=True)
        if not has_index(self.path):
            self.reindex()
        Temporary(self._writer, ".try").drop()  # a disk that cannot be written to is told before anything is computed
        return self

    def has(self, analysis: str, key: str) -> bool:
        """Whether the step of this key is finished."""
        return is_file(part_path(self.path, analysis, key))

    def commit(self, analysis: str, key: str, dataset: xr.Dataset, meta: Mapping[str, Any]) -> bool:
        """Write a finished step; durable when this returns. False: another was first, and its result stands."""
        from . import codec, part, seal

        final = part_path(self.path, analysis, key)
        entry = entry_of(analysis, key)
        arrays = codec.encode(dataset)
        attrs = part.result_attributes(analysis, key, meta) | codec.dataset_attributes(dataset)
        temporary = Temporary(self._writer, ".h5")
        try:
            with told("write", final):
                with part.PartFile(temporary.descriptor, "store-part", part.part_attributes(entry)) as out:
                    extents = part.write_result(out, out.group(entry, {}), attrs, arrays, (), self.compression)
                seal.seal(temporary.descriptor, extents)
            return temporary.commit(final)
        finally:
            temporary.drop()

    def begin(self, analysis: str, key: str, meta: Mapping[str, Any], most: int | None = None) -> PartWriter:
        """Begin a part whose large arrays are written as they come; ``most`` caps its bytes."""
        from .bulk import PartWriter

        return PartWriter(self.path, analysis, key, meta, Temporary(self._writer, ".h5"), most)

    def read(self, analysis: str, key: str) -> xr.Dataset:
        """A finished step; arrays over 1 MiB are read when they are used."""
        from .read import read_part

        return read_part(self.path, analysis, key)

    def manifest(self, run: str, manifest: Mapping[str, Any]) -> Path:
        """Commit the manifest of a run, before its first step; the newest plan again is no new one."""
        from .manifest import write_manifest

        return write_manifest(self._writer, run, manifest)

    def reindex(self) -> Path:
        """Make ``store.h5`` anew from the manifests and the parts."""
        from .index import build_index

        return build_index(self._writer)


def is_store(path: Path) -> bool:
    """Whether a directory looks like a store."""
    return (path / PARTS).is_dir() or (path / RUNS).is_dir() or (path / INDEX).is_file()


def is_ours(path: Path) -> bool:
    """Whether a directory is a store, or the beginnings of one: what holds anything else is not written to."""
    from .index import parts
    from .manifest import is_manifest, manifest_paths
    from .seal import sealed

    if sealed(path / INDEX):
        return True
    if (path / RUNS).is_dir() and any(is_manifest(found) for found in manifest_paths(path)):
        return True
    if (path / PARTS).is_dir() and any(sealed(found) for _, found in parts(path)):
        return True
    beginnings = (PARTS, RUNS, TEMPORARY)
    if not {entry.name for entry in path.iterdir()} <= {*beginnings, INDEX, LOCK}:
        return False
    return not any(any((path / name).iterdir()) for name in beginnings[:2] if (path / name).is_dir())


def has_index(path: Path) -> bool:
    """Whether there is an index that can be read; one of a newer version is an error."""
    from .index import check_index

    try:
        check_index(path)
    except NewerStore:
        raise
    except StoreError:
        return False  # it is derived: whoever writes makes it anew, who reads does without
    return True
