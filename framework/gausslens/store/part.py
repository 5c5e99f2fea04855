"""Writing parts: raw h5py (xarray's writer takes six times as long), into a sink that cannot fail under HDF5."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import h5py
import numpy as np
from h5py import h5a, h5d, h5ds, h5g, h5p, h5s, h5t

from .codec import TEXT, Stored, content
from .disk import Sink
from .layout import CONVENTIONS, TYPE, TYPE_VERSION, VERSION
from .seal import Extent

# Old tools read what these bounds write.
LIBVER = ("v108", "v110")
_STRING = h5py.string_dtype()
_COMPRESSIBLE = 1 << 16


def _text_type() -> h5t.TypeID:
    kind = h5t.TypeID.copy(h5t.C_S1)
    kind.set_size(h5t.VARIABLE)
    kind.set_cset(h5t.CSET_UTF8)
    return kind


class PartFile:
    """An HDF5 file being written: attributes at the root, and one group for each result.

    Leaving the context closes the file and raises what any write has met.
    """

    def __init__(self, descriptor: int, kind: str, attrs: Mapping[str, Any]):
        self.sink = Sink(descriptor)
        self.file = h5py.File(self.sink, "w", libver=LIBVER)
        self.text = _text_type()
        self.scalar = h5s.create(h5s.SCALAR)
        self.links = h5p.create(h5p.LINK_CREATE)
        self.links.set_create_intermediate_group(True)
        self.links.set_char_encoding(h5t.CSET_UTF8)
        self.ordered = h5p.create(h5p.GROUP_CREATE)  # readers then list arrays in the order of the dataset
        self.ordered.set_link_creation_order(h5p.CRT_ORDER_TRACKED | h5p.CRT_ORDER_INDEXED)
        self.contiguous = h5p.create(h5p.DATASET_CREATE)
        self.contiguous.set_layout(h5d.CONTIGUOUS)
        self.contiguous.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        self.contiguous_text = self.contiguous.copy()  # HDF5 insists on filling these
        self.contiguous.set_fill_time(h5d.FILL_TIME_NEVER)
        self.set(self.file.id, {TYPE: kind, TYPE_VERSION: VERSION, **attrs})

    def set(self, owner: Any, attrs: Mapping[str, Any]) -> None:
        """Write attributes: text, numbers, lists of numbers."""
        for name, value in attrs.items():
            if isinstance(value, str):
                made = h5a.create(owner, name.encode(), self.text, self.scalar)
                made.write(np.array(value.encode(), dtype=_STRING))
            else:
                data = np.asarray(value)
                data = data.astype(data.dtype.newbyteorder("<"), copy=False)
                space = h5s.create_simple(data.shape) if data.shape else self.scalar
                h5a.create(owner, name.encode(), h5t.py_create(data.dtype), space).write(data)

    def group(self, entry: str, attrs: Mapping[str, Any]) -> Any:
        """Make a group, with those above it."""
        made = h5g.create(self.file.id, entry.encode(), self.links, self.ordered)
        self.set(made, attrs)
        return made

    def array(
        self, group: Any, name: str, shape: Sequence[int], dtype: np.dtype, compression: str | None = None
    ) -> Any:
        """Make an array; its bytes are allocated and not filled."""
        kind, how = (self.text, self.contiguous_text) if dtype == TEXT else (h5t.py_create(dtype), self.contiguous)
        space = h5s.create_simple(tuple(shape)) if len(shape) else self.scalar
        if compression is not None:
            how = _chunked(shape, dtype, compression)
        return h5d.create(group, name.encode(), kind, space, how, self.links)

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
            self.file.close()
            self.sink.check()
            return
        self.discard()
        if met is not None and met is not error:
            raise met from error

    def discard(self) -> None:
        """Close whatever happens: nothing more is written."""
        self.sink.error = self.sink.error or OSError("discarded")
        with suppress(Exception):
            self.file.close()


def _chunked(shape: Sequence[int], dtype: np.dtype, compression: str) -> Any:
    """Chunks with shuffle and lzf or gzip: filters that every h5py has."""
    how = h5p.create(h5p.DATASET_CREATE)
    how.set_chunk(h5py._hl.filters.guess_chunk(tuple(shape), None, dtype.itemsize))
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
    from .codec import to_json

    provenance = meta.get("provenance", {})
    return {
        TYPE: "step-result",
        TYPE_VERSION: VERSION,
        "object_id": str(meta.get("object_id") or uuid4()),
        "analysis": analysis,
        "version": int(meta.get("version", meta.get("analysis_version", 1))),
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
    written = [*streamed, *(_write(out, group, stored, compression) for stored in arrays)]
    for done in written:
        out.set(done.array, {TYPE: "array", TYPE_VERSION: VERSION, "crc32": done.crc, **done.attrs})
    out.scales({d.name: d.array for d in written}, {d.name: d.dims for d in written})
    described = [(d.name, d.dims, kind_of(d.dtype), d.shape, d.crc, d.attrs) for d in written]
    out.set(group, {**attrs, "content": content(described)})
    sizes = [(d, math.prod(d.shape) * d.dtype.itemsize) for d in written if d.contiguous and d.dtype != TEXT]
    return [(d.array.get_offset(), size, d.crc) for d, size in sizes if size]


def _write(out: PartFile, group: Any, stored: Stored, compression: str | None) -> Described:
    data = stored.data
    packed = compression if data.dtype != TEXT and data.nbytes >= _COMPRESSIBLE else None
    array = out.array(group, stored.name, data.shape, data.dtype, packed)
    if data.size:
        write_values(array, data)
    return Described(
        stored.name, stored.dims, data.shape, data.dtype, stored.crc(), stored.attrs, array, packed is None
    )


def write_values(array: Any, data: np.ndarray) -> None:
    """Write all values of an array."""
    array.write(h5s.ALL, h5s.ALL, data, *([_MEMORY_TEXT] if data.dtype == TEXT else []))


_MEMORY_TEXT = h5t.py_create(_STRING)


def kind_of(dtype: np.dtype) -> str:
    """The type of an array in words: ``float32``, ``text``."""
    return "text" if dtype == TEXT else dtype.newbyteorder("=").name
