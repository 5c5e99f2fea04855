"""What the report shows of bilinear.head-roles: a map for each role."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Source, head_map, null_maps

from ..analyses.head_roles import ROLES
from . import shown

if TYPE_CHECKING:
    from gausslens import Results


def head_roles(results: Results) -> list[Figure]:
    """A map for each role, and for position."""
    figures: list[Figure] = []
    for result in shown(results, "bilinear.head-roles"):
        data = result.data
        for role, what in ROLES.items():
            if not np.isfinite(data[role]).any():  # no token came twice
                continue
            chance = data[f"{role}_chance"].values
            text = f"Mean attention to {what}"
            # Of a family that nobody knows it is not known what even attention would give.
            text += f"; even attention would give {np.nanmean(chance):.3f}." if np.isfinite(chance).any() else "."
            where = Source(result.variant, result.label, role)
            figures.append(
                head_map(data[role], f"{role.capitalize()}, {result.variant}", text, where, swept=result.swept)
            )
            if role in ("previous", "induction"):
                figures += null_maps(results, result, role, role.capitalize())
        text = "The share of a head's departure from even attention that is the same whatever the tokens are."
        where = Source(result.variant, result.label, "positional")
        figures.append(
            head_map(data["positional"], f"Position alone, {result.variant}", text, where, swept=result.swept)
        )
    return figures
