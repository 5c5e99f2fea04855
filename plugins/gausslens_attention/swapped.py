"""What attention.swap puts in place of a head's pattern: a setting is a function from scores and pattern to a map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from gausslens import Context

from .band import cells, project
from .curves import double
from .kernelled import kernel_map, labels
from .lowrank import scalars, truncated
from .masked import mask_of

if TYPE_CHECKING:
    from .parameters import SwapParameters


@dataclass(frozen=True)
class Shown:
    """Scores and pattern [head, n, n] of the heads of one layer for one prompt, as the model makes them.

    q and k [head, n, d] are given to settings that need them.
    """

    scores: torch.Tensor
    pattern: torch.Tensor
    causal: bool
    q: torch.Tensor | None = None
    k: torch.Tensor | None = None
    scale: float = 1.0

    @property
    def n(self) -> int:
        """Tokens."""
        return self.pattern.shape[-1]


@dataclass(frozen=True)
class Setting:
    """One approximation: its label and method, the map it makes [head, n, n], and what that stores on n tokens."""

    label: str
    kind: str
    make: Callable[[Shown], torch.Tensor]
    stores: Callable[[int, bool], float]
    projected: bool = False  # whether it is made of q and k


def settings_of(parameters: SwapParameters, context: Context) -> list[Setting]:
    """Every setting that the parameters name."""
    p = parameters
    found = [_band(w, budget) for w in p.band for budget in p.budget]
    found += [_mask(kind, keys, p, context) for kind in p.masks for keys in p.keys]
    found += [_rank(rank) for rank in p.rank]
    return found + [_kernel(label, p, context) for label in labels(p)]


def _band(w: int, budget: int) -> Setting:
    def errors(n: int, causal: bool) -> int:
        return min(budget * n, cells(n, n, causal) - cells(n, w, causal))

    def make(shown: Shown) -> torch.Tensor:
        # Rows must go on summing to one: renormalising the kept cells is one of the nearest ways.
        X, _ = project(double(shown.pattern), w, errors(shown.n, shown.causal), stochastic=True)
        return torch.from_numpy(X)

    def stores(n: int, causal: bool) -> float:
        return cells(n, w, causal) + 2 * errors(n, causal)

    return Setting(f"band {w} + {budget}", "band", make, stores)


def _mask(kind: str, keys: int, parameters: SwapParameters, context: Context) -> Setting:
    def make(shown: Shown) -> torch.Tensor:
        mask, _ = mask_of(kind, keys, double(shown.pattern), shown.causal, parameters, context)
        kept = torch.from_numpy(np.array(mask)).to(shown.scores.device)
        weights = shown.scores.double().masked_fill(~kept, -torch.inf).softmax(dim=-1)
        # A row of which nothing is left stays as it is.
        return torch.where(weights.isnan(), shown.pattern.double(), weights)

    def stores(n: int, causal: bool) -> float:
        # Of a soft map: each row has as many keys as it may have.
        even = np.tril(np.ones((n, n))) if causal else np.ones((n, n))
        mask, placed = mask_of(kind, keys, even, causal, parameters, context)
        return float(mask.sum() + placed)

    return Setting(f"{kind} {keys}", kind, make, stores)


def _rank(rank: int) -> Setting:
    def make(shown: Shown) -> torch.Tensor:
        X = torch.from_numpy(truncated(double(shown.pattern), [min(rank, shown.n)])[0])
        return X.tril() if shown.causal else X

    return Setting(f"svd {rank}", "svd", make, lambda n, _: float(scalars(n, min(rank, n))))


def _kernel(label: str, parameters: SwapParameters, context: Context) -> Setting:
    def make(shown: Shown) -> torch.Tensor:
        assert shown.q is not None
        assert shown.k is not None
        return kernel_map(label, shown.q, shown.k, shown.scale, shown.causal, parameters.alpha, context)

    d = context.model.d_head
    wide = {"elu": d, "taylor-1": 1 + d, "taylor-2": 1 + d + d**2, "least-squares": d}
    m = wide[label] if label in wide else int(label.split()[1])
    return Setting(label, label.split()[0], make, lambda n, _: float(2 * n * m), projected=True)
