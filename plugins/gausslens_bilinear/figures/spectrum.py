"""What the report shows of bilinear.spectrum: how far each matrix is from noise, and the spectra furthest from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Heatmap, Line, Source, Spectrum, averaged, pooled_over
from gausslens.maths.laws import MarchenkoPastur

from . import shown

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Result, Results


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
    by_label = results.by_label("bilinear.spectrum")
    for result in shown(results, "bilinear.spectrum"):
        figures += [_map(result, name, *words) for name, words in _MAPS.items()]
        nulls = [other for other in by_label[result.label] if other.variant in result.nulls]
        figures += [_spectrum(result, nulls, *place) for place in _furthest(result.data)]
    return figures


def _map(result: Result, name: str, title: str, caption: str) -> Figure:
    values = result.data[name]
    others = [f"{d}s" for d in map(str, values.dims) if d not in ("layer", "tensor")]
    return Heatmap(
        title=f"{title}, {result.variant}",
        caption=caption + (f" Mean over {' and '.join(others)}." if others else ""),
        sources=(Source(result.variant, result.label, name),),
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


def _spectrum(result: Result, nulls: list[Result], layer: int, tensor: str) -> Figure:
    """One matrix beside its law and its nulls."""
    one = result.data.sel(layer=layer, tensor=tensor)
    rows, columns = (int(np.mean(one[name].values)) for name in ("rows", "columns"))
    law = MarchenkoPastur(rows, columns, float(np.mean(one["variance"].values)))
    series = [Line(result.variant, averaged(one["squared"], "feature"))]
    for null in nulls:
        drawn = null.data["squared"].sel(layer=layer, tensor=tensor)
        name = f"{null.variant}, mean of {drawn.size // drawn.sizes['feature']}"
        series.append(Line(name, averaged(drawn, "feature")))
    return Spectrum(
        title=f"{tensor} of layer {layer}, {result.variant}",
        caption=f"Squared singular values of {tensor} ({rows} by {columns}), and those expected of noise of this shape "
        f"and entry variance; the layer is the one where {tensor} is furthest from that law." + pooled_over(result),
        sources=tuple(Source(each.variant, each.label, "squared") for each in (result, *nulls)),
        units=one["squared"].attrs["units"],
        series=(*series, Line("Marchenko-Pastur law", law.typical(), reference=True)),
        edges=law.edges,
    )
