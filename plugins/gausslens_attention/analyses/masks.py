"""attention.masks: each head's patterns beside those that a mask before the softmax leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..maths.masks import flops, mask_of_keys, masked
from .curves import Approximation, Curves
from .patterns import Patterns


class Masks(Curves):
    """Methods by keys a row. A kept cell stores its value; where the method does not say its place, that too."""

    @property
    def grid(self) -> dict[str, Sequence[Any]]:
        """Methods and keys."""
        return {"kind": self.parameters.kinds, "keys": self.parameters.keys}

    def approximations(self, patterns: Patterns) -> Iterator[Approximation]:
        """Each mask."""
        p, P, generator = self.parameters, patterns.P, self.context.generator
        for i, kind in enumerate(p.kinds):
            for j, keys in enumerate(p.keys):
                mask, placed = mask_of_keys(kind, keys, P, patterns.causal, p.globals, p.dilation, generator)
                entries = float(np.broadcast_to(mask, P.shape).sum(axis=(-1, -2)).mean())
                yield Approximation((i, j), masked(P, mask), entries + placed, flops(entries, patterns.d))
