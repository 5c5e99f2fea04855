"""What the report shows of attention.pooling: how much of the scores each function explains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Heatmap, Source, Table, pooled_over

from . import averaged, other_keys, too_short

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Result, Results

    from ..maths.arrays import Floats


def pooling(results: Results) -> list[Figure]:
    """For each step: what the functions explain over all heads, and which heads the first of them explains."""
    figures: list[Figure] = []
    for label, several in results.by_label("attention.pooling").items():
        figures.append(_functions(label, several))
        figures += [_heads(result) for result in several if result.draws is None]
    return figures


def _functions(label: str, several: list[Result]) -> Table:
    rows = []
    for variant, data in (point for result in several for point in result.points()):
        for name in data["scoring"].values:
            one = data.sel(scoring=name)
            numbers = float(averaged(one["numbers"]))
            each, fitted = (_fitted(one[n]) for n in ("explained", "explained_fitted"))
            middle = [float(np.median(x)) if len(x) else np.nan for x in (each, fitted)]
            rows.append((variant, str(name), numbers, *middle, float((each > 0.9).mean()) if len(each) else np.nan))
    return Table(
        title="Scoring functions",
        caption="How much of the variance of a head's scores each function of its queries and keys explains on cells "
        "that it was not fitted to, median over heads with enough cells to fit to; and the share of these of which it "
        "explains over 0.9. Queries and keys are those before position: what dot leaves unexplained is what position "
        "adds."
        + _before_norms(several)
        + other_keys(*several)
        + too_short(*several)
        + pooled_over(*several, swept=False),
        sources=tuple(Source(result.variant, label, "explained") for result in several),
        columns=("variant", "function", "fitted numbers", "explained", "of the fitted cells", "heads over 0.9"),
        rows=rows,
    )


def _before_norms(several: list[Result]) -> str:
    """Where q and k have norms: what is fitted, and what the dot product of those before explains."""
    told = []
    for result in several:
        if "explained_raw" in result.data:
            each = _fitted(result.data["explained_raw"])
            told.append(f"{result.variant} {float(np.median(each)):.2g}" if len(each) else f"{result.variant} none")
    if not told:
        return ""
    return f" They are those behind their norms; the dot product of those before explains: {', '.join(told)}."


def _fitted(values: xr.DataArray) -> Floats:
    """Of each head that had enough cells to fit to."""
    each: Floats = averaged(values, "layer", "head").ravel()
    return each[~np.isnan(each)]


def _heads(result: Result) -> Figure:
    data = result.data
    name = str(data["scoring"].values[0])
    return Heatmap(
        title=f"Scores that {name} explains, {result.variant}",
        caption=f"Share of the variance of held-out scores (R^2) that the function {name} of queries and keys before "
        "position explains." + pooled_over(result),
        sources=(Source(result.variant, result.label, "explained"),),
        units="1",
        values=averaged(data["explained"].isel(scoring=0), "layer", "head"),
        rows=data["layer"].values,
        columns=data["head"].values,
        row_name="layer",
        column_name="head",
    )
