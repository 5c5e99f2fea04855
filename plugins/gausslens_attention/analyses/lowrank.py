"""attention.lowrank: each head's patterns beside low-rank maps: the oracle, random projections, Linformer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens import Estimate, ModelError, ModelInfo, Request, Tokens

from ..maths.arrays import Floats
from ..maths.lowrank import fitted, flops, gaussian, linformer_pattern, scalars, sketched, split
from .curves import Approximation, Curves
from .patterns import Patterns, drawn_by_head, of_maps

if TYPE_CHECKING:
    from ..parameters import LowRankParameters

_DRAWN = ("sketch", "linformer")


class LowRank(Curves):
    """Methods by ranks, all of which store two factors, of n and of m rows."""

    ranked = True

    @property
    def needs_queries(self) -> bool:
        """Linformer projects the keys."""
        return any(m.startswith("linformer") for m in self.parameters.kinds)

    def request(self) -> Request:
        """As ever; a model without queries is told what runs without them."""
        request = super().request()
        lacking = [self.model.lacking.get(layer, {}) for layer in self.model.layers]
        lost = next((s for s in request.sites if s != "pattern" and all(s in each for each in lacking)), None)
        if self.needs_queries and lost is not None:
            others = [kind for kind in self.parameters.kinds if not kind.startswith("linformer")]
            raise ModelError(
                f"Linformer is made of queries and keys, and {self.model.name} has no site {lost!r} "
                f"({self.model.why_lacking(lost)}): leave it out, `kinds: {json.dumps(others or ['svd'])}`"
            )
        return request

    @property
    def draws(self) -> int:
        """Projections are drawn."""
        return int(self.parameters.draws) if set(_DRAWN) & set(self.parameters.kinds) else 1

    @property
    def grid(self) -> dict[str, Sequence[Any]]:
        """Methods and ranks."""
        return {"kind": self.parameters.kinds, "rank": self.parameters.rank}

    def approximations(self, patterns: Patterns) -> Iterator[Approximation]:
        """Each method at each rank."""
        n, m, d = patterns.n, patterns.m, patterns.d
        for i, kind in enumerate(self.parameters.kinds):
            for j, wanted in enumerate(self.parameters.rank):
                # Random projections are of the keys; a decomposition has no more directions than rows or columns.
                rank = min(wanted, m if kind in _DRAWN else min(n, m))
                cost = flops(n, d, rank, m)
                if kind.startswith("linformer"):
                    # It has its keys to project, its scores and its softmax besides.
                    cost += flops(n, d, rank, m) + 5 * n * rank
                if kind == "svd+sparse":
                    cost = flops(n, d, rank // 2, m) + 2 * d * _entries(patterns, rank)
                for draw in range(self.draws if kind in _DRAWN else 1):
                    yield Approximation((i, j), self._map(kind, rank, patterns, draw), scalars(n, rank, m), cost)

    def _projections(self, kind: str, rank: int, patterns: Patterns, draw: int) -> Floats:
        """R [head, rank, m], each head's its own."""
        what = f"{kind} {rank} {patterns.size}"
        rngs = drawn_by_head(self.context, what, patterns.layer, patterns.heads, draw)
        return np.stack([gaussian(rank, patterns.m, rng) for rng in rngs])

    def _map(self, kind: str, rank: int, patterns: Patterns, draw: int) -> Floats:
        if kind == "svd":
            u, s, vt = patterns.svd
            return (u[..., :rank] * s[..., None, :rank]) @ vt[..., :rank, :]
        if kind == "svd+sparse":
            low, sparse = split(patterns.P, rank // 2, _entries(patterns, rank))
            found: Floats = low + sparse
            return found
        if kind == "sketch":
            return sketched(patterns.P, self._projections(kind, rank, patterns, draw))
        if kind == "linformer":
            E = self._projections(kind, rank, patterns, draw) if rank < patterns.m else np.eye(patterns.m)
            return linformer_pattern(patterns.scores, E, E)
        return linformer_pattern(patterns.scores, *fitted(patterns.P, patterns.scores, rank))


def _entries(patterns: Patterns, rank: int) -> int:
    """The cells, of a value and a place each, that store what the upper half of a rank does."""
    return scalars(patterns.n, rank - rank // 2, patterns.m) // 2


def estimate(parameters: LowRankParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:
    """By the places of the grid, drawn ones several times."""
    draws = [parameters.draws if kind in _DRAWN else 1 for kind in parameters.kinds]
    return of_maps(info, tokens, 6e-8 * len(parameters.rank) * sum(draws))
