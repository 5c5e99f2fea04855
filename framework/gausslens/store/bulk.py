"""Bulk capture: large arrays written as they come, without holding them, into one part that appears whole."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from zlib_ng.zlib_ng import crc32

from ..contract.errors import StoreError, did_you_mean
from . import codec, part, seal
from .disk import Temporary, told, write_at
from .layout import Unstorable, check_array_name, entry_of, part_path

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


def estimate(arrays: Mapping[str, tuple[Sequence[int], str]]) -> int:
    """The bytes that arrays of these shapes and dtypes will take on disk."""
    return sum(math.prod(shape) * np.dtype(_stored(dtype)).itemsize for shape, dtype in arrays.values()) + (1 << 14)


def _stored(dtype: str) -> str:
    if dtype not in DTYPES:
        raise Unstorable(f"bulk arrays of {dtype!r}: one of {', '.join(DTYPES)}")
    return DTYPES[dtype]


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


class PartWriter:
    """Writes the large arrays of one step; ``commit`` adds the small ones and makes the part appear.

    A disk that is too small is told when an array is made, before the work is done.
    """

    def __init__(
        self, root: Path, analysis: str, key: str, meta: Mapping[str, Any], temporary: Temporary, most: int | None
    ):
        self.final = part_path(root, analysis, key)
        self.entry = entry_of(analysis, key)
        self.attrs = part.result_attributes(analysis, key, meta)
        self.temporary = temporary
        self.most = most
        self.arrays: dict[str, _Array] = {}
        self.out = part.PartFile(temporary.descriptor, "store-part", part.part_attributes(self.entry))
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
        with told("write", self.final):
            self._check_space(wanted)
            made = self.out.array(self.group, name, shape, kind)
            self.out.sink.check()
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
        with told("write", self.final):
            try:
                self._write(array, index[:-1], index[-1], _encoded(values, array.dtype))
            except (TypeError, ValueError, IndexError) as error:
                what = f"bulk array {name!r} of shape {array.shape}: values of shape {np.shape(values)}"
                raise Unstorable(f"{what} do not go to {index}: {error}") from None
            self.out.sink.check()

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
            with told("write", self.final):
                with self.out:
                    h5py.h5f.flush(self.out.id)
                    streamed = [self._finish(name, array, dataset) for name, array in self.arrays.items()]
                    sizes = {d: n for a in self.arrays.values() for d, n in zip(a.dims, a.shape, strict=True)}
                    arrays = codec.with_scales(codec.encode_variables(dataset), sizes, [d.name for d in streamed])
                    attrs = self.attrs | codec.dataset_attributes(dataset)
                    extents = part.write_result(self.out, self.group, attrs, arrays, streamed)
                seal.seal(self.temporary.descriptor, extents)
            return self.temporary.commit(self.final)
        finally:
            self.temporary.drop()

    def _finish(self, name: str, array: _Array, dataset: xr.Dataset) -> part.Described:
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
        return part.Described(name, array.dims, array.shape, array.data.dtype, crc, attrs, array.data.id)

    def abandon(self) -> None:
        """Throw away what was written; after ``commit`` this does nothing."""
        self.out.discard()
        self.temporary.drop()


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


def _encoded(values: Any, dtype: str) -> np.ndarray:
    return codec.to_bits(values, dtype) if dtype in ("float16", "bfloat16") else np.asarray(values, DTYPES[dtype])


def _runs(flags: np.ndarray) -> Iterator[tuple[int, int]]:
    """Where stretches of true flags begin and end, looking at a million at a time."""
    for base in range(0, flags.size, 1 << 20):
        block = np.concatenate([[False], flags[base : base + (1 << 20)], [False]])
        edges = np.flatnonzero(block[1:] != block[:-1]) + base
        yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
