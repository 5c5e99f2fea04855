"""Figures that many sections make of results: maps of layers by heads, and beside each how far it is from its nulls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .drawing import Dial
from .figure import Figure, Source
from .heatmap import Heatmap
from .lines import Line
from .panels import Panels

if TYPE_CHECKING:
    import xarray as xr

    from ..store.read_results import Result, Results


def averaged(values: xr.DataArray, *kept: str, skip_missing: bool = False) -> np.ndarray:
    """The mean over all dimensions but these, in this order; with ``skip_missing`` NaN is left out of it."""
    others = [dim for dim in values.dims if dim not in kept]
    found: np.ndarray = values.mean(others, skipna=skip_missing).transpose(*kept).values
    return found


def error_band(data: xr.Dataset, name: str, *kept: str) -> np.ndarray | None:
    """The standard error over prompts of ``averaged(data[name], *kept)``; None where there is none.

    It is the jackknife of that average, from the values without each group of prompts: errors of cells that share their
    prompts are not independent. Where there are no such values it is the mean of the cells' errors, which is no less.
    """
    from ..maths.resampling import delete_group_error

    without, errors = data.get(f"{name}_without"), data.get(f"{name}_se")
    found = None
    if without is not None and "left_out" in without.dims:
        found = delete_group_error(averaged(without, "left_out", *kept))
    elif errors is not None and set(kept) <= set(errors.dims):
        found = averaged(errors, *kept)
    return found if found is not None and (found == found).any() else None


def pooled_over(*several: Result, swept: bool = True) -> str:
    """The sentence that says over which draws and swept values a figure takes means; nothing if over none.

    ``swept=False`` is for figures that show each swept value by itself: their means are over draws alone.
    """
    words = ["draws"] if any(result.draws is not None for result in several) else []
    if swept:
        words += [f"swept values of {dim}" for dim in dict.fromkeys(d for result in several for d in result.swept)]
    return f" Means over {' and '.join(words)}." if words else ""


def head_map(
    values: xr.DataArray,
    title: str,
    caption: str,
    source: Source,
    centre: float | None = None,
    units: str | None = None,
    swept: Sequence[str] = (),
) -> Figure:
    """Layer by head, averaged over all else, which the caption says; a missing value stays missing.

    Each of the ``swept`` dimensions is a slider, which begins at its last place, where a training ends.
    """
    turned = [dim for dim in swept if dim in values.dims]
    others = [f"{dim}s" for dim in map(str, values.dims) if dim not in ("layer", "head", *turned)]
    return Heatmap(
        title=title,
        caption=caption + (f" Mean over {' and '.join(others)}." if others else ""),
        sources=(source,),
        units=str(values.attrs.get("units", "1")) if units is None else units,
        values=averaged(values, *turned, "layer", "head"),
        rows=values["layer"].values,
        columns=values["head"].values,
        row_name="layer",
        column_name="head",
        centre=centre,
        dials=tuple(Dial(dim, values[dim].values, values.sizes[dim] - 1) for dim in turned),
    )


def head_curves(
    values: xr.DataArray,
    along: str,
    *,
    title: str,
    caption: str,
    sources: Sequence[Source],
    x_name: str = "",
    nulls: Mapping[str, xr.DataArray] | None = None,
    log_x: bool = False,
    log_y: bool = False,
) -> Figure:
    """A curve for each head, in a panel for each layer and each place of what else there is; and their mean.

    ``along`` is the dimension that the curves run along, by its coordinate, or by rank from 1 where it has none. Draws
    are averaged. Of ``nulls``, by the name they are shown by, the mean over heads and draws is drawn.
    """
    head = "head" if "head" in values.dims else "kv_head"
    kept = values.mean([dim for dim in ("draw",) if dim in values.dims], skipna=True)
    dials = [str(dim) for dim in kept.dims if dim not in (along, head)]
    labels = {dim: kept[dim].values for dim in dials}
    x = kept[along].values if along in kept.coords else np.arange(1.0, kept.sizes[along] + 1)
    means = {}
    for name, null in (nulls or {}).items():
        # A null that is not swept stands beside each place of the sweep.
        unswept = {dim: kept.sizes[dim] for dim in dials if dim not in null.dims}
        means[name] = averaged(null.expand_dims(unswept), *dials, along, skip_missing=True)
    array = kept.transpose(*dials, head, along).values
    panels = []
    for place in np.ndindex(*array.shape[:-2]):
        at = ", ".join(f"{dim} {labels[dim][i]}" for dim, i in zip(dials, place, strict=True))
        lines = [Line("mean of the heads", averaged(kept, *dials, along, skip_missing=True)[place])]
        lines += [Line(f"{name}, mean", mean[place]) for name, mean in means.items()]
        each = zip(kept[head].values, array[place], strict=True)
        panels.append((*lines, *(Line(f"{at}, {head} {name}".lstrip(", "), curve, faint=True) for name, curve in each)))
    return Panels(
        title=title,
        caption=f"{caption} Thin: each head; the head that is chosen above stands out.",
        sources=tuple(sources),
        units=str(values.attrs.get("units", "1")),
        x=x,
        x_name=x_name or along,
        panels=tuple(panels),
        dials=tuple(Dial(dim, labels[dim], 0) for dim in dials),
        log_x=log_x,
        log_y=log_y,
    )


def z_caption(title: str, variant: str, null: str, compared: xr.Dataset, name: str) -> str:
    """What a map of z says: how sure a difference from a null is, on the scale on which it was judged."""
    scale = compared[f"{name}_p"].attrs.get("scale", "identity") if f"{name}_p" in compared else "identity"
    on = "its logarithm" if scale == "log" else "the number itself"
    return (
        f"{title} of {variant} against {null}: z, how sure the difference is and not how large, judged on {on} with "
        "spreads moderated over cells (docs/nulls.md). 0 is the mean of the null; maps of other nulls may be on "
        "another scale."
    )


def null_maps(results: Results, result: Result, name: str, title: str) -> list[Figure]:
    """z of a variable against each null that it was compared with."""
    figures = []
    for null in result.nulls:
        compared = results.against(result.variant, result.label, null)
        if f"{name}_z" not in compared or "head" not in compared[f"{name}_z"].dims:
            continue
        source = Source(result.variant, f"{result.label}.against.{null}", f"{name}_z")
        caption = z_caption(title, result.variant, null, compared, name)
        z = compared[f"{name}_z"]
        figures.append(
            head_map(z, f"{title}, z against {results.named_null(null)}", caption, source, 0.0, "z", result.swept)
        )
    return figures
