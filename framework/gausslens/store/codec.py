"""What an xarray Dataset looks like on disk, and back: numbers and text that every HDF5 tool reads; its content digest.

bool            int8, ``dtype`` = "bool"
float16         float32 (HDF5's half floats crash netCDF4); in bulk, uint16 bit patterns with ``dtype`` = "float16"
bfloat16        in bulk only: uint16 bit patterns with ``dtype`` = "bfloat16", read as float32
complex         a last dimension ``real_imag`` of 2, ``dtype`` = "complex64" or "complex128"
text            UTF-8 of variable length; where there is a NUL or a lone surrogate, which HDF5 refuses, a readable
                form, and the exact one in ``<name>_bytes`` and ``<name>_offsets``, named by ``lossless``
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from zlib_ng.zlib_ng import crc32  # ten times faster than the standard library's

from ..contract.errors import StoreError
from .layout import Unstorable, check_array_name, check_shape_of_result

if TYPE_CHECKING:
    import xarray as xr

    from .safety import Checked

REAL_IMAG = "real_imag"
NUMBERS = tuple(np.dtype(t) for t in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"))
TEXT = np.dtype(object)
# Attributes that mean something to HDF5, netCDF, xarray or to us: a user's of that name goes into the JSON.
RESERVED = re.compile(
    r"encoding-.*|crc32|dtype|coordinates|implied|lossless|attributes|CLASS|NAME|DIMENSION_.*|REFERENCE_LIST|_.*"
    r"|scale_factor|add_offset|missing_value|valid_.*|calendar|bounds|grid_mapping|cell_.*|ancillary_.*|formula_.*"
)
# Attributes of an array that are not the result's: its content digest leaves them out.
_FRAME = ("encoding-type", "encoding-version", "crc32")
_PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
_TIME = re.compile(r"(?i)\s*(days?|hours?|minutes?|h|min|(milli|micro|nano)?seconds?|[mun]?s|d)\s*(since .*)?")


@dataclass
class Stored:
    """An array as it lies in a file. ``data`` is little-endian numbers in C order, or text as objects."""

    name: str
    dims: tuple[str, ...]
    data: np.ndarray
    attrs: dict[str, Any] = field(default_factory=dict)


def crc_of(data: np.ndarray) -> int:
    """CRC-32 of numbers as bytes, or of text as length (8 bytes, little-endian) and UTF-8 of each."""
    if data.dtype != TEXT:
        return crc32(data.reshape(-1).view(np.uint8).data) if data.size else 0
    encoded = (text.encode() for text in data.ravel())
    return crc32(b"".join(len(e).to_bytes(8, "little") + e for e in encoded))


def encode(dataset: xr.Dataset) -> list[Stored]:
    """The arrays of a dataset; every dimension has a coordinate, made up (``implied``) where it had none."""
    return with_scales(encode_variables(dataset))


def encode_variables(dataset: xr.Dataset) -> list[Stored]:
    """The arrays of a dataset, coordinates first."""
    found: list[Stored] = []
    for name in dataset.coords:
        found += _encode_variable(check_array_name(name), dataset.variables[name], {})
    coordinates = auxiliary(dataset)
    for name in dataset.data_vars:
        found += _encode_variable(check_array_name(name), dataset.variables[name], coordinates)
    return found


def with_scales(found: list[Stored], sizes: Mapping[str, int] | None = None, taken: Iterable[str] = ()) -> list[Stored]:
    """Add a coordinate 0, 1, 2, ... for each dimension that has none; check that names and sizes do not clash.

    ``sizes`` and ``taken`` are the dimensions and names of arrays that are in the file already.
    """
    sizes = dict(sizes or {})
    names: dict[str, tuple[str, ...]] = dict.fromkeys(taken, ())
    for stored in found:
        if stored.name in names:
            raise Unstorable(f"two arrays would be called {stored.name!r}: rename one")
        names[stored.name] = stored.dims
        for dim, size in zip(stored.dims, stored.data.shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise Unstorable(f"the array {stored.name!r} has {size} along {dim!r}, another has {sizes[dim]}")
    implied = []
    for dim, size in sizes.items():
        if check_array_name(dim) not in names:
            index = np.arange(size, dtype="<i4" if size < 2**31 else "<i8")
            implied.append(Stored(dim, (dim,), index, {"implied": 1}))
        elif names[dim] != (dim,):
            raise Unstorable(f"the array {dim!r} has the name of a dimension but is not over it alone: rename one")
    whole = implied + found
    check_shape_of_result(dict.fromkeys(taken, 1) | {stored.name: len(stored.dims) for stored in whole})
    return whole


def _encode_variable(name: str, variable: xr.Variable, coordinates: Mapping[str, set[Hashable]]) -> list[Stored]:
    dims = tuple(check_array_name(d) for d in variable.dims)
    data = np.asarray(variable.values)
    attrs = plain_attributes(variable.attrs, f"array {name!r}")
    attrs |= coordinates_attribute(dims, coordinates)
    if data.dtype.kind in "UOT":
        return _encode_text(name, dims, data, attrs)
    if data.dtype.kind == "b":
        attrs["dtype"] = "bool"
        data = data.astype(np.int8)
    elif data.dtype == np.float16:
        data = data.astype(np.float32)
    elif data.dtype in (np.complex64, np.complex128):
        attrs["dtype"] = data.dtype.name
        data = np.stack([data.real, data.imag], axis=-1)
        dims = (*dims, REAL_IMAG)
    if data.dtype.newbyteorder("=") not in NUMBERS:
        raise Unstorable(f"array {name!r} is of dtype {data.dtype}: give numbers, truth values or text")
    little = data.astype(data.dtype.newbyteorder("<"), copy=False)
    return [Stored(name, dims, np.require(little, requirements="C"), attrs)]


def auxiliary(dataset: xr.Dataset) -> dict[str, set[Hashable]]:
    """The coordinates that are not dimensions, with the dimensions that they are over."""
    sizes = dataset.sizes
    return {str(c): set(dataset.variables[c].dims) for c in dataset.coords if c not in sizes}


def coordinates_attribute(dims: tuple[str, ...], coordinates: Mapping[str, set[Hashable]]) -> dict[str, str]:
    """CF's list: the auxiliary coordinates that lie within the dimensions of a data variable."""
    listed = " ".join(name for name, over in coordinates.items() if over <= set(dims))
    return {"coordinates": listed} if listed else {}


def _encode_text(name: str, dims: tuple[str, ...], data: np.ndarray, attrs: dict[str, Any]) -> list[Stored]:
    flat = data.ravel().tolist()
    for value in flat:
        if not isinstance(value, str):
            raise Unstorable(f"array {name!r} holds {type(value).__name__}: give numbers, truth values or text")
    exact = [value.encode("utf-8", "surrogatepass") for value in flat]
    readable = [_readable(value) for value in flat]
    text = np.empty(len(flat), dtype=object)
    text[:] = readable
    stored = Stored(name, dims, text.reshape(data.shape), attrs)
    if readable == flat:
        return [stored]
    stored.attrs["lossless"] = f"{name}_bytes {name}_offsets"
    offsets = np.concatenate([[0], np.cumsum([len(e) for e in exact])]).astype("<i8")
    values = np.frombuffer(b"".join(exact), dtype=np.uint8)
    helpers = [
        Stored(f"{name}_bytes", (f"{name}_byte",), values),
        Stored(f"{name}_offsets", (f"{name}_offset",), offsets),
    ]
    return [stored, *helpers]


def _readable(text: str) -> str:
    """Text that an HDF5 string can hold."""
    return text.replace("\0", "\u2400").encode("utf-8", "replace").decode()


def decode_text(readable: np.ndarray, values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The exact text behind a readable form."""
    data = values.tobytes()
    bounds = offsets.tolist()
    if len(bounds) != readable.size + 1 or bounds[0] != 0 or bounds[-1] != len(data) or sorted(bounds) != bounds:
        raise StoreError("the offsets of a text array do not fit its bytes")
    text = np.empty(readable.size, dtype=object)
    text[:] = [data[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(bounds)]
    return text.reshape(readable.shape)


def to_bits(values: Any, dtype: str) -> np.ndarray:
    """Bit patterns of a 2-byte type; bfloat16 is rounded to nearest, ties to even, as processors do."""
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return np.asarray(values).astype("<f2").view("<u2")
    single = np.ascontiguousarray(values, dtype="<f4")
    bits = single.view("<u4")
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return np.where(np.isnan(single), np.uint16(0x7FC0), rounded)


def decode_values(data: np.ndarray, dtype: str | None) -> np.ndarray:
    """Numbers as they were before ``encode``."""
    if dtype == "bool":
        return data.astype(bool)
    if dtype == "float16":
        return data.view(np.float16)
    if dtype == "bfloat16":
        return (data.astype("<u4") << 16).view("<f4")
    if dtype in ("complex64", "complex128"):
        return np.ascontiguousarray(data).view(dtype)[..., 0]
    return data


def decoded_dtype(stored: np.dtype, dtype: str | None) -> np.dtype:
    """The dtype that ``decode_values`` returns; a wrong pair is refused."""
    made_of: dict[str | None, Any] = {
        "bool": "i1",
        "float16": "u2",
        "bfloat16": "u2",
        "complex64": "f4",
        "complex128": "f8",
        None: stored,
    }
    if stored not in NUMBERS or dtype not in made_of or np.dtype(made_of[dtype]) != stored:
        raise StoreError(f"dtype {dtype!r} cannot lie in {stored}")
    return stored if dtype is None else np.dtype("float32" if dtype == "bfloat16" else dtype)


def plain_attributes(attrs: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Attributes as HDF5 holds them: text, numbers and lists of numbers; anything else goes into one JSON text."""
    plain: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, value in attrs.items():
        if not isinstance(name, str):
            raise Unstorable(f"{where}: the attribute {name!r} is not named by text")
        value = _python(value)
        (plain if _is_plain(name, value) else rest)[name] = value
    if rest:
        plain["attributes"] = to_json(rest, where)
    return plain


def _python(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def _is_plain(name: str, value: Any) -> bool:
    if not _PLAIN_NAME.fullmatch(name) or RESERVED.fullmatch(name):
        return False
    if isinstance(value, str):
        return _readable(value) == value and not (name == "units" and _TIME.fullmatch(value))
    if isinstance(value, list):
        kinds = {type(v) for v in value}
        return len(kinds) == 1 and len(value) > 1 and all(_is_number(v) for v in value)
    return _is_number(value)


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and -(2**63) <= value < 2**63)


def to_json(value: Any, where: str) -> str:
    """JSON in ASCII, so that any text survives; numpy's scalars and arrays become numbers and lists."""

    def other(thing: Any) -> Any:
        if isinstance(thing, np.generic | np.ndarray):
            return thing.tolist()
        raise Unstorable(f"{where}: {type(thing).__name__} {thing!r} cannot be stored as an attribute")

    try:
        return json.dumps(value, default=other, sort_keys=True)
    except (ValueError, TypeError, RecursionError) as error:
        raise Unstorable(f"{where}: attributes cannot be stored: {error}") from None


def user_attributes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The user's attributes among those of an array on disk."""
    own = {k: v for k, v in attrs.items() if not RESERVED.fullmatch(k)}
    return own | dict(json.loads(attrs.get("attributes", "{}")))


def dataset_attributes(dataset: xr.Dataset) -> dict[str, Any]:
    """The attributes of a result's group that tell of its dataset: the user's, and the auxiliary coordinates."""
    coordinates = " ".join(auxiliary(dataset))
    attrs = {"attributes": to_json({k: _python(v) for k, v in dataset.attrs.items()}, "the dataset")}
    return (attrs if dataset.attrs else {}) | ({"coordinates": coordinates} if coordinates else {})


def provenance_of(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """What made a result, from the attributes of its group; refused where it is not of the types that readers use."""
    told = json.loads(attrs.get("provenance") or "{}")
    if not isinstance(told, dict):
        raise StoreError(f"its provenance is not a table but {type(told).__name__}: refused")
    for name in ("wall_seconds", "peak_memory_bytes", "threads"):
        number = told.get(name, 0)
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 2**63:
            raise StoreError(f"its provenance says {str(number)[:40]!r} for {name}, which is no number: refused")
    try:
        datetime.fromisoformat(attrs["created"])
    except (KeyError, TypeError, ValueError):
        raise StoreError(f"it says {str(attrs.get('created'))[:40]!r} for when it was created: refused") from None
    return told


def content(arrays: Iterable[tuple[str, tuple[str, ...], str, tuple[int, ...], int | None, Mapping[str, Any]]]) -> str:
    """Digest of what a result says: name, dims, type, shape, crc32 and attributes of each array, whatever the file."""
    from hashlib import sha256

    listed = sorted([name, dims, kind, shape, crc, dict(attrs)] for name, dims, kind, shape, crc, attrs in arrays)
    return sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()


def own_of(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of an array that its result's content digest counts."""
    return {name: value for name, value in attrs.items() if name not in _FRAME}


class Known:
    """How a result that was read is laid out: dims, type, shape and attributes of each array, as its content has them.

    Draws of a null are laid out alike and differ in values. Where this layout with the values of another result gives
    the content digest that the other has, it is its layout too, which then need not be read from its file: that takes
    most of the time.
    """

    def __init__(
        self,
        arrays: Mapping[str, tuple[tuple[str, ...], str, tuple[int, ...], Mapping[str, Any]]],
        decoded: Mapping[str, xr.Variable],
        offsets: Mapping[str, int],
        extents: Sequence[tuple[int, int, int]],
    ) -> None:
        self.arrays = arrays
        self.lengths = [length for _, length, _ in extents]
        begins = {offset: number for number, (offset, _, _) in enumerate(extents)}
        # Which stretch of the file an array of numbers is; text lies elsewhere, and is often that of all draws.
        self.numbers = {name: begins[offset] for name, offset in offsets.items() if offset in begins}
        self.pattern = {name: (v.dims, dict(v.attrs)) for name, v in decoded.items()}
        self.texts = {n: v.values.copy() for n, v in decoded.items() if n in arrays and arrays[n][1] == "text"}
        self.shapes = {name: (shape, kind == "text") for name, (_, kind, shape, _) in arrays.items()}
        self.kinds = {n: TEXT if k == "text" else np.dtype(k).newbyteorder("<") for n, (_, k, _, _) in arrays.items()}

    def decoded(
        self, arrays: Mapping[str, Checked], read: Callable[[Checked, np.dtype], np.ndarray], told: object
    ) -> dict[str, xr.Variable] | None:
        """The variables of a result whose content digest is ``told``; None where it is laid out in another way.

        Numbers of another type than is known come converted, and do not have the digest.
        """
        if {name: (array.shape, array.is_text) for name, array in arrays.items()} != self.shapes:
            return None
        return self._proved({name: read(array, self.kinds[name]) for name, array in arrays.items()}, told)

    def of_bytes(self, data: bytes, extents: Sequence[tuple[int, int, int]], told: object) -> Any:
        """The same from the bytes of a file: HDF5 takes longer for each array than all else takes together.

        Text is taken to be that of the result that is known, which the digest tells.
        """
        if [length for _, length, _ in extents] != self.lengths:
            return None
        values = {}
        for name, (_, _, shape, _) in self.arrays.items():
            kind, number = self.kinds[name], self.numbers.get(name)
            count = math.prod(shape)
            if kind == TEXT and name in self.texts:
                values[name] = self.texts[name].copy()
            elif count == 0:
                values[name] = np.empty(shape, kind)
            elif number is not None and extents[number][1] == count * kind.itemsize:
                values[name] = np.frombuffer(data, kind, count, extents[number][0]).reshape(shape).copy()
            else:
                return None
        return self._proved(values, told)

    def _proved(self, values: Mapping[str, np.ndarray], told: object) -> dict[str, xr.Variable] | None:
        """The variables, where this layout with these values has the content digest."""
        import xarray as xr

        described = ((n, *known[:3], crc_of(values[n]), known[3]) for n, known in self.arrays.items())
        if content(described) != told:
            return None
        return {
            name: xr.Variable(
                dims, decode_values(values[name], self.arrays[name][3].get("dtype")), dict(attrs), fastpath=True
            )
            for name, (dims, attrs) in self.pattern.items()
        }
