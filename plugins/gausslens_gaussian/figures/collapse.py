"""What the report shows of gaussian.collapse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Source, Table

from .by_layer import by_layer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gausslens import Result, Results

_CURVES = (
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


def collapse(results: Results) -> list[Figure]:
    """For each step: how far attention is from uniform, and whether tokens become alike."""
    figures: list[Figure] = []
    for label, found in results.by_label("gaussian.collapse").items():
        for name, title, caption in _CURVES:
            curves = {result.variant: (result, name) for result in found}
            log_y = name == "diameter_path"
            figures.append(by_layer(title, caption, curves, least=1e-16 if log_y else 0.0, log_y=log_y))
        figures.append(_rates(label, found))
    return figures


def _rates(label: str, found: Sequence[Result]) -> Figure:
    rows = [
        (result.variant, *(float(np.mean(result.data[name])) for name in ("collapse_rate", "collapse_rate_path")))
        for result in found
    ]
    return Table(
        title="Rate of collapse",
        caption="Nats per layer by which the diameter of a prompt's tokens falls: with the residual stream, "
        "and by attention alone. 0 is no collapse; twins are averaged.",
        sources=tuple(Source(result.variant, label, "collapse_rate") for result in found),
        units="nat/layer",
        columns=("variant", "residual stream", "attention alone"),
        rows=rows,
    )
