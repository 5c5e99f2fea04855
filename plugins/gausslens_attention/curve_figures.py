"""What the report shows of attention.band, .lowrank, .masks and .kernels: error against budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens.figures import Figure, Line, Lines, Scatter, Source, Table

from .drawing import averaged, places, shown

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Results

ANALYSES = {
    "attention.band": "band plus sparse error",
    "attention.lowrank": "low rank",
    "attention.masks": "masks before the softmax",
    "attention.kernels": "linear attention",
}
_AXES = {"w": "width of the band", "rank": "rank", "keys": "keys of a row"}


def curves(results: Results) -> list[Figure]:
    """For each step: error against budget, which storage is enough, and error against how soft a map is."""
    figures: list[Figure] = []
    for analysis, words in ANALYSES.items():
        for label, found in results.of(analysis).items():
            first = next(iter(found.values()))
            axis = next((name for name in _AXES if name in first.dims), None)
            if axis is not None:
                figures += [_curve(label, variant, words, axis, data) for variant, data in shown(results, label, found)]
            figures += [_enough(label, words, found), _softness(label, words, found)]
    return figures


def _curve(label: str, variant: str, words: str, axis: str, data: xr.Dataset) -> Figure:
    other = next((name for name in ("kind", "budget") if name in data.dims), None)
    series = []
    for value in data[other].values if other else [None]:
        one = data if other is None else data.sel({other: value})
        name = words if other is None else f"budget {value}" if other == "budget" else str(value)
        series.append(Line(name, averaged(one["output_error"], axis)))
    for baseline in ("causal mean", "identity"):
        level = float(np.mean(data["trivial_output_error"].sel(baseline=baseline).values))
        series.append(Line(baseline, np.full(data.sizes[axis], level), reference=True))
    return Lines(
        title=f"Output error of {words}, {variant}",
        caption="How far the head's output is from its own, |(P - X) V| / |P V|, against the budget: mean over "
        "heads and layers. Dashed: approximations that look at nothing.",
        sources=(Source(variant, label, "output_error"),),
        units="1",
        x=data[axis].values,
        x_name=_AXES[axis],
        series=tuple(series),
        log_x=axis != "w",
    )


def _enough(label: str, words: str, found: dict[str, xr.Dataset]) -> Figure:
    rows: list[tuple[Any, ...]] = []
    for variant, data in found.items():
        needed = data["scalars_needed"]
        for kind in needed["kind"].values if "kind" in needed.dims else [words]:
            one = (needed.sel(kind=kind) if "kind" in needed.dims else needed).values.ravel()
            met = one[np.isfinite(one)]
            middle = float(np.median(met)) if len(met) else None
            rows.append((variant, str(kind), len(met) / one.size, middle))
    tolerance = next(iter(found.values())).attrs["tolerance"]
    return Table(
        title=f"What is enough: {words}",
        caption=f"The share of heads for which some budget of the grid keeps the output error within {tolerance:g}, "
        "and the median over those heads of the stored scalars that it takes.",
        sources=tuple(Source(variant, label, "scalars_needed") for variant in found),
        columns=("variant", "kind", "share of heads", "median scalars"),
        rows=rows,
    )


def _softness(label: str, words: str, found: dict[str, xr.Dataset]) -> Figure:
    x, y, labels, groups = [], [], [], []
    for variant, data in found.items():
        error = averaged(_middle(data["output_error"]), "layer", "head")
        soft = averaged(data["entropy"], "layer", "head")
        for (i, layer), (j, head) in places(data):
            x.append(soft[i, j])
            y.append(error[i, j])
            labels.append(f"layer {layer}, head {head}, {variant}")
            groups.append(variant)
    return Scatter(
        title=f"Soft heads and hard heads: {words}",
        caption="Output error at the middle of the grid against the entropy of the head's rows: 0 looks at one key, "
        "1 at all alike. Sparse approximations suit hard heads, those of low rank soft ones.",
        sources=tuple(Source(variant, label, "entropy") for variant in found),
        units="1",
        x=x,
        y=y,
        x_name="entropy of the rows over that of uniform rows",
        y_name="output error",
        labels=labels,
        groups=groups,
    )


def _middle(values: xr.DataArray) -> xr.DataArray:
    """At the middle of the budgets, for the first method."""
    for name in ("w", "rank", "keys", "budget"):
        if name in values.dims:
            values = values.isel({name: values.sizes[name] // 2 if name != "budget" else 0})
    return values.isel(kind=0) if "kind" in values.dims else values
