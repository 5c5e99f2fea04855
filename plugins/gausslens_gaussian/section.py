"""What the report shows of gaussian.moments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gausslens.figures import Figure, Heatmap, Line, Lines, Source, Spectrum

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

_SCALARS = {
    "effective_rank": (
        "Effective rank",
        "How many directions the vectors fill: exp of the entropy of the covariance's eigenvalue shares. "
        "The width of the vectors is the most it can be.",
    ),
    "anisotropy": (
        "Anisotropy",
        "The share of the total variance that lies along one direction. Near 1, one direction owns the covariance.",
    ),
    "entropy": (
        "Gaussian entropy",
        "Entropy of the Gaussian with this covariance, within the directions that it fills. "
        "Compare where the rank is equal: with fewer tokens than dimensions the rank is one less than the tokens.",
    ),
    "length_mean": (
        "Length of the vectors",
        "Mean length; the band is its standard deviation from token to token. A thin band is a hypersphere.",
    ),
}


def moments(results: Any) -> list[Figure]:
    """For each step: how wide, flat, ordered and long its vectors are by layer, and the spectra of the covariances."""
    steps = results.table()
    mine = steps[steps["analysis"] == "gaussian.moments"]
    figures: list[Figure] = []
    for label, rows in mine[~mine["label"].str.contains(".against.", regex=False)].groupby("label", sort=False):
        found = {variant: results[variant, label] for variant in rows["variant"].unique()}
        figures += _of_label(str(label), found)
    return figures


def _of_label(label: str, found: dict[str, xr.Dataset]) -> list[Figure]:
    first = next(iter(found.values()))
    site = f"at {first.attrs['site']}"
    head = next((d for d in ("head", "kv_head") if d in first["trace"].dims), None)
    figures: list[Figure] = []
    for name, (title, caption) in _SCALARS.items():
        if "layer" not in first.dims:
            continue
        if head is None:
            figures.append(_by_layer(label, name, f"{title} {site}", caption, found))
        else:
            figures += [_by_head(label, name, f"{title} {site}, {v}", caption, v, found[v], head) for v in found]
    return [*figures, *(_spectra(label, site, variant, data) for variant, data in found.items())]


def _by_layer(label: str, name: str, title: str, caption: str, found: dict[str, xr.Dataset]) -> Figure:
    series = []
    for variant, data in found.items():
        values = _flat(data[name], "layer")
        middle = values.mean(axis=1)
        if name == "length_mean":
            spread = _flat(data["length_sd"], "layer").mean(axis=1)
        else:
            spread = values.std(axis=1, ddof=1) if values.shape[1] > 1 else None
        many = f", mean of {values.shape[1]} twins" if values.shape[1] > 1 else ""
        band = (None, None) if spread is None else (middle - spread, middle + spread)
        series.append(Line(variant + many, middle, *band))
    if name != "length_mean" and any(line.low is not None for line in series):
        caption += " The band is one standard deviation over the twins."
    return Lines(
        title=title,
        caption=caption,
        sources=tuple(Source(v, label, name) for v in found),
        units=next(iter(found.values()))[name].attrs["units"],
        x=next(iter(found.values()))["layer"].values,
        x_name="layer",
        series=tuple(series),
    )


def _by_head(label: str, name: str, title: str, caption: str, variant: str, data: xr.Dataset, head: str) -> Figure:
    values = data[name].transpose("layer", head, ...)
    return Heatmap(
        title=title,
        caption=caption.split(";")[0].rstrip(".") + ".",
        sources=(Source(variant, label, name),),
        units=values.attrs["units"],
        values=values.values.reshape(*values.shape[:2], -1).mean(axis=2),
        rows=data["layer"].values,
        columns=data[head].values,
        row_name="layer",
        column_name=head.replace("kv_", "key/value "),
    )


def _spectra(label: str, site: str, variant: str, data: xr.Dataset) -> Figure:
    """The leading eigenvalues of a few layers, over all else averaged."""
    series = []
    if "layer" in data.dims:
        layers = data["layer"].values
        values = data["spectrum"].transpose("layer", "component", ...).values
        for i in sorted({0, len(layers) // 2, len(layers) - 1}):
            series.append(Line(f"layer {layers[i]}", values[i].reshape(values.shape[1], -1).mean(axis=1)))
    else:
        values = data["spectrum"].transpose("component", ...).values
        series.append(Line("all", values.reshape(values.shape[0], -1).mean(axis=1)))
    more = [str(d) for d in data["spectrum"].dims if d not in ("layer", "component")]
    over = f" Averaged over {' and '.join(more)}." if more else ""
    return Spectrum(
        title=f"Spectrum of the covariance {site}, {variant}",
        caption=f"The {data.sizes['component']} largest eigenvalues of the first, middle and last layer.{over}",
        sources=(Source(variant, label, "spectrum"),),
        units=data["spectrum"].attrs["units"],
        series=tuple(series),
    )


def _flat(values: xr.DataArray, first: str) -> np.ndarray:
    """[first, everything else]: draws and swept values are pooled."""
    ordered = values.transpose(first, ...).values
    return ordered.reshape(ordered.shape[0], -1)
