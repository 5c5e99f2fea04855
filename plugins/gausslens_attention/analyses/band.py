"""attention.band: each head's patterns beside their nearest band plus sparse error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gausslens import Estimate, ModelInfo, Tokens

from ..maths.band_plus_sparse import cells, project
from .curves import Approximation, Curves
from .patterns import Patterns, of_maps

if TYPE_CHECKING:
    from ..parameters import BandParameters


class Band(Curves):
    """Widths by budgets; a band stores its cells, an error its value and its place."""

    @property
    def stochastic(self) -> bool:
        """As asked for."""
        return bool(self.parameters.stochastic)

    @property
    def grid(self) -> dict[str, Sequence[Any]]:
        """Widths and budgets."""
        return {"w": self.parameters.w, "budget": self.parameters.budget}

    def approximations(self, patterns: Patterns) -> Iterator[Approximation]:
        """Exact projections."""
        p, n, m = self.parameters, patterns.n, patterns.m
        for i, w in enumerate(p.w):
            inside = cells(n, w, patterns.causal, m)
            outside = cells(n, m, patterns.causal, m) - inside
            for j, budget in enumerate(p.budget):
                errors = min(budget * (n if p.per == "row" else 1), outside)
                X, _ = project(patterns.P, w, errors, p.epsilon, p.stochastic)
                entries = inside + errors
                yield Approximation((i, j), X, inside + 2 * errors, 2 * entries * patterns.d)


def estimate(parameters: BandParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:
    """By the places of the grid."""
    return of_maps(info, tokens, 3e-8 * len(parameters.w) * len(parameters.budget))
