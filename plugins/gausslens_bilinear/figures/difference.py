"""What the report shows of bilinear.difference: how much was added, in how many directions, and where base has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Heatmap, Line, Lines, Source, averaged, pooled_over

from . import shown

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Result, Results

_MAPS = {
    "relative_norm": ("Norm of the difference", "The Frobenius norm of what was added, over that of the base."),
    "stable_rank": (
        "Stable rank of the difference",
        "Its energy over the largest share that one direction has: 1 where there is one direction alone.",
    ),
    "cosine": (
        "Cosine between difference and base",
        "Entry by entry: 1 where the base was made larger as it is, -1 where it was made smaller, 0 by chance.",
    ),
}
_CURVES = {
    "leading_share": (
        "Energy in the leading directions",
        "The share of the difference's energy in its leading k directions.",
        False,
    ),
    "captured_both": (
        "Energy in the base's directions",
        "The share of the difference's energy between the leading k left and right singular vectors of the base.",
        True,
    ),
    "base_share": (
        "Energy of the base in the difference's directions",
        "The share of the base's energy between the leading k left and right singular vectors of the difference.",
        True,
    ),
}
# So many matrices, those that changed most, are drawn by k.
_DRAWN = 2


def difference(results: Results) -> list[Figure]:
    """For each step: three maps of all matrices, and the curves by k of those that changed most, beside their nulls."""
    figures: list[Figure] = []
    by_label = results.by_label("bilinear.difference")
    for result in shown(results, "bilinear.difference"):
        figures += [_map(result, name, *words) for name, words in _MAPS.items()]
        nulls = [other for other in by_label[result.label] if other.variant in result.nulls]
        for place in _most_changed(result.data):
            figures += [_curve(result, nulls, place, name) for name in _CURVES]
    return figures


def _map(result: Result, name: str, title: str, caption: str) -> Figure:
    values = result.data[name]
    return Heatmap(
        title=f"{title}, {result.variant}",
        caption=caption + pooled_over(result) + _equal(result.data),
        sources=(Source(result.variant, result.label, name),),
        units=values.attrs["units"],
        values=averaged(values, "layer", "tensor", skip_missing=True),
        rows=values["layer"].values,
        columns=values["tensor"].values,
        row_name="layer",
        column_name="matrix",
        centre=0.0 if name == "cosine" else None,
    )


def _equal(data: xr.Dataset) -> str:
    """The note that says where nothing was added."""
    none, count = int((data["norm"] == 0).sum()), int(np.isfinite(data["norm"]).sum())
    return f" {none} of {count} matrices are equal in both models." if none else ""


def _most_changed(data: xr.Dataset) -> list[tuple[int, str]]:
    """The places of the largest relative norm, one of each matrix at most."""
    norms = averaged(data["relative_norm"], "layer", "tensor", skip_missing=True)
    norms = np.where(norms > 0, norms, -np.inf)
    best = [(float(norms[:, j].max()), j, int(norms[:, j].argmax())) for j in range(norms.shape[1])]
    ordered = sorted((one for one in best if np.isfinite(one[0])), key=lambda one: -one[0])[:_DRAWN]
    return [(int(data["layer"].values[i]), str(data["tensor"].values[j])) for _, j, i in ordered]


def _curve(result: Result, nulls: list[Result], place: tuple[int, str], name: str) -> Figure:
    """One number of one matrix by k, beside its nulls, and what directions turned at random have."""
    layer, tensor = place
    title, caption, by_chance = _CURVES[name]
    series = []
    for each in (result, *nulls):
        values = each.data[name].sel(layer=layer, tensor=tensor)
        count = values.size // values.sizes["leading"]
        title_of = each.variant if each is result else f"{each.variant}, mean of {count}"
        series.append(Line(title_of, averaged(values, "leading", skip_missing=True)))
    if by_chance:
        chance = result.data["chance"].sel(layer=layer, tensor=tensor).prod("side", skipna=False)
        series.append(Line("at random", averaged(chance, "leading"), reference=True))
    return Lines(
        title=f"{title}, {tensor} of layer {layer}, {result.variant}",
        caption=f"{caption} {tensor} of layer {layer} is among the matrices that changed most." + pooled_over(result),
        sources=tuple(Source(each.variant, each.label, name) for each in (result, *nulls)),
        units="1",
        x=result.data["leading"].values,
        x_name="leading directions k",
        series=tuple(series),
        log_x=True,
        log_y=True,
    )
