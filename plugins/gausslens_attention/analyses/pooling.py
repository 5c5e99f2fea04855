"""attention.pooling: which scoring function of a head's own queries and keys, before position, makes its scores.

Queries and keys are those that meet, position apart: behind their norms, where a model norms them. Beside them the dot
product of those before the norms is told (``explained_raw``).

Each prompt is measured by itself: functions are fitted to one half of its cells, drawn at random, and judged by what
they explain of the other half, so one with more numbers gains nothing by them alone. Where position is applied to q and
k, what the dot product leaves unexplained is what position adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Batch, Context, Estimate, GausslensError, ModelInfo, Request, Tokens, variable
from gausslens.maths.resampling import mean_and_error

from ..maths.arrays import Bools, Floats
from ..maths.prompts import OfPrompts, stacked
from ..maths.scoring_functions import FittedScore, explained, fit_additive, fit_dot, fit_multiplicative
from .patterns import drawn_by_head, of_maps, of_other_keys, size_of, sizes_of, wide

if TYPE_CHECKING:
    from ..parameters import PoolingParameters

# So many cells for each number that is fitted, at least: with fewer, what is explained says nothing.
_CELLS = 4


class Pooling(OfPrompts):
    """Fits the scoring functions to each head's scores, prompt by prompt."""

    def __init__(self, parameters: PoolingParameters, context: Context) -> None:
        super().__init__()
        self.parameters = parameters
        self.context = context
        self.model = context.model
        self.sites = self.model.facts.content_sites
        self.normed = self.sites != ("q", "k")

    def request(self) -> Request:
        """Scores, and q and k as they meet; those before their norms too, where they have norms."""
        return Request(("scores", *dict.fromkeys((*self.sites, "q", "k"))))

    def update(self, batch: Batch) -> None:
        """Each prompt of a shard in one layer; one with too few cells for a function says nothing of that."""
        assert batch.layer is not None
        reads = [batch.kv_heads.index(self.model.kv_of_head[h]) for h in batch.heads]
        content = [self.model.facts.content(wide(batch, site), batch.layer) for site in self.sites]
        for row, prompt in enumerate(batch.prompts):
            n, m = sizes_of(batch, row)
            q, k = (x[row, :length].swapaxes(0, 1) for x, length in zip(content, (n, m), strict=True))
            scores = wide(batch, "scores", row, slice(None), slice(n), slice(m))
            rngs = drawn_by_head(self.context, f"cells {size_of(n, m)}", batch.layer, batch.heads, 0)
            halves = [rng.random((n, m)) < 0.5 for rng in rngs]
            heads = [self._head(q[i], k[j], scores[i], halves[i]) for i, j in enumerate(reads)]
            held_out, fitted = (np.stack(part) for part in zip(*heads, strict=True))
            found = {"explained": held_out, "fitted": fitted}
            if self.normed:
                x, y = (wide(batch, s, row, slice(length)).swapaxes(0, 1) for s, length in (("q", n), ("k", m)))
                found["raw"] = np.array([self._dot(x[i], y[j], scores[i], halves[i]) for i, j in enumerate(reads)])
            self.by_prompt[batch.layer, int(prompt)] = found

    def result(self) -> xr.Dataset:
        """What each function explains, mean over the prompts that are long enough for it."""
        p = self.parameters
        each = stacked(self.by_prompt, "explained")
        # A function is fitted to a head on a prompt that has cells enough for it.
        missing = np.isnan(each)
        enough = ~missing.any(axis=(0, 2))
        if missing.all():
            raise GausslensError(
                "no prompt has enough scores to fit any of the functions to: give longer prompts, "
                "or fewer directions and hidden units"
            )
        means, errors = mean_and_error(each, axis=1, skip_missing=True)
        fitted, _ = mean_and_error(stacked(self.by_prompt, "fitted"), axis=1, skip_missing=True)
        dims = ("layer", "head", "scoring")
        numbers = np.array([self._numbers(name) for name in p.functions], dtype=float)
        variables: dict[str, Any] = {
            "explained": variable(dims, means, "variance of held-out scores explained, R^2"),
            "explained_se": variable(dims, errors, "its standard error over prompts", against=False),
            "explained_fitted": variable(dims, fitted, "the same of the scores fitted to", against=False),
            "numbers": variable("scoring", numbers, "fitted numbers", against=False),
            "prompts": variable(
                "scoring", enough.sum(axis=0), "prompts that are long enough", "prompts", against=False
            ),
        }
        if self.normed:
            raw, errors = mean_and_error(stacked(self.by_prompt, "raw"), axis=1, skip_missing=True)
            text = "variance of held-out scores that the dot product of q and k before their norms explains, R^2"
            variables["explained_raw"] = variable(dims[:2], raw, text)
            variables["explained_raw_se"] = variable(dims[:2], errors, "its standard error over prompts", against=False)
        layers = sorted({layer for layer, _ in self.by_prompt})
        coords = {"layer": layers, "head": list(self.model.heads), "scoring": list(p.functions)}
        return xr.Dataset(variables, coords=coords, attrs=self._notes(missing))

    def _notes(self, missing: Bools) -> dict[str, Any]:
        """The parameters, and which functions lacked cells [layer, prompt, head, function] to be fitted to."""
        told = []
        for i, name in enumerate(self.parameters.functions):
            short = missing[..., i]
            if short.any():
                prompts, heads = short.any(axis=(0, 2)).sum(), short.all(axis=1).sum()
                told.append(
                    f"{name}: {prompts} of {short.shape[1]} prompts have fewer than the "
                    f"{2 * _CELLS * self._numbers(name)} scores that it takes, and {heads} of "
                    f"{short[:, 0].size} heads no number"
                )
        notes: dict[str, Any] = {"directions": self.parameters.directions, "hidden": self.parameters.hidden}
        notes |= of_other_keys(self.model)
        return notes | ({"too_short": "; ".join(told)} if told else {})

    def _head(self, q: Floats, k: Floats, scores: Floats, half: Bools) -> tuple[Floats, Floats]:
        """What each function explains of the held-out scores of one head, and of those it is fitted to."""
        visible = np.isfinite(scores)
        leading = _leading(q, self.parameters.directions), _leading(k, self.parameters.directions)
        held_out, fitted = [], []
        for name in self.parameters.functions:
            x, y = (q, k) if name == "dot" else leading
            if min((visible & half).sum(), (visible & ~half).sum()) < _CELLS * self._numbers(name):
                held_out.append(np.nan)
                fitted.append(np.nan)
                continue
            found = self._fit(name, x, y, scores, half)
            held_out.append(explained(found.score, x, y, scores, ~half))
            fitted.append(found.explained)
        return np.array(held_out), np.array(fitted)

    def _dot(self, q: Floats, k: Floats, scores: Floats, half: Bools) -> float:
        """What the dot product explains of the held-out scores of one head; NaN with too few cells."""
        visible = np.isfinite(scores)
        if min((visible & half).sum(), (visible & ~half).sum()) < _CELLS * self._numbers("dot"):
            return np.nan
        return explained(fit_dot(q, k, scores, half).score, q, k, scores, ~half)

    def _fit(self, name: str, q: Floats, k: Floats, scores: Floats, half: Bools) -> FittedScore:
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


def estimate(parameters: PoolingParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:
    """By the functions; nearly all of it are the steps of the additive fit."""
    fits = 3e-8 * parameters.steps * parameters.hidden if "additive" in parameters.functions else 0.0
    return of_maps(info, tokens, 1e-6 * len(parameters.functions) + fits)
