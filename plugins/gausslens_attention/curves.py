"""Error against budget on streamed patterns: what attention.band, .lowrank, .masks and .kernels have in common.

Each prompt is measured by itself, on its own tokens without padding, and the result is the mean over prompts: so it
does not depend on how prompts are cut into shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens import Batch, Context, Estimate, ModelInfo, Request, Tokens

from .band import Floats
from .described import averaged
from .measures import MEASURES, Oracles, baselines, entropy, measured

if TYPE_CHECKING:
    import xarray as xr

# Arrays of the size of a layer's patterns in double precision that are held at once, at most.
_HELD = 8


@dataclass(frozen=True)
class Approximation:
    """X [head, n, n] at a place of the grid; what it stores, and what computing the head's output with it takes."""

    place: tuple[int, ...]
    X: Floats
    scalars: float
    flops: float


@dataclass(frozen=True)
class Seen:
    """Patterns [head, n, n] of one layer of one prompt; values, queries and keys of each head [head, n, d]."""

    layer: int
    causal: bool
    P: Floats
    V: Floats
    q: Floats | None = None
    k: Floats | None = None
    scale: float = 1.0

    @property
    def n(self) -> int:
        """Tokens."""
        return int(self.P.shape[-1])

    @property
    def d(self) -> int:
        """Width of the values."""
        return int(self.V.shape[-1])

    @cached_property
    def svd(self) -> tuple[Floats, Floats, Floats]:
        """The singular value decomposition of each pattern: u, s, v'."""
        u, s, vt = np.linalg.svd(self.P, full_matrices=False)
        return u, s, vt

    @cached_property
    def scores(self) -> Floats:
        """Scaled q . k, without any mask."""
        assert self.q is not None
        assert self.k is not None
        found: Floats = self.q @ np.swapaxes(self.k, -1, -2) * self.scale
        return found


class Curves:
    """A stream analysis of patterns. Subclasses say which approximations there are, on a grid of named dimensions."""

    ranked = False  # whether its oracle is the singular value decomposition, or the largest cells

    def __init__(self, parameters: Any, context: Context) -> None:
        self.parameters = parameters
        self.context = context
        self.model = context.model
        self.kept: dict[tuple[int, int], dict[str, Floats]] = {}

    @property
    def projected(self) -> bool:
        """Whether it needs q and k."""
        return False

    @property
    def grid(self) -> dict[str, Sequence[Any]]:
        """The dimensions of the grid and their coordinates."""
        raise NotImplementedError

    def approximations(self, seen: Seen) -> Iterator[Approximation]:
        """Those of the grid."""
        raise NotImplementedError

    def request(self) -> Request:
        """Patterns and values, and q and k as they meet."""
        return Request(("pattern", "v", *(projected_sites(self.model) if self.projected else ())))

    def update(self, batch: Batch) -> None:
        """Measure each prompt of a shard in one layer."""
        for row, prompt in enumerate(batch.prompts):
            seen = seen_of(batch, row, self.model, self.projected)
            self.kept[seen.layer, int(prompt)] = self._measured(seen)

    def merge(self, other: Curves) -> None:
        """Take in another shard's prompts."""
        self.kept |= other.kept

    def end_pass(self, index: int) -> None:
        """Nothing to fix: there is one pass."""

    def result(self) -> xr.Dataset:
        """Means over prompts, the smallest budgets that are enough, and how sure the means are."""
        return averaged(self.kept, self.model, self.grid, self.parameters.tolerance, self.ranked)

    def _measured(self, seen: Seen) -> dict[str, Floats]:
        shape = tuple(len(values) for values in self.grid.values())
        heads = len(seen.P)
        found = {name: np.full((heads, *shape), np.nan) for name in (*MEASURES, "oracle", "oracle_flops")}
        found |= {name: np.full(shape, np.nan) for name in ("scalars", "flops")}
        oracles = Oracles(seen.P, seen.svd if self.ranked else None)
        for one in self.approximations(seen):
            here: Any = (..., *one.place)
            for name, values in measured(seen.P, one.X, seen.V).items():
                found[name][here] = values
            found["scalars"][here], found["flops"][here] = one.scalars, one.flops
            found["oracle"][here] = self._oracle(oracles, seen, one.scalars, False)
            found["oracle_flops"][here] = self._oracle(oracles, seen, one.flops, True)
        trivial = [measured(seen.P, np.broadcast_to(X, seen.P.shape), seen.V) for X in baselines(seen.n)]
        found |= {f"trivial_{name}": np.stack([t[name] for t in trivial], axis=-1) for name in MEASURES}
        return found | {"entropy": entropy(seen.P)}

    def _oracle(self, oracles: Oracles, seen: Seen, budget: float, of_flops: bool) -> Floats:
        """The distance that the best map of this storage, or of these flops when it is applied, would have."""
        if self.ranked:
            return oracles.rank(budget / ((4 * seen.d if of_flops else 2) * seen.n))
        return oracles.entries(budget / (2 * seen.d if of_flops else 2))


def seen_of(batch: Batch, row: int, model: ModelInfo, projected: bool = False) -> Seen:
    """One prompt of a batch, without padding, key/value heads given to the heads that read them."""
    assert batch.layer is not None
    P = pattern_of(batch, row)
    n = P.shape[-1]
    reads = [batch.kv_heads.index(model.kv_of_head[h]) for h in batch.heads]
    V = double(batch["v"][row, :n]).swapaxes(0, 1)[reads]
    if not projected:
        return Seen(batch.layer, model.causal, P, V)
    q, k = (double(batch[site][row, :n]).swapaxes(0, 1) for site in projected_sites(model))
    return Seen(batch.layer, model.causal, P, V, q, k[reads], scale_of(model, batch.layer))


def pattern_of(batch: Batch, row: int) -> Floats:
    """The patterns [head, n, n] of one prompt of a batch, without padding."""
    n = int(batch.mask[row].sum())
    return double(batch["pattern"][row, :, :n, :n])


def projected_sites(model: ModelInfo) -> tuple[str, str]:
    """Where q and k are as they meet: after position is applied, in models that apply it to them."""
    plain = model.facts.get("position", "learned") == "learned"
    return ("q", "k") if plain else ("q_rot", "k_rot")


def scale_of(model: ModelInfo, layer: int) -> float:
    """What q . k is multiplied by in a layer."""
    scales = model.facts.get("scale")
    return float(scales[layer]) if scales else model.d_head**-0.5


def estimate(parameters: Any, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory: patterns of one prompt in double precision, several times; disk is small."""
    longest = max(tokens.lengths, default=0) if tokens is not None else 0
    return Estimate(memory=_HELD * 8 * len(info.heads) * longest**2)


def double(tensor: Any) -> Floats:
    """A tensor of the model as an array of double precision."""
    found: Floats = tensor.detach().cpu().double().numpy()
    return found
