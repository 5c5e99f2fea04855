"""The measures of attention approximations as named variables, averaged over prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from gausslens import ModelInfo

from .band import Floats
from .measures import BASELINES

Kept = Mapping[tuple[int, int], Mapping[str, Floats]]

TEXTS = {
    "distance": ("sum of |p - x| over a map, mean over prompts", "1"),
    "distance_per_row": ("sum of |p - x| over a row", "1"),
    "distance_per_cell": ("mean |p - x| of a cell", "1"),
    "kl": ("divergence of a row from its approximation, mixed with 1e-4 of uniform", "nat"),
    "output_error": ("error of the head's output, |(P - X) V| / |P V|", "1"),
    "excess": ("distance less that of the oracle of equal storage", "1"),
    "excess_flops": ("distance less that of the oracle of equal flops", "1"),
    "oracle": ("distance of the oracle of equal storage", "1"),
    "oracle_flops": ("distance of the oracle of equal flops", "1"),
}


def attributes(long_name: str, units: str, against: int | None = None) -> dict[str, Any]:
    """``against=0`` leaves a variable out of comparisons with a null."""
    return {"long_name": long_name, "units": units} | ({} if against is None else {"against": against})


def averaged(
    kept: Kept, model: ModelInfo, grid: Mapping[str, Sequence[Any]], tolerance: float, ranked: bool
) -> xr.Dataset:
    """Variables [layer, head, *grid]; costs [*grid]; trivial approximations [layer, head, baseline]."""
    layers = sorted({layer for layer, _ in kept})
    means, errors = over_prompts(kept, layers)
    dims = ("layer", "head", *grid)
    variables: dict[str, Any] = {}
    for kind in ("", "_flops"):
        means[f"excess{kind}"] = means["distance"] - means[f"oracle{kind}"]
    for name, (text, units) in TEXTS.items():
        # The same number in other units, and that of the oracle, need no comparison of their own.
        repeated = name in ("distance", "distance_per_cell", "oracle", "oracle_flops")
        variables[name] = (dims, means[name], attributes(text, units, 0 if repeated else None))
    for name in ("distance", "output_error"):
        text = f"standard error over prompts of: {TEXTS[name][0]} (NaN: one prompt)"
        variables[f"{name}_se"] = (dims, errors[name], attributes(text, "1", 0))
    for name, text in (("scalars", "stored scalars of a map"), ("flops", "operations of one head")):
        # Costs do not differ between layers.
        variables[name] = (tuple(grid), means[name][0], attributes(f"{text}, mean over prompts", "1", 0))
    variables |= _trivial(means)
    variables["entropy"] = (
        ("layer", "head"),
        means["entropy"],
        attributes("entropy of the rows over that of uniform rows: how soft the map is", "1"),
    )
    variables["scalars_needed"] = needed(means["output_error"], means["scalars"][0], tuple(grid), tolerance)
    coords: dict[str, Any] = {"layer": layers, "head": list(model.heads), "baseline": list(BASELINES)}
    coords |= {name: list(values) for name, values in grid.items()}
    oracle = "truncated singular value decomposition" if ranked else "the largest cells"
    notes = {"oracle": oracle, "tolerance": tolerance, "prompts": len({prompt for _, prompt in kept})}
    return xr.Dataset(variables, coords=coords, attrs=notes)


def over_prompts(kept: Kept, layers: Sequence[int]) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Mean and standard error over prompts of what was kept, [layer, ...]; prompts in the user's order."""
    prompts = sorted({prompt for _, prompt in kept})
    means, errors = {}, {}
    for name in next(iter(kept.values())):
        each = np.stack([np.stack([kept[layer, p][name] for p in prompts]) for layer in layers])
        means[name] = each.mean(axis=1)
        m = len(prompts)
        errors[name] = each.std(axis=1, ddof=1) / np.sqrt(m) if m > 1 else np.full(means[name].shape, np.nan)
    return means, errors


def needed(error: Floats, scalars: Floats, grid: tuple[str, ...], tolerance: float) -> tuple[Any, ...]:
    """The smallest storage at which an error [layer, head, *grid] is within the tolerance, for each method."""
    within = np.where(error <= tolerance, scalars, np.inf)
    over = tuple(2 + i for i, name in enumerate(grid) if name != "kind")
    least = within.min(axis=over) if over else within
    dims = ("layer", "head", *(name for name in grid if name == "kind"))
    text = f"least stored scalars with an output error of at most {tolerance:g} (NaN: none of the grid)"
    return dims, np.where(np.isfinite(least), least, np.nan), attributes(text, "1")


def _trivial(means: Mapping[str, Floats]) -> dict[str, Any]:
    found = {}
    for name in ("distance", "distance_per_row", "kl", "output_error"):
        text, units = TEXTS[name]
        found[f"trivial_{name}"] = (
            ("layer", "head", "baseline"),
            means[f"trivial_{name}"],
            attributes(f"of trivial approximations: {text}", units, 0),
        )
    return found
