"""Error against budget on streamed patterns: what attention.band, .lowrank, .masks and .kernels have in common.

Each prompt is measured by itself, on its own tokens without padding, and the result is the mean over prompts: so it
does not depend on how prompts are cut into shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from gausslens import Batch, Context, ModelInfo, Request, variable

from ..maths.arrays import Floats
from ..maths.measures import BASELINES, MEASURES, Oracles, baselines, entropy, measured
from ..maths.prompts import ByPrompt, over_prompts
from .patterns import Patterns, patterns_of, query_and_key_sites

_TEXTS = {
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
# The same number in other units, and that of the oracle, need no comparison of their own.
_REPEATED = ("distance", "distance_per_cell", "oracle", "oracle_flops")


@dataclass(frozen=True)
class Approximation:
    """X [head, n, n] at a place of the grid; what it stores, and what computing the head's output with it takes."""

    place: tuple[int, ...]
    X: Floats
    scalars: float
    flops: float


class Curves:
    """A stream analysis of patterns. Subclasses say which approximations there are, on a grid of named dimensions."""

    ranked = False  # whether its oracle is the singular value decomposition, or the largest cells

    def __init__(self, parameters: Any, context: Context) -> None:
        self.parameters = parameters
        self.context = context
        self.model = context.model
        self.by_prompt: dict[tuple[int, int], dict[str, Floats]] = {}

    @property
    def needs_queries(self) -> bool:
        """Whether approximations are made of q and k."""
        return False

    @property
    def grid(self) -> dict[str, Sequence[Any]]:
        """The dimensions of the grid and their coordinates."""
        raise NotImplementedError

    def approximations(self, patterns: Patterns) -> Iterator[Approximation]:
        """Those of the grid."""
        raise NotImplementedError

    def request(self) -> Request:
        """Patterns and values, and q and k as they meet."""
        return Request(("pattern", "v", *(query_and_key_sites(self.model) if self.needs_queries else ())))

    def update(self, batch: Batch) -> None:
        """Measure each prompt of a shard in one layer."""
        for row, prompt in enumerate(batch.prompts):
            patterns = patterns_of(batch, row, self.model, self.needs_queries)
            self.by_prompt[patterns.layer, int(prompt)] = self._measured(patterns)

    def merge(self, other: Curves) -> None:
        """Take in another shard's prompts."""
        self.by_prompt |= other.by_prompt

    def result(self) -> xr.Dataset:
        """Means over prompts, the smallest budgets that are enough, and how sure the means are."""
        return _dataset(self.by_prompt, self.model, self.grid, self.parameters.tolerance, self.ranked)

    def _measured(self, patterns: Patterns) -> dict[str, Floats]:
        shape = tuple(len(values) for values in self.grid.values())
        heads = len(patterns.P)
        found = {name: np.full((heads, *shape), np.nan) for name in (*MEASURES, "oracle", "oracle_flops")}
        found |= {name: np.full(shape, np.nan) for name in ("scalars", "flops")}
        oracles = Oracles(patterns.P, patterns.svd if self.ranked else None)
        for one in self.approximations(patterns):
            here: Any = (..., *one.place)
            for name, values in measured(patterns.P, one.X, patterns.V).items():
                found[name][here] = values
            found["scalars"][here], found["flops"][here] = one.scalars, one.flops
            found["oracle"][here] = self._oracle(oracles, patterns, one.scalars, False)
            found["oracle_flops"][here] = self._oracle(oracles, patterns, one.flops, True)
        P, V = patterns.P, patterns.V
        trivial = [measured(P, np.broadcast_to(X, P.shape), V) for X in baselines(patterns.n)]
        found |= {f"trivial_{name}": np.stack([t[name] for t in trivial], axis=-1) for name in MEASURES}
        return found | {"entropy": entropy(P)}

    def _oracle(self, oracles: Oracles, patterns: Patterns, budget: float, of_flops: bool) -> Floats:
        """The distance that the best map of this storage, or of these flops when it is applied, would have."""
        if self.ranked:
            return oracles.rank(budget / ((4 * patterns.d if of_flops else 2) * patterns.n))
        return oracles.entries(budget / (2 * patterns.d if of_flops else 2))


def _dataset(
    by_prompt: ByPrompt, model: ModelInfo, grid: Mapping[str, Sequence[Any]], tolerance: float, ranked: bool
) -> xr.Dataset:
    """Variables [layer, head, *grid]; costs [*grid]; trivial approximations [layer, head, baseline]."""
    layers, means, errors = over_prompts(by_prompt)
    dims = ("layer", "head", *grid)
    variables: dict[str, Any] = {}
    for kind in ("", "_flops"):
        means[f"excess{kind}"] = means["distance"] - means[f"oracle{kind}"]
    for name, (text, units) in _TEXTS.items():
        variables[name] = variable(dims, means[name], text, units, against=False if name in _REPEATED else None)
    for name in ("distance", "output_error"):
        text = f"standard error over prompts of: {_TEXTS[name][0]} (NaN: one prompt)"
        variables[f"{name}_se"] = variable(dims, errors[name], text, against=False)
    for name, text in (("scalars", "stored scalars of a map"), ("flops", "operations of one head")):
        # Costs do not differ between layers.
        variables[name] = variable(tuple(grid), means[name][0], f"{text}, mean over prompts", against=False)
    for name in ("distance", "distance_per_row", "kl", "output_error"):
        text, units = _TEXTS[name]
        name, text = f"trivial_{name}", f"of trivial approximations: {text}"
        variables[name] = variable(("layer", "head", "baseline"), means[name], text, units, against=False)
    variables["entropy"] = variable(
        ("layer", "head"),
        means["entropy"],
        "entropy of the rows over that of uniform rows: how soft the map is",
    )
    variables["scalars_needed"] = _needed(means["output_error"], means["scalars"][0], tuple(grid), tolerance)
    coords: dict[str, Any] = {"layer": layers, "head": list(model.heads), "baseline": list(BASELINES)}
    coords |= {name: list(values) for name, values in grid.items()}
    oracle = "truncated singular value decomposition" if ranked else "the largest cells"
    notes = {"oracle": oracle, "tolerance": tolerance, "prompts": len({prompt for _, prompt in by_prompt})}
    return xr.Dataset(variables, coords=coords, attrs=notes)


def _needed(error: Floats, scalars: Floats, grid: tuple[str, ...], tolerance: float) -> tuple[Any, ...]:
    """The smallest storage at which an error [layer, head, *grid] is within the tolerance, for each method."""
    within = np.where(error <= tolerance, scalars, np.inf)
    over = tuple(2 + i for i, name in enumerate(grid) if name != "kind")
    least = within.min(axis=over) if over else within
    dims = ("layer", "head", *(name for name in grid if name == "kind"))
    text = f"least stored scalars with an output error of at most {tolerance:g} (NaN: none of the grid)"
    return variable(dims, np.where(np.isfinite(least), least, np.nan), text)
