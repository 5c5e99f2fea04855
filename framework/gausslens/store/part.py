"""Writing parts: raw h5py (xarray's writer takes six times as long), into a sink that cannot fail under HDF5."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import h5py
import numpy as np
from h5py import h5a, h5d, h5ds, h5f, h5fd, h5g, h5p, h5s, h5t

from .codec import TEXT, Stored, content, crc_of, to_json
from .disk import Sink
from .layout import CONVENTIONS, TYPE, TYPE_VERSION, VERSION
from .seal import Extent

# Arrays of this size may be compressed, and else begin on a page.
_LARGE = 1 << 16
_PAGE = 4096
_CHUNK = 1 << 20
# Up to so many attributes lie in the header of their object, not in a tree of their own.
_COMPACT = (64, 48)


def _access() -> h5p.PropFAID:
    """Files that old tools read, from 1.8 on; closing one closes all that is open of it."""
    how = h5p.create(h5p.FILE_ACCESS)
    how.set_libver_bounds(h5f.LIBVER_V18, h5f.LIBVER_V110)
    how.set_alignment(_LARGE, _PAGE)
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


class PartFile:
    """An HDF5 file being written: attributes at the root, and one group for each result.

    Leaving the context closes the file and raises what any write has met.
    """

    def __init__(self, descriptor: int, kind: str, attrs: Mapping[str, Any]):
        self.sink = Sink(descriptor)
        how = _ACCESS.copy()
        how.set_fileobj_driver(h5fd.fileobj_driver, self.sink)
        self.id = h5f.create(repr(self.sink).encode(), h5f.ACC_TRUNC, fapl=how)
        # What nobody closes must not be left to the garbage collector: HDF5 would write to a sink half collected.
        weakref.finalize(self, _discard, self.sink, self.id)
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

    def __enter__(self) -> PartFile:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        met = self.sink.error
        if error is None:
            self.id.close()
            self.sink.check()
            return
        self.discard()
        if met is not None and met is not error:
            raise met from error

    def discard(self) -> None:
        """Close whatever happens: nothing more is written."""
        _discard(self.sink, self.id)


def _discard(sink: Sink, file: h5f.FileID) -> None:
    sink.error = sink.error or OSError("discarded")
    with suppress(Exception):
        file.close()


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
class Described:
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
    out: PartFile,
    group: Any,
    attrs: Mapping[str, Any],
    arrays: Sequence[Stored],
    streamed: Sequence[Described] = (),
    compression: str | None = None,
) -> list[Extent]:
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
    return compression if stored.data.dtype != TEXT and stored.data.nbytes >= _LARGE else None


def _write(out: PartFile, stored: Stored, array: Any, packed: str | None) -> Described:
    data = stored.data
    if data.dtype == TEXT or data.nbytes < _LARGE or packed:
        write_values(array, data)
        crc = crc_of(data)
    else:
        crc = out.sink.put(data.reshape(-1).view(np.uint8).data, array.get_offset())
    return Described(stored.name, stored.dims, data.shape, data.dtype, crc, stored.attrs, array, packed is None)


def write_values(array: Any, data: np.ndarray) -> None:
    """Write all values of an array."""
    if data.size:
        array.write(h5s.ALL, h5s.ALL, data, *([_MEMORY_TEXT] if data.dtype == TEXT else []))


def kind_of(dtype: np.dtype) -> str:
    """The type of an array in words: ``float32``, ``text``."""
    return "text" if dtype == TEXT else dtype.newbyteorder("=").name
