"""attention.pooling: which scoring function of a head's own queries and keys, before position, makes its scores.

Each prompt is measured by itself: functions are fitted to one half of its cells, drawn at random, and told by what they
explain of the other half, so one with more numbers gains nothing by them alone. Where position is applied to q and k,
what the dot product leaves unexplained is what position adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Batch, Context, GausslensError, Request

from .band import Bools, Floats
from .curves import double
from .described import attributes
from .pooling import Pooling, explained, fit_additive, fit_dot, fit_multiplicative

if TYPE_CHECKING:
    from .parameters import PoolingParameters

# So many cells for each number that is fitted, at least: with fewer, what is explained says nothing.
_CELLS = 4


class Pooled:
    """Fits the scoring functions to each head's scores, prompt by prompt."""

    def __init__(self, parameters: PoolingParameters, context: Context) -> None:
        self.parameters = parameters
        self.context = context
        self.model = context.model
        self.kept: dict[tuple[int, int], dict[str, Floats]] = {}

    def request(self) -> Request:
        """Scores, and q and k before position is applied."""
        return Request(("scores", "q", "k"))

    def update(self, batch: Batch) -> None:
        """Each prompt of a shard in one layer; one with too few cells for a function tells nothing of that."""
        assert batch.layer is not None
        reads = [batch.kv_heads.index(self.model.kv_of_head[h]) for h in batch.heads]
        for row, prompt in enumerate(batch.prompts):
            n = int(batch.mask[row].sum())
            q, k = (double(batch[site][row, :n]).swapaxes(0, 1) for site in ("q", "k"))
            scores = double(batch["scores"][row, :, :n, :n])
            half = self.context.generator(f"cells {n}").random((n, n)) < 0.5
            heads = [self._head(q[i], k[j], scores[i], half) for i, j in enumerate(reads)]
            held, fitted = (np.stack(part) for part in zip(*heads, strict=True))
            self.kept[batch.layer, int(prompt)] = {"explained": held, "fitted": fitted}

    def merge(self, other: Pooled) -> None:
        """Take in another shard's prompts."""
        self.kept |= other.kept

    def end_pass(self, index: int) -> None:
        """Nothing to fix: there is one pass."""

    def result(self) -> xr.Dataset:
        """What each function explains, mean over the prompts that are long enough for it."""
        p = self.parameters
        layers = sorted({layer for layer, _ in self.kept})
        prompts = sorted({prompt for _, prompt in self.kept})
        enough = np.stack([~np.isnan(self.kept[layers[0], i]["explained"]).any(axis=0) for i in prompts])
        if not enough.any():
            raise GausslensError(
                "no prompt has enough scores to fit any of the functions to: give longer prompts, "
                "or fewer directions and hidden units"
            )
        means, errors = self._over(layers, prompts, "explained")
        fitted, _ = self._over(layers, prompts, "fitted")
        dims = ("layer", "head", "scoring")
        numbers = [self._numbers(name) for name in p.functions]
        variables: dict[str, Any] = {
            "explained": (dims, means, attributes("variance of held-out scores explained, R^2", "1")),
            "explained_se": (dims, errors, attributes("its standard error over prompts", "1", 0)),
            "explained_fitted": (dims, fitted, attributes("the same of the scores fitted to", "1", 0)),
            "numbers": (("scoring",), np.array(numbers, dtype=float), attributes("fitted numbers", "1", 0)),
            "prompts": (("scoring",), enough.sum(axis=0), attributes("prompts that are long enough", "prompts", 0)),
        }
        coords = {"layer": layers, "head": list(self.model.heads), "scoring": list(p.functions)}
        return xr.Dataset(variables, coords=coords, attrs={"directions": p.directions, "hidden": p.hidden})

    def _over(self, layers: list[int], prompts: list[int], name: str) -> tuple[Floats, Floats]:
        """Mean and standard error over the prompts that tell something [layer, head, function]."""
        each = np.stack([np.stack([self.kept[layer, p][name] for p in prompts]) for layer in layers])
        count = (~np.isnan(each)).sum(axis=1)
        mean = np.where(count > 0, np.nansum(each, axis=1) / np.maximum(count, 1), np.nan)
        apart = np.nansum((each - mean[:, None]) ** 2, axis=1)
        error = np.sqrt(apart / (np.maximum(count, 2) - 1) / np.maximum(count, 1))
        return mean, np.where(count > 1, error, np.nan)

    def _head(self, q: Floats, k: Floats, scores: Floats, half: Bools) -> tuple[Floats, Floats]:
        """What each function explains of the held-out scores of one head, and of those it is fitted to."""
        seen = np.isfinite(scores)
        near = _leading(q, self.parameters.directions), _leading(k, self.parameters.directions)
        held, fitted = [], []
        for name in self.parameters.functions:
            x, y = (q, k) if name == "dot" else near
            if min((seen & half).sum(), (seen & ~half).sum()) < _CELLS * self._numbers(name):
                held.append(np.nan)
                fitted.append(np.nan)
                continue
            found = self._fit(name, x, y, scores, half)
            held.append(explained(found.score, x, y, scores, ~half))
            fitted.append(found.explained)
        return np.array(held), np.array(fitted)

    def _fit(self, name: str, q: Floats, k: Floats, scores: Floats, half: Bools) -> Pooling:
        if name == "dot":
            return fit_dot(q, k, scores, half)
        if name == "multiplicative":
            return fit_multiplicative(q, k, scores, half)
        return fit_additive(q, k, scores, half, self.parameters.hidden, steps=self.parameters.steps)

    def _numbers(self, name: str) -> int:
        m = min(self.parameters.directions, self.model.d_head)
        return {"dot": 2, "multiplicative": m**2 + 1}.get(name, self.parameters.hidden * (2 * m + 2) + 1)


def _leading(x: Floats, directions: int) -> Floats:
    """Coordinates [n, m] of vectors [n, d] along their leading directions, to scale one; no more than there are."""
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    found: Floats = (u * s)[:, :directions] / max(float(s[0]) / len(x) ** 0.5, np.finfo(np.float64).tiny)
    return found
