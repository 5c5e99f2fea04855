"""Curves over layers, with a band over twins: what most sections of this plugin draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Line, Lines, Source, error_band

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Result


def by_layer(
    title: str,
    caption: str,
    curves: Mapping[str, tuple[Result, str]],
    least: float = -np.inf,
    log_y: bool = False,
    spread: str | None = None,
) -> Figure:
    """Curves ``{name: (result, array)}`` over layers; the band is one standard deviation over draws.

    A curve of a single twin has its standard error over prompts, where that is known.

    Each swept value has a curve of its own; heads and whatever else there is are averaged, infinite values left out.
    ``least`` is the smallest value that there can be. ``spread`` names an array that is the band in place of that over
    draws, which the caption then says.
    """
    series, of_prompts = [], False
    for name, (result, array) in curves.items():
        # A point is called after its variant: here after its curve.
        for point, data in replace(result, variant=name).points():
            values = _by_twin(data[array])
            twins = values.shape[1]
            middle = values.mean(axis=1)
            band = None
            if spread:
                band = _by_twin(data[spread]).mean(axis=1)
            elif twins > 1:
                band = values.std(axis=1, ddof=1)
            else:
                band = error_band(data, array, "layer")
                of_prompts |= band is not None
            low, high = (None, None) if band is None else (np.maximum(middle - band, least), middle + band)
            series.append(Line(point if twins == 1 else f"{point}, mean of {twins} twins", middle, low, high))
    result, array = next(iter(curves.values()))
    over_twins = any(line.low is not None and line.name.endswith("twins") for line in series)
    if not spread and over_twins:
        caption += " The band is one standard deviation over the twins."
    if of_prompts:
        caption += f" The band {'of a single model ' if over_twins else ''}is one standard error over prompts."
    return Lines(
        title=title,
        caption=caption,
        sources=tuple(Source(each.variant, each.label, name) for each, name in curves.values()),
        units=result.data[array].attrs["units"],
        x=result.data["layer"].values,
        x_name="layer",
        series=tuple(series),
        log_y=log_y,
    )


def some_layers(values: xr.DataArray, kept: np.ndarray, name: str) -> tuple[Line, ...]:
    """Curves of the first, middle and last layer of ``kept`` [layer, x]; without layers one curve of this name."""
    if "layer" not in values.dims:
        return (Line(name, kept),)
    layers = values["layer"].values
    return tuple(Line(f"layer {layers[i]}", kept[i]) for i in sorted({0, len(layers) // 2, len(layers) - 1}))


def finite_mean(values: xr.DataArray, *kept: str) -> np.ndarray:
    """The mean over all dimensions but these, in this order; what is infinite is left out."""
    finite = values.where(np.isfinite(values))
    with np.errstate(invalid="ignore"):
        found = finite.mean([d for d in finite.dims if d not in kept], skipna=True)
    return np.asarray(found.transpose(*[k for k in kept if k in found.dims]).values)


def averaged_over(values: xr.DataArray, *kept: str) -> str:
    """The sentence that says over what a figure averages."""
    others = [f"{d}s" for d in map(str, values.dims) if d not in kept]
    return f" Mean over {' and '.join(others)}." if others else ""


def _by_twin(values: xr.DataArray) -> np.ndarray:
    """[layer, twin]."""
    return finite_mean(values, "layer", "draw").reshape(values.sizes["layer"], -1)
