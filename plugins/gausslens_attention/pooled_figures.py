"""What the report shows of attention.pooling: how much of the scores each function explains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Heatmap, Source, Table

from .drawing import averaged, shown

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Results


def pooled(results: Results) -> list[Figure]:
    """For each step: what the functions explain over all heads, and which heads the first of them explains."""
    figures: list[Figure] = []
    for label, found in results.of("attention.pooling").items():
        figures.append(_functions(label, found))
        figures += [
            _heads(label, variant, data) for variant, data in shown(results, label, found) if "draw" not in data.dims
        ]
    return figures


def _functions(label: str, found: dict[str, xr.Dataset]) -> Figure:
    rows = []
    for variant, data in found.items():
        for name in data["scoring"].values:
            one = data.sel(scoring=name)
            each = averaged(one["explained"], "layer", "head").ravel()
            fitted = averaged(one["explained_fitted"], "layer", "head").ravel()
            numbers = float(averaged(one["numbers"]))
            middle = [float(np.median(x)) for x in (each, fitted)]
            rows.append((variant, str(name), numbers, *middle, float((each > 0.9).mean())))
    return Table(
        title="Scoring functions",
        caption="How much of the variance of a head's scores each function of its queries and keys explains on cells "
        "that it was not fitted to, median over heads; and the share of heads of which it explains over 0.9. Queries "
        "and keys are those before position: what dot leaves unexplained is what position adds.",
        sources=tuple(Source(variant, label, "explained") for variant in found),
        columns=("variant", "function", "fitted numbers", "explained", "of the fitted cells", "heads over 0.9"),
        rows=rows,
    )


def _heads(label: str, variant: str, data: xr.Dataset) -> Figure:
    name = str(data["scoring"].values[0])
    return Heatmap(
        title=f"Scores that {name} explains, {variant}",
        caption=f"Share of the variance of held-out scores (R^2) that the function {name} of queries and keys before "
        "position explains.",
        sources=(Source(variant, label, "explained"),),
        units="1",
        values=averaged(data["explained"].isel(scoring=0), "layer", "head"),
        rows=data["layer"].values,
        columns=data["head"].values,
        row_name="layer",
        column_name="head",
    )
