"""bilinear.logits: the bilinear form of queries and keys, predicted from Gaussians and measured on other prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from gausslens import Batch, Context, Estimate, GausslensError, ModelInfo, Request, Tokens
from gausslens.maths.resampling import GROUPS, MOMENTS, PowerSums

from . import form
from .halves import Halves
from .pairs import Joint, Sample, token_numbers
from .rows import HIDDEN, MEASURES, Rows, bins
from .told import rows_dataset, told

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .parameters import LogitsParameters


@dataclass
class _Layer:
    """What was seen of one layer: ``joints`` by lag on the fitting half, all else on the held-out half."""

    joints: dict[int, Joint]
    content: PowerSums
    score: PowerSums
    sample: Sample
    rows: Rows

    def merge(self, other: _Layer) -> None:
        for lag, joint in other.joints.items():
            if lag in self.joints:
                self.joints[lag].merge(joint)
            else:
                self.joints[lag] = joint
        self.content.merge(other.content)
        self.score.merge(other.score)
        self.sample.merge(other.sample)
        self.rows.merge(other.rows)


class Logits:
    """One pass: Gaussians of (query, key) at each lag on some prompts, moments of their scores on the others."""

    def __init__(self, parameters: LogitsParameters, context: Context) -> None:
        assert context.tokens is not None
        self.parameters, self.info = parameters, context.model
        self.lags = (0, *parameters.lags)
        self.halves = Halves(context.tokens, parameters.holdout, "bilinear.logits")
        self.longest = max(context.tokens.lengths)
        # With a norm on q and k, what is scored is seen after position alone: content is that, turned back.
        self.turned = bool(self.info.facts.get("query_norm"))
        self.key_of = [self.info.kv_heads.index(self.info.kv_of_head[h]) for h in self.info.heads]
        self.layers: dict[int, _Layer] = {}

    def request(self) -> Request:
        """Queries and keys, and the scores and patterns they make."""
        return Request(("q_rot", "k_rot", "scores", "pattern") if self.turned else ("q", "k", "scores", "pattern"))

    def update(self, batch: Batch) -> None:
        """Take in a block of query rows; what is not square comes whole with the first."""
        assert batch.layer is not None
        seen = self.layers.setdefault(batch.layer, self._fresh())
        prompts = np.asarray(batch.prompts)
        counted = self._counted(batch)
        if batch.rows == 0:
            self._content(seen, batch.layer, batch, prompts, counted)
        self._scores(seen, batch, prompts, counted)

    def merge(self, other: Logits) -> None:
        """Take in what another shard's state has seen."""
        for layer, seen in other.layers.items():
            if layer in self.layers:
                self.layers[layer].merge(seen)
            else:
                self.layers[layer] = seen

    def result(self) -> xr.Dataset:
        """Predicted and measured, for every layer that was seen."""
        if not self.layers:
            raise GausslensError(f"bilinear.logits: no layer of {self.info.name} has queries and keys")
        order = sorted(self.layers)
        parts = [self._described(layer, self.layers[layer]).expand_dims(layer=[layer]) for layer in order]
        joined = xr.concat(parts, dim="layer", join="outer", combine_attrs="override")
        held = int(self.halves.held.sum())
        notes = {"fitted_on": f"{len(self.halves.held) - held} prompts", "measured_on": f"{held} prompts"}
        if self.info.facts.get("soft_cap"):
            notes["soft_cap"] = "scores are those before the soft cap; rows are as the model makes them"
        return joined.assign_attrs(model=self.info.name, **notes)

    def _fresh(self) -> _Layer:
        heads, lags = len(self.info.heads), len(self.lags)
        content, score = PowerSums.empty(lags, heads), PowerSums.empty(lags, heads)
        return _Layer({}, content, score, Sample(self.parameters.sample), Rows.empty(heads, self.longest))

    def _counted(self, batch: Batch) -> NDArray[np.bool_]:
        """Which tokens count, [prompt, position]."""
        mask: NDArray[np.bool_] = batch.mask.cpu().numpy().astype(bool)
        if self.parameters.tokens == "all":
            return mask
        text: NDArray[np.bool_] = mask & batch.text.cpu().numpy().astype(bool)
        if self.parameters.tokens == "text":
            text[:, 0] = False
        return text

    def _content(
        self, seen: _Layer, layer: int, batch: Batch, prompts: NDArray[np.int64], counted: NDArray[np.bool_]
    ) -> None:
        if self.turned:
            rotation = self.info.facts.rotation(layer)
            q, k = rotation.undone(batch.numpy("q_rot")), rotation.undone(batch.numpy("k_rot"))
        else:
            q, k = batch.numpy("q"), batch.numpy("k")
        held, group = self.halves.held[prompts], self.halves.group[prompts]
        scale = self.info.facts.scale(layer)
        for place, lag in enumerate(self.lags):
            pairs = counted[:, lag:] & counted[:, : counted.shape[1] - lag]
            for measured in (False, True):
                rows, late = np.nonzero(pairs & (held == measured)[:, None])
                if not len(rows):
                    continue
                query, key = q[rows, late + lag], k[rows, late][:, self.key_of]
                if measured:
                    values = scale * (query.astype(np.float64) * key).sum(axis=-1)
                    seen.content.add(values, group[rows], (place,))
                else:
                    joint = Joint.of(query, key)
                    if lag in seen.joints:
                        seen.joints[lag].merge(joint)
                    else:
                        seen.joints[lag] = joint
        rows, at = np.nonzero(counted & held[:, None])
        if len(rows):
            order = token_numbers(prompts[rows], at)
            seen.sample.add(order, prompts[rows], group[rows], q[rows, at], k[rows, at])

    def _scores(self, seen: _Layer, batch: Batch, prompts: NDArray[np.int64], counted: NDArray[np.bool_]) -> None:
        scores, pattern = batch.numpy("scores"), batch.numpy("pattern")
        held, group = self.halves.held[prompts], self.halves.group[prompts]
        queries = np.arange(batch.rows, batch.rows + scores.shape[2])
        cap = self.info.facts.get("soft_cap")
        for place, lag in enumerate(self.lags):
            late = queries[queries >= lag]
            found = scores[:, :, late - batch.rows, late - lag].transpose(0, 2, 1)
            pairs = counted[:, late] & counted[:, late - lag] & held[:, None] & (found[..., 0] > HIDDEN)
            if pairs.any():
                values = found[pairs].astype(np.float64)
                if cap:
                    values = cap * np.arctanh(np.clip(values / cap, -1 + 1e-12, 1 - 1e-12))
                seen.score.add(values, np.broadcast_to(group[:, None], pairs.shape)[pairs], (place,))
        for row in np.flatnonzero(held):
            own = np.flatnonzero(counted[row, queries])
            if len(own):
                seen.rows.add(scores[row][:, own], pattern[row][:, own], counted[row], int(group[row]))

    def _described(self, layer: int, seen: _Layer) -> xr.Dataset:
        rotation, scale = self.info.facts.rotation(layer), self.info.facts.scale(layer)
        unknown = self.info.facts.get("position") == "unknown"
        forms = [scale * rotation.between(lag) for lag in self.lags]
        heads, lags, d = len(self.info.heads), len(self.lags), self.info.d_head
        predicted = {name: np.full((heads, lags, 4), np.nan) for name in ("content", "score", "independent")}
        if 0 not in seen.joints:
            raise GausslensError(
                f"bilinear.logits: the {(~self.halves.held).sum()} prompts to fit on hold no token that counts"
            )
        mean, cov = seen.joints[0].gaussian()
        apart = cov.copy()
        apart[:, :d, d:] = apart[:, d:, :d] = 0
        for place, lag in enumerate(self.lags):
            predicted["independent"][:, place] = _moments(forms[place], mean, apart)
            if lag in seen.joints:
                z = seen.joints[lag].gaussian()
                predicted["content"][:, place] = _moments(scale * np.eye(d), *z)
                predicted["score"][:, place] = _moments(forms[place], *z)
        if unknown:
            predicted["score"][:], predicted["independent"][:, 1:] = np.nan, np.nan
        independent = seen.sample.moments(forms, heads, self.key_of)
        measured = {
            "content": [m.swapaxes(0, 1) for m in seen.content.moments()],
            "score": [m.swapaxes(0, 1) for m in seen.score.moments()],
            "independent": independent,
        }
        coords = {"head": list(self.info.heads), "lag": list(self.lags)}
        found = told(predicted, {name: (m, e) for name, (m, e) in measured.items()}, coords)
        rows = seen.rows.predicted(mean, cov, rotation, scale)
        return found.merge(rows_dataset(rows, *seen.rows.measured(), seen.rows.lows, coords["head"]))


def _moments(C: NDArray[np.float64], mean: NDArray[np.float64], cov: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean, variance, skewness and excess kurtosis [head, 4] of q^T C k for Gaussian (q, k)."""
    k = form.cumulants(C, mean, cov)
    return np.stack([k[:, 0], k[:, 1], *form.shape(k)], axis=-1)


def estimate(parameters: LogitsParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:
    """Memory: a float64 covariance of (query, key) for each layer, head and lag, twice while shards merge."""
    layers, heads, lags = len(info.layers), len(info.heads), len(parameters.lags) + 1
    joint = 8 * layers * heads * lags * (2 * info.d_head) ** 2
    sample = 4 * layers * parameters.sample * (heads + len(info.kv_heads)) * info.d_head
    longest = max(tokens.lengths, default=1) if tokens is not None else 1
    rows = 8 * layers * GROUPS * (heads * len(bins(longest)) * len(MEASURES) + longest)
    count = sum(tokens.lengths) if tokens is not None else 0
    seconds = layers * heads * lags * count * 2 * float(2 * info.d_head) ** 2 / 1e10
    disk = 8 * layers * heads * (lags * 3 * 4 * len(MOMENTS) + 11 * len(bins(longest)))
    return Estimate(memory=2 * (joint + sample + rows), disk=disk, seconds=seconds)
