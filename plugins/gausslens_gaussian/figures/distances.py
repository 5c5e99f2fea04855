"""What the report shows of gaussian.compare and gaussian.between-layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .by_layer import by_layer
from .moments import warnings

if TYPE_CHECKING:
    from gausslens import Result, Results
    from gausslens.figures import Figure

_FLOOR = "equal Gaussians of so many vectors"
# Title, caption, and the curves: what is drawn where there is a floor, and what is left without.
_OF_SHAPE = (
    "Distance of shape",
    "Both covariances at trace 1, so that size plays no part: 0 is the same shape, 1.41 no direction in common. What "
    "the best rotation leaves is the difference of the spectra.",
    {"as they are": "shape_distance", "after the best rotation": "spectrum_distance", _FLOOR: "shape_of_equals"},
)
_OF_DIVERGENCE = (
    "Divergence of shape",
    "Mean of both Kullback-Leibler divergences for each dimension, of covariances at trace 1 and shrunken: finite for "
    "any number of vectors.",
    {"as they are": "shape_divergence", _FLOOR: "divergence_of_equals"},
)
_OF_SCALE = (
    "Difference of scale",
    "Log of the ratio of the roots of the traces: 0 is the same size, 0.69 twice as wide.",
    {"log ratio": "scale_log_ratio"},
)
_CAPTIONS = {
    "jensen_shannon": "0 is no difference, log 2 = 0.69 the most; where it is at its most, distances of shape and of "
    "scale tell more.",
    "frechet_relative": "0 is no difference; size and shape together.",
}


def distances(results: Results) -> list[Figure]:
    """For each comparison of fitted Gaussians: scale, shape and divergence by layer, and what to beware of."""
    figures: list[Figure] = []
    for analysis in ("gaussian.compare", "gaussian.between-layers"):
        for label, found in results.by_label(analysis).items():
            figures += warnings(label, found, "vectors_per_dimension")
            for result in found:
                if "layer" in result.data.dims and "layer_other" not in result.data.dims:
                    # A comparison of variants belongs to none of them.
                    where = label if analysis == "gaussian.compare" else f"{label}, {result.variant}"
                    figures += _of_result(where, result)
    return figures


def _of_result(where: str, result: Result) -> list[Figure]:
    figures: list[Figure] = []
    for title, caption, curves in (_OF_SCALE, _OF_SHAPE, _OF_DIVERGENCE):
        # Results of before these were measured, and those without pairs of equals, have fewer.
        given = {name: (result, array) for name, array in curves.items() if array in result.data}
        if given:
            least = -np.inf if title == _OF_SCALE[0] else 0.0
            figures.append(by_layer(f"{title}, {where}", caption, given, least=least))
    for name, caption in _CAPTIONS.items():
        title = f"{result.data[name].attrs['long_name']}, {where}"
        figures.append(by_layer(title, caption, {result.variant: (result, name)}, least=0.0))
    return figures
