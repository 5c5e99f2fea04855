"""What the sections of the report have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .band import Floats

if TYPE_CHECKING:
    from collections.abc import Iterable

    import xarray as xr

    from gausslens import Results


# Dimensions that all variables of a result may have besides swept values.
_OWN = ("draw", "layer", "head", "scoring", "setting")


def shown(results: Results, label: str, found: dict[str, xr.Dataset]) -> list[tuple[str, xr.Dataset]]:
    """The variants, those that others are compared with last."""
    nulls = {null for variant in found for null in results.nulls(variant, label)}
    return sorted(found.items(), key=lambda item: item[0] in nulls)


def swept(data: xr.Dataset) -> list[str]:
    """Dimensions of swept values: every variable has them, whatever they are called."""
    everywhere = set.intersection(*(set(values.dims) for values in data.data_vars.values()))
    return [str(d) for d in data.dims if d in everywhere and d not in _OWN]


def points(several: Iterable[tuple[str, xr.Dataset]]) -> list[tuple[str, xr.Dataset]]:
    """("dose, alpha 0.5", its data) for each swept value; the variant itself where nothing is swept."""
    found = []
    for variant, data in several:
        dims = swept(data)
        for place in np.ndindex(*(data.sizes[d] for d in dims)):
            said = [f"{d} {data[d].values[i]}" for d, i in zip(dims, place, strict=True)]
            found.append((", ".join([variant, *said]), data.isel(dict(zip(dims, place, strict=True)))))
    return found


def variants(several: Iterable[tuple[str, xr.Dataset]]) -> list[str]:
    """The variants that these points are of: no name of a variant has a comma."""
    return list(dict.fromkeys(name.split(",")[0] for name, _ in several))


def pooled_over(*several: xr.Dataset) -> str:
    """The sentence that says over which draws and swept values a figure takes means; nothing if over none."""
    dims = dict.fromkeys(d for data in several for d in swept(data))
    words = ["draws"] if any("draw" in data.dims for data in several) else []
    words += [f"swept values of {d}" for d in dims]
    return f" Means over {' and '.join(words)}." if words else ""


def places(data: xr.Dataset) -> list[tuple[tuple[int, Any], tuple[int, Any]]]:
    """Every pair of a layer and a head, each with its number."""
    return [(a, b) for a in enumerate(data["layer"].values) for b in enumerate(data["head"].values)]


def averaged(values: xr.DataArray, *kept: str) -> Floats:
    """The mean over all dimensions but these, draws and swept values among them."""
    others = [d for d in values.dims if d not in kept]
    found: Floats = values.mean(others).transpose(*kept).values
    return found
