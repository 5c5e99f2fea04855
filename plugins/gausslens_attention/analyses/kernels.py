"""attention.kernels: each head's patterns beside those of linear attention with its own queries and keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gausslens import Estimate, ModelInfo, Tokens

from ..maths.kernels import CHUNK, features_and_flops, kernel_map, kernel_names, least_tokens, projections
from .curves import Approximation, Curves
from .patterns import Patterns, drawn_by_head, of_maps

if TYPE_CHECKING:
    from ..parameters import KernelParameters

# Copies of features, or of sums of products of keys, that are there at once: those of queries, parts, their sum.
_COPIES = 5


class Kernels(Curves):
    """One place for each kernel; all store the features of queries and keys, as two factors of n and m rows."""

    ranked = True
    fits = "least-squares takes as many tokens as a key has numbers"

    @property
    def needs_queries(self) -> bool:
        """Kernels are made of q and k."""
        return True

    @property
    def draws(self) -> int:
        """Performer's features are drawn."""
        return int(self.parameters.draws) if "performer" in self.parameters.kernels else 1

    @property
    def grid(self) -> dict[str, Sequence[Any]]:
        """Kernels, performer with its number of features."""
        return {"kind": kernel_names(self.parameters.kernels, self.parameters.features)}

    def approximations(self, patterns: Patterns) -> Iterator[Approximation]:
        """Each kernel's map; its cost is that of the linear form."""
        assert patterns.q is not None
        assert patterns.k is not None
        q, k = torch.from_numpy(patterns.q), torch.from_numpy(patterns.k)
        for i, label in enumerate(self.grid["kind"]):
            d = patterns.q.shape[-1]
            features, cost = features_and_flops(label, patterns.n, d, patterns.d, patterns.causal, patterns.m)
            scalars = (patterns.n + patterns.m) * features
            if patterns.m < least_tokens(label, d):
                yield Approximation((i,), None, scalars, cost)
                continue
            drawn = label.startswith("performer")
            for draw in range(self.draws if drawn else 1):
                directions = None
                if drawn:
                    rngs = drawn_by_head(self.context, label, patterns.layer, patterns.heads, draw)
                    directions = projections(label, q.shape[-1], rngs)
                X = kernel_map(label, q, k, patterns.scale, patterns.causal, self.parameters.alpha, directions)
                yield Approximation((i,), np.asarray(X.numpy(), dtype=np.float64), scalars, cost)


def estimate(parameters: KernelParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:
    """By the kernels, drawn ones several times; memory: features of one prompt, or the sums over its keys."""
    draws = [parameters.draws * len(parameters.features) if name == "performer" else 1 for name in parameters.kernels]
    maps = of_maps(info, tokens, 1.2e-7 * sum(draws))
    if tokens is None:
        return maps
    n, m = max(tokens.lengths, default=0), max(tokens.keys.lengths, default=0)
    labels = kernel_names(parameters.kernels, parameters.features)
    numbers = max(_numbers(label, n, m, info.d_head, info.causal) for label in labels)
    return replace(maps, memory=maps.memory + 8 * _COPIES * len(info.heads) * numbers)


def _numbers(label: str, n: int, m: int, d: int, causal: bool) -> int:
    """How many numbers of a head one copy of what a kernel makes of n queries and m keys has."""
    if label == "least-squares":
        return d**2 * (min(CHUNK, n) if causal else 1)
    features, _ = features_and_flops(label, n, d, d, causal, m)
    return max(n, m) * features
