"""What the report shows of gaussian.moments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Heatmap, Source, Spectrum, Table, head_map, z_caption

from .by_layer import averaged_over, by_layer, finite_mean, some_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr

    from gausslens import Result, Results

_TITLES = {
    "effective_rank": "Effective rank",
    "anisotropy": "Anisotropy",
    "entropy": "Gaussian entropy",
    "length_mean": "Length of the vectors",
    "kurtosis_mean": "Excess kurtosis",
}
_CAPTIONS = {
    "effective_rank": "How many directions the vectors fill: exp of the entropy of the covariance's eigenvalue shares, "
    "at most the width of the vectors.",
    "anisotropy": "The share of the total variance that lies along one direction. Near 1, one direction owns the "
    "covariance.",
    "entropy": "Entropy of the Gaussian with this covariance, within the directions that it fills: compare where the "
    "rank is equal. With fewer tokens than dimensions, the rank is one less than the tokens.",
    "length_mean": "The mean length of the vectors.",
    "kurtosis_mean": "How Gaussian the vectors are: mean excess kurtosis along 64 random directions; 0 for a Gaussian.",
}
_SPHERE = " The band is its standard deviation from token to token: a thin band is a hypersphere."


def moments(results: Results) -> list[Figure]:
    """For each step: how wide, flat, ordered and long its vectors are, and the spectra of the covariances."""
    figures: list[Figure] = []
    for label, found in results.by_label("gaussian.moments").items():
        first = found[0].data
        head = next((str(d) for d in ("head", "kv_head") if d in first["trace"].dims), None)
        site = f"at {first.attrs['site']}"
        figures += warnings(label, found)
        if head is not None:
            shown = [result for result in found if not result.is_null] or found
            figures += [figure for result in shown for figure in _by_head(results, result, site, head)]
        elif "layer" in first.dims:
            figures += [_by_layer(name, f"{title} {site}", found) for name, title in _given(first).items()]
        figures += [_spectrum(result, site) for result in found]
    return figures


def _given(data: xr.Dataset) -> dict[str, str]:
    """What there is to show: a sketch gives no effective rank and no entropy."""
    return {name: title for name, title in _TITLES.items() if name in data}


def _by_layer(name: str, title: str, found: Sequence[Result]) -> Figure:
    """A curve for each variant, with a band where it has several twins."""
    curves = {result.named: (result, name) for result in found}
    if name == "length_mean":
        return by_layer(title, _CAPTIONS[name] + _SPHERE, curves, least=0.0, spread="length_sd")
    # None of the others can be negative.
    return by_layer(title, _CAPTIONS[name], curves, least=-np.inf if name in ("entropy", "kurtosis_mean") else 0.0)


def _by_head(results: Results, result: Result, site: str, head: str) -> list[Figure]:
    """A map of each number, and beside it how far it is from each null."""
    figures: list[Figure] = []
    variant, label = result.variant, result.label
    for name, title in _given(result.data).items():
        source = Source(variant, label, name)
        named = f"{title} {site}, {variant}"
        figures.append(_map(result.data[name], head, named, _CAPTIONS[name], source, swept=result.swept))
        for null in result.nulls:
            compared = results.against(variant, label, null)
            z = compared[f"{name}_z"].assign_attrs(units="z")
            source = Source(variant, f"{label}.against.{null}", f"{name}_z")
            caption = z_caption(title, variant, null, compared, name)
            title_of_z = f"{title} {site}, z against {results.named_null(null)}"
            figures.append(_map(z, head, title_of_z, caption, source, 0.0, result.swept))
    return figures


def _map(
    values: xr.DataArray,
    head: str,
    title: str,
    caption: str,
    source: Source,
    centre: float | None = None,
    swept: Sequence[str] = (),
) -> Figure:
    """Layer by head or by key/value head."""
    figure = head_map(values.rename({head: "head"}), title, caption, source, centre, swept=swept)
    assert isinstance(figure, Heatmap)
    return replace(figure, column_name=head.replace("kv_", "key/value "))


def _spectrum(result: Result, site: str) -> Figure:
    """The leading eigenvalues: of the first, middle and last layer, or of the whole model's site."""
    values = result.data["spectrum"]
    kept = finite_mean(values, "layer", "component")
    return Spectrum(
        title=f"Spectrum of the covariance {site}, {result.variant}",
        caption=f"The {values.sizes['component']} largest eigenvalues.{averaged_over(values, 'layer', 'component')}",
        sources=(Source(result.variant, result.label, "spectrum"),),
        units=values.attrs["units"],
        series=some_layers(values, kept, result.variant),
    )


def warnings(label: str, found: Sequence[Result], array: str = "extreme_share") -> list[Figure]:
    """A table of the warnings that results carry, where there are any; ``array`` is what they come from."""
    rows = [(one.variant, str(one.data.attrs["warning"])) for one in found if "warning" in one.data.attrs]
    if not rows:
        return []
    return [
        Table(
            title=f"Warnings, {label}",
            caption="What to know before the numbers of this step are read.",
            sources=tuple(Source(variant, label, array) for variant, _ in rows),
            columns=("variant", "warning"),
            rows=rows,
        )
    ]
