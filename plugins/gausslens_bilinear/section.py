"""What the report shows of bilinear.spectrum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens.figures import Figure, Heatmap, Line, Source, Spectrum

from .laws import MarchenkoPastur

if TYPE_CHECKING:
    import xarray as xr


def spectrum(results: Any) -> list[Figure]:
    """For each step: how far each layer's matrices are from noise, and the spectra of one layer beside their law."""
    steps = results.table()
    mine = steps[steps["analysis"] == "bilinear.spectrum"]
    figures: list[Figure] = []
    for label, rows in mine[~mine["label"].str.contains(".against.", regex=False)].groupby("label", sort=False):
        for variant in rows["variant"].unique():
            figures += _of_step(str(label), str(variant), results[variant, label])
    return figures


def _of_step(label: str, variant: str, data: xr.Dataset) -> list[Figure]:
    many = [d for d in data["maximum"].dims if d not in ("layer", "tensor")]
    drawn = f" Mean over {' and '.join(map(str, many))}." if many else ""
    maps = [
        (
            "beyond",
            "Singular values beyond noise",
            "How many squared singular values lie above the level that noise of the same "
            "shape and variance exceeds once in a hundred matrices (Tracy-Widom): what chance would not put there.",
        ),
        (
            "distance",
            "Distance from the Marchenko-Pastur law",
            "The largest gap between the distribution of the squared singular "
            "values and that of noise of the same shape and variance: 0 is noise, 1 has nothing in common with it.",
        ),
    ]
    figures: list[Figure] = [
        Heatmap(
            title=f"{title}, {variant}",
            caption=caption + drawn,
            sources=(Source(variant, label, name),),
            units=data[name].attrs["units"],
            values=_averaged(data[name], "layer", "tensor"),
            rows=data["layer"].values,
            columns=data["tensor"].values,
            row_name="layer",
            column_name="matrix",
        )
        for name, title, caption in maps
    ]
    layer = data["layer"].values[data.sizes["layer"] // 2]
    one = data.sel(layer=layer)
    return figures + [
        _beside_law(label, variant, one, str(tensor), int(layer), drawn)
        for tensor in ("W_Q", "W_V")
        if tensor in data["tensor"]
    ]


def _beside_law(label: str, variant: str, layer_data: xr.Dataset, tensor: str, layer: int, drawn: str) -> Figure:
    one = layer_data.sel(tensor=tensor)
    squared = _averaged(one["squared"], "feature")
    rows, columns, variance = (float(np.mean(one[name].values)) for name in ("rows", "columns", "variance"))
    law = MarchenkoPastur(int(rows), int(columns), variance)
    return Spectrum(
        title=f"{tensor} of layer {layer}, {variant}",
        caption=f"Squared singular values of {tensor} ({int(rows)} by {int(columns)}), and those expected of noise of "
        f"this shape and entry variance.{drawn}",
        sources=(Source(variant, label, "squared"),),
        units=one["squared"].attrs["units"],
        series=(Line(variant, squared), Line("Marchenko-Pastur law", law.typical(), reference=True)),
        edges=law.edges,
    )


def _averaged(values: xr.DataArray, *kept: str) -> np.ndarray:
    """Over all dimensions but these; a missing value stays missing."""
    ordered = values.transpose(*kept, ...).values
    averaged: np.ndarray = ordered.reshape(*ordered.shape[: len(kept)], -1).mean(axis=-1)
    return averaged
