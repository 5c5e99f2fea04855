"""What the report shows of bilinear.slerp: divergence along arcs, and how far it is from a cosine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Line, Lines, Source, Table

from . import first_twin, shown

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Result, Results


def slerp(results: Results) -> list[Figure]:
    """For each step the mean curve of each kind of pair, over its value at the other end, and a table of misfits."""
    figures: list[Figure] = []
    for result in shown(results, "bilinear.slerp"):
        data = first_twin(result.data, "ends", "length", "t")
        figures += [_curves(result, data.sel(ends=ends), str(ends)) for ends in data["ends"].values]
        names = [f"{kind}_{which}" for kind in ("kl", "js") for which in ("misfit", "misfit_most", "misfit_mean")]
        figures.append(
            Table(
                title=f"How far divergence along an arc is from a cosine ({result.label})",
                caption="The largest gap between a curve and the nearest a cos(pi t/2 + b) + c, over its range: 0 "
                "if it were exact. Of single pairs, and of the mean curve, which hides it.",
                sources=tuple(Source(result.variant, result.label, name) for name in names),
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


def _curves(result: Result, one: xr.Dataset, ends: str) -> Figure:
    t, n = one["t"].values, int(one["dimension"])
    series = []
    for at in one["length"].values:
        mean, low, high = (one[f"kl_{which}"].sel(length=at).values for which in ("mean", "low", "high"))
        series.append(Line(f"length {at:g}", mean / mean[0], low / mean[0], high / mean[0]))
    return Lines(
        title=f"Divergence along an arc, {ends} ({result.label})",
        caption=f"KL from the end of the arc, over its mean at the beginning; bands hold nine tenths of the pairs. n "
        f"is {n}. To leading order in l / sqrt(n), with ends of mean 0 at a right angle, it is 1 - sin(pi t / 2).",
        sources=(Source(result.variant, result.label, "kl_mean"),),
        units="1",
        x=t,
        x_name="t, place on the arc",
        series=(*series, Line("1 - sin(pi t / 2)", 1 - np.sin(np.pi * t / 2), reference=True)),
    )
