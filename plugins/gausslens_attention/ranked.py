"""attention.lowrank: each head's patterns beside low-rank maps: the oracle, random projections, Linformer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .band import Floats
from .curves import Approximation, Curves, Seen
from .lowrank import fitted, flops, gaussian, linformer_pattern, scalars, sketched, split


class Ranked(Curves):
    """Methods by ranks, all of which store two factors of n rows."""

    ranked = True

    @property
    def projected(self) -> bool:
        """Linformer projects the keys."""
        return any(m.startswith("linformer") for m in self.parameters.kinds)

    @property
    def grid(self) -> dict[str, Sequence[Any]]:
        """Methods and ranks."""
        return {"kind": self.parameters.kinds, "rank": self.parameters.rank}

    def approximations(self, seen: Seen) -> Iterator[Approximation]:
        """Each method at each rank."""
        for i, kind in enumerate(self.parameters.kinds):
            for j, wanted in enumerate(self.parameters.rank):
                rank = min(wanted, seen.n)
                X = self._map(kind, rank, seen)
                # Linformer has its keys to project, its scores and its softmax besides.
                more = flops(seen.n, seen.d, rank) + 5 * seen.n * rank if kind.startswith("linformer") else 0
                cost = flops(seen.n, seen.d, rank) + more
                if kind == "svd+sparse":
                    cost = flops(seen.n, seen.d, rank // 2) + 2 * seen.d * seen.n * (rank - rank // 2)
                yield Approximation((i, j), X, scalars(seen.n, rank), cost)

    def _map(self, kind: str, rank: int, seen: Seen) -> Floats:
        n = seen.n
        if kind == "svd":
            u, s, vt = seen.svd
            return (u[..., :rank] * s[..., None, :rank]) @ vt[..., :rank, :]
        if kind == "svd+sparse":
            low, sparse = split(seen.P, rank // 2, n * (rank - rank // 2))
            found: Floats = low + sparse
            return found
        if kind == "sketch":
            return sketched(seen.P, gaussian(rank, n, self.context.generator(f"sketch {rank} {n}")))
        if kind == "linformer":
            E = gaussian(rank, n, self.context.generator(f"linformer {rank} {n}")) if rank < n else np.eye(n)
            return linformer_pattern(seen.scores, E, E)
        return linformer_pattern(seen.scores, *fitted(seen.P, seen.scores, rank))
