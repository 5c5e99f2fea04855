"""bilinear.logits: the bilinear form of queries and keys, predicted from Gaussians and measured on other prompts.

Queries and keys are those that meet in the scores, position apart: behind their norms, where they have norms. What the
form is of those before their norms is measured beside it (``content_raw``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from gausslens import (
    Batch,
    Context,
    Estimate,
    GausslensError,
    InputError,
    ModelInfo,
    Request,
    Tokens,
    merge_each,
    variable,
)
from gausslens.maths.moments import Arrays, arrays_of, parted, put_arrays, put_each
from gausslens.maths.resampling import GROUPS, MOMENTS, PowerSums, split_prompts
from gausslens.maths.rotary import Rotation

from ..maths import bilinear_form as form
from ..maths.attention_rows import HIDDEN, MEASURES, Rows, bins
from ..maths.query_key_pairs import Joint, Sample, token_numbers

if TYPE_CHECKING:
    from ..parameters import LogitsParameters


Floats: TypeAlias = NDArray[np.float64]

_FAMILIES = {
    "content": "content form <W_q x, W_k y>/sqrt(d_head) of tokens at this lag, without position",
    "score": "true score of tokens at this lag",
    "independent": "score of tokens of different prompts, as if at this lag",
}
_RAW = "form of q and k before their norms, which no score sees"
_UNITS = {"mean": "logits", "variance": "logits squared", "skewness": "1", "kurtosis": "1"}
_OFF = {
    "mean": "(predicted - measured) / measured standard deviation",
    "variance": "predicted / measured - 1",
    "skewness": "predicted - measured",
    "kurtosis": "predicted - measured",
}
_NAMES = {"kurtosis": "excess kurtosis"}
_ROWS = {
    "entropy": ("entropy of a row over the keys that count", "nats"),
    "concentration": ("sum of the squared probabilities of such a row", "1"),
    "variance": ("variance of the logits within a row", "logits squared"),
    "outside": ("share of a row that goes to keys that do not count", "1"),
}


@dataclass
class _Layer:
    """What was seen of one layer: ``joints`` by lag on the fitting half, all else on the held-out half."""

    joints: dict[int, Joint]
    content: PowerSums
    score: PowerSums
    sample: Sample
    rows: Rows
    raw: PowerSums

    def merge(self, other: _Layer) -> None:
        merge_each(self.joints, other.joints)
        self.content.merge(other.content)
        self.raw.merge(other.raw)
        self.score.merge(other.score)
        self.sample.merge(other.sample)
        self.rows.merge(other.rows)


class Logits:
    """One pass: Gaussians of (query, key) at each lag on some prompts, moments of their scores on the others."""

    def __init__(self, parameters: LogitsParameters, context: Context) -> None:
        assert context.tokens is not None
        self.parameters, self.info = parameters, context.model
        self.lags = (0, *parameters.lags)
        self.held_out, self.group = _split(context.tokens, parameters.holdout)
        self.longest = max(context.tokens.lengths)
        facts = self.info.facts
        # Of a family that nobody knows there are measured scores and rows; what the scale of a score enters is missing.
        self.known = facts.position_is_known or "scale" in facts
        # With a norm on q and k, what is scored is seen after position alone: content is that, turned back.
        self.sites = facts.content_sites
        self.normed = self.sites != ("q", "k")
        self.cap = facts.soft_cap if self.known else None
        self.key_of = [self.info.kv_heads.index(self.info.kv_of_head[h]) for h in self.info.heads]
        self.layers: dict[int, _Layer] = {}

    def request(self) -> Request:
        """Queries and keys, and the scores and patterns they make."""
        return Request((*dict.fromkeys((*self.sites, "q", "k")), "scores", "pattern"))

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
        merge_each(self.layers, other.layers)

    def state(self) -> Arrays:
        """All that was seen, by paths as ``3/joints/1/outer``."""
        return arrays_of(self.layers)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what ``state`` gave."""
        self.layers = {int(layer): self._restored(arrays) for layer, arrays in parted(state).items()}

    def _restored(self, arrays: Arrays) -> _Layer:
        inner = parted(arrays)
        joints = put_each(Joint.empty, inner.pop("joints", {}))
        seen = self._fresh()
        for name, own in inner.items():
            put_arrays(getattr(seen, name), own)
        return replace(seen, joints=joints)

    def result(self) -> xr.Dataset:
        """Predicted and measured, for every layer that was seen."""
        if not self.layers:
            raise GausslensError(f"bilinear.logits: no layer of {self.info.name} has queries and keys")
        order = sorted(self.layers)
        parts = [self._described(layer, self.layers[layer]).expand_dims(layer=[layer]) for layer in order]
        joined = xr.concat(parts, dim="layer", join="outer", combine_attrs="override")
        held_out = int(self.held_out.sum())
        notes = {"fitted_on": f"{len(self.held_out) - held_out} prompts", "measured_on": f"{held_out} prompts"}
        if self.cap:
            notes["soft_cap"] = "scores are those before the soft cap; rows are as the model makes them"
        return joined.assign_attrs(model=self.info.name, **notes)

    def _fresh(self) -> _Layer:
        heads, lags = len(self.info.heads), len(self.lags)
        content, score, raw = (PowerSums.empty(lags, heads) for _ in range(3))
        return _Layer({}, content, score, Sample(self.parameters.sample), Rows.empty(heads, self.longest), raw)

    def _scale(self, layer: int) -> float:
        """What q . k is multiplied by; NaN where nobody knows."""
        return self.info.facts.scale(layer) if self.known else np.nan

    def _rotation(self, layer: int) -> Rotation:
        """How q and k are turned; where nobody knows, the score is not predicted."""
        return self.info.facts.rotation(layer) if self.info.facts.position_is_known else Rotation(self.info.d_head)

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
        facts = self.info.facts
        q, k = (facts.content(batch.numpy(site), layer) for site in self.sites)
        kinds = [(seen.content, q, k)]
        if self.normed:
            kinds.append((seen.raw, batch.numpy("q"), batch.numpy("k")))
        held_out, group = self.held_out[prompts], self.group[prompts]
        scale = self._scale(layer)
        for place, lag in enumerate(self.lags):
            pairs = counted[:, lag:] & counted[:, : max(counted.shape[1] - lag, 0)]
            for measured in (False, True):
                rows, late = np.nonzero(pairs & (held_out == measured)[:, None])
                if not len(rows):
                    continue
                if measured:
                    for into, x, y in kinds:
                        query, key = x[rows, late + lag].astype(np.float64), y[rows, late][:, self.key_of]
                        into.add(scale * (query * key).sum(axis=-1), group[rows], (place,))
                else:
                    pair = Joint.of(q[rows, late + lag], k[rows, late][:, self.key_of])
                    merge_each(seen.joints, {lag: pair})
        rows, at = np.nonzero(counted & held_out[:, None])
        if len(rows):
            order = token_numbers(prompts[rows], at)
            seen.sample.add(order, prompts[rows], group[rows], q[rows, at], k[rows, at])

    def _scores(self, seen: _Layer, batch: Batch, prompts: NDArray[np.int64], counted: NDArray[np.bool_]) -> None:
        scores, pattern = batch.numpy("scores"), batch.numpy("pattern")
        held_out, group = self.held_out[prompts], self.group[prompts]
        queries = np.arange(batch.rows, batch.rows + scores.shape[2])
        for place, lag in enumerate(self.lags):
            late = queries[queries >= lag]
            found = scores[:, :, late - batch.rows, late - lag].transpose(0, 2, 1)
            pairs = counted[:, late] & counted[:, late - lag] & held_out[:, None] & (found[..., 0] > HIDDEN)
            if pairs.any():
                values = found[pairs].astype(np.float64)
                if self.cap:
                    values = self.cap * np.arctanh(np.clip(values / self.cap, -1 + 1e-12, 1 - 1e-12))
                seen.score.add(values, np.broadcast_to(group[:, None], pairs.shape)[pairs], (place,))
        for row in np.flatnonzero(held_out):
            own = np.flatnonzero(counted[row, queries])
            if len(own):
                seen.rows.add(scores[row][:, own], pattern[row][:, own], counted[row], int(group[row]))

    def _described(self, layer: int, seen: _Layer) -> xr.Dataset:
        rotation, scale = self._rotation(layer), self._scale(layer)
        forms = [scale * rotation.between(lag) for lag in self.lags]
        heads, lags, d = len(self.info.heads), len(self.lags), self.info.d_head
        predicted = {name: np.full((heads, lags, 4), np.nan) for name in ("content", "score", "independent")}
        if 0 not in seen.joints:
            raise GausslensError(
                f"bilinear.logits: the {(~self.held_out).sum()} prompts to fit on hold no token that counts"
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
        if not self.info.facts.position_is_known:
            predicted["score"][:], predicted["independent"][:, 1:] = np.nan, np.nan
        independent = seen.sample.moments(forms, heads, self.key_of)
        measured = {
            "content": [m.swapaxes(0, 1) for m in seen.content.moments()],
            "score": [m.swapaxes(0, 1) for m in seen.score.moments()],
            "independent": independent,
        }
        coords = {"head": list(self.info.heads), "lag": list(self.lags)}
        found = _variables_of_pairs(predicted, {name: (m, e) for name, (m, e) in measured.items()}, coords)
        if self.normed:
            found = found.merge(_variables_of_raw([m.swapaxes(0, 1) for m in seen.raw.moments()], coords))
        rows = seen.rows.predicted(mean, cov, rotation, scale)
        return found.merge(_variables_of_rows(rows, *seen.rows.measured(), seen.rows.lows, coords["head"]))


def _split(tokens: Tokens, holdout: float) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which prompts to measure on, and their groups; the others are fitted on."""
    held_out, group = split_prompts(tokens.ids, holdout)
    if held_out.all() or not held_out.any():
        different = len({tuple(ids) for ids in tokens.ids})
        raise InputError(
            f"bilinear.logits fits on some prompts and measures on others: {different} different prompts and holdout "
            f"{holdout:g} leave none for one of them; give more prompts"
        )
    return held_out, group


def _moments(C: Floats, mean: Floats, cov: Floats) -> Floats:
    """Mean, variance, skewness and excess kurtosis [head, 4] of q^T C k for Gaussian (q, k)."""
    k = form.cumulants(C, mean, cov)
    return np.stack([k[:, 0], k[:, 1], *form.shape(k)], axis=-1)


def _variables_of_pairs(
    predicted: Mapping[str, Floats], measured: Mapping[str, tuple[Floats, Floats]], coords: Mapping[str, Sequence[int]]
) -> xr.Dataset:
    """Variables [head, lag] of each family and moment: predicted, measured, its standard error, and how far off."""
    variables: dict[str, Any] = {}
    dims = ("head", "lag")
    for family, text in _FAMILIES.items():
        (found, errors), expected = measured[family], predicted[family]
        for i, moment in enumerate(MOMENTS):
            said, units = f"{_NAMES.get(moment, moment)} of the {text}", _UNITS[moment]
            one, wanted = found[..., i], expected[..., i]
            off = _off(moment, wanted, one, found[..., 1])
            name = f"{family}_{moment}"
            variables[f"{name}_measured"] = variable(dims, one, f"{said}: measured", units)
            for end, values, how, unit in (
                ("error", errors[..., i], "standard error of the measurement", units),
                ("predicted", wanted, "predicted from the Gaussian of (query, key)", units),
                ("off", off, _OFF[moment], "1"),
            ):
                variables[f"{name}_{end}"] = variable(dims, values, f"{said}: {how}", unit, against=False)
        negentropy = found[..., 2] ** 2 / 12 + found[..., 3] ** 2 / 48
        said = f"negentropy of the {text}, to second order: skewness^2/12 + kurtosis^2/48"
        variables[f"{family}_non_normality"] = variable(dims, negentropy, said, "nats")
    return xr.Dataset(variables, coords=dict(coords))


def _variables_of_raw(moments: Sequence[Floats], coords: Mapping[str, Sequence[int]]) -> xr.Dataset:
    """Variables [head, lag] of the form of q and k before their norms: measured, and the errors, of no prediction."""
    variables: dict[str, Any] = {}
    dims, (measured, errors) = ("head", "lag"), moments
    for i, moment in enumerate(MOMENTS):
        said, units, name = f"{_NAMES.get(moment, moment)} of the {_RAW}", _UNITS[moment], f"content_raw_{moment}"
        variables[f"{name}_measured"] = variable(dims, measured[..., i], f"{said}: measured", units)
        text = f"{said}: standard error of the measurement"
        variables[f"{name}_error"] = variable(dims, errors[..., i], text, units, against=False)
    return xr.Dataset(variables, coords=dict(coords))


def _variables_of_rows(
    predicted: Floats, measured: Floats, errors: Floats, lows: Sequence[int], heads: Sequence[int]
) -> xr.Dataset:
    """Variables [head, row_keys] of the rows, by the number of keys: from this one to less than twice as many."""
    variables: dict[str, Any] = {}
    dims = ("head", "row_keys")
    for i, measure in enumerate(MEASURES):
        (text, units), name = _ROWS[measure], f"row_{measure}"
        variables[f"{name}_measured"] = variable(dims, measured[..., i], f"{text}: measured", units)
        variables[f"{name}_error"] = variable(dims, errors[..., i], f"{text}: standard error", units, against=False)
        if i < predicted.shape[-1]:
            said = f"{text}: predicted from the logit variance"
            variables[f"{name}_predicted"] = variable(dims, predicted[..., i], said, units, against=False)
    return xr.Dataset(variables, coords={"head": list(heads), "row_keys": list(lows)})


def _off(moment: str, predicted: Floats, measured: Floats, variance: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        if moment == "mean":
            return np.asarray((predicted - measured) / np.sqrt(variance))
        return np.asarray(predicted / measured - 1 if moment == "variance" else predicted - measured)


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
