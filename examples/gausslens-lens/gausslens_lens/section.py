"""The figures: maps of patching, and lenses by depth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens.figures import Figure, Heatmap, Line, Lines, Source, averaged

if TYPE_CHECKING:
    import xarray as xr

LENSES = {
    "lens.logit": (("kl", "Logit lens"), ("own_probability", "Logit lens"), ("next_probability", "Logit lens")),
    "lens.tuned-loss": (("tuned_kl", "Tuned lens"), ("logit_kl", "Logit lens, same prompts")),
}
MAPPED = ("lens.patching", "lens.attribution")


def section(results: Any) -> Iterator[Figure]:
    """Maps of what was patched, direct attribution, and lenses by depth; draws and swept values are averaged."""
    for analysis in MAPPED:
        for label, variant, data in _all(results, analysis):
            for name in (str(n) for n in data.data_vars if str(n).endswith("_change")):
                if {"layer"} < set(data[name].dims):
                    yield _map(label, variant, data, name, analysis)
            if "top_change" in data:
                yield _control(label, variant, data)
    for label, variant, data in _all(results, "lens.direct"):
        yield _direct(label, variant, data)
    for analysis, names in LENSES.items():
        for label, by_variant in results.of(analysis).items():
            for name, what in names:
                yield _curves(label, by_variant, name, what)


def _all(results: Any, analysis: str) -> Iterator[tuple[str, str, xr.Dataset]]:
    for label, by_variant in results.of(analysis).items():
        for variant, data in by_variant.items():
            yield label, variant, data


def _map(label: str, variant: str, data: xr.Dataset, name: str, analysis: str) -> Figure:
    """Layer by head or position; where a site has both, the sum over positions."""
    values, site = data[name], name.removesuffix("_change")
    column = next(dim for dim in ("head", "kv_head", "position") if dim in values.dims)
    summed = " Summed over positions." if column != "position" and "position" in values.dims else ""
    if summed:
        values = values.sum("position", skipna=True)
    how = "patched" if analysis == "lens.patching" else "by its gradient"
    gap = float(data["gap"].mean())
    return Heatmap(
        title=f"{site}, {how}, {label}, {variant}",
        caption=f"What {site} of the other run changes, {how}. Between the two runs lie {gap:.3g}. Positions "
        f"count from the last token, -1.{summed}",
        sources=(Source(variant, label, name),),
        values=averaged(values, "layer", column, skip_missing=True),
        rows=data["layer"].values,
        columns=data[column].values,
        row_name="layer",
        column_name=column,
        centre=0.0,
    )


def _control(label: str, variant: str, data: xr.Dataset) -> Figure:
    """The top heads together beside random ones."""
    random = np.sort(averaged(data["random_change"], "set", skip_missing=True))
    random = random[~np.isnan(random)]
    top = float(data["top_change"].mean())
    return Lines(
        title=f"Top heads together and random heads, {label}, {variant}",
        caption="What the heads of the largest effect change together, and what random sets of as many heads of the "
        "same layers do, in the order of their size; all on pairs that had no say in which heads these are.",
        sources=(Source(variant, label, "top_change"), Source(variant, label, "random_change")),
        x=np.arange(len(random)),
        x_name="random set",
        series=(Line("random heads", random), Line("top heads", np.full(len(random), top), reference=True)),
    )


def _direct(label: str, variant: str, data: xr.Dataset) -> Figure:
    parts = {name: float(data[name].mean()) for name in ("logit", "embed", "constant")}
    mlp = float(data["mlp"].mean([d for d in data["mlp"].dims if d != "layer"]).sum())
    return Heatmap(
        title=f"Direct logit attribution, {label}, {variant}",
        caption=f"What each head gives to the logit, {parts['logit']:.3g} in all. The embedding gives "
        f"{parts['embed']:.3g}, MLPs together {mlp:.3g}, what is constant {parts['constant']:.3g}.",
        sources=(Source(variant, label, "heads"),),
        values=averaged(data["heads"], "layer", "head"),
        rows=data["layer"].values,
        columns=data["head"].values,
        row_name="layer",
        column_name="head",
        centre=0.0,
    )


def _curves(label: str, by_variant: dict[str, xr.Dataset], name: str, what: str) -> Figure:
    first = next(iter(by_variant.values()))
    return Lines(
        title=f"{what}: {first[name].attrs['long_name']}, {label}",
        caption="By depth: how many layers the stream has passed. Bands are two standard errors over prompts.",
        sources=tuple(Source(variant, label, name) for variant in by_variant),
        units=str(first[name].attrs["units"]),
        x=first["depth"].values,
        x_name="depth",
        series=tuple(_line(variant, data, name) for variant, data in by_variant.items()),
    )


def _line(variant: str, data: xr.Dataset, name: str) -> Line:
    values, error = (averaged(data[each], "depth") for each in (name, f"{name}_se"))
    return Line(variant, values, low=values - 2 * error, high=values + 2 * error)
