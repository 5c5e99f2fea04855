"""attention.kernels: each head's patterns beside those of linear attention with its own queries and keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from gausslens import Context

from .band import Floats
from .curves import Approximation, Curves, Seen
from .kernels import (
    CHUNK,
    Features,
    elu,
    flops,
    least_squares_pattern,
    orthogonal,
    performer,
    quadratic,
    taylor1,
    taylor2,
)

_FIXED: dict[str, Features] = {"elu": elu, "taylor-1": taylor1, "taylor-2": taylor2}


def labels(parameters: Any) -> list[str]:
    """One name for each kernel and number of features."""
    found = []
    for kernel in parameters.kernels:
        found += [f"performer {m}" for m in parameters.features] if kernel == "performer" else [kernel]
    return found


def kernel_map(
    label: str, q: torch.Tensor, k: torch.Tensor, scale: float, causal: bool, alpha: float, context: Context
) -> torch.Tensor:
    """The map [..., query, key] that a kernel makes of queries and keys [..., n, d]."""
    root = scale**0.5
    q, k = q.double() * root, k.double() * root
    if label == "least-squares":
        return least_squares_pattern(q, k, alpha, causal)
    features = _FIXED.get(label) or _performer(int(label.split()[1]), q.shape[-1], context)
    return quadratic(features(q, True), features(k, False), causal)


def _performer(m: int, d: int, context: Context) -> Features:
    seed = int(context.generator(f"performer {m}").integers(2**62))
    return performer(orthogonal(m, d, seed))


class Kernelled(Curves):
    """One place for each kernel; all store the features of queries and keys, as two factors of n rows."""

    ranked = True

    @property
    def projected(self) -> bool:
        """Kernels are made of q and k."""
        return True

    @property
    def grid(self) -> dict[str, Sequence[Any]]:
        """Kernels, performer with its number of features."""
        return {"kind": labels(self.parameters)}

    def approximations(self, seen: Seen) -> Iterator[Approximation]:
        """Each kernel's map; its cost is that of the linear form."""
        assert seen.q is not None
        assert seen.k is not None
        q, k = torch.from_numpy(seen.q), torch.from_numpy(seen.k)
        for i, label in enumerate(self.grid["kind"]):
            X = kernel_map(label, q, k, seen.scale, seen.causal, self.parameters.alpha, self.context)
            m, cost = _cost(label, seen.n, seen.q.shape[-1], seen.d, seen.causal)
            yield Approximation((i,), _array(X), 2 * seen.n * m, cost)


def _cost(label: str, n: int, d: int, d_v: int, causal: bool) -> tuple[int, int]:
    """Features, and flops of the linear form; causal forms make the map within chunks besides."""
    if label == "least-squares":
        solves = n * (2 * d**3 // 3 + 4 * d**2) if causal else 2 * d**3 // 3 + 2 * d**2 * d_v + 2 * n * d**2
        return d, solves + 4 * n * d * d_v + (2 * n * min(CHUNK, n) * (d + d_v) if causal else 0)
    fixed = {"elu": (d, 2 * d), "taylor-1": (d + 1, 4 * d), "taylor-2": (1 + d + d**2, 2 * d**2)}
    if label in fixed:
        m, of_features = fixed[label]
    else:
        m = int(label.split()[1])
        of_features = 2 * d * m + 4 * m + 3 * d
    return m, flops(n, m, d_v, of_features) + (2 * n * min(CHUNK, n) * (m + d_v + 1) if causal else 0)


def _array(tensor: torch.Tensor) -> Floats:
    found: Floats = np.asarray(tensor.numpy(), dtype=np.float64)
    return found
