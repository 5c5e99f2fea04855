"""What the report shows of bilinear.noise and bilinear.slerp: what chance alone gives, beside its formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Line, Lines, Source, Spectrum, Table
from gausslens.maths.laws import MarchenkoPastur

from .drawing import told

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Results

# Matrices of which the spectrum is drawn; the table has them all.
SHOWN = 4
_COLUMNS = ("law_upper", "maximum", "maximum_law_mean", "law_distance", "published_upper", "published_distance")


def noise(results: Results) -> list[Figure]:
    """For each step a table of all sizes, and the spectra of the first with their law."""
    figures: list[Figure] = []
    for label, variant, drawn in told(results, "bilinear.noise"):
        data = _one_twin(drawn, "size", "feature")
        rows = [[size, *(float(data[n].sel(size=size)) for n in _COLUMNS)] for size in data["size"].values]
        figures.append(
            Table(
                title=f"Noise of each size ({label})",
                caption="Edges of the law, the largest value of draws and of Tracy and Widom's law, and how far draws "
                "are from the law of their shape, beside the scale that the source gives.",
                sources=tuple(Source(variant, label, name) for name in _COLUMNS),
                columns=("size", "edge", "largest", "by law", "distance", "published edge", "distance to that"),
                rows=rows,
            )
        )
        figures += [_beside_law(label, variant, data.sel(size=size)) for size in data["size"].values[:SHOWN]]
    return figures


def _beside_law(label: str, variant: str, one: xr.Dataset) -> Figure:
    rows, columns = int(one["rows"]), int(one["columns"])
    law = MarchenkoPastur(rows, columns, 2 / (rows + columns))
    return Spectrum(
        title=f"Squared singular values of noise, {rows} x {columns} ({label})",
        caption="One draw of Glorot's variance 2 / (rows + columns), beside what the law of this shape expects.",
        sources=(Source(variant, label, "squared"),),
        units=str(one["squared"].attrs["units"]),
        series=(Line("one draw", one["squared"].values), Line("Marchenko-Pastur law", law.typical(), reference=True)),
        edges=law.edges,
        log_y=False,
    )


def slerp(results: Results) -> list[Figure]:
    """For each step the mean curve of each kind of pair, over its value at the other end, and a table of misfits."""
    figures: list[Figure] = []
    for label, variant, drawn in told(results, "bilinear.slerp"):
        data = _one_twin(drawn, "ends", "length", "t")
        figures += [_curves(label, variant, data.sel(ends=ends), str(ends)) for ends in data["ends"].values]
        names = [f"{kind}_{which}" for kind in ("kl", "js") for which in ("misfit", "misfit_most", "misfit_mean")]
        figures.append(
            Table(
                title=f"How far divergence along an arc is from a cosine ({label})",
                caption="The largest gap between a curve and the nearest a cos(pi t/2 + b) + c, over its range: 0 "
                "if it were exact. Of single pairs, and of the mean curve, which hides it.",
                sources=tuple(Source(variant, label, name) for name in names),
                columns=(
                    "ends",
                    "length",
                    "KL: median",
                    "KL: most",
                    "KL: of mean",
                    "JS: median",
                    "JS: most",
                    "JS: of mean",
                ),
                rows=[
                    [str(e), float(at), *(float(data[n].sel(ends=e, length=at)) for n in names)]
                    for e in data["ends"].values
                    for at in data["length"].values
                ],
            )
        )
    return figures


def _curves(label: str, variant: str, one: xr.Dataset, ends: str) -> Figure:
    t, n = one["t"].values, int(one["dimension"])
    series = []
    for at in one["length"].values:
        mean, low, high = (one[f"kl_{which}"].sel(length=at).values for which in ("mean", "low", "high"))
        series.append(Line(f"length {at:g}", mean / mean[0], low / mean[0], high / mean[0]))
    return Lines(
        title=f"Divergence along an arc, {ends} ({label})",
        caption=f"KL from the end of the arc, over its mean at the beginning; bands hold nine tenths of the pairs. n "
        f"is {n}. To leading order in l / sqrt(n), with ends of mean 0 at a right angle, it is 1 - sin(pi t / 2).",
        sources=(Source(variant, label, "kl_mean"),),
        units="1",
        x=t,
        x_name="t, place on the arc",
        series=(*series, Line("1 - sin(pi t / 2)", 1 - np.sin(np.pi * t / 2), reference=True)),
    )


def _one_twin(data: xr.Dataset, *kept: str) -> xr.Dataset:
    """The first twin, where there are several: they differ in nothing but the model."""
    return data.isel({d: 0 for d in data.dims if d not in kept})
