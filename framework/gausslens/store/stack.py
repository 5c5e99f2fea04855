"""Draws and swept values as leading dimensions of one dataset; large arrays stay on disk until they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from ..contract.errors import StoreError

Point = tuple[tuple[str, Any], ...]


class DifferentShapes(StoreError):
    """Results of several draws or swept values that are not of one shape."""


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


def stack(points: Mapping[Point, xr.Dataset], what: str) -> xr.Dataset:
    """One dataset of the results at several points (draw and swept values), each of which becomes a dimension."""
    if list(points) == [()]:
        return points[()]
    lead = {name: list(dict.fromkeys(dict(p)[name] for p in points)) for name, _ in next(iter(points))}
    by_point = {tuple(v for _, v in p): d for p, d in points.items()}
    grid = list(product(*lead.values()))
    missing = [p for p in grid if p not in by_point]
    if missing:
        shown = "; ".join(_words(tuple(zip(lead, p, strict=True))) for p in missing[:5])
        raise StoreError(f"{what} is not finished at {shown}: run again, or use .draws() for what is there")
    datasets = [by_point[p] for p in grid]
    _check_shapes(points, datasets[0], what, lead)
    sizes = tuple(len(v) for v in lead.values())
    variables: dict[Any, xr.Variable] = {}
    for name, variable in datasets[0].variables.items():
        members = [d.variables[name] for d in datasets]
        same = name in datasets[0].coords and all(_equal(variable, m) for m in members[1:])
        variables[name] = variable if same else _stacked(tuple(lead), sizes, members)
    coords = {n: v for n, v in variables.items() if n in datasets[0].coords}
    coords |= {name: xr.Variable((name,), np.array(values)) for name, values in lead.items()}
    return xr.Dataset({n: v for n, v in variables.items() if n not in coords}, coords, datasets[0].attrs)


def _stacked(lead: tuple[str, ...], sizes: tuple[int, ...], members: Sequence[xr.Variable]) -> xr.Variable:
    first = members[0]
    data: Any
    if all(isinstance(m._data, np.ndarray) for m in members):
        data = np.stack([m.values for m in members]).reshape(sizes + first.shape)
    else:
        data = indexing.LazilyIndexedArray(Stacked(sizes, members))
    return xr.Variable((*lead, *first.dims), data, first.attrs, fastpath=True)


def _check_shapes(points: Mapping[Point, xr.Dataset], first: xr.Dataset, what: str, lead: Mapping[str, Any]) -> None:
    taken = [n for n in lead if n in first.variables or n in first.dims]
    if taken:
        raise DifferentShapes(
            f"{what} has a {taken[0]!r} of its own, so it is not stacked: use .draws() for each result"
        )
    for point, dataset in points.items():
        for name in [*first.variables, *(n for n in dataset.variables if n not in first.variables)]:
            if _form(first, name) != _form(dataset, name):
                start = next(iter(points))
                raise DifferentShapes(
                    f"{what} is not of one shape: {name!r} is {_form(first, name)} at {_words(start)} and "
                    f"{_form(dataset, name)} at {_words(point)}; use .draws() for each result"
                )
        for name in first.indexes:
            if not _equal(first.variables[name], dataset.variables[name]):
                raise DifferentShapes(
                    f"{what} is not stacked: its coordinate {name!r} differs between {_words(next(iter(points)))} "
                    f"and {_words(point)}; use .draws() for each result"
                )


def _form(dataset: xr.Dataset, name: Any) -> str:
    if name not in dataset.variables:
        return "missing"
    found = dataset.variables[name]
    shape = ", ".join(f"{d} {n}" for d, n in zip(found.dims, found.shape, strict=True))
    return f"{found.dtype} [{shape}]"


def _equal(one: xr.Variable, other: xr.Variable) -> bool:
    return bool(one.equals(other))  # type: ignore[no-untyped-call]


def _words(point: Point) -> str:
    return ", ".join(f"{name} {value}" for name, value in point) or "the only draw"
