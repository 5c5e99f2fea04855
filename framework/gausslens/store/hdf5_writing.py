"""HDF5 files as they are written: raw h5py (xarray's writer takes six times as long), and nothing fails under HDF5.

HDF5 never writes to the disk itself: where a write fails under it (a full disk), closing the file kills the process.
It writes to an ``ErrorKeepingFile``, which keeps the first error and goes on as if all were well; the error is raised
when HDF5 is done, and the temporary file is thrown away.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5ds, h5f, h5fd, h5g, h5p, h5s, h5t
from zlib_ng.zlib_ng import crc32

from .codec import TEXT
from .disk import write_at
from .layout import TYPE, TYPE_VERSION, VERSION

# Bytes that stay in the processor's cache between two uses.
_STRETCH = 1 << 18
# Arrays of this size may be compressed, and else begin on a page.
LARGE = 1 << 16
_PAGE = 4096
_CHUNK = 1 << 20
# Up to so many attributes lie in the header of their object, not in a tree of their own.
_COMPACT = (64, 48)


def _access() -> h5p.PropFAID:
    """Files that old tools read, from 1.8 on; closing one closes all that is open of it."""
    how = h5p.create(h5p.FILE_ACCESS)
    how.set_libver_bounds(h5f.LIBVER_V18, h5f.LIBVER_V110)
    how.set_alignment(LARGE, _PAGE)
    how.set_fclose_degree(h5f.CLOSE_STRONG)
    return how


def _text_type() -> h5t.TypeID:
    kind = h5t.TypeID.copy(h5t.C_S1)
    kind.set_size(h5t.VARIABLE)
    kind.set_cset(h5t.CSET_UTF8)
    return kind


def _links() -> h5p.PropLCID:
    """Names in UTF-8; groups above are made."""
    how = h5p.create(h5p.LINK_CREATE)
    how.set_create_intermediate_group(True)
    how.set_char_encoding(h5t.CSET_UTF8)
    return how


def _ordered() -> h5p.PropGCID:
    """Groups whose readers list arrays in the order of the dataset."""
    how = h5p.create(h5p.GROUP_CREATE)
    how.set_link_creation_order(h5p.CRT_ORDER_TRACKED | h5p.CRT_ORDER_INDEXED)
    how.set_attr_phase_change(*_COMPACT)
    return how


def _contiguous(filled: bool) -> h5p.PropDCID:
    """Arrays in one piece that is set aside at once; HDF5 insists on filling text."""
    how = h5p.create(h5p.DATASET_CREATE)
    how.set_layout(h5d.CONTIGUOUS)
    how.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    how.set_attr_phase_change(*_COMPACT)
    how.set_fill_time(h5d.FILL_TIME_ALLOC if filled else h5d.FILL_TIME_NEVER)
    return how


# Made once: making them anew for each part takes as long as writing it.
_ACCESS, _LINKS, _ORDERED, _CONTIGUOUS, _FILLED = _access(), _links(), _ordered(), _contiguous(False), _contiguous(True)
_TEXT, _SCALAR = _text_type(), h5s.create(h5s.SCALAR)
_MEMORY_TEXT = h5t.py_create(h5py.string_dtype())


class ErrorKeepingFile:
    """A file for HDF5 (h5py's file-object driver) whose writes never fail; ``error`` is the first that did.

    Nor may an interrupt fly through HDF5: it is kept likewise, and raised by ``check``.
    """

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self.place = 0
        self.error: BaseException | None = None

    def check(self) -> None:
        """Raise what a write has met."""
        if self.error is not None:
            raise self.error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move; sizes are the disk's."""
        if whence == os.SEEK_END:
            offset += os.fstat(self.descriptor).st_size
        elif whence == os.SEEK_CUR:
            offset += self.place
        self.place = offset
        return offset

    def tell(self) -> int:
        """The place of the next read or write."""
        return self.place

    def write(self, data: memoryview) -> int:
        """Write all of it, or keep the error."""
        view = memoryview(data)
        if self.error is None:
            try:
                write_at(self.descriptor, view, self.place)
            except BaseException as error:
                self.error = error
        self.place += view.nbytes
        return view.nbytes

    def put(self, data: memoryview, place: int) -> int:
        """Write bytes where they belong, a stretch at a time, and return their crc32: so they are fetched once."""
        self.place, crc = place, 0
        for start in range(0, len(data), _STRETCH):
            stretch = data[start : start + _STRETCH]
            self.write(stretch)
            crc = crc32(stretch, crc)
        return crc

    def read(self, size: int = -1) -> bytes:
        """What h5py knows a file by; HDF5 itself reads into buffers."""
        raise NotImplementedError

    def readinto(self, buffer: memoryview) -> int:
        """Read; past the end (after a failed write) there are zeros."""
        view = memoryview(buffer)
        data = b""
        with suppress(OSError):
            data = os.pread(self.descriptor, view.nbytes, self.place)
        view[: len(data)] = data
        view[len(data) :] = bytes(view.nbytes - len(data))
        self.place += len(data)
        return int(view.nbytes)

    def truncate(self, size: int | None = None) -> int:
        """Set the size, or keep the error."""
        size = self.place if size is None else size
        try:
            os.ftruncate(self.descriptor, size)
        except BaseException as error:
            self.error = self.error or error
        return size

    def flush(self) -> None:
        """Nothing is held back."""


class NewFile:
    """An HDF5 file being written: attributes at the root, and one group for each result.

    Leaving the context closes the file and raises what any write has met.
    """

    def __init__(self, descriptor: int, kind: str, attrs: Mapping[str, Any]):
        self.file = ErrorKeepingFile(descriptor)
        how = _ACCESS.copy()
        how.set_fileobj_driver(h5fd.fileobj_driver, self.file)
        self.id = h5f.create(repr(self.file).encode(), h5f.ACC_TRUNC, fapl=how)
        # What nobody closes must not be left to the garbage collector: HDF5 would write to a file half collected.
        weakref.finalize(self, _discard, self.file, self.id)
        self.above: dict[str, Any] = {}  # groups that hold links
        self.set(self.id, {TYPE: kind, TYPE_VERSION: VERSION, **attrs})

    def set(self, owner: Any, attrs: Mapping[str, Any]) -> None:
        """Write attributes: text, numbers, lists of numbers."""
        for name, value in attrs.items():
            if isinstance(value, str):
                made = h5a.create(owner, name.encode(), _TEXT, _SCALAR)
                made.write(np.array(value.encode(), dtype=object), _MEMORY_TEXT)
            elif isinstance(value, int):
                made = h5a.create(owner, name.encode(), h5t.STD_I64LE, _SCALAR)
                made.write(np.array(value, "<i8"), h5t.STD_I64LE)
            else:
                data = np.asarray(value)
                data = data.astype(data.dtype.newbyteorder("<"), copy=False)
                space = h5s.create_simple(data.shape) if data.shape else _SCALAR
                h5a.create(owner, name.encode(), h5t.py_create(data.dtype), space).write(data)

    def group(self, entry: str, attrs: Mapping[str, Any]) -> Any:
        """Make a group, with those above it."""
        made = h5g.create(self.id, entry.encode(), _LINKS, _ORDERED)
        self.set(made, attrs)
        return made

    def link(self, place: str, filename: str | None, target: str) -> None:
        """Link to a group of another file, or (None) of this one."""
        above, _, name = place.rpartition("/")
        if above not in self.above:
            self.above[above] = self._opened(above)
        if filename is None:
            self.above[above].links.create_soft(name.encode(), target.encode())
        else:
            self.above[above].links.create_external(name.encode(), filename.encode(), target.encode())

    def _opened(self, place: str) -> Any:
        """The group at a path, made where it is not there."""
        try:
            return h5g.open(self.id, place.encode())
        except (KeyError, ValueError):
            return h5g.create(self.id, place.encode(), _LINKS)

    def array(
        self, group: Any, name: str, shape: Sequence[int], dtype: np.dtype, compression: str | None = None
    ) -> Any:
        """Make an array; its bytes are allocated and not filled."""
        kind, how = (_TEXT, _FILLED) if dtype == TEXT else (h5t.py_create(dtype), _CONTIGUOUS)
        space = h5s.create_simple(tuple(shape)) if len(shape) else _SCALAR
        if compression is not None:
            how = _chunked(shape, dtype, compression)
        return h5d.create(group, name.encode(), kind, space, how, _LINKS)

    def scales(self, arrays: Mapping[str, Any], dims: Mapping[str, Sequence[str]]) -> None:
        """Make the arrays named as their one dimension scales, and attach them to the others."""
        for name, over in dims.items():
            if tuple(over) == (name,):
                h5ds.set_scale(arrays[name], name.encode())
        for name, over in dims.items():
            if tuple(over) != (name,):
                for axis, dim in enumerate(over):
                    h5ds.attach_scale(arrays[name], arrays[dim], axis)

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        met = self.file.error
        if error is None:
            self.id.close()
            self.file.check()
            return
        self.discard()
        if met is not None and met is not error:
            raise met from error

    def discard(self) -> None:
        """Close whatever happens: nothing more is written."""
        _discard(self.file, self.id)


def _discard(file: ErrorKeepingFile, made: h5f.FileID) -> None:
    file.error = file.error or OSError("discarded")
    with suppress(Exception):
        made.close()


def _chunked(shape: Sequence[int], dtype: np.dtype, compression: str) -> Any:
    """Chunks with shuffle and lzf or gzip: filters that every h5py has."""
    how = h5p.create(h5p.DATASET_CREATE)
    chunk = list(shape)
    while math.prod(chunk) * dtype.itemsize > _CHUNK:
        longest = chunk.index(max(chunk))
        chunk[longest] = -(-chunk[longest] // 2)
    how.set_chunk(tuple(chunk))
    how.set_shuffle()
    if compression == "gzip":
        how.set_deflate(4)
    else:
        how.set_filter(h5py.h5z.FILTER_LZF, h5py.h5z.FLAG_OPTIONAL)
    return how


def write_values(array: Any, data: np.ndarray) -> None:
    """Write all values of an array."""
    if data.size:
        array.write(h5s.ALL, h5s.ALL, data, *([_MEMORY_TEXT] if data.dtype == TEXT else []))


def kind_of(dtype: np.dtype) -> str:
    """The type of an array in words: ``float32``, ``text``."""
    return "text" if dtype == TEXT else dtype.newbyteorder("=").name
