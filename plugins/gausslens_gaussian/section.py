"""What the report shows of gaussian.moments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Heatmap, Line, Lines, Source, Spectrum

from .curves import apart, warnings

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Results

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


def moments(results: Results) -> list[Figure]:
    """For each step: how wide, flat, ordered and long its vectors are, and the spectra of the covariances."""
    figures: list[Figure] = []
    for label, found in results.of("gaussian.moments").items():
        first = next(iter(found.values()))
        head = next((str(d) for d in ("head", "kv_head") if d in first["trace"].dims), None)
        site = f"at {first.attrs['site']}"
        figures += warnings(label, found)
        if head is not None:
            figures += _by_head(results, label, site, found, head)
        elif "layer" in first.dims:
            figures += [_by_layer(label, name, f"{title} {site}", found) for name, title in _given(first).items()]
        figures += [_spectra(label, site, variant, data) for variant, data in found.items()]
    return figures


def _given(data: xr.Dataset) -> dict[str, str]:
    """What there is to show: a sketch gives no effective rank and no entropy."""
    return {name: title for name, title in _TITLES.items() if name in data}


def _by_layer(label: str, name: str, title: str, found: dict[str, xr.Dataset]) -> Figure:
    """A curve for each variant, with a band where it has several twins."""
    first = next(iter(found.values()))
    series, caption = [], _CAPTIONS[name]
    for variant, data in found.items():
        lengths = dict(apart(variant, data["length_sd"]))
        for curve, one in apart(variant, data[name]):
            values = _flat(one, "layer")
            middle, count = values.mean(axis=1), values.shape[1]
            spread = values.std(axis=1, ddof=1) if count > 1 else None
            if name == "length_mean":
                spread = _flat(lengths[curve], "layer").mean(axis=1)
            # None of the others can be negative.
            least = -np.inf if name in ("entropy", "kurtosis_mean") else 0.0
            band = (None, None) if spread is None else (np.maximum(middle - spread, least), middle + spread)
            series.append(Line(curve if count == 1 else f"{curve}, mean of {count} twins", middle, *band))
    if name == "length_mean":
        caption += " The band is its standard deviation from token to token: a thin band is a hypersphere."
    elif any(line.low is not None for line in series):
        caption += " The band is one standard deviation over the twins."
    return Lines(
        title=title,
        caption=caption,
        sources=tuple(Source(variant, label, name) for variant in found),
        units=first[name].attrs["units"],
        x=first["layer"].values,
        x_name="layer",
        series=tuple(series),
    )


def _by_head(results: Results, label: str, site: str, found: dict[str, xr.Dataset], head: str) -> list[Figure]:
    """A map for each variant that is no null, and beside it how far it is from each null."""
    nulls = {null for variant in found for null in results.nulls(variant, label)}
    figures: list[Figure] = []
    for variant in [v for v in found if v not in nulls] or list(found):
        for name, title in _given(found[variant]).items():
            values = found[variant][name]
            source = Source(variant, label, name)
            figures.append(_map(values, head, f"{title} {site}, {variant}", _CAPTIONS[name], source))
            for null in results.nulls(variant, label):
                z = results.against(variant, label, null)[f"{name}_z"]
                source = Source(variant, f"{label}.against.{null}", f"{name}_z")
                caption = (
                    f"{title} of {variant} in standard deviations of {null} from its mean; 0 is what chance gives."
                )
                figures.append(_map(z, head, f"{title} {site}, z against {null}", caption, source, 0.0))
    return figures


def _map(
    values: xr.DataArray, head: str, title: str, caption: str, source: Source, centre: float | None = None
) -> Figure:
    """Layer by head, averaged over all else."""
    ordered = values.transpose("layer", head, ...)
    return Heatmap(
        title=title,
        caption=caption + _averaged_over(values, "layer", head),
        sources=(source,),
        units="z" if centre is not None else values.attrs["units"],
        values=ordered.values.reshape(*ordered.shape[:2], -1).mean(axis=2),
        rows=ordered["layer"].values,
        columns=ordered[head].values,
        row_name="layer",
        column_name=head.replace("kv_", "key/value "),
        centre=centre,
    )


def _spectra(label: str, site: str, variant: str, data: xr.Dataset) -> Figure:
    """The leading eigenvalues: of the first, middle and last layer, or of the whole model's site."""
    values = data["spectrum"]
    kept = ("layer", "component") if "layer" in values.dims else ("component",)
    ordered = values.transpose(*kept, ...).values
    flat = ordered.reshape(*ordered.shape[: len(kept)], -1).mean(axis=-1)
    if len(kept) == 2:
        layers = values["layer"].values
        series = tuple(Line(f"layer {layers[i]}", flat[i]) for i in sorted({0, len(layers) // 2, len(layers) - 1}))
    else:
        series = (Line(variant, flat),)
    return Spectrum(
        title=f"Spectrum of the covariance {site}, {variant}",
        caption=f"The {values.sizes['component']} largest eigenvalues.{_averaged_over(values, *kept)}",
        sources=(Source(variant, label, "spectrum"),),
        units=values.attrs["units"],
        series=series,
    )


def _averaged_over(values: xr.DataArray, *kept: str) -> str:
    """The sentence that says over what a figure averages."""
    others = [f"{d}s" for d in map(str, values.dims) if d not in kept]
    return f" Mean over {' and '.join(others)}." if others else ""


def _flat(values: xr.DataArray, first: str) -> np.ndarray:
    """[first, everything else]: draws and swept values are pooled."""
    ordered = values.transpose(first, ...).values
    return ordered.reshape(ordered.shape[0], -1)
