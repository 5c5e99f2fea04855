"""What the report shows of bilinear.energy: maps of heads, and changes of energy by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gausslens.figures import Figure, Source, head_map, null_maps

from . import shown

if TYPE_CHECKING:
    from gausslens import Results


def energy(results: Results) -> list[Figure]:
    """The cosine with gradient descent and the change of energy of each head, beside their nulls."""
    figures: list[Figure] = []
    for result in shown(results, "bilinear.energy"):
        for name, title, text in (
            (
                "cosine",
                "Cosine with the descent of the energy",
                "What a head writes beside minus the gradient of the energy of its queries: 1 where attention is a "
                "step of gradient descent, 0 where it has nothing to do with it.",
            ),
            (
                "change",
                "Change of the energy",
                "By how many nats -log sum exp of a head's scores changes by what the head itself writes; below "
                "0 it falls.",
            ),
        ):
            where = Source(result.variant, result.label, name)
            figures.append(head_map(result.data[name], f"{title}, {result.variant}", text, where, swept=result.swept))
            figures += null_maps(results, result, name, title)
    return figures
