"""Writing to a store: parts that appear whole or not at all, and the manifests of runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import StoreError
from .disk import Temporary, Writer, is_file, told
from .layout import INDEX, PARTS, RUNS, TEMPORARY, NotAStore, entry_of, part_path

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
        self.path = Path(path).absolute()
        self.compression = compression
        self._writer = Writer(self.path)

    def create(self) -> Store:
        """Make the store, or check that this gausslens can write to the one there; sweep what killed writers left."""
        with told("create the store", self.path):
            # What is in it is read first: another process may be making the store.
            if self.path.exists() and any(self.path.iterdir()) and not is_store(self.path):
                raise NotAStore(f"{self.path} is not a store and not empty: choose another directory with --store")
            self.path.mkdir(parents=True, exist_ok=True)
            for name in (PARTS, RUNS, TEMPORARY):
                (self.path / name).mkdir(exist_ok=True)
        from .index import check_index

        if (self.path / INDEX).exists():
            check_index(self.path)
        else:
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
