"""What the report shows of bilinear.logits: predicted beside measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Scatter, Source, Table, averaged, head_map, pooled_over

from . import shown

if TYPE_CHECKING:
    from gausslens import Result, Results


_FAMILIES = {"content": "Content form", "score": "True score", "independent": "Independent tokens"}


def logits(results: Results) -> list[Figure]:
    """Predicted beside measured: errors over the heads, variances and means of scores, and rows of attention."""
    figures: list[Figure] = []
    for result in shown(results, "bilinear.logits"):
        data = result.data
        figures.append(_errors(result))
        figures += [_predicted(result, moment) for moment in ("variance", "mean")]
        lag = int(data["lag"].values[min(1, data.sizes["lag"] - 1)])
        for name, title, caption in (
            ("score_variance_off", "Relative error of the predicted variance", "Predicted over measured, less 1"),
            (
                "score_kurtosis_measured",
                "Excess kurtosis of the true score",
                "0 is normal; what is heavy-tailed is above",
            ),
        ):
            where = Source(result.variant, result.label, name)
            text = f"{caption}; the true score at lag {lag}."
            figures.append(
                head_map(data[name].sel(lag=lag), f"{title}, {result.variant}", text, where, 0.0, swept=result.swept)
            )
        figures.append(_rows(result))
    return figures


def _errors(result: Result) -> Figure:
    data = result.data
    rows = []
    for family, title in _FAMILIES.items():
        for lag in data["lag"].values:
            cells: list[str | int | float] = [title, int(lag)]
            for moment in ("mean", "variance", "kurtosis"):
                off = data[f"{family}_{moment}_off"].sel(lag=lag).values
                off = off[np.isfinite(off)]
                cells += [float(q) for q in np.quantile(off, [0.1, 0.5, 0.9])] if len(off) else [float("nan")] * 3
            rows.append(cells)
    ends = ("10 %", "median", "90 %")
    return Table(
        title=f"How far predictions are off, over heads, {result.variant}",
        caption="Quantiles over all heads of all layers. Mean: predicted less measured, in standard deviations; "
        "variance: predicted over measured, less 1; kurtosis: predicted less measured. Predictions are from Gaussians "
        f"fitted on {data.attrs['fitted_on']}, measurements from {data.attrs['measured_on']} others.",
        sources=(Source(result.variant, result.label, "score_variance_off"),),
        columns=("pairs", "lag", *(f"{m}, {end}" for m in ("mean", "variance", "kurtosis") for end in ends)),
        rows=rows,
    )


def _predicted(result: Result, moment: str) -> Figure:
    """A point for each head and lag."""
    data = result.data
    measured, predicted = (data[f"score_{moment}_{end}"] for end in ("measured", "predicted"))
    lags = data["lag"].values
    x, y = (averaged(v, "lag", "layer", "head").reshape(len(lags), -1) for v in (measured, predicted))
    heads = [f"layer {layer}, head {head}" for layer in data["layer"].values for head in data["head"].values]
    return Scatter(
        title=f"{moment.capitalize()} of true scores, predicted and measured, {result.variant}",
        caption="A point for each head and lag; on the line, the Gaussian of queries and keys says it all."
        + pooled_over(result),
        sources=tuple(Source(result.variant, result.label, str(v.name)) for v in (measured, predicted)),
        units=measured.attrs["units"],
        x=x.ravel(),
        y=y.ravel(),
        x_name="measured",
        y_name="predicted",
        labels=heads * len(lags),
        groups=[f"lag {lag}" if lag else "self" for lag in lags for _ in heads],
        diagonal=True,
        log_x=moment == "variance",
        log_y=moment == "variance",
    )


def _rows(result: Result) -> Figure:
    data = result.data
    names = ("row_entropy_measured", "row_entropy_predicted")
    x, y = (averaged(data[n], "row_keys", "layer", "head") for n in names)
    keys = data["row_keys"].values
    heads = [f"layer {layer}, head {head}" for layer in data["layer"].values for head in data["head"].values]
    return Scatter(
        title=f"Entropy of attention rows, {result.variant}",
        caption="Predicted from the variance of the logits alone, and measured, over the keys that count; a "
        "point for each head and number of keys." + pooled_over(result),
        sources=tuple(Source(result.variant, result.label, n) for n in names),
        units="nats",
        x=x.ravel(),
        y=y.ravel(),
        x_name="measured",
        y_name="predicted",
        labels=heads * len(keys),
        groups=[f"{low} to {2 * low - 1} keys" for low in keys for _ in heads],
        diagonal=True,
    )
