"""What the report shows of logits, circuits, angles and roles."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Dial, Figure, Line, Scatter, Source, Spectrum, Table, TokenMap
from gausslens.maths.laws import Product

from .drawing import averaged, head_map, null_maps, told
from .roles import ROLES

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Results

_FAMILIES = {"content": "Content form", "score": "True score", "independent": "Independent tokens"}
_CIRCUITS = {"qk": "W_Q W_K^T", "ov": "W_V W_O"}
_MEASURES: dict[str, tuple[str, str, float | None]] = {
    "trace_z": (
        "Trace",
        "Positive: like is matched with like (of W_V W_O: what is read is written again); negative: with its opposite. "
        "In standard deviations of a head whose two sides are unrelated, with the same spectrum.",
        0.0,
    ),
    "balance": ("Balance of eigenvalues", "Trace over the sum of the eigenvalues' moduli: 1 copies, -1 inverts.", 0.0),
    "alignment_z": (
        "Overlap of both sides",
        "Mean squared cosine between the subspaces on the head's two sides, against random subspaces.",
        0.0,
    ),
    "distance": (
        "Distance from the law of products",
        "How far the spectrum is from that of a product of two random matrices of these shapes (Kolmogorov); 0: noise.",
        None,
    ),
}


def logits(results: Results) -> list[Figure]:
    """Predicted beside measured: errors over the heads, variances and means of scores, and rows of attention."""
    figures: list[Figure] = []
    for label, variant, data in told(results, "bilinear.logits"):
        figures.append(_errors(label, variant, data))
        figures += [_predicted(label, variant, data, moment) for moment in ("variance", "mean")]
        lag = int(data["lag"].values[min(1, data.sizes["lag"] - 1)])
        for name, title, caption in (
            ("score_variance_off", "Relative error of the predicted variance", "Predicted over measured, less 1"),
            (
                "score_kurtosis_measured",
                "Excess kurtosis of the true score",
                "0 is normal; what is heavy-tailed is above",
            ),
        ):
            where = Source(variant, label, name)
            text = f"{caption}; the true score at lag {lag}."
            figures.append(head_map(data[name].sel(lag=lag), f"{title}, {variant}", text, where, 0.0))
        figures.append(_rows(label, variant, data))
    return figures


def _errors(label: str, variant: str, data: xr.Dataset) -> Figure:
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
        title=f"How far predictions are off, over heads, {variant}",
        caption="Quantiles over all heads of all layers. Mean: predicted less measured, in standard deviations; "
        "variance: predicted over measured, less 1; kurtosis: predicted less measured. Predictions are from Gaussians "
        f"fitted on {data.attrs['fitted_on']}, measurements from {data.attrs['measured_on']} others.",
        sources=(Source(variant, label, "score_variance_off"),),
        columns=("pairs", "lag", *(f"{m}, {end}" for m in ("mean", "variance", "kurtosis") for end in ends)),
        rows=rows,
    )


def _predicted(label: str, variant: str, data: xr.Dataset, moment: str) -> Figure:
    """A point for each head and lag."""
    measured, predicted = (data[f"score_{moment}_{end}"] for end in ("measured", "predicted"))
    lags = data["lag"].values
    x, y = (averaged(v, "lag", "layer", "head").reshape(len(lags), -1) for v in (measured, predicted))
    heads = [f"layer {layer}, head {head}" for layer in data["layer"].values for head in data["head"].values]
    return Scatter(
        title=f"{moment.capitalize()} of true scores, predicted and measured, {variant}",
        caption="A point for each head and lag; on the line, the Gaussian of queries and keys says it all.",
        sources=tuple(Source(variant, label, str(v.name)) for v in (measured, predicted)),
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


def _rows(label: str, variant: str, data: xr.Dataset) -> Figure:
    names = ("row_entropy_measured", "row_entropy_predicted")
    x, y = (averaged(data[n], "row_keys", "layer", "head") for n in names)
    keys = data["row_keys"].values
    heads = [f"layer {layer}, head {head}" for layer in data["layer"].values for head in data["head"].values]
    return Scatter(
        title=f"Entropy of attention rows, {variant}",
        caption="Predicted from the variance of the logits alone, and measured, over the keys that count; a "
        "point for each head and number of keys.",
        sources=tuple(Source(variant, label, n) for n in names),
        units="nats",
        x=x.ravel(),
        y=y.ravel(),
        x_name="measured",
        y_name="predicted",
        labels=heads * len(keys),
        groups=[f"{low} to {2 * low - 1} keys" for low in keys for _ in heads],
        diagonal=True,
    )


def alignment(results: Results) -> list[Figure]:
    """What each head's circuits match, the spectrum furthest from noise beside its law, and who composes with whom."""
    figures: list[Figure] = []
    for label, variant, data in told(results, "bilinear.alignment"):
        for circuit, formula in _CIRCUITS.items():
            for measure, (title, caption, centre) in _MEASURES.items():
                name = f"{circuit}_{measure}"
                where = Source(variant, label, name)
                figures.append(head_map(data[name], f"{title} of {formula}, {variant}", caption, where, centre))
            figures.append(_product(label, variant, data, circuit, formula))
            figures += null_maps(results, label, variant, f"{circuit}_balance", f"Balance of {formula}")
        if "q_composition_z" in data:
            figures.append(_composition(label, variant, data))
    return figures


def _product(label: str, variant: str, data: xr.Dataset, circuit: str, formula: str) -> Figure:
    """The head furthest from the law of products, with that law drawn over."""
    distances = averaged(data[f"{circuit}_distance"], "layer", "head")
    i, j = np.unravel_index(int(np.nanargmax(np.where(np.isfinite(distances), distances, -1))), distances.shape)
    values = averaged(data[f"{circuit}_squared"], "layer", "head", "component")[i, j]
    values = values[np.isfinite(values)]
    width = int(data.attrs["d_model"])
    law = Product(width, len(values), width, 1.0)
    law = replace(law, variance=float(values.mean()) / law.mean)
    layer, head = data["layer"].values[i], data["head"].values[j]
    return Spectrum(
        title=f"{formula} of layer {layer}, head {head}, {variant}",
        caption="Squared singular values, and those expected of a product of two random matrices of the same shapes "
        "with the same sum (free multiplicative convolution); the head is the one furthest from that law.",
        sources=(Source(variant, label, f"{circuit}_squared"),),
        units=data[f"{circuit}_squared"].attrs["units"],
        series=(Line(variant, values), Line("law of products of noise", law.typical(), reference=True)),
        edges=law.edges,
    )


def _composition(label: str, variant: str, data: xr.Dataset, most: int = 8) -> Figure:
    rows: list[tuple[str, int, int, int, int, float, float]] = []
    for kind in "qkv":
        z = averaged(data[f"{kind}_composition_z"], "layer", "head", "from_layer", "from_head")
        ratio = averaged(data[f"{kind}_composition"], "layer", "head", "from_layer", "from_head")
        order = np.argsort(-np.nan_to_num(z, nan=-np.inf), axis=None)[:most]
        for to, into, source, out in np.stack(np.unravel_index(order, z.shape), axis=-1).tolist():
            writer = int(data["from_layer"].values[source]), int(data["from_head"].values[out])
            reader = int(data["layer"].values[to]), int(data["head"].values[into])
            numbers = float(ratio[to, into, source, out]), float(z[to, into, source, out])
            rows.append((kind.upper(), *writer, *reader, *numbers))
    return Table(
        title=f"Which heads compose, {variant}",
        caption="The strongest pairs of an earlier head's output with a later one's queries (Q), keys (K), values (V): "
        "|C1 C2| / (|C1| |C2|), and its z against heads of the same spectra turned at random.",
        sources=tuple(Source(variant, label, f"{kind}_composition_z") for kind in "qkv"),
        columns=("kind", "from layer", "from head", "to layer", "to head", "composition", "z"),
        rows=[row for row in rows if np.isfinite(row[-1])],
    )


def angles(results: Results) -> list[Figure]:
    """Correlations of cosines with scores and patterns, and the share of the content form that theory predicts."""
    figures: list[Figure] = []
    for label, variant, data in told(results, "bilinear.angles"):
        for name, title, caption in (
            ("score_correlation_within", "Angle and score", "Within the keys of a query, which is what softmax sees."),
            ("pattern_correlation_within", "Angle and attention", "Within the keys of a query."),
        ):
            where, text = Source(variant, label, name), f"Correlation of the cosine between tokens. {caption}"
            figures.append(head_map(data[name], f"{title}, {variant} ({label})", text, where, 0.0))
            figures += null_maps(results, label, variant, name, f"{title} ({label})")
        names = ("content_share", "content_share_predicted")
        heads = [f"layer {layer}, head {head}" for layer in data["layer"].values for head in data["head"].values]
        x, y = (averaged(data[n], "layer", "head").ravel() for n in names)
        figures.append(
            Scatter(
                title=f"What the angle explains of the content form, {variant} ({label})",
                caption="Share of the variance: measured, and as the head's own W_Q W_K^T gives for vectors that are "
                "turned at random; untied random weights would give Var(cosine)/d_model.",
                sources=tuple(Source(variant, label, n) for n in names),
                units="1",
                x=x,
                y=y,
                x_name="measured",
                y_name="predicted",
                labels=heads,
                diagonal=True,
            )
        )
        figures += _side_by_side(label, variant, data)
    return figures


def _side_by_side(label: str, variant: str, data: xr.Dataset) -> list[Figure]:
    """Of each prompt that was kept, the map of cosines and that of attention, with a slider over layers."""
    figures: list[Figure] = []
    for place in range(data.sizes.get("map", 0)):
        one = data[["cosine_map", "attention_map", "map_text"]].isel(map=place)
        one = one.isel({d: 0 for d in one.dims if d not in ("layer", "query", "key")})  # the first twin
        text = [str(t) for t in one["map_text"].values]
        # The pair of a token with itself has cosine 1, and the first position is what heads rest on.
        for name, what, caption in (
            ("cosine_map", "Cosine", "The cosine between what the layer reads of two tokens; with itself it is 1."),
            ("attention_map", "Attention", "Mean over heads, of the same tokens."),
        ):
            values = one[name].transpose("layer", "query", "key").values
            shown = np.isfinite(values).any(axis=(0, 2))
            figures.append(
                TokenMap(
                    title=f"{what} between tokens, prompt {place}, {variant} ({label})",
                    caption=f"{caption} A row is a query, a column a key that it can see.",
                    sources=(Source(variant, label, name),),
                    units="1",
                    values=values[:, shown][..., shown],
                    queries=[t for t, there in zip(text, shown, strict=True) if there],
                    keys=[t for t, there in zip(text, shown, strict=True) if there],
                    centre=0.0 if name == "cosine_map" else None,
                    dials=(Dial("layer", data["layer"].values),),
                )
            )
    return figures


def roles(results: Results) -> list[Figure]:
    """A map for each role, and for position."""
    figures: list[Figure] = []
    for label, variant, data in told(results, "bilinear.head-roles"):
        for role, what in ROLES.items():
            known = data[f"{role}_chance"].values
            if not np.isfinite(known).any():  # no token came twice
                continue
            chance = float(np.nanmean(known))
            text = f"Mean attention to {what}; even attention would give {chance:.3f}."
            figures.append(head_map(data[role], f"{role.capitalize()}, {variant}", text, Source(variant, label, role)))
            if role in ("previous", "induction"):
                figures += null_maps(results, label, variant, role, role.capitalize())
        text = "The share of a head's departure from even attention that is the same whatever the tokens are."
        where = Source(variant, label, "positional")
        figures.append(head_map(data["positional"], f"Position alone, {variant}", text, where))
    return figures
