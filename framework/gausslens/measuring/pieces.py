"""Pieces of a step that several processes compute, each in a file of its own.

They are what a weights analysis made of one layer, or the state of a stream analysis after one group of prompts.
Whoever puts the step together takes the pieces that are there and computes the others: so where a file is lacking,
damaged or of something else, or what it would hold cannot be written to the bit, nothing is lost but time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..contract.digests_and_seeds import digest
from ..runs.provenance import distributions
from ..store.disk import is_file, pieces_there
from ..store.layout import piece_path
from .on_the_way import read_arrays, write_arrays

if TYPE_CHECKING:
    from pathlib import Path

    import xarray as xr

    from ..store.disk import Writer


Kind = Literal["layer", "group"]


class NotPlain(TypeError):
    """A result that cannot be written so that it comes back the same."""


@dataclass(frozen=True)
class OfLayer:
    """What a weights analysis made of one layer, or why the layer was ``skipped``.

    ``spent`` are the seconds that its calls took, where they have a limit.
    """

    found: xr.Dataset | None
    skipped: str | None = None
    spent: float = 0.0


def numbers_there(root: Path, keys: Collection[str], of: Kind) -> dict[str, set[int]]:
    """By the keys of steps the layers, or groups of prompts, of which there is a piece in the store."""
    there = pieces_there(root) if keys else {}
    found: dict[str, set[int]] = {}
    for key in keys:
        each = [piece.partition("-") for piece in there.get(key, ())]
        found[key] = {int(number) for kind, _, number in each if kind == of and number.isdigit()}
    return found


def write_layer(writer: Writer, key: str, layer: int, made: OfLayer) -> None:
    """Write down what was made of a layer, durable; refused where it would not come back as it is."""
    arrays: list[np.ndarray] = []
    told = None if made.found is None else plain_dataset(made.found, arrays)
    header = {"found": told, "skipped": made.skipped, "spent": made.spent}
    write_arrays(writer, piece_path(writer.root, key, f"layer-{layer}"), header, arrays, _agreed(key, "layer", layer))


def read_layer(root: Path, key: str, layer: int) -> OfLayer | None:
    """What was made of a layer; None where that is not there, or is nothing to go by."""
    with suppress(Exception):
        header, arrays = _read(root, key, f"layer-{layer}", _agreed(key, "layer", layer))
        found = None if header["found"] is None else dataset_of(header["found"], arrays)
        return OfLayer(found, header["skipped"], float(header["spent"]))
    return None


def write_group(writer: Writer, key: str, group: int, state: Mapping[str, np.ndarray], cut: str) -> None:
    """Write down the state after all prompts of a group, durable; ``cut`` tells which shards of prompts these are."""
    path = piece_path(writer.root, key, f"group-{group}")
    write_arrays(writer, path, {"names": list(state)}, list(state.values()), _agreed(key, "group", group, cut))


def read_group(root: Path, key: str, group: int, cut: str) -> dict[str, np.ndarray] | None:
    """The state after all prompts of a group; None where that is not there, or is nothing to go by."""
    with suppress(Exception):
        header, arrays = _read(root, key, f"group-{group}", _agreed(key, "group", group, cut))
        return dict(zip(header["names"], arrays, strict=True))
    return None


def _read(root: Path, key: str, piece: str, agreed: str) -> tuple[dict[str, Any], list[np.ndarray]]:
    """What a file holds, in arrays to be written to, as those that were made here."""
    path = piece_path(root, key, piece)
    if not is_file(path) or path.parent.is_symlink():
        raise FileNotFoundError(path)
    header, read = read_arrays(path, agreed)
    return header, [array.copy(order="K") for array in read]


def _agreed(*told: Any) -> str:
    return digest([*told, dict(distributions())])


def plain_dataset(found: xr.Dataset, arrays: list[np.ndarray]) -> dict[str, Any]:
    """A dataset as plain data and arrays, which are added to ``arrays``; refused where it is more than these."""
    import xarray as xr

    if type(found) is not xr.Dataset:
        raise NotPlain(f"a {type(found).__name__} is no xarray.Dataset")
    told = {
        "variables": [
            [str(name), [str(dim) for dim in variable.dims], _placed(variable.values, arrays), _attrs(variable.attrs)]
            for name, variable in found.variables.items()
        ],
        "coords": [str(name) for name in found.coords],
        "attrs": _attrs(found.attrs),
    }
    back = dataset_of(told, arrays)
    same = list(map(type, found.variables)) == [str] * len(found.variables) and back.identical(found)
    if not same or list(back.variables) != list(found.variables):
        raise NotPlain("its names, coordinates or indexes are not plain")
    for name, variable in found.variables.items():
        if variable.encoding or type(back.variables[name]) is not type(variable):
            raise NotPlain(f"{name!r} has an encoding, or is of a class of its own")
    return told


def dataset_of(told: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> xr.Dataset:
    """The dataset that ``plain_dataset`` told of."""
    import xarray as xr

    made = {
        name: xr.Variable(tuple(dims), arrays[values] if isinstance(values, int) else _text(*values), dict(attrs))
        for name, dims, values, attrs in told["variables"]
    }
    coords = {name: made[name] for name in told["coords"]}
    data = {name: variable for name, variable in made.items() if name not in coords}
    return xr.Dataset(data, coords, dict(told["attrs"]))[list(made)]  # in their order, too


def _placed(values: Any, arrays: list[np.ndarray]) -> int | list[Any]:
    """The number of an array among ``arrays``; of text as objects the text itself."""
    if type(values) is not np.ndarray:
        raise NotPlain(f"a {type(values).__name__} is no array")
    if values.dtype.kind == "O":
        flat = values.ravel().tolist()
        if not all(type(one) is str for one in flat):
            raise NotPlain("an array of objects that are not text")
        return [list(values.shape), flat]
    if values.dtype.kind not in "biufcSU":
        raise NotPlain(f"an array of {values.dtype}")
    arrays.append(values)
    return len(arrays) - 1


def _text(shape: Sequence[int], flat: Sequence[str]) -> np.ndarray:
    made = np.empty(math.prod(shape), dtype=object)
    made[:] = flat
    return made.reshape(tuple(shape))


def _attrs(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    for name, value in attrs.items():
        if type(name) is not str or not (value is None or type(value) in (str, int, float, bool)):
            raise NotPlain(f"the attribute {name!r} is a {type(value).__name__}")
    return dict(attrs)
