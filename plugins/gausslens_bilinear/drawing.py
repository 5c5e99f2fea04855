"""Maps of layers by heads, as all sections of this plugin draw them, and beside each how far it is from the nulls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gausslens.figures import Figure, Heatmap, Source

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

    from gausslens import Results


def told(results: Results, analysis: str) -> list[tuple[str, str, xr.Dataset]]:
    """(label, variant, dataset) of every result that is no null of another; all where there is nothing but nulls."""
    found = []
    for label, by_variant in results.of(analysis).items():
        nulls = {null for variant in by_variant for null in results.nulls(variant, label)}
        shown = [v for v in by_variant if v not in nulls] or list(by_variant)
        found += [(label, variant, by_variant[variant]) for variant in shown]
    return found


def head_map(
    values: xr.DataArray,
    title: str,
    caption: str,
    source: Source,
    centre: float | None = None,
    units: str | None = None,
) -> Figure:
    """Layer by head, averaged over all else."""
    others = [f"{d}s" for d in map(str, values.dims) if d not in ("layer", "head")]
    return Heatmap(
        title=title,
        caption=caption + (f" Mean over {' and '.join(others)}." if others else ""),
        sources=(source,),
        units=str(values.attrs.get("units", "1")) if units is None else units,
        values=averaged(values, "layer", "head"),
        rows=values["layer"].values,
        columns=values["head"].values,
        row_name="layer",
        column_name="head",
        centre=centre,
    )


def null_maps(results: Results, label: str, variant: str, name: str, title: str) -> list[Figure]:
    """The same in standard deviations of each null, where it was compared with one."""
    figures = []
    for null in results.nulls(variant, label):
        compared = results.against(variant, label, null)
        if f"{name}_z" not in compared or "head" not in compared[f"{name}_z"].dims:
            continue
        source = Source(variant, f"{label}.against.{null}", f"{name}_z")
        caption = f"{title} of {variant} in standard deviations of {null} from its mean; 0 is what chance gives."
        figures.append(head_map(compared[f"{name}_z"], f"{title}, z against {null}", caption, source, 0.0, "z"))
    return figures


def averaged(values: xr.DataArray, *kept: str) -> np.ndarray:
    """Over all dimensions but these; a missing value stays missing."""
    ordered = values.transpose(*kept, ...).values
    found: np.ndarray = ordered.reshape(*ordered.shape[: len(kept)], -1).mean(axis=-1)
    return found
