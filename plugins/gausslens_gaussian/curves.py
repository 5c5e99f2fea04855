"""Figures that sections of this plugin share: curves by layer, with a band over twins."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Line, Lines, Source, Table

if TYPE_CHECKING:
    import xarray as xr


def by_layer(
    label: str,
    title: str,
    caption: str,
    curves: Mapping[str, tuple[str, str, xr.DataArray]],
    least: float = -np.inf,
    log_y: bool = False,
) -> Figure:
    """Curves ``{name: (variant, array, values)}`` over layers; the band is one standard deviation over draws.

    Each swept value has a curve of its own; heads and whatever else there is are averaged. ``least`` is the smallest
    value that there can be.
    """
    series, banded, first = [], False, next(iter(curves.values()))[2]
    each = [one for name, (_, _, values) in curves.items() for one in apart(name, values)]
    for name, values in each:
        flat = over_twins(values)
        spread = flat.std(axis=1, ddof=1) if flat.shape[1] > 1 else None
        middle = flat.mean(axis=1)
        band = (None, None) if spread is None else (np.maximum(middle - spread, least), middle + spread)
        banded = banded or spread is not None
        series.append(Line(name if flat.shape[1] == 1 else f"{name}, mean of {flat.shape[1]} twins", middle, *band))
    return Lines(
        title=title,
        caption=caption + (" The band is one standard deviation over the twins." if banded else ""),
        sources=tuple(Source(variant, label, array) for variant, array, _ in curves.values()),
        units=first.attrs["units"],
        x=first["layer"].values,
        x_name="layer",
        series=tuple(series),
        log_y=log_y,
    )


def apart(name: str, values: xr.DataArray) -> list[tuple[str, xr.DataArray]]:
    """Each swept value by itself, as ("dose, alpha 0.5", its values); the array itself where nothing is swept."""
    swept = [str(d) for d in values.dims if d not in ("layer", "draw", *_OURS)]
    found = []
    for place in product(*(range(values.sizes[d]) for d in swept)):
        one = values.isel(dict(zip(swept, place, strict=True)))
        found.append((", ".join([name, *(f"{d} {one[d].item()}" for d in swept)]), one))
    return found


def over_twins(values: xr.DataArray) -> np.ndarray:
    """[layer, twin]: heads and all else but draws are averaged, infinite values left out."""
    finite = values.where(np.isfinite(values))
    inner = [d for d in finite.dims if d not in ("layer", "draw") and d in _OURS]
    flat = finite.mean(inner, skipna=True).transpose("layer", ...).values
    found: np.ndarray = flat.reshape(flat.shape[0], -1)
    return found


_OURS = ("head", "kv_head", "position", "position_other", "step", "lag", "component")


def warnings(label: str, found: Mapping[str, xr.Dataset]) -> list[Figure]:
    """A table of the warnings that results carry, where there are any."""
    rows = [(variant, str(data.attrs["warning"])) for variant, data in found.items() if "warning" in data.attrs]
    if not rows:
        return []
    return [
        Table(
            title=f"Warnings, {label}",
            caption="What to know before the numbers of this step are read.",
            sources=tuple(Source(variant, label, "extreme_share") for variant, _ in rows),
            columns=("variant", "warning"),
            rows=rows,
        )
    ]
