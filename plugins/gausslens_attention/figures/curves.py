"""What the report shows of attention.band, .lowrank, .masks and .kernels: error against budget."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens.figures import Dial, Figure, Heatmap, Line, Lines, Scatter, Source, Table, head_curves, pooled_over

from . import averaged, other_keys, too_short

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Result, Results

ANALYSES = {
    "attention.band": "band plus sparse error",
    "attention.lowrank": "low rank",
    "attention.masks": "masks before the softmax",
    "attention.kernels": "linear attention",
}
# Errors below are drawn at it where the scale is logarithmic.
_FLOOR = 1e-3
_DRAWN = (
    " Sd over draws: how far draws of what is random in a head's map are apart in output error, mean over heads and "
    "budgets; 0 where nothing is drawn."
)
_AXES = {"w": "width of the band", "rank": "rank", "keys": "keys of a row"}


def curves(results: Results) -> list[Figure]:
    """For each step: error against budget, which storage is enough, and error against how soft a map is."""
    figures: list[Figure] = []
    for analysis, words in ANALYSES.items():
        by_label = results.by_label(analysis)
        for label, several in by_label.items():
            named = words if len(by_label) == 1 else f"{words} ({label})"
            axis = next((name for name in _AXES if name in _dims(several[0])), None)
            for result in several:
                if axis is not None:
                    figures.append(_curve(result, named, axis))
                    figures += _by_head(result, [r for r in several if r.variant in result.nulls], named, axis)
                else:
                    figures.append(_by_kind(result, named))
                figures.append(_storage(result, named))
            if all("no_values" not in result.data.attrs for result in several):
                figures.append(_enough(label, named, several))
            figures.append(_softness(label, named, several))
    return figures


def _error_of(data: xr.Dataset) -> tuple[str, str, str]:
    """What tells how far an approximation is: a variable, its name in a title, and in a caption.

    That of the output, where there are values that make one; else of the map.
    """
    if "no_values" in data.attrs:
        return "distance_per_row", "Distance", "How far a row of the map is from its own, sum of |p - x|"
    return "output_error", "Output error", "How far the head's output is from its own, |(P - X) V| / |P V|"


def _dims(result: Result) -> list[str]:
    """The dimensions of the analysis's own: a swept value may be called as one of a grid is."""
    return [str(dim) for dim in result.data.dims if dim not in result.swept]


def _curve(result: Result, words: str, axis: str) -> Figure:
    data = result.data
    error, title, said = _error_of(data)
    other = next((name for name in ("kind", "budget") if name in _dims(result)), None)
    series = []
    for value in data[other].values if other else [None]:
        one = data if other is None else data.sel({other: value})
        name = words if other is None else f"budget {value}" if other == "budget" else str(value)
        series.append(_line(name, one, axis))
    trivial = averaged(data[f"trivial_{error}"], "baseline")
    best = int(trivial.argmin())
    name = f"best trivial: {data['baseline'].values[best]}"
    series.append(Line(name, np.full(data.sizes[axis], trivial[best]), reference=True))
    caption = (
        f"{said}, against the budget: mean over heads and layers. Dashed: the best of the maps that look at nothing "
        "(zero, uniform, identity, causal mean)."
    )
    if f"{error}_draws_sd" in data:
        caption += (
            " Bands: two standard deviations of that mean over draws of what is random, drawn for each head by itself."
        )
    # Random projections are many times worse than nothing, truncated decompositions soon exact.
    wide = axis == "rank"
    if wide:
        series = [_floored(line) for line in series]
        caption += f" What is below {_FLOOR:g} is drawn there."
    return Lines(
        title=f"{title} of {words}, {result.variant}",
        caption=caption + other_keys(result) + pooled_over(result),
        sources=(Source(result.variant, result.label, error),),
        units="1",
        x=data[axis].values,
        x_name=_AXES[axis],
        series=tuple(series),
        log_x=axis != "w",
        log_y=wide,
    )


def _by_head(result: Result, nulls: list[Result], words: str, axis: str) -> list[Figure]:
    """The same for each head, and how far its map is: one curve for each, in a panel for each layer."""
    error, title, said = _error_of(result.data)
    told = {error: (title, said), "distance": ("Distance of the map", "Sum of |p - x| over a map, mean over prompts")}
    return [
        head_curves(
            result.data[name],
            axis,
            title=f"{title} of {words} for each head, {result.variant}",
            caption=f"{said}, against the budget." + other_keys(result),
            sources=tuple(Source(each.variant, each.label, name) for each in (result, *nulls)),
            x_name=_AXES[axis],
            nulls={null.named: null.data[name] for null in nulls},
            log_x=axis != "w",
        )
        for name, (title, said) in told.items()
    ]


def _by_kind(result: Result, words: str) -> Figure:
    """How far each head is under each kind, where kinds have no budget in common."""
    error, title, said = _error_of(result.data)
    return Heatmap(
        title=f"{title} of {words} for each head, {result.variant}",
        caption=f"{said}; a head that puts out nothing is at 1." + other_keys(result) + pooled_over(result),
        sources=(Source(result.variant, result.label, error),),
        units="1",
        values=averaged(result.data[error], "kind", "layer", "head"),
        rows=result.data["layer"].values,
        columns=result.data["head"].values,
        row_name="layer",
        column_name="head",
        dials=(Dial("kernel", result.data["kind"].values),),
    )


def _line(name: str, data: xr.Dataset, axis: str) -> Line:
    """The mean over heads and layers, with its band over draws where something is drawn."""
    error, _, _ = _error_of(data)
    mean = averaged(data[error], axis)
    if f"{error}_draws_sd" not in data or not (data[f"{error}_draws_sd"] > 0).any():
        return Line(name, mean)
    # Heads draw for themselves, so that of a mean over cells only 1/cells of their mean variance is left.
    variance = data[f"{error}_draws_sd"] ** 2
    cells = variance.size // variance.sizes[axis]
    half = 2 * np.sqrt(averaged(variance, axis) / cells / int(data.attrs["draws"]))
    return Line(name, mean, mean - half, mean + half)


def _floored(line: Line) -> Line:
    low, high = (None if side is None else np.maximum(side, _FLOOR) for side in (line.low, line.high))
    return Line(line.name, np.maximum(line.y, _FLOOR), low, high, line.reference)


def _storage(result: Result, words: str) -> Figure:
    data = result.data
    grid = [name for name in ("kind", "w", "budget", "rank", "keys") if name in _dims(result)]
    scalars = averaged(data["scalars"], *grid)
    distance, oracle = (averaged(data[name], *grid) for name in ("distance", "oracle"))
    # Random projections are far from any map, truncated decompositions soon at it.
    wide = data.attrs["oracle"].startswith("truncated")
    least = _FLOOR if wide else 0.0
    labels, groups = [], []
    for place in np.ndindex(scalars.shape):
        values = [data[name].values[i] for name, i in zip(grid, place, strict=True)]
        labels.append(", ".join(str(v) if n == "kind" else f"{n} {v}" for n, v in zip(grid, values, strict=True)))
        groups.append(str(values[0]) if grid[0] == "kind" else words)
    return Scatter(
        title=f"Distance against storage: {words}, {result.variant}",
        caption="Sum of |p - x| over a map, mean over heads and layers, against the scalars that the approximation "
        f"stores, beside the oracle that may store as many: {data.attrs['oracle']}. An approximation may be nearer "
        "where the places of its cells need not be stored, or where the oracle is best in another norm."
        + (f" What is below {_FLOOR:g} is drawn there." if wide else "")
        + other_keys(result)
        + pooled_over(result),
        sources=tuple(Source(result.variant, result.label, name) for name in ("distance", "oracle")),
        units="1",
        x=np.tile(scalars.ravel(), 2),
        y=np.maximum(np.concatenate([distance.ravel(), oracle.ravel()]), least),
        x_name="stored scalars of a map",
        y_name="distance",
        labels=[*labels, *(f"oracle beside {one}" for one in labels)],
        groups=[*groups, *("oracle" for _ in groups)],
        log_x=True,
        log_y=wide,
    )


def _enough(label: str, words: str, several: list[Result]) -> Figure:
    rows: list[tuple[Any, ...]] = []
    drawn = any("output_error_draws_sd" in result.data for result in several)
    for variant, data in (point for result in several for point in result.points()):
        needed = data["scalars_needed"]
        for kind in needed["kind"].values if "kind" in needed.dims else [words]:
            one = (needed.sel(kind=kind) if "kind" in needed.dims else needed).values.ravel()
            met = one[np.isfinite(one)]
            middle = float(np.median(met)) if len(met) else None
            rows.append((variant, str(kind), len(met) / one.size, middle, *_spread(data, str(kind), drawn)))
    tolerance = several[0].data.attrs["tolerance"]
    return Table(
        title=f"What is enough: {words}",
        caption=f"The share of heads for which some budget of the grid keeps the output error within {tolerance:g}, "
        "and the median over those heads of the stored scalars that it takes."
        + (_DRAWN if drawn else "")
        + too_short(*several)
        + (" Heads of all draws count." if any(result.draws is not None for result in several) else ""),
        sources=tuple(Source(result.variant, label, "scalars_needed") for result in several),
        columns=("variant", "kind", "share of heads", "median scalars", *(("sd over draws",) if drawn else ())),
        rows=rows,
    )


def _spread(data: xr.Dataset, kind: str, drawn: bool) -> tuple[float | None, ...]:
    """How far draws of a head's map are apart in output error, mean over heads and budgets, if any is drawn."""
    if not drawn:
        return ()
    if "output_error_draws_sd" not in data:
        return (None,)
    sd = data["output_error_draws_sd"]
    return (float(averaged(sd.sel(kind=kind) if "kind" in sd.dims else sd)),)


def _softness(label: str, words: str, several: list[Result]) -> Figure:
    x, y, labels, groups = [], [], [], []
    what, title, _ = _error_of(several[0].data)
    for result in several:
        for name, data in result.points():
            error = averaged(_middle(data[what]), "layer", "head")
            soft = averaged(data["entropy"], "layer", "head")
            for (i, layer), (j, head) in product(enumerate(data["layer"].values), enumerate(data["head"].values)):
                x.append(soft[i, j])
                y.append(error[i, j])
                labels.append(f"layer {layer}, head {head}, {name}")
                groups.append(result.variant)
    return Scatter(
        title=f"Soft heads and hard heads: {words}",
        caption=f"{title} at the middle of the grid against the entropy of the head's rows: 0 looks at one key, "
        "1 at all alike. Sparse approximations suit hard heads, those of low rank soft ones."
        + pooled_over(*several, swept=False),
        sources=tuple(Source(result.variant, label, "entropy") for result in several),
        units="1",
        x=x,
        y=y,
        x_name="entropy of the rows over that of uniform rows",
        y_name=title.lower(),
        labels=labels,
        groups=groups,
    )


def _middle(values: xr.DataArray) -> xr.DataArray:
    """At the middle of the budgets, for the first method."""
    for name in ("w", "rank", "keys", "budget"):
        if name in values.dims:
            values = values.isel({name: values.sizes[name] // 2 if name != "budget" else 0})
    return values.isel(kind=0) if "kind" in values.dims else values
