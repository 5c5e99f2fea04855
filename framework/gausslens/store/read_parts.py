"""Reading parts as xarray datasets: small arrays at once, large ones when used; and several of one shape as one."""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr
from h5py import h5r, h5s
from xarray.backends import BackendArray, CachingFileManager
from xarray.core import indexing

from ..contract.errors import StoreError
from ..maths.ragged import Ragged
from .checksums import Extent
from .codec import (
    REAL_IMAG,
    TEXT,
    Known,
    crc_of,
    decode_text,
    decode_values,
    decoded_dtype,
    own_of,
    provenance_of,
    user_attributes,
)
from .disk import explain_damage, mark_of
from .hdf5_writing import kind_of
from .layout import TYPE, TYPE_VERSION, check_version, entry_of, part_path
from .manifest import SweepPoint
from .safety import Checked, checked_arrays, follow, no_plugins, open_checked, open_small

# Arrays up to this size are read with the dataset, and checked against their crc32.
EAGER_BYTES = 1 << 20
# Of what was read lately so much is held.
RECENT_BYTES = 1 << 26
# What a result holds of a variable over prompts: its standard error, and its values without each group of prompts.
ERROR, WITHOUT = "se", "without"


class Lazy(BackendArray):
    """An array that is read when it is indexed. Files are opened as needed; few are open at a time."""

    def __init__(
        self,
        files: CachingFileManager[h5py.File],
        where: str,
        shape: tuple[int, ...],
        stored: np.dtype,
        kind: str | None,
    ):
        self.files = files
        self.where = where
        self.kind = kind
        self.shape = shape[:-1] if kind in ("complex64", "complex128") else shape
        self.dtype = decoded_dtype(stored, kind)

    def __getitem__(self, key: Any) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER_1VECTOR, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        with explain_damage(self.where), no_plugins(), self.files.acquire_context() as file:
            return decode_values(np.asarray(file[self.where][(*key, ...)]), self.kind)


class Filled(BackendArray):
    """A ragged array as one whole: entries are read when they are asked for, and filled up to the longest."""

    def __init__(self, layout: Ragged, flat: xr.Variable, fill: Any):
        self.layout, self.flat, self.fill = layout, flat, fill
        self.shape = layout.shape
        self.dtype = flat.dtype

    def __getitem__(self, key: Any) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        layout = self.layout
        chosen = {
            dim: np.atleast_1d(np.arange(size)[k]) for dim, size, k in zip(layout.dims, self.shape, key, strict=True)
        }
        found = np.full([len(chosen[dim]) for dim in layout.dims], self.fill, self.dtype)
        equal = {dim: chosen[dim] for dim in (*layout.lead, *layout.rest)}
        for at, number in enumerate(chosen[layout.over].tolist()):
            cells = self.flat.isel(equal | {self.flat.dims[len(layout.lead)]: layout.cells(number)}).values
            entry = layout.entry(number, cells)
            there = {dim: np.arange(found.shape[axis]) for axis, dim in enumerate(layout.dims)} | {layout.over: [at]}
            for dim, extent in zip(layout.unequal, layout.extents[number], strict=True):
                there[dim] = np.flatnonzero(chosen[dim] < extent)
                entry = entry.take(chosen[dim][there[dim]], axis=layout.dims.index(dim) - 1)
            places = [there[dim] for dim in layout.dims]
            found[np.ix_(*places)] = entry.reshape([len(p) for p in places])
        return found[tuple(slice(None) if isinstance(k, slice) or np.ndim(k) else 0 for k in key)]


def filled(found: dict[str, xr.Variable], where: str) -> dict[str, xr.Variable]:
    """Variables with ragged ones as one whole each; their extents are no variables of the result."""
    made = dict(found)
    for name, variable in found.items():
        extent = found.get(f"{name}_extent")
        if "ragged" not in variable.attrs or extent is None:
            continue
        layout = _layout(variable, extent, f"{where}/{name}")
        fill = variable.attrs.get("fill", "" if variable.dtype == TEXT else np.nan if variable.dtype.kind == "f" else 0)
        attrs = {k: v for k, v in variable.attrs.items() if k not in ("ragged", "fill", "against")}
        data = indexing.LazilyIndexedArray(Filled(layout, variable, fill))
        made[name] = xr.Variable(layout.dims, data, attrs, fastpath=True)
        del made[f"{name}_extent"]
    return made


def _layout(flat: xr.Variable, extent: xr.Variable, where: str) -> Ragged:
    """How a ragged array lies, checked: extents that do not fit would show one prompt's numbers as another's."""
    try:
        told = json.loads(flat.attrs["ragged"])
        dims, unequal, over = tuple(map(str, told["dims"])), tuple(map(str, told["unequal"])), str(told["over"])
        extents = np.asarray(extent.values)
        if extents.dtype.kind == "i" and extents.min(initial=0) >= 0 and set(unequal) < set(dims):
            sizes = {str(dim): n for dim, n in flat.sizes.items()}
            layout = Ragged(dims, unequal, extents.astype(np.int64), sizes, over)
            cells = str(flat.dims[len(layout.lead)])
            if flat.dims == (*layout.lead, cells, *layout.rest) and layout.flat_shape == flat.shape:
                return layout
    except (ValueError, KeyError, TypeError, IndexError):  # none of it is what it should be
        pass
    raise StoreError(f"{where}: what it says of its entries does not fit what is stored: refused")


class Recent:
    """Results that were read, up to so many bytes; a reader gets a copy, to do with as he likes.

    Parts never change, and a report, a table and a comparison want the same ones; HDF5 takes some 50 ms for each.
    Large arrays stay on disk here too.
    """

    def __init__(self, most: int):
        self.most = most
        self.bytes = 0
        self.held: OrderedDict[tuple[Any, ...], xr.Dataset] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, mark: tuple[Any, ...]) -> xr.Dataset | None:
        """A copy of what is held under this mark."""
        with self.lock:
            found = self.held.get(mark)
            if found is None:
                return None
            self.held.move_to_end(mark)
            return _copied(found)

    def put(self, mark: tuple[Any, ...], found: xr.Dataset) -> None:
        """Hold a copy; the oldest go."""
        with self.lock:
            if mark not in self.held and _in_memory(found) <= self.most:
                self.held[mark] = _copied(found)
                self.bytes += _in_memory(found)
            while self.bytes > self.most:
                self.bytes -= _in_memory(self.held.popitem(last=False)[1])


def _in_memory(found: xr.Dataset) -> int:
    return sum(v.nbytes for v in found.variables.values() if isinstance(v._data, np.ndarray))


def _copied(found: xr.Dataset) -> xr.Dataset:
    copy = found.copy(deep=False)
    for variable in copy.variables.values():
        if isinstance(variable._data, np.ndarray):
            variable._data = variable._data.copy()  # `.data =` would look at each text
    return copy


_RECENT = Recent(RECENT_BYTES)


def recent(mark: tuple[Any, ...], read: Callable[[], xr.Dataset]) -> xr.Dataset:
    """What is read, or a copy of what was read lately under this mark."""
    found = _RECENT.get(mark)
    if found is None:
        found = read()
        _RECENT.put(mark, found)
    return found


def read_part(root: Path, analysis: str, key: str) -> xr.Dataset:
    """The result of one step."""
    path, entry = part_path(root, analysis, key), entry_of(analysis, key)
    try:
        mark = mark_of(path)
    except OSError:
        return read_result(root, path, entry)  # which says what is wrong
    return recent(mark, lambda: read_result(root, path, entry))


@dataclass
class Pieces:
    """A result that was read, as its variables: several that are stacked need no dataset each."""

    variables: dict[Any, xr.Variable]
    auxiliary: list[str]
    attrs: dict[str, Any]
    files: CachingFileManager[h5py.File]

    @property
    def coords(self) -> dict[Any, xr.Variable]:
        """Those that are coordinates."""
        return {n: v for n, v in self.variables.items() if n in self.auxiliary or v.dims == (n,)}

    @property
    def dims(self) -> set[str]:
        """All dimensions."""
        return {str(dim) for v in self.variables.values() for dim in v.dims}

    def dataset(self) -> xr.Dataset:
        """As a dataset."""
        coordinates = self.coords
        data = {n: v for n, v in self.variables.items() if n not in coordinates}
        dataset = xr.Dataset(data, coordinates, self.attrs)
        dataset.set_close(self.files.close)
        return dataset


# The layouts that were met last, by analysis.
_KNOWN: dict[object, Known] = {}
_TOLD = (TYPE, TYPE_VERSION, "analysis", "content", "coordinates", "attributes")


def read_result(root: Path, path: Path, entry: str) -> xr.Dataset:
    """The result in a group."""
    return read_pieces(root, path, entry).dataset()


def read_pieces(root: Path, path: Path, entry: str) -> Pieces:
    """The same as variables."""
    files = CachingFileManager(open_checked, os.fspath(path), os.fspath(root), mode="r")
    with explain_damage(f"{path}{entry}"), no_plugins(), ExitStack() as closing:
        opened, data, extents = open_small(os.fspath(path), os.fspath(root))
        file = closing.enter_context(opened)  # what is large opens it again
        group = follow(file, entry)
        attrs = read_attributes(group, _TOLD)
        check_element_type(attrs, "step-result", f"{path}{entry}")
        known, content = _KNOWN.get(attrs.get("analysis")), attrs.get("content")
        decoded = None
        if known is not None and data is not None and len(group) == len(known.arrays):
            decoded = known.of_bytes(data, extents, content)
        if decoded is None:
            checked = checked_arrays(group, path.stat().st_size)
            decoded = known.decoded(checked, read_as, content) if known is not None else None
            if decoded is None:
                arrays = {name: found.opened() for name, found in checked.items()}
                told = {name: read_attributes(array) for name, array in arrays.items()}
                decoded = decode_arrays(file, arrays, told, files, entry)
                _learn(file, attrs.get("analysis"), arrays, told, decoded, extents)
        variables = filled(decoded, f"{path}{entry}")
        auxiliary = [c for c in attrs.get("coordinates", "").split() if c in variables]
        named = [n for n, v in variables.items() if n in auxiliary or v.dims == (n,)]
        variables = {n: v for n, v in variables.items() if n not in named} | {n: variables[n] for n in named}
        return Pieces(variables, auxiliary, json.loads(attrs.get("attributes", "{}")), files)


def _learn(file: Any, of: object, arrays: Any, told: dict[str, Any], decoded: Any, extents: list[Extent]) -> None:
    """Keep the layout of a result; not of one with arrays that are read when used, or text beside its bytes."""
    eager = all(array.dtype == TEXT or array.nbytes <= EAGER_BYTES for array in arrays.values())
    if eager and not any("lossless" in own for own in told.values()):
        laid = {n: (dims_of_stored(file, a), kind_of(a.dtype), a.shape, own_of(told[n])) for n, a in arrays.items()}
        offsets = {name: array.id.get_offset() for name, array in arrays.items() if array.dtype != TEXT}
        _KNOWN[of] = Known(laid, decoded, offsets, extents)


def read_facts(root: Path, path: Path, entry: str) -> dict[str, Any]:
    """The attributes of a result's group: what made it; ``provenance`` as a mapping."""
    with explain_damage(f"{path}{entry}"), no_plugins(), open_checked(os.fspath(path), os.fspath(root)) as file:
        attrs = read_attributes(follow(file, entry))
        check_element_type(attrs, "step-result", f"{path}{entry}")
        return attrs | {"provenance": provenance_of(attrs)}


def decode_arrays(
    file: Any, arrays: dict[str, Any], attrs: dict[str, Any], files: CachingFileManager[h5py.File], entry: str
) -> dict[str, xr.Variable]:
    """Arrays on disk as variables, with their attributes: helpers folded in, made-up coordinates left out."""
    helpers = {helper for a in attrs.values() for helper in str(a.get("lossless", "")).split()}
    found = {}
    for name, array in arrays.items():
        check_element_type(attrs[name], "array", f"{entry}/{name}")
        if name in helpers or attrs[name].get("implied"):
            continue
        dims = dims_of_stored(file, array)
        kind = attrs[name].get("dtype")
        data: Any
        if array.dtype == TEXT:
            data = _text(arrays, name, attrs)
        elif array.nbytes <= EAGER_BYTES:
            decoded_dtype(array.dtype, kind)
            data = decode_values(whole(array, attrs[name]["crc32"]), kind)
        else:
            data = indexing.LazilyIndexedArray(Lazy(files, f"{entry}/{name}", array.shape, array.dtype, kind))
        own = dims[:-1] if dims and dims[-1] == REAL_IMAG and kind in ("complex64", "complex128") else dims
        found[name] = xr.Variable(own, data, user_attributes(attrs[name]), fastpath=True)
    return found


def read_values(array: h5py.Dataset) -> np.ndarray:
    """All values of an array as they are stored; text as objects."""
    return read_as(array, array.dtype)


def read_as(array: h5py.Dataset | Checked, kind: np.dtype) -> np.ndarray:
    """The same of an array whose type is known."""
    if kind == TEXT:
        return np.array(h5py.Dataset(array.id, readonly=True).asstr()[()], dtype=object).reshape(array.shape)
    values = np.empty(array.shape, kind)
    if values.size:
        array.id.read(h5s.ALL, h5s.ALL, values)
    return values


def whole(array: h5py.Dataset, crc: int) -> np.ndarray:
    """All values of an array, checked."""
    values = read_values(array)
    if crc_of(values) != crc:
        raise StoreError(f"{array.file.filename}{array.name} does not match its crc32: the file was damaged")
    return values


def _text(arrays: dict[str, Any], name: str, attrs: dict[str, dict[str, Any]]) -> np.ndarray:
    text = whole(arrays[name], attrs[name]["crc32"])
    helpers = attrs[name].get("lossless")
    if helpers is None:
        return text
    values, offsets = (whole(arrays[h], attrs[h]["crc32"]) for h in helpers.split())
    return decode_text(text, values, offsets)


def dims_of_stored(file: Any, array: h5py.Dataset) -> tuple[str, ...]:
    """The names of an array's dimension scales."""
    name = array.name.rsplit("/", 1)[1]
    if "DIMENSION_LIST" not in array.attrs:
        return (name,) if array.ndim else ()
    found = []
    for references in array.attrs["DIMENSION_LIST"]:
        scale = h5r.get_name(references[0], file.id)
        if scale is None or scale.decode().rsplit("/", 1)[0] != array.name.rsplit("/", 1)[0]:
            raise StoreError(f"{array.file.filename}{array.name} has a dimension that is not in its group")
        found.append(scale.decode().rsplit("/", 1)[1])
    return tuple(found)


def read_attributes(owner: Any, only: Sequence[str] | None = None) -> dict[str, Any]:
    """Attributes as Python values, ``only`` these where they are named; those of HDF5's own machinery are left out."""
    found, held = {}, owner.attrs
    for name in held if only is None else (n for n in only if n in held):
        if name not in ("DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME"):
            value = held[name]
            found[name] = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
    return found


def check_element_type(attrs: dict[str, Any], kind: str, where: str) -> None:
    """Refuse an element of another type or of a newer version."""
    if attrs.get(TYPE) != kind:
        raise StoreError(f"{where} is of type {attrs.get(TYPE)!r}, not {kind!r}: refused")
    check_version(attrs.get(TYPE_VERSION), kind, where)


def beside(dataset: xr.Dataset, name: object) -> bool:
    """Whether an array only says how sure another of the dataset is: it then has no rows of its own."""
    of = dataset[name].attrs.get("of")
    return of in dataset and name in (f"{of}_{ERROR}", f"{of}_{WITHOUT}")


def error_beside(dataset: xr.Dataset, name: str) -> xr.DataArray | None:
    """The standard errors over prompts of a variable, where it has them."""
    found = dataset.get(f"{name}_{ERROR}")
    return found if found is not None and found.attrs.get("of") == name else None


class DifferentShapes(StoreError):
    """Results of several draws or swept values that are not of one shape."""


class Gaps(StoreError):
    """Results of several sweeps that are not there at all of their points: not finished, or not compared."""


class Stacked(BackendArray):
    """Arrays of one shape, stacked along leading dimensions; only those that are asked for are read."""

    def __init__(self, lead: tuple[int, ...], members: Sequence[xr.Variable]):
        self.numbers = np.arange(len(members)).reshape(lead)
        self.members = members
        self.shape = (*lead, *members[0].shape)
        self.dtype = members[0].dtype

    def __getitem__(self, key: Any) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        chosen = self.numbers
        for axis in reversed(range(chosen.ndim)):
            chosen = chosen[(slice(None),) * axis + (key[axis],)]
        inner = key[self.numbers.ndim :]
        read = [np.asarray(self.members[i][inner].values) for i in np.ravel(chosen).tolist()]
        empty = np.empty(self.members[0][inner].shape, self.dtype)
        return (np.stack(read) if read else empty[None][:0]).reshape(np.shape(chosen) + empty.shape)


def stack(points: Mapping[SweepPoint, xr.Dataset | Pieces], what: str) -> xr.Dataset:
    """One dataset of the results at several points (draw and swept values), each of which becomes a dimension."""
    if list(points) == [()]:
        only = points[()]
        return only.dataset() if isinstance(only, Pieces) else only
    lead = {name: list(dict.fromkeys(dict(p)[name] for p in points)) for name, _ in next(iter(points))}
    by_point = {tuple(v for _, v in p): d for p, d in points.items()}
    missing = list(islice((p for p in product(*lead.values()) if p not in by_point), 5))  # a grid may be endless
    if missing:
        shown = "; ".join(_words(tuple(zip(lead, p, strict=True))) for p in missing)
        raise Gaps(f"{what} is not finished at {shown}: run again, or use .draws() for what is there")
    datasets = [by_point[p] for p in product(*lead.values())]
    _check_shapes(points, datasets[0], what, lead)
    sizes = tuple(len(v) for v in lead.values())
    variables: dict[Any, xr.Variable] = {}
    coordinates = datasets[0].coords
    for name, variable in datasets[0].variables.items():
        members = [d.variables[name] for d in datasets]
        same = name in coordinates and all(_equal(variable, m) for m in members[1:])
        variables[name] = variable if same else _stacked(tuple(lead), sizes, members)
    coords = {n: v for n, v in variables.items() if n in coordinates}
    coords |= {name: xr.Variable((name,), np.array(values)) for name, values in lead.items()}
    return xr.Dataset({n: v for n, v in variables.items() if n not in coords}, coords, datasets[0].attrs)


def _stacked(lead: tuple[str, ...], sizes: tuple[int, ...], members: Sequence[xr.Variable]) -> xr.Variable:
    first = members[0]
    data: Any
    if all(isinstance(m._data, np.ndarray) for m in members):
        data = np.stack([np.asarray(m._data) for m in members]).reshape(sizes + first.shape)
    else:
        data = indexing.LazilyIndexedArray(Stacked(sizes, members))
    return xr.Variable((*lead, *first.dims), data, first.attrs, fastpath=True)


def _check_shapes(
    points: Mapping[SweepPoint, xr.Dataset | Pieces], first: xr.Dataset | Pieces, what: str, lead: Mapping[str, Any]
) -> None:
    taken = [n for n in lead if n in first.variables or n in first.dims]
    if taken:
        raise DifferentShapes(
            f"{what} has a {taken[0]!r} of its own, so it is not stacked: use .draws() for each result"
        )
    forms = _forms(first)
    for point, dataset in points.items():
        for name in [] if _forms(dataset) == forms else [*first.variables, *dataset.variables]:
            if _form(first, name) != _form(dataset, name):
                start = next(iter(points))
                raise DifferentShapes(
                    f"{what} is not of one shape: {name!r} is {_form(first, name)} at {_words(start)} and "
                    f"{_form(dataset, name)} at {_words(point)}; use .draws() for each result"
                )
        for name in (n for n in first.dims if n in first.variables):
            if not _equal(first.variables[name], dataset.variables[name]):
                raise DifferentShapes(
                    f"{what} is not stacked: its coordinate {name!r} differs between {_words(next(iter(points)))} "
                    f"and {_words(point)}; use .draws() for each result"
                )


def _forms(dataset: xr.Dataset | Pieces) -> dict[Any, Any]:
    return {name: (v.dims, v.shape, v.dtype) for name, v in dataset.variables.items()}


def _form(dataset: xr.Dataset | Pieces, name: Any) -> str:
    if name not in dataset.variables:
        return "missing"
    found = dataset.variables[name]
    shape = ", ".join(f"{d} {n}" for d, n in zip(found.dims, found.shape, strict=True))
    return f"{found.dtype} [{shape}]"


def _equal(one: xr.Variable, other: xr.Variable) -> bool:
    a, b = one._data, other._data
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.array_equal(a, b):
        return one.dims == other.dims
    return bool(one.equals(other))  # type: ignore[no-untyped-call]


def _words(point: SweepPoint) -> str:
    return ", ".join(f"{name} {value}" for name, value in point) or "the only draw"
