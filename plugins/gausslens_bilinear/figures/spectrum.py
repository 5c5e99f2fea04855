"""What the report shows of bilinear.spectrum: how far each matrix is from noise, and the spectra furthest from it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Dial, Figure, Heatmap, Line, Panels, Source, Spectrum, averaged, head_curves, pooled_over

from ..maths.noise_fit import bulk_if_any
from . import shown

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Result, Results


_MAPS = {
    "beyond": (
        "Singular values beyond noise",
        "How many squared singular values lie above the level that noise of the same shape, with the variance fitted "
        "to the bulk, exceeds once in a hundred matrices (Tracy-Widom).",
    ),
    "distance": (
        "Distance from the Marchenko-Pastur law",
        "The largest gap between the distribution of the squared singular values and that of noise of the same shape, "
        "with the variance fitted to the bulk: 0 is noise, 1 has nothing in common with it.",
    ),
}
_NOT_NOISE = (
    " The bulk does not follow the law (bulk_accepted 0): curve and edges are the nearest there are, and judge nothing."
)
# Of what the note tells where there is no bulk of noise.
_KINDS = {"": "matrices", "head_": "blocks of heads", "kv_head_": "blocks of key/value heads"}


def spectrum(results: Results) -> list[Figure]:
    """For each step: how far each matrix is from noise, and the most striking spectra beside their law and the null."""
    figures: list[Figure] = []
    by_label = results.by_label("bilinear.spectrum")
    for result in shown(results, "bilinear.spectrum"):
        figures += [_map(result, name, *words) for name, words in _MAPS.items()]
        nulls = [_last(other) for other in by_label[result.label] if other.variant in result.nulls]
        last = _last(result)
        figures += [_spectrum(last, nulls, *place) for place in _furthest(last.data)]
        figures.append(_exponents(last, nulls))
        figures += [_by_head(last, nulls, name) for name in ("head", "kv_head") if f"{name}_squared" in last.data]
    return figures


def _by_head(result: Result, nulls: list[Result], head: str) -> Figure:
    """The spectrum of each head's own block."""
    name = f"{head}_squared"
    along = f"{head}_feature"
    also = {null.named: null.data[name].drop_vars(along, errors="ignore") for null in nulls if name in null.data}
    words = "head's" if head == "head" else "key/value head's"
    return head_curves(
        result.data[name].drop_vars(along, errors="ignore"),
        along,
        title=f"Spectra of each {words} own block, {result.variant}",
        caption=f"Squared singular values of each {words} block, largest first.",
        sources=tuple(Source(each.variant, each.label, name) for each in (result, *nulls)),
        x_name="rank",
        nulls=also,
        log_y=True,
    )


def _exponents(result: Result, nulls: list[Result]) -> Figure:
    """The exponent of each matrix's tail by layer, beside those of its nulls."""
    data = result.data["tail_alpha"]
    panels = []
    for tensor in data["tensor"].values:
        lines = []
        for each in (result, *nulls):
            one = each.data["tail_alpha"].sel(tensor=tensor)
            finite = one.where(np.isfinite(one))
            middle = averaged(finite, "layer", skip_missing=True)
            others = [dim for dim in finite.dims if dim != "layer"]
            spread = finite.std(others).transpose("layer").values if others else None
            band = (None, None) if spread is None else (middle - spread, middle + spread)
            lines.append(Line(each.named + (", mean" if others else ""), middle, *band))
        panels.append(tuple(lines))
    return Panels(
        title=f"Exponent of the tail by layer, {result.variant}",
        caption="The exponent of the power law fitted to the largest squared singular values of each matrix: a heavy "
        "tail has a small one. Bands: one standard deviation over draws. Infinite ones are left out.",
        sources=tuple(Source(each.variant, each.label, "tail_alpha") for each in (result, *nulls)),
        units="1",
        x=data["layer"].values,
        x_name="layer",
        panels=tuple(panels),
        dials=(Dial("matrix", data["tensor"].values),),
    )


def _tail(one: xr.Dataset) -> Line | None:
    """The power law fitted to the tail, by rank: the r-th largest of n values is least (n/r)^(1/(a-1)).

    The density x^-a has the survival (x/least)^(1-a), which is r/n at the r-th of n values.
    """
    alpha, least, count = (float(one[name].mean()) for name in ("tail_alpha", "tail_least", "tail_count"))
    if not (np.isfinite(alpha) and alpha > 1 and count >= 2):
        return None
    ranks = np.arange(1.0, round(count) + 1)
    values = least * (count / ranks) ** (1 / (alpha - 1))
    return Line(f"power law, exponent {alpha:.3g}", values, reference=True)


def _last(result: Result) -> Result:
    """A result at the last of its swept values, where a training ends."""
    return replace(result, data=result.data.isel(dict.fromkeys(result.swept, -1)))


def _map(result: Result, name: str, title: str, caption: str) -> Figure:
    values = result.data[name]
    if name == "beyond":
        # Where the bulk is none of noise, no value is beyond noise: the cell stays empty.
        values = values.where(result.data["bulk_accepted"] > 0).assign_attrs(values.attrs)
    swept = [dim for dim in result.swept if dim in values.dims]
    others = [f"{d}s" for d in map(str, values.dims) if d not in ("layer", "tensor", *swept)]
    return Heatmap(
        title=f"{title}, {result.variant}",
        caption=caption + (f" Mean over {' and '.join(others)}." if others else "") + _refused(result.data),
        sources=(Source(result.variant, result.label, name),),
        units=values.attrs["units"],
        values=averaged(values, *swept, "layer", "tensor", skip_missing=True),
        rows=values["layer"].values,
        columns=values["tensor"].values,
        row_name="layer",
        column_name="matrix",
        missing="the bulk follows no law of noise" if name == "beyond" else "",
        dials=tuple(Dial(dim, values[dim].values, values.sizes[dim] - 1) for dim in swept),
    )


def _refused(data: xr.Dataset) -> str:
    """The note that says in how many matrices the bulk follows no law of noise, hence what is not to be read."""
    told = []
    for prefix, words in _KINDS.items():
        if f"{prefix}bulk_accepted" in data:
            each = data[f"{prefix}bulk_accepted"].values
            none, count = int((each == 0).sum()), int(np.isfinite(each).sum())
            told += [f"{none} of {count} {words}"] if none else []
    if not told:
        return ""
    return (
        f" In {' and '.join(told)} the bulk does not follow the law (bulk_accepted 0): of these only the distance is "
        "to be read, for edges, spikes, values beyond and the z of the largest are those of no noise."
    )


def _furthest(data: xr.Dataset, most: int = 4) -> list[tuple[int, str]]:
    """Of each matrix the layer where it is furthest from its law; the ``most`` furthest of them."""
    distances = averaged(data["distance"], "layer", "tensor")
    known = [j for j in range(distances.shape[1]) if np.isfinite(distances[:, j]).any()]
    layers = {j: int(np.nanargmax(distances[:, j])) for j in known}
    furthest = sorted(known, key=lambda j: -distances[layers[j], j])[:most]
    return [(int(data["layer"].values[layers[j]]), str(data["tensor"].values[j])) for j in furthest]


def _spectrum(result: Result, nulls: list[Result], layer: int, tensor: str) -> Figure:
    """One matrix beside the law of its bulk and its nulls."""
    one = result.data.sel(layer=layer, tensor=tensor)
    at = [f"{dim} {result.data[dim].values}" for dim in result.swept]
    rows, columns = (int(np.mean(one[name].values)) for name in ("rows", "columns"))
    values = averaged(one["squared"], "feature")
    series = [Line(result.variant, values)]
    for null in nulls:
        drawn = null.data["squared"].sel(layer=layer, tensor=tensor)
        name = f"{null.named}, mean of {drawn.size // drawn.sizes['feature']}"
        series.append(Line(name, averaged(drawn, "feature")))
    fitted = bulk_if_any(values[np.isfinite(values)], rows, columns)
    caption = (
        f"Squared singular values of {tensor} ({rows} by {columns}), and those expected of noise of this shape with "
        f"the variance fitted to the bulk; the layer is the one where {tensor} is furthest from that law."
    )
    if fitted is not None:
        # The law is that of the bulk: the spikes, which are none of it, stand above its edge.
        law = np.concatenate([np.full(len(fitted.spikes), fitted.edges[1]), fitted.law.typical()])
        series.append(Line("Marchenko-Pastur law", law, reference=True))
        caption += f" Above the level of noise: {len(fitted.spikes)}." if fitted.accepted else _NOT_NOISE
    tail = _tail(one)
    if tail is not None:
        series.append(tail)
        caption += f" The power law is fitted to the {np.size(tail.y)} largest."
    return Spectrum(
        title=f"{tensor} of layer {layer}, {', '.join([result.variant, *at])}",
        caption=caption + pooled_over(result, swept=False),
        sources=tuple(Source(each.variant, each.label, "squared") for each in (result, *nulls)),
        units=one["squared"].attrs["units"],
        series=tuple(series),
        edges=fitted.edges if fitted is not None else None,
    )
