"""attention.masks: each head's patterns beside those that a mask before the softmax leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gausslens import Context

from .band import Bools, Floats
from .curves import Approximation, Curves, Seen
from .masks import bigbird, flops, longformer, masked, top_k, window


def mask_of(kind: str, keys: int, P: Floats, causal: bool, parameters: Any, context: Context) -> tuple[Bools, int]:
    """The mask with so many keys a row, and how many of its cells have places that must be stored.

    The keys of a row are those of its window, the global ones and the random ones together; rows near the ends have
    fewer.
    """
    n = P.shape[-1]
    globals_ = parameters.globals
    if kind == "top-k":
        mask = top_k(P, keys)
        return mask, int(mask.sum(axis=(-1, -2)).mean()) if mask.ndim > 2 else int(mask.sum())
    if kind in ("window", "dilated"):
        return window(n, _reach(keys, causal), causal, parameters.dilation if kind == "dilated" else 1), 0
    if kind == "longformer":
        return longformer(n, _reach(keys - globals_, causal), globals_, causal), 0
    random = (keys - globals_) // 2
    generator = context.generator(f"bigbird {keys} {n}")
    width = _reach(keys - globals_ - random, causal)
    mask = bigbird(n, width, globals_, random, generator, causal)
    return mask, int(mask.sum() - longformer(n, width, globals_, causal).sum())


def _reach(keys: int, causal: bool) -> int:
    """The width of a window of so many keys; one that looks both ways has an odd number."""
    return max(keys - 1, 0) if causal else max(keys - 1, 0) // 2


class Masked(Curves):
    """Methods by keys a row. A kept cell stores its value; where it is not told by the method, its place too."""

    @property
    def grid(self) -> dict[str, Sequence[Any]]:
        """Methods and keys."""
        return {"kind": self.parameters.kinds, "keys": self.parameters.keys}

    def approximations(self, seen: Seen) -> Iterator[Approximation]:
        """Each mask."""
        for i, kind in enumerate(self.parameters.kinds):
            for j, keys in enumerate(self.parameters.keys):
                mask, placed = mask_of(kind, keys, seen.P, seen.causal, self.parameters, self.context)
                entries = float(np.broadcast_to(mask, seen.P.shape).sum(axis=(-1, -2)).mean())
                yield Approximation((i, j), masked(seen.P, mask), entries + placed, flops(entries, seen.d))
