"""Writing to a store: parts, whole or array by array, that appear finished or not at all, and manifests of runs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import h5py
import numpy as np
from zlib_ng.zlib_ng import crc32

from ..contract.errors import StoreError, did_you_mean
from . import checksums as seal
from . import codec
from .codec import TEXT, Stored, content, crc_of, to_json
from .disk import Temporary, Writer, drop_progress, explain_failure, is_file, write_at
from .hdf5_writing import LARGE, NewFile, kind_of, write_values
from .index import build_index, has_index, parts
from .layout import (
    CLAIMS,
    CONVENTIONS,
    INDEX,
    KEPT,
    LOCK,
    PARTS,
    PROGRESS,
    RUNS,
    TEMPORARY,
    TYPE,
    TYPE_VERSION,
    VERSION,
    NotAStore,
    Unstorable,
    check_array_name,
    check_shape_of_result,
    entry_of,
    part_path,
)
from .manifest import is_manifest, manifest_paths, write_manifest
from .strangers import known

if TYPE_CHECKING:
    import xarray as xr

# What a bulk array may be asked for as, and how it lies in the file.
DTYPES = {"float16": "<u2", "bfloat16": "<u2", "float32": "<f4", "float64": "<f8", "bool": "|i1"} | {
    f"{sign}int{bits}": f"{'|' if bits == 8 else '<'}{sign or 'i'}{bits // 8}"
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
_FILL = {name: bytes(np.dtype(kind).itemsize) for name, kind in DTYPES.items()} | {
    "float16": b"\x00\x7e",
    "bfloat16": b"\xc0\x7f",
    "float32": b"\x00\x00\xc0\x7f",
    "float64": bytes(6) + b"\xf8\x7f",
}  # NaN
_STRETCH = 1 << 20


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
        with explain_failure("create the store", self.path):
            # What is in it is read first: another process may be making the store.
            if self.path.exists() and any(self.path.iterdir()) and not _is_ours(self.path):
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
        final = part_path(self.path, analysis, key)
        entry = entry_of(analysis, key)
        arrays = codec.encode(dataset)
        attrs = result_attributes(analysis, key, meta) | codec.dataset_attributes(dataset)
        temporary = Temporary(self._writer, ".h5")
        try:
            with explain_failure("write", final):
                with NewFile(temporary.descriptor, "store-part", part_attributes(entry)) as out:
                    extents = write_result(out, out.group(entry, {}), attrs, arrays, (), self.compression)
                known.add(seal.seal(temporary.descriptor, extents))
            first = temporary.commit(final)
        finally:
            temporary.drop()
        drop_progress(self.path, key)
        return first

    def begin(self, analysis: str, key: str, meta: Mapping[str, Any], most: int | None = None) -> PartWriter:
        """Begin a part whose large arrays are written as they come; ``most`` caps its bytes."""
        return PartWriter(self.path, analysis, key, meta, Temporary(self._writer, ".h5"), most)

    def read(self, analysis: str, key: str) -> xr.Dataset:
        """A finished step; arrays over 1 MiB are read when they are used."""
        from .read_parts import read_part  # xarray, which writing does without

        return read_part(self.path, analysis, key)

    def manifest(self, run: str, manifest: Mapping[str, Any]) -> Path:
        """Commit the manifest of a run, before its first step; the newest plan again is no new one."""
        return write_manifest(self._writer, run, manifest)

    @property
    def writer(self) -> Writer:
        """What holds the store's lock while this object lives."""
        return self._writer

    def reindex(self) -> Path:
        """Make ``store.h5`` anew from the manifests and the parts."""
        return build_index(self._writer)


def _is_ours(path: Path) -> bool:
    """Whether a directory is a store, or the beginnings of one: what holds anything else is not written to."""
    if seal.sealed(path / INDEX):
        return True
    if (path / RUNS).is_dir() and any(is_manifest(found) for found in manifest_paths(path)):
        return True
    if (path / PARTS).is_dir() and any(seal.sealed(found) for _, found in parts(path)):
        return True
    beginnings = (PARTS, RUNS, TEMPORARY)
    if not {entry.name for entry in path.iterdir()} <= {*beginnings, KEPT, PROGRESS, CLAIMS, INDEX, LOCK}:
        return False
    return not any(any((path / name).iterdir()) for name in beginnings[:2] if (path / name).is_dir())


def part_attributes(entry: str) -> dict[str, Any]:
    """The attributes at the root of a part."""
    return {"Conventions": CONVENTIONS, "entry": entry}


def result_attributes(analysis: str, key: str, meta: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a result's group: what made it."""
    provenance = meta.get("provenance", {})
    return {
        TYPE: "step-result",
        TYPE_VERSION: VERSION,
        "object_id": str(meta.get("object_id") or uuid4()),
        "analysis": analysis,
        "version": int(meta.get("version", 1)),
        "key": key,
        "plugin": str(meta.get("plugin", "")),
        "plugin_version": str(meta.get("plugin_version", "")),
        "created": str(meta.get("created") or datetime.now(UTC).isoformat()),
        "provenance": provenance if isinstance(provenance, str) else to_json(provenance, "provenance"),
    }


@dataclass
class WrittenArray:
    """What the content digest and the seal need to know of an array that is in the file."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    crc: int
    attrs: Mapping[str, Any]
    array: Any
    contiguous: bool = True


def write_result(
    out: NewFile,
    group: Any,
    attrs: Mapping[str, Any],
    arrays: Sequence[Stored],
    streamed: Sequence[WrittenArray] = (),
    compression: str | None = None,
) -> list[seal.Extent]:
    """Fill a result's group: arrays, their attributes and scales; returns where the contiguous ones lie.

    ``streamed`` are arrays whose values are in the file already.
    """
    out.set(group, attrs)
    made = {s.name: out.array(group, s.name, s.data.shape, s.data.dtype, _packed(s, compression)) for s in arrays}
    dims = {d.name: d.dims for d in streamed} | {s.name: s.dims for s in arrays}
    out.scales({d.name: d.array for d in streamed} | made, dims)
    # Values last: large ones drive all else out of the processor's cache.
    written = [*streamed, *(_write(out, s, made[s.name], _packed(s, compression)) for s in arrays)]
    for done in written:
        out.set(done.array, {TYPE: "array", TYPE_VERSION: VERSION, "crc32": done.crc, **done.attrs})
    described = [(d.name, d.dims, kind_of(d.dtype), d.shape, d.crc, d.attrs) for d in written]
    out.set(group, {"content": content(described)})
    sizes = [(d, math.prod(d.shape) * d.dtype.itemsize) for d in written if d.contiguous and d.dtype != TEXT]
    return [(d.array.get_offset(), size, d.crc) for d, size in sizes if size]


def _packed(stored: Stored, compression: str | None) -> str | None:
    return compression if stored.data.dtype != TEXT and stored.data.nbytes >= LARGE else None


def _write(out: NewFile, stored: Stored, array: Any, packed: str | None) -> WrittenArray:
    data = stored.data
    if data.dtype == TEXT or data.nbytes < LARGE or packed:
        write_values(array, data)
        crc = crc_of(data)
    else:
        crc = out.file.put(data.reshape(-1).view(np.uint8).data, array.get_offset())
    return WrittenArray(stored.name, stored.dims, data.shape, data.dtype, crc, stored.attrs, array, packed is None)


class PartWriter:
    """Writes the large arrays of one step; ``commit`` adds the small ones and makes the part appear.

    A disk that is too small is told when an array is made, before the work is done.
    """

    def __init__(
        self, root: Path, analysis: str, key: str, meta: Mapping[str, Any], temporary: Temporary, most: int | None
    ):
        self.final = part_path(root, analysis, key)
        self.entry = entry_of(analysis, key)
        self.attrs = result_attributes(analysis, key, meta)
        self.temporary = temporary
        self.most = most
        self.arrays: dict[str, _Array] = {}
        self.out = NewFile(temporary.descriptor, "store-part", part_attributes(self.entry))
        self.group = self.out.group(self.entry, {})

    def create(
        self,
        name: str,
        dims: tuple[str, ...],
        shape: tuple[int, ...],
        dtype: str = "float32",
        attrs: Mapping[str, Any] | None = None,
    ) -> None:
        """Make an array, NaN (floats) or 0 where it is never written. ``dtype`` float16 and bfloat16 take 2 bytes."""
        kind = np.dtype(_stored(dtype))
        if len(dims) != len(shape) or not shape or min(shape) < 0:
            raise Unstorable(f"bulk array {name!r}: dims {dims} and shape {shape} do not go together")
        if check_array_name(name) in self.arrays or len({*dims, name}) != len(dims) + 1:
            raise Unstorable(f"bulk array {name!r}: its name, or one of its dimensions {dims}, is used twice")
        check_shape_of_result({name: len(dims)})
        sizes = {d: n for a in self.arrays.values() for d, n in zip(a.dims, a.shape, strict=True)}
        for dim, size in zip(dims, shape, strict=True):
            if sizes.get(dim, size) != size:
                raise Unstorable(f"bulk array {name!r} has {size} along {dim!r}, another has {sizes[dim]}")
        wanted = estimate({n: (a.shape, a.dtype) for n, a in self.arrays.items()} | {name: (shape, dtype)})
        if self.most is not None and wanted > self.most:
            raise Unstorable(
                f"bulk array {name!r} would bring this result to {wanted:,} bytes, over its cap of {self.most:,}: "
                "capture fewer sites, layers or prompts, or a 2-byte type"
            )
        with explain_failure("write", self.final):
            self._check_space(wanted)
            made = self.out.array(self.group, name, shape, kind)
            self.out.file.check()
        own = codec.plain_attributes(attrs or {}, f"array {name!r}")
        if dtype in ("float16", "bfloat16", "bool"):
            own["dtype"] = dtype
        self.arrays[name] = _Array(dims, shape, dtype, own, h5py.Dataset(made), np.zeros(shape[:-1], dtype=bool))

    def _check_space(self, wanted: int) -> None:
        """Setting the space aside instead would write everything twice."""
        disk, held = os.fstatvfs(self.temporary.descriptor), os.fstat(self.temporary.descriptor).st_blocks * 512
        free = disk.f_bavail * disk.f_frsize + held
        if wanted > free:
            raise StoreError(
                f"{self.final} would take {wanted:,} bytes and the disk has {free:,}: free some space, or capture "
                "fewer sites, layers or prompts, or a 2-byte type"
            )

    def write(self, name: str, index: tuple[Any, ...], values: Any) -> None:
        """Write a block: ``index`` is ints, slices and at most one list of ints, as in numpy."""
        if name not in self.arrays:
            raise Unstorable(f"there is no bulk array {name!r}{did_you_mean(name, self.arrays)}")
        array = self.arrays[name]
        index = index if isinstance(index, tuple) else (index,)
        index = (*index, *(slice(None),) * (len(array.shape) - len(index)))
        with explain_failure("write", self.final):
            try:
                self._write(array, index[:-1], index[-1], _encoded(values, array.dtype))
            except (TypeError, ValueError, IndexError) as error:
                what = f"bulk array {name!r} of shape {array.shape}: values of shape {np.shape(values)}"
                raise Unstorable(f"{what} do not go to {index}: {error}") from None
            self.out.file.check()

    def _write(self, array: _Array, rows: tuple[Any, ...], last: Any, block: np.ndarray) -> None:
        """Write a block into some rows; rows written in part hold the fill elsewhere."""
        if not (isinstance(last, slice) and last.indices(array.shape[-1]) == (0, array.shape[-1], 1)):
            whole = np.asarray(array.data[(*rows, slice(None))])
            whole[~array.written[rows]] = np.frombuffer(_FILL[array.dtype], whole.dtype)[0]
            whole[..., last] = block
            block = whole
            last = slice(None)
        array.data[(*rows, last)] = block
        array.written[rows] = True
        if _stretch(array.shape, (*rows, last)) == (array.in_order, block.size):
            array.crc = crc32(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data, array.crc)
            array.in_order += block.size
        else:
            array.in_order = -1

    def commit(self, dataset: xr.Dataset) -> bool:
        """Add the small variables and coordinates of ``dataset`` and finish; False where another was first."""
        try:
            with explain_failure("write", self.final):
                with self.out:
                    h5py.h5f.flush(self.out.id)
                    streamed = [self._finish(name, array, dataset) for name, array in self.arrays.items()]
                    sizes = {d: n for a in self.arrays.values() for d, n in zip(a.dims, a.shape, strict=True)}
                    arrays = codec.with_scales(codec.encode_variables(dataset), sizes, [d.name for d in streamed])
                    attrs = self.attrs | codec.dataset_attributes(dataset)
                    extents = write_result(self.out, self.group, attrs, arrays, streamed)
                known.add(seal.seal(self.temporary.descriptor, extents))
            return self.temporary.commit(self.final)
        finally:
            self.temporary.drop()

    def _finish(self, name: str, array: _Array, dataset: xr.Dataset) -> WrittenArray:
        """Fill the rows that were never written, and read the array once for its crc32."""
        descriptor, offset = self.temporary.descriptor, array.data.id.get_offset()
        size = math.prod(array.shape) * array.data.dtype.itemsize
        for start, stop in _runs(~array.written.ravel()):
            row = _FILL[array.dtype] * array.shape[-1]
            step = max(1, _STRETCH // max(1, len(row)))
            for place in range(start, stop, step):
                write_at(descriptor, memoryview(row * min(step, stop - place)), offset + place * len(row))
        in_order = array.in_order == math.prod(array.shape)
        crc = array.crc if in_order else seal.crc32(descriptor, offset, size)
        attrs = array.attrs | codec.coordinates_attribute(array.dims, codec.auxiliary(dataset))
        return WrittenArray(name, array.dims, array.shape, array.data.dtype, crc, attrs, array.data.id)

    def abandon(self) -> None:
        """Throw away what was written; after ``commit`` this does nothing."""
        self.out.discard()
        self.temporary.drop()


@dataclass
class _Array:
    """A bulk array being written.

    ``written`` is a flag for each row (all axes but the last). While blocks come in the order in which they lie in the
    file, ``crc`` is that of the first ``in_order`` values; else the array is read once at the end.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    attrs: dict[str, Any]
    data: h5py.Dataset
    written: np.ndarray
    crc: int = 0
    in_order: int = 0


def estimate(arrays: Mapping[str, tuple[Sequence[int], str]]) -> int:
    """The bytes that arrays of these shapes and dtypes will take on disk."""
    return sum(math.prod(shape) * np.dtype(_stored(dtype)).itemsize for shape, dtype in arrays.values()) + (1 << 14)


def _stored(dtype: str) -> str:
    if dtype not in DTYPES:
        raise Unstorable(f"bulk arrays of {dtype!r}: one of {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _encoded(values: Any, dtype: str) -> np.ndarray:
    return codec.to_bits(values, dtype) if dtype in ("float16", "bfloat16") else np.asarray(values, DTYPES[dtype])


def _stretch(shape: tuple[int, ...], index: tuple[Any, ...]) -> tuple[int, int] | None:
    """Where a block begins and how many values it has, where it lies in one piece."""
    start, count, piece = 0, 1, math.prod(shape)
    begun = False
    for size, at in zip(shape, index, strict=True):
        piece //= max(size, 1)
        if isinstance(at, slice) and at.step in (None, 1):
            first, last, _ = at.indices(size)
        elif isinstance(at, int):
            first, last = at % size, at % size + 1
        else:
            return None
        if begun and (first, last) != (0, size):
            return None
        begun = begun or isinstance(at, slice)
        start, count = start + first * piece, count * (last - first)
    return start, count


def _runs(flags: np.ndarray) -> Iterator[tuple[int, int]]:
    """Where stretches of true flags begin and end, looking at a million at a time."""
    for base in range(0, flags.size, 1 << 20):
        block = np.concatenate([[False], flags[base : base + (1 << 20)], [False]])
        edges = np.flatnonzero(block[1:] != block[:-1]) + base
        yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
