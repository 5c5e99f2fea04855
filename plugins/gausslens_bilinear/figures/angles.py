"""What the report shows of bilinear.angles: the angle between two tokens, beside score and attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Dial, Figure, Scatter, Source, TokenMap, averaged, head_map, null_maps, pooled_over

from . import first_twin, shown

if TYPE_CHECKING:
    from gausslens import Result, Results


def angles(results: Results) -> list[Figure]:
    """Correlations of cosines with scores and patterns, and the share of the content form that theory predicts."""
    figures: list[Figure] = []
    for result in shown(results, "bilinear.angles"):
        data = result.data
        for name, title, caption in (
            ("score_correlation_within", "Angle and score", "Within the keys of a query, which is what softmax sees."),
            ("pattern_correlation_within", "Angle and attention", "Within the keys of a query."),
        ):
            where = Source(result.variant, result.label, name)
            text = f"Correlation of the cosine between tokens. {caption}"
            figures.append(
                head_map(
                    data[name], f"{title}, {result.variant} ({result.label})", text, where, 0.0, swept=result.swept
                )
            )
            figures += null_maps(results, result, name, f"{title} ({result.label})")
        figures.append(_shares(result))
        figures += _token_maps(result)
    return figures


def _shares(result: Result) -> Figure:
    data, names = result.data, ("content_share", "content_share_predicted")
    x, y = (averaged(data[n], "layer", "head").ravel() for n in names)
    return Scatter(
        title=f"What the angle explains of the content form, {result.variant} ({result.label})",
        caption="Share of the variance: measured, and as the head's own W_Q W_K^T gives for vectors that are "
        "turned at random; untied random weights would give Var(cosine)/d_model." + pooled_over(result),
        sources=tuple(Source(result.variant, result.label, n) for n in names),
        units="1",
        x=x,
        y=y,
        x_name="measured",
        y_name="predicted",
        labels=[f"layer {layer}, head {head}" for layer in data["layer"].values for head in data["head"].values],
        diagonal=True,
    )


def _token_maps(result: Result) -> list[Figure]:
    """Of each prompt that was kept, the map of cosines and that of attention, with a slider over layers."""
    data = result.data
    figures: list[Figure] = []
    for place in range(data.sizes.get("map", 0)):
        one = data[["cosine_map", "attention_map", "map_text"]].isel(map=place)
        one = first_twin(one, "layer", "query", "key")
        text = [str(t) for t in one["map_text"].values]
        # The pair of a token with itself has cosine 1, and the first position is what heads rest on.
        for name, what, caption in (
            ("cosine_map", "Cosine", "The cosine between what the layer reads of two tokens; with itself it is 1."),
            ("attention_map", "Attention", "Mean over heads, of the same tokens."),
        ):
            values = one[name].transpose("layer", "query", "key").values
            used = np.isfinite(values).any(axis=(0, 2))
            figures.append(
                TokenMap(
                    title=f"{what} between tokens, prompt {place}, {result.variant} ({result.label})",
                    caption=f"{caption} A row is a query, a column a key that it can see.",
                    sources=(Source(result.variant, result.label, name),),
                    units="1",
                    values=values[:, used][..., used],
                    queries=[t for t, there in zip(text, used, strict=True) if there],
                    keys=[t for t, there in zip(text, used, strict=True) if there],
                    centre=0.0 if name == "cosine_map" else None,
                    dials=(Dial("layer", data["layer"].values),),
                )
            )
    return figures
