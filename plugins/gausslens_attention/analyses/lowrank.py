"""attention.lowrank: each head's patterns beside low-rank maps: the oracle, random projections, Linformer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..maths.arrays import Floats
from ..maths.lowrank import fitted, flops, gaussian, linformer_pattern, scalars, sketched, split
from .curves import Approximation, Curves
from .patterns import Patterns, drawn_by_head

_DRAWN = ("sketch", "linformer")


class LowRank(Curves):
    """Methods by ranks, all of which store two factors of n rows."""

    ranked = True

    @property
    def needs_queries(self) -> bool:
        """Linformer projects the keys."""
        return any(m.startswith("linformer") for m in self.parameters.kinds)

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
        n, d = patterns.n, patterns.d
        for i, kind in enumerate(self.parameters.kinds):
            for j, wanted in enumerate(self.parameters.rank):
                rank = min(wanted, n)
                cost = flops(n, d, rank)
                if kind.startswith("linformer"):
                    # It has its keys to project, its scores and its softmax besides.
                    cost += flops(n, d, rank) + 5 * n * rank
                if kind == "svd+sparse":
                    cost = flops(n, d, rank // 2) + 2 * d * n * (rank - rank // 2)
                for draw in range(self.draws if kind in _DRAWN else 1):
                    yield Approximation((i, j), self._map(kind, rank, patterns, draw), scalars(n, rank), cost)

    def _projections(self, kind: str, rank: int, patterns: Patterns, draw: int) -> Floats:
        """R [head, rank, n], each head's its own."""
        what = f"{kind} {rank} {patterns.n}"
        rngs = drawn_by_head(self.context, what, patterns.layer, patterns.heads, draw)
        return np.stack([gaussian(rank, patterns.n, rng) for rng in rngs])

    def _map(self, kind: str, rank: int, patterns: Patterns, draw: int) -> Floats:
        n = patterns.n
        if kind == "svd":
            u, s, vt = patterns.svd
            return (u[..., :rank] * s[..., None, :rank]) @ vt[..., :rank, :]
        if kind == "svd+sparse":
            low, sparse = split(patterns.P, rank // 2, n * (rank - rank // 2))
            found: Floats = low + sparse
            return found
        if kind == "sketch":
            return sketched(patterns.P, self._projections(kind, rank, patterns, draw))
        if kind == "linformer":
            E = self._projections(kind, rank, patterns, draw) if rank < n else np.eye(n)
            return linformer_pattern(patterns.scores, E, E)
        return linformer_pattern(patterns.scores, *fitted(patterns.P, patterns.scores, rank))
