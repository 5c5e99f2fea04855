"""Swept values in figures: each has a row, a text or a place on a slider of its own, and none is averaged away."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import xarray as xr


def swept(values: xr.DataArray, *own: str) -> list[str]:
    """The dimensions that a sweep gave: neither the array's own nor its draws."""
    return [str(d) for d in values.dims if d not in (*own, "draw")]


def points(data: xr.Dataset, variant: str, dims: list[str]) -> Iterator[tuple[str, xr.Dataset]]:
    """("dose, alpha 0.5", its data) for each swept value; the variant itself where nothing is swept."""
    for place in product(*(range(data.sizes[d]) for d in dims)):
        at = dict(zip(dims, place, strict=True))
        said = [f"{d} {data[d].values[i]}" for d, i in at.items()]
        yield ", ".join([variant, *said]), data.isel(at)
