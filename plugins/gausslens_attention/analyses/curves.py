"""Error against budget on streamed patterns: what attention.band, .lowrank, .masks and .kernels have in common.

Each prompt is measured by itself, on its own tokens without padding, and the result is the mean over prompts: so it
does not depend on how prompts are cut into shards. What is random is drawn several times for each head and layer, and
told as the mean over draws; prompts that leave a fit without data have no number (NaN), and are told.
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
from ..maths.prompts import ByPrompt, OfPrompts, over_prompts, sd_over_draws
from .patterns import Patterns, has_values, of_other_keys, patterns_of, query_and_key_sites

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
# What has an error over prompts, and over draws where something is drawn.
_WITH_ERRORS = ("distance", "output_error")


@dataclass(frozen=True)
class Approximation:
    """X [head, n, m] at a place of the grid; what it stores, and what computing the head's output with it takes.

    Random ones come once for each draw. ``X`` is None where the prompt leaves a fit without data.
    """

    place: tuple[int, ...]
    X: Floats | None
    scalars: float
    flops: float


class Curves(OfPrompts):
    """A stream analysis of patterns. Subclasses say which approximations there are, on a grid of named dimensions."""

    ranked = False  # whether its oracle is the singular value decomposition, or the largest cells
    fits = ""  # what is fitted to the rows of a prompt, and how many it takes

    def __init__(self, parameters: Any, context: Context) -> None:
        super().__init__()
        self.parameters = parameters
        self.context = context
        self.model = context.model

    @property
    def needs_queries(self) -> bool:
        """Whether approximations are made of q and k."""
        return False

    @property
    def draws(self) -> int:
        """How often the random ones among the approximations are drawn: 1 where there are none."""
        return 1

    @property
    def stochastic(self) -> bool:
        """Whether rows of the approximations sum to one: then those of the oracle do."""
        return False

    @property
    def grid(self) -> dict[str, Sequence[Any]]:
        """The dimensions of the grid and their coordinates."""
        raise NotImplementedError

    def approximations(self, patterns: Patterns) -> Iterator[Approximation]:
        """Those of the grid, random ones once for each draw."""
        raise NotImplementedError

    def request(self) -> Request:
        """Patterns, values where there are any, and q and k as they meet."""
        values = ("v",) if has_values(self.model) else ()
        return Request(("pattern", *values, *(query_and_key_sites(self.model) if self.needs_queries else ())))

    def update(self, batch: Batch) -> None:
        """Measure each prompt of a shard in one layer."""
        for row, prompt in enumerate(batch.prompts):
            patterns = patterns_of(batch, row, self.model, self.needs_queries)
            self.by_prompt[patterns.layer, int(prompt)] = self._measured(patterns)

    def result(self) -> xr.Dataset:
        """Means over prompts, the smallest budgets that are enough, and how sure the means are."""
        if self.ranked:
            oracle = "truncated singular value decomposition"
        else:
            oracle = "the largest cells" + (", with rows that sum to one" if self.stochastic else "")
        notes = {"oracle": oracle, "tolerance": self.parameters.tolerance, "draws": self.draws}
        notes |= of_other_keys(self.model)
        if not has_values(self.model):
            notes["no_values"] = "there are no values: output errors and operations are not known"
        return _dataset(self.by_prompt, self.model, self.grid, notes | self._too_short())

    def _too_short(self) -> dict[str, str]:
        """The note that names how many prompts leave a fit without data."""
        layer = min((layer for layer, _ in self.by_prompt), default=0)
        each = [found["missing"] for (of, _), found in self.by_prompt.items() if of == layer]
        short = sum(bool(np.any(missing)) for missing in each)
        if not short:
            return {}
        heads = len(self.model.heads)
        return {"too_short": f"{self.fits}: {short} of {len(each)} prompts have fewer, in each of {heads} heads"}

    def _measured(self, patterns: Patterns) -> dict[str, Floats]:
        shape = tuple(len(values) for values in self.grid.values())
        heads = len(patterns.P)
        each = (self.draws, heads, *shape)
        drawn = {name: np.full(each, np.nan) for name in MEASURES}
        found = {name: np.full((heads, *shape), np.nan) for name in ("oracle", "oracle_flops")}
        found |= {name: np.full(shape, np.nan) for name in ("scalars", "flops")}
        seen, missing = np.zeros(shape, dtype=int), np.zeros(shape)
        oracles = Oracles(patterns.P, patterns.svd if self.ranked else None)
        for one in self.approximations(patterns):
            here: Any = (..., *one.place)
            # What is not drawn comes once, and stands for every draw.
            from_draw = seen[one.place]
            seen[one.place] += 1
            missing[one.place] = one.X is None
            if one.X is not None:
                for name, values in measured(patterns.P, one.X, patterns.V).items():
                    drawn[name][(slice(from_draw, None), *here)] = values
            if from_draw == 0:
                found["scalars"][here], found["flops"][here] = one.scalars, one.flops if patterns.d else np.nan
            # An oracle is the mean over the prompts that the approximation has numbers of.
            if from_draw == 0 and one.X is not None:
                found["oracle"][here] = self._oracle(oracles, patterns, one.scalars, False)
                if patterns.d:
                    found["oracle_flops"][here] = self._oracle(oracles, patterns, one.flops, True)
        found |= {name: values.mean(axis=0) for name, values in drawn.items()}
        if self.draws > 1:
            found |= {f"{name}_by_draw": drawn[name] for name in _WITH_ERRORS}
        P, V = patterns.P, patterns.V
        trivial = [measured(P, np.broadcast_to(X, P.shape), V) for X in baselines(patterns.n, patterns.m)]
        found |= {f"trivial_{name}": np.stack([t[name] for t in trivial], axis=-1) for name in MEASURES}
        return found | {"entropy": entropy(P), "missing": missing}

    def _oracle(self, oracles: Oracles, patterns: Patterns, budget: float, of_flops: bool) -> Floats:
        """The distance that the best map of this storage, or of these flops when it is applied, would have."""
        if self.ranked:
            return oracles.rank(budget / ((2 * patterns.d if of_flops else 1) * (patterns.n + patterns.m)))
        count = budget / (2 * patterns.d if of_flops else 2)
        return oracles.stochastic(count) if self.stochastic else oracles.entries(count)


def _dataset(
    by_prompt: ByPrompt, model: ModelInfo, grid: Mapping[str, Sequence[Any]], notes: Mapping[str, Any]
) -> xr.Dataset:
    """Variables [layer, head, *grid]; costs [*grid]; trivial approximations [layer, head, baseline]."""
    layers, means, errors = over_prompts(by_prompt, skip_missing=True)
    dims = ("layer", "head", *grid)
    variables: dict[str, Any] = {}
    for kind in ("", "_flops"):
        means[f"excess{kind}"] = means["distance"] - means[f"oracle{kind}"]
    for name, (text, units) in _TEXTS.items():
        variables[name] = variable(dims, means[name], text, units, against=False if name in _REPEATED else None)
    for name in _WITH_ERRORS:
        text = f"standard error over prompts of: {_TEXTS[name][0]} (NaN: one prompt)"
        variables[f"{name}_se"] = variable(dims, errors[name], text, against=False)
        if f"{name}_by_draw" in means:
            sd = sd_over_draws(np.moveaxis(means[f"{name}_by_draw"], 1, 0))
            text = f"standard deviation over draws of: {_TEXTS[name][0]} (0: nothing is drawn)"
            variables[f"{name}_draws_sd"] = variable(dims, sd, text, against=False)
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
    variables["scalars_needed"] = _needed(means["output_error"], means["scalars"][0], tuple(grid), notes["tolerance"])
    coords: dict[str, Any] = {"layer": layers, "head": list(model.heads), "baseline": list(BASELINES)}
    coords |= {name: list(values) for name, values in grid.items()}
    return xr.Dataset(variables, coords=coords, attrs={**notes, "prompts": len({prompt for _, prompt in by_prompt})})


def _needed(error: Floats, scalars: Floats, grid: tuple[str, ...], tolerance: float) -> tuple[Any, ...]:
    """The smallest storage at which an error [layer, head, *grid] is within the tolerance, for each method."""
    within = np.where(error <= tolerance, scalars, np.inf)
    over = tuple(2 + i for i, name in enumerate(grid) if name != "kind")
    least = within.min(axis=over) if over else within
    dims = ("layer", "head", *(name for name in grid if name == "kind"))
    text = f"least stored scalars with an output error of at most {tolerance:g} (NaN: none of the grid)"
    return variable(dims, np.where(np.isfinite(least), least, np.nan), text)
