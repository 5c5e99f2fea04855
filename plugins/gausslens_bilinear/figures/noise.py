"""What the report shows of bilinear.noise: spectra of random matrices beside their law."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gausslens.figures import Figure, Line, Source, Spectrum, Table
from gausslens.maths.laws import MarchenkoPastur

from . import first_twin, shown

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Result, Results


# Matrices of which the spectrum is drawn; the table has them all.
_DRAWN = 4
_COLUMNS = ("law_upper", "maximum", "maximum_law_mean", "law_distance", "published_upper", "published_distance")


def noise(results: Results) -> list[Figure]:
    """For each step a table of all sizes, and the spectra of the first with their law."""
    figures: list[Figure] = []
    for result in shown(results, "bilinear.noise"):
        data = first_twin(result.data, "size", "feature")
        rows = [[size, *(float(data[n].sel(size=size)) for n in _COLUMNS)] for size in data["size"].values]
        figures.append(
            Table(
                title=f"Noise of each size ({result.label})",
                caption="Edges of the law, the largest value of draws and of Tracy and Widom's law, and how far draws "
                "are from the law of their shape, beside the scale that the source gives.",
                sources=tuple(Source(result.variant, result.label, name) for name in _COLUMNS),
                columns=("size", "edge", "largest", "by law", "distance", "published edge", "distance to that"),
                rows=rows,
            )
        )
        figures += [_spectrum(result, data.sel(size=size)) for size in data["size"].values[:_DRAWN]]
    return figures


def _spectrum(result: Result, one: xr.Dataset) -> Figure:
    rows, columns = int(one["rows"]), int(one["columns"])
    law = MarchenkoPastur(rows, columns, 2 / (rows + columns))
    return Spectrum(
        title=f"Squared singular values of noise, {rows} x {columns} ({result.label})",
        caption="One draw of Glorot's variance 2 / (rows + columns), beside what the law of this shape expects.",
        sources=(Source(result.variant, result.label, "squared"),),
        units=str(one["squared"].attrs["units"]),
        series=(Line("one draw", one["squared"].values), Line("Marchenko-Pastur law", law.typical(), reference=True)),
        edges=law.edges,
        log_y=False,
    )
