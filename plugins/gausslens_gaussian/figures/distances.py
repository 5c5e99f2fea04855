"""What the report shows of gaussian.compare and gaussian.between-layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .by_layer import by_layer

if TYPE_CHECKING:
    from gausslens import Results
    from gausslens.figures import Figure

_CAPTIONS = {
    "jensen_shannon": "0 is no difference, log 2 = 0.69 the most.",
    "frechet_relative": "0 is no difference.",
}


def distances(results: Results) -> list[Figure]:
    """For each comparison of fitted Gaussians: divergence and distance by layer."""
    figures: list[Figure] = []
    for analysis in ("gaussian.compare", "gaussian.between-layers"):
        for label, found in results.by_label(analysis).items():
            for result in found:
                if "layer" not in result.data.dims or "layer_other" in result.data.dims:
                    continue
                for name, caption in _CAPTIONS.items():
                    title = f"{result.data[name].attrs['long_name']}, {label}"
                    figures.append(by_layer(title, caption, {result.variant: (result, name)}, least=0.0))
    return figures
