"""attention.band: each head's patterns beside their nearest band plus sparse error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .band import cells, project
from .curves import Approximation, Curves, Seen


class Banded(Curves):
    """Widths by budgets; a band stores its cells, an error its value and its place."""

    @property
    def grid(self) -> dict[str, Sequence[Any]]:
        """Widths and budgets."""
        return {"w": self.parameters.w, "budget": self.parameters.budget}

    def approximations(self, seen: Seen) -> Iterator[Approximation]:
        """Exact projections."""
        p = self.parameters
        for i, w in enumerate(p.w):
            inside = cells(seen.n, w, seen.causal)
            left = cells(seen.n, seen.n, seen.causal) - inside
            for j, budget in enumerate(p.budget):
                errors = min(budget * (seen.n if p.per == "row" else 1), left)
                X, _ = project(seen.P, w, errors, p.epsilon, p.stochastic)
                entries = inside + errors
                yield Approximation((i, j), X, inside + 2 * errors, 2 * entries * seen.d)
