"""The approximations that attention.swap runs a model on: what makes each one's map, and what that stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from gausslens import Context

from ..maths.arrays import Bools, Floats
from ..maths.band_plus_sparse import cells, project
from ..maths.kernels import kernel_map, kernel_names, least_tokens, projections
from ..maths.lowrank import scalars, truncated
from ..maths.masks import mask_of_keys
from .patterns import double, drawn_by_head, size_of

if TYPE_CHECKING:
    from ..parameters import SwapParameters


@dataclass(frozen=True)
class LayerHeads:
    """Scores and pattern [head, n, m] of heads of one layer for one prompt, as the model makes them.

    Settings that are made of queries and keys are given q [head, n, d] and k [head, m, d] in their place. ``draw`` is
    which of several random maps is asked for.
    """

    layer: int
    heads: tuple[int, ...]
    draw: int
    scores: torch.Tensor
    pattern: torch.Tensor
    causal: bool
    q: torch.Tensor | None = None
    k: torch.Tensor | None = None
    scale: float = 1.0

    @property
    def n(self) -> int:
        """Queries."""
        return self.pattern.shape[-2]

    @property
    def m(self) -> int:
        """Keys."""
        return self.pattern.shape[-1]


@dataclass(frozen=True)
class Setting:
    """One approximation: its label and method, the map it makes [head, n, m], and what that stores, of (n, m, causal).

    ``random`` ones differ between draws; a prompt of fewer keys than ``least_tokens`` leaves a fit without data.
    """

    label: str
    kind: str
    make: Callable[[LayerHeads], torch.Tensor]
    stores: Callable[[int, int, bool], float]
    needs_queries: bool = False
    random: bool = False
    least_tokens: int = 1


def settings_of(parameters: SwapParameters, context: Context) -> list[Setting]:
    """Every setting that the parameters name."""
    p = parameters
    found = [_band(w, budget) for w in p.band for budget in p.budget]
    found += [_mask(kind, keys, p, context) for kind in p.masks for keys in p.keys]
    found += [_rank(rank) for rank in p.rank]
    return found + [_kernel(label, p, context) for label in kernel_names(p.kernels, p.features)]


def _band(w: int, budget: int) -> Setting:
    def errors(n: int, m: int, causal: bool) -> int:
        return min(budget * n, cells(n, m, causal, m) - cells(n, w, causal, m))

    def make(heads: LayerHeads) -> torch.Tensor:
        # Rows must go on summing to one: renormalising the kept cells is one of the nearest ways.
        X, _ = project(double(heads.pattern), w, errors(heads.n, heads.m, heads.causal), stochastic=True)
        return torch.from_numpy(X)

    def stores(n: int, m: int, causal: bool) -> float:
        return cells(n, w, causal, m) + 2 * errors(n, m, causal)

    return Setting(f"band {w} + {budget}", "band", make, stores)


def _mask(kind: str, keys: int, parameters: SwapParameters, context: Context) -> Setting:
    def of(P: Floats, causal: bool, rngs: list[np.random.Generator]) -> tuple[Bools, int]:
        return mask_of_keys(kind, keys, P, causal, parameters.globals, parameters.dilation, rngs)

    def make(heads: LayerHeads) -> torch.Tensor:
        what = f"{kind} {keys} {size_of(heads.n, heads.m)}"
        rngs = drawn_by_head(context, what, heads.layer, heads.heads, heads.draw) if kind == "bigbird" else []
        mask, _ = of(double(heads.pattern), heads.causal, rngs)
        kept = torch.from_numpy(np.array(mask)).to(heads.scores.device)
        weights = heads.scores.double().masked_fill(~kept, -torch.inf).softmax(dim=-1)
        # A row of which nothing is left stays as it is.
        return torch.where(weights.isnan(), heads.pattern.double(), weights)

    def stores(n: int, m: int, causal: bool) -> float:
        # Of a soft map: each row has as many keys as it may have, wherever random ones fall.
        even = np.tril(np.ones((1, n, m))) if causal else np.ones((1, n, m))
        mask, placed = of(even, causal, [np.random.default_rng(0)])
        return float(mask.sum() + placed)

    return Setting(f"{kind} {keys}", kind, make, stores, random=kind == "bigbird")


def _rank(rank: int) -> Setting:
    def make(heads: LayerHeads) -> torch.Tensor:
        X = torch.from_numpy(truncated(double(heads.pattern), [min(rank, heads.n, heads.m)])[0])
        return X.tril() if heads.causal else X

    return Setting(f"svd {rank}", "svd", make, lambda n, m, _: float(scalars(n, min(rank, n, m), m)))


def _kernel(label: str, parameters: SwapParameters, context: Context) -> Setting:
    d = context.model.d_head
    random = label.startswith("performer")

    def make(heads: LayerHeads) -> torch.Tensor:
        assert heads.q is not None
        assert heads.k is not None
        directions = None
        if random:
            rngs = drawn_by_head(context, label, heads.layer, heads.heads, heads.draw)
            directions = projections(label, heads.q.shape[-1], rngs)
        return kernel_map(label, heads.q, heads.k, heads.scale, heads.causal, parameters.alpha, directions)

    wide = {"elu": d, "taylor-1": 1 + d, "taylor-2": 1 + d + d**2, "least-squares": d}
    features = wide[label] if label in wide else int(label.split()[1])
    return Setting(
        label,
        label.split()[0],
        make,
        lambda n, m, _: float((n + m) * features),
        needs_queries=True,
        random=random,
        least_tokens=least_tokens(label, d),
    )
