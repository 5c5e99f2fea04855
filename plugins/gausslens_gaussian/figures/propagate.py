"""What the report shows of gaussian.propagate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .by_layer import by_layer

if TYPE_CHECKING:
    from gausslens import Results
    from gausslens.figures import Figure

_HOW = {"by the mean pattern": "mean", "by each prompt's own pattern": "own"}


def propagate(results: Results) -> list[Figure]:
    """For each step and variant: how well Gaussians pushed through attention predict what is measured."""
    figures: list[Figure] = []
    for found in results.by_label("gaussian.propagate").values():
        for result in found:
            for name in ("covariance", "mutual_information"):
                text = name.replace("_", " ")
                curves = {how: (result, f"{name}_error_{kind}") for how, kind in _HOW.items()}
                caption = f"Relative error of the {text} after attention, predicted from a Gaussian fit of the values "
                caption += "before it; 0 is exact. Mean over heads."
                figures.append(by_layer(f"Predicted {text}, {result.variant}", caption, curves, least=0.0))
        curves = {result.variant: (result, "value_covariance_error") for result in found}
        caption = "Relative error of the covariance of the values, predicted by pushing the Gaussian of the residual "
        caption += "stream through the norm and W_V. Mean over heads."
        figures.append(by_layer("From the residual stream to the values", caption, curves, least=0.0))
    return figures
