"""attention.masks: each head's patterns beside those that a mask before the softmax leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens import Estimate, ModelInfo, Tokens

from ..maths.masks import flops, mask_of_keys, masked
from .curves import Approximation, Curves
from .patterns import Patterns, drawn_by_head, of_maps

if TYPE_CHECKING:
    from ..parameters import MaskParameters


class Masks(Curves):
    """Methods by keys a row. A kept cell stores its value; where the method does not say its place, that too."""

    @property
    def stochastic(self) -> bool:
        """A softmax over the kept cells sums to one."""
        return True

    @property
    def draws(self) -> int:
        """BigBird has a random graph for each head."""
        return int(self.parameters.draws) if "bigbird" in self.parameters.kinds else 1

    @property
    def grid(self) -> dict[str, Sequence[Any]]:
        """Methods and keys."""
        return {"kind": self.parameters.kinds, "keys": self.parameters.keys}

    def approximations(self, patterns: Patterns) -> Iterator[Approximation]:
        """Each mask."""
        p, P = self.parameters, patterns.P
        for i, kind in enumerate(p.kinds):
            for j, keys in enumerate(p.keys):
                for draw in range(self.draws if kind == "bigbird" else 1):
                    what = f"{kind} {keys} {patterns.size}"
                    rngs = drawn_by_head(self.context, what, patterns.layer, patterns.heads, draw)
                    mask, placed = mask_of_keys(kind, keys, P, patterns.causal, p.globals, p.dilation, rngs)
                    entries = float(np.broadcast_to(mask, P.shape).sum(axis=(-1, -2)).mean())
                    yield Approximation((i, j), masked(P, mask), entries + placed, flops(entries, patterns.d))


def estimate(parameters: MaskParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:
    """By the places of the grid, drawn ones several times."""
    draws = [parameters.draws if kind == "bigbird" else 1 for kind in parameters.kinds]
    return of_maps(info, tokens, 1.2e-7 * len(parameters.keys) * sum(draws))
