"""attention.kernels: each head's patterns beside those of linear attention with its own queries and keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ..maths.kernels import features_and_flops, kernel_map, kernel_names
from .curves import Approximation, Curves
from .patterns import Patterns


class Kernels(Curves):
    """One place for each kernel; all store the features of queries and keys, as two factors of n rows."""

    ranked = True

    @property
    def needs_queries(self) -> bool:
        """Kernels are made of q and k."""
        return True

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
            X = kernel_map(label, q, k, patterns.scale, patterns.causal, self.parameters.alpha, self.context.generator)
            m, cost = features_and_flops(label, patterns.n, patterns.q.shape[-1], patterns.d, patterns.causal)
            yield Approximation((i,), np.asarray(X.numpy(), dtype=np.float64), 2 * patterns.n * m, cost)
