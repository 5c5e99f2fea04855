"""The maps of sinks.first-token: one for each variant."""

from __future__ import annotations

from typing import Any

from gausslens.figures import Figure, Heatmap, Source


def section(results: Any) -> list[Figure]:
    """Attention on the first token by layer and head; draws and swept values are averaged."""
    found = results.of("sinks.first-token")
    figures: list[Figure] = []
    for label, variant in ((label, variant) for label, by_variant in found.items() for variant in by_variant):
        mass = found[label][variant]["mass"]
        over = [dim for dim in mass.dims if dim not in ("layer", "head")]
        shown = mass.mean(over).transpose("layer", "head")
        averaged = f" Averaged over {' and '.join(map(str, over))}." if over else ""
        figures.append(
            Heatmap(
                title=f"Attention on the first token, {label}, {variant}",
                caption=f"The share of its attention that a head leaves on the first token.{averaged}",
                sources=(Source(variant, label, "mass"),),
                units="1",
                values=shown.values,
                rows=shown["layer"].values,
                columns=shown["head"].values,
                row_name="layer",
                column_name="head",
            )
        )
    return figures
