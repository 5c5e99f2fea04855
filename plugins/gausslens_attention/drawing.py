"""What the sections of the report have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .band import Floats

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Results


def shown(results: Results, label: str, found: dict[str, xr.Dataset]) -> list[tuple[str, xr.Dataset]]:
    """The variants, those that others are compared with last."""
    nulls = {null for variant in found for null in results.nulls(variant, label)}
    return sorted(found.items(), key=lambda item: item[0] in nulls)


def places(data: xr.Dataset) -> list[tuple[tuple[int, Any], tuple[int, Any]]]:
    """Every pair of a layer and a head, each with its number."""
    return [(a, b) for a in enumerate(data["layer"].values) for b in enumerate(data["head"].values)]


def averaged(values: xr.DataArray, *kept: str) -> Floats:
    """The mean over all dimensions but these, draws and swept values among them."""
    others = [d for d in values.dims if d not in kept]
    found: Floats = values.mean(others).transpose(*kept).values
    return found
