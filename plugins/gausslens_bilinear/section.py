"""What the report shows of bilinear.spectrum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Heatmap, Line, Source, Spectrum
from gausslens.maths.laws import MarchenkoPastur

from .drawing import averaged

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Results

_MAPS = {
    "beyond": (
        "Singular values beyond noise",
        "How many squared singular values lie above the level that noise of the same shape and variance exceeds once "
        "in a hundred matrices (Tracy-Widom).",
    ),
    "distance": (
        "Distance from the Marchenko-Pastur law",
        "The largest gap between the distribution of the squared singular values and that of noise of the same shape "
        "and variance: 0 is noise, 1 has nothing in common with it.",
    ),
}


def spectrum(results: Results) -> list[Figure]:
    """For each step: how far each matrix is from noise, and the most striking spectra beside their law and the null."""
    figures: list[Figure] = []
    for label, found in results.of("bilinear.spectrum").items():
        nulls = {null for variant in found for null in results.nulls(variant, label)}
        for variant in [v for v in found if v not in nulls] or list(found):
            data = found[variant]
            figures += [_map(label, variant, data[name], *words) for name, words in _MAPS.items()]
            chance = {null: found[null] for null in results.nulls(variant, label) if null in found}
            figures += [_beside_law(label, variant, data, chance, *place) for place in _furthest(data)]
    return figures


def _map(label: str, variant: str, values: xr.DataArray, title: str, caption: str) -> Figure:
    others = [f"{d}s" for d in map(str, values.dims) if d not in ("layer", "tensor")]
    return Heatmap(
        title=f"{title}, {variant}",
        caption=caption + (f" Mean over {' and '.join(others)}." if others else ""),
        sources=(Source(variant, label, str(values.name)),),
        units=values.attrs["units"],
        values=averaged(values, "layer", "tensor"),
        rows=values["layer"].values,
        columns=values["tensor"].values,
        row_name="layer",
        column_name="matrix",
    )


def _furthest(data: xr.Dataset, most: int = 4) -> list[tuple[int, str]]:
    """Of each matrix the layer where it is furthest from its law; the ``most`` furthest of them."""
    distances = averaged(data["distance"], "layer", "tensor")
    known = [j for j in range(distances.shape[1]) if np.isfinite(distances[:, j]).any()]
    layers = {j: int(np.nanargmax(distances[:, j])) for j in known}
    furthest = sorted(known, key=lambda j: -distances[layers[j], j])[:most]
    return [(int(data["layer"].values[layers[j]]), str(data["tensor"].values[j])) for j in furthest]


def _beside_law(
    label: str, variant: str, data: xr.Dataset, chance: dict[str, xr.Dataset], layer: int, tensor: str
) -> Figure:
    one = data.sel(layer=layer, tensor=tensor)
    rows, columns = (int(np.mean(one[name].values)) for name in ("rows", "columns"))
    law = MarchenkoPastur(rows, columns, float(np.mean(one["variance"].values)))
    series = [Line(variant, averaged(one["squared"], "feature"))]
    for null, other in chance.items():
        drawn = other["squared"].sel(layer=layer, tensor=tensor)
        series.append(Line(f"{null}, mean of {drawn.size // drawn.sizes['feature']}", averaged(drawn, "feature")))
    return Spectrum(
        title=f"{tensor} of layer {layer}, {variant}",
        caption=f"Squared singular values of {tensor} ({rows} by {columns}), and those expected of noise of this shape "
        f"and entry variance; the layer is the one where {tensor} is furthest from that law.",
        sources=tuple(Source(v, label, "squared") for v in (variant, *chance)),
        units=one["squared"].attrs["units"],
        series=(*series, Line("Marchenko-Pastur law", law.typical(), reference=True)),
        edges=law.edges,
    )
