"""What the report shows of gaussian.joint, propagate, collapse, and the distances between fitted Gaussians."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Heatmap, Line, Lines, Source, Table

from .curves import by_layer

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Results


def joint(results: Results) -> list[Figure]:
    """For each step and variant: information between positions, and how it decays with distance."""
    figures: list[Figure] = []
    for label, found in results.of("gaussian.joint").items():
        for variant, data in found.items():
            site = f"at {data.attrs['site']}, {variant}"
            figures += [_pairs(label, variant, site, data), _decay(label, variant, site, data)]
            if "bigram_trace" in data:
                figures.append(_bigrams(label, variant, data))
    return figures


def _pairs(label: str, variant: str, site: str, data: xr.Dataset) -> Figure:
    values = data["mutual_information"]
    kept = _averaged(values, "position", "position_other")
    return Heatmap(
        title=f"Mutual information of positions {site}",
        caption="How much two positions tell of each other, as one Gaussian over all prompts; corrected for the number "
        f"of prompts, so independence is 0.{_others(values, 'position', 'position_other')}",
        sources=(Source(variant, label, "mutual_information"),),
        units=values.attrs["units"],
        values=kept,
        rows=values["position"].values,
        columns=values["position_other"].values,
        row_name="position",
        column_name="position",
    )


def _decay(label: str, variant: str, site: str, data: xr.Dataset) -> Figure:
    values = data["decay"]
    if "layer" in values.dims:
        flat, layers = _averaged(values, "layer", "lag"), values["layer"].values
        chosen = sorted({0, len(layers) // 2, len(layers) - 1})
        series = tuple(Line(f"layer {layers[i]}", flat[i]) for i in chosen)
    else:
        series = (Line(variant, _averaged(values, "lag")),)
    return Lines(
        title=f"Decay of information {site}",
        caption=f"Mean mutual information of two positions at a distance.{_others(values, 'layer', 'lag')}",
        sources=(Source(variant, label, "decay"),),
        units=values.attrs["units"],
        x=values["lag"].values,
        x_name="distance in positions",
        series=series,
    )


def _bigrams(label: str, variant: str, data: xr.Dataset) -> Figure:
    columns = ("bigram_times", "bigram_successors", "bigram_trace", "bigram_effective_rank")
    firsts = [str(token) for token in data["first"].values]
    table = [_averaged(data[name], "first") for name in columns]
    return Table(
        title=f"What follows the most frequent tokens, {variant}",
        caption="The embeddings of the tokens that follow, as a weighted set of vectors: how many there are, how far "
        "they spread, how many directions they fill.",
        sources=tuple(Source(variant, label, name) for name in columns),
        columns=("token", "times followed", "different successors", "trace", "effective rank"),
        rows=[(token, *(float(column[i]) for column in table)) for i, token in enumerate(firsts)],
    )


def propagate(results: Results) -> list[Figure]:
    """For each step and variant: how well Gaussians pushed through attention predict what is measured."""
    figures: list[Figure] = []
    words = {"mean": "mean pattern", "own": "each prompt's own pattern"}
    for label, found in results.of("gaussian.propagate").items():
        for variant, data in found.items():
            for what, text in (("covariance", "covariance"), ("mutual_information", "mutual information")):
                names = {f"by the {how}": f"{what}_error_{kind}" for kind, how in words.items()}
                curves = {name: (variant, array, data[array]) for name, array in names.items()}
                caption = f"Relative error of the {text} after attention, predicted from a Gaussian fit of the values "
                caption += "before it; 0 is exact. Mean over heads."
                figures.append(by_layer(label, f"Predicted {text}, {variant}", caption, curves, least=0.0))
        curves = {v: (v, "value_covariance_error", data["value_covariance_error"]) for v, data in found.items()}
        caption = "Relative error of the covariance of the values, predicted by pushing the Gaussian of the residual "
        caption += "stream through the norm and W_V. Mean over heads."
        figures.append(by_layer(label, "From the residual stream to the values", caption, curves, least=0.0))
    return figures


def collapse(results: Results) -> list[Figure]:
    """For each step: how far attention is from uniform, and whether tokens become alike."""
    figures: list[Figure] = []
    for label, found in results.of("gaussian.collapse").items():
        for name, title, caption in _COLLAPSE:
            curves = {v: (v, name, data[name]) for v, data in found.items()}
            log_y = name == "diameter_path"
            figures.append(by_layer(label, title, caption, curves, least=1e-16 if log_y else 0.0, log_y=log_y))
        rows = [
            (variant, *(float(np.mean(data[name])) for name in ("collapse_rate", "collapse_rate_path")))
            for variant, data in found.items()
        ]
        figures.append(
            Table(
                title="Rate of collapse",
                caption="Nats per layer by which the diameter of a prompt's tokens falls: with the residual stream, "
                "and by attention alone. 0 is no collapse; twins are averaged.",
                sources=tuple(Source(variant, label, "collapse_rate") for variant in found),
                units="nat/layer",
                columns=("variant", "residual stream", "attention alone"),
                rows=rows,
            )
        )
    return figures


_COLLAPSE = (
    (
        "entropy_deficit",
        "Entropy deficit of attention",
        "How far the entropy of attention rows is below that of uniform ones: 0 is a uniform mixture. Mean over heads.",
    ),
    (
        "diameter",
        "Spread of tokens in the residual stream",
        "The largest distance between two tokens of a prompt, over their length.",
    ),
    (
        "diameter_path",
        "Spread of tokens by attention alone",
        "The same where attention alone carries them, without residual stream and MLP. A straight line is geometric "
        "collapse.",
    ),
)


def distances(results: Results) -> list[Figure]:
    """For each comparison of fitted Gaussians: divergence and distance by layer."""
    figures: list[Figure] = []
    for analysis in ("gaussian.compare", "gaussian.between-layers"):
        for label, found in results.of(analysis).items():
            for variant, data in found.items():
                if "layer" not in data.dims or "layer_other" in data.dims:
                    continue
                for name in ("jensen_shannon", "frechet_relative"):
                    values = data[name]
                    figures.append(
                        by_layer(
                            label,
                            f"{values.attrs['long_name']}, {label}",
                            "0 is no difference" + (", log 2 = 0.69 the most." if name == "jensen_shannon" else "."),
                            {variant: (variant, name, values)},
                            least=0.0,
                        )
                    )
    return figures


def _averaged(values: xr.DataArray, *kept: str) -> np.ndarray:
    """The values along ``kept``, all else averaged; what is infinite is left out."""
    finite = values.where(np.isfinite(values))
    with np.errstate(invalid="ignore"):
        found = finite.mean([d for d in finite.dims if d not in kept], skipna=True)
    return np.asarray(found.transpose(*[k for k in kept if k in found.dims]).values)


def _others(values: xr.DataArray, *kept: str) -> str:
    others = [f"{d}s" for d in map(str, values.dims) if d not in kept]
    return f" Mean over {' and '.join(others)}." if others else ""
