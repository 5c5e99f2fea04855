"""gaussian.collapse: does attention make tokens alike, with the residual stream and without it?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from gausslens import Context, Estimate, GausslensError, ModelInfo, Runner, Tokens, variable
from gausslens.maths.moments import Floats, RunningMoments
from gausslens.maths.on_device import along, in_double, placed, values_of, wide
from gausslens.maths.resampling import mean_and_error

from ..maths.collapse_measures import cosine, diameter, rates, relative_diameter
from ..maths.information import frechet_distance
from .value_path import ValuePath

if TYPE_CHECKING:
    from ..parameters import CollapseParameters

# The two streams that are followed, as the model runs and by attention alone: what their variables end in, and words.
_STREAMS = {"residual": ("", "the residual stream"), "attention": ("_path", "the attention-only path")}


@dataclass
class _Gathered:
    """What is gathered of all prompts.

    ``deficits`` [prompt, head] are sums over rows, ``rows`` [prompt] how many; ``mixing`` [prompt, head] is the
    logarithm of how much a head narrows its values. ``diameters`` and ``cosines`` hold [prompt] by (stream, layer);
    ``first`` are the moments of each prompt's first text positions, projected, of prompts that have enough of them.
    """

    positions: int
    projection: Floats
    deficits: dict[int, list[Floats]] = field(default_factory=dict)
    rows: dict[int, list[int]] = field(default_factory=dict)
    mixing: dict[int, list[Floats]] = field(default_factory=dict)
    diameters: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    cosines: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    first: dict[tuple[str, int], RunningMoments] = field(default_factory=dict)

    def add_stream(self, stream: str, layer: int, vectors: torch.Tensor, rows: list[np.ndarray]) -> None:
        """Take in the tokens [prompt, position, d_model] after a layer; ``rows`` are the positions looked at."""
        for row, kept in enumerate(rows):
            tokens = placed(values_of(vectors[row][kept]))
            self.diameters.setdefault((stream, layer), []).append(relative_diameter(tokens))
            self.cosines.setdefault((stream, layer), []).append(cosine(tokens))
        long = [row for row, kept in enumerate(rows) if len(kept) >= self.positions]
        if long:
            first = torch.stack([vectors[row][rows[row][: self.positions]] for row in long])
            state = self.first.setdefault((stream, layer), RunningMoments())
            state.add(along(values_of(first), self.projection).swapaxes(0, 1))

    def add_attention(
        self,
        layer: int,
        pattern: torch.Tensor,
        v: torch.Tensor,
        kv_of_head: list[int],
        keys: np.ndarray,
        rows: list[np.ndarray],
    ) -> None:
        """Take in each head's rows, and how much narrower its outputs are than its values; ``keys`` are in view."""
        many = np.log(np.maximum(keys, 1))
        entropy = torch.special.entr(pattern.detach().float()).sum(-1).cpu().double().numpy()
        values = in_double(v)
        mixed = torch.einsum("phqk,pkhe->phqe", in_double(pattern), values[:, :, kv_of_head])
        for row, kept in enumerate(rows):
            lacking = many[row, kept] - entropy[row][:, kept]
            self.deficits.setdefault(layer, []).append(lacking.sum(axis=1))
            self.rows.setdefault(layer, []).append(len(kept))
            before = diameter(placed(values_of(values[row, kept].transpose(0, 1))))[kv_of_head]
            after = diameter(placed(values_of(mixed[row, :, kept])))
            with np.errstate(divide="ignore", invalid="ignore"):
                self.mixing.setdefault(layer, []).append(np.log(after / before))


class AttentionOnly:
    """Tokens carried by attention alone, without residual stream and MLP: what the model's patterns would do to them.

    x_1 = attention of layer 0 on the model's own values; x_{l+1} = sum over heads of A_h norm(x_l) W_V W_O. The
    patterns A_h are those of the running model, so this is the attention-only path through it. The norm keeps the
    length of tokens, so what shrinks is their difference. float64, because they may come to differ by a billionth: on
    the CPU, where the device has none.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.norm = runner.info.facts.norm
        self.x: torch.Tensor | None = None

    def start(self) -> None:
        """Begin a new shard: the first layer starts from the model's own values."""
        self.x = None

    def step(self, layer: int, pattern: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The tokens [prompt, position, d_model] after this layer; layers come in order."""
        weights = self.runner.weights(layer)
        rows = in_double(pattern)  # of a model over several devices, where this layer is
        values = in_double(v) if self.x is None else self._values(ValuePath.of(weights), self.x.to(rows.device))
        mixed = torch.einsum("phqk,pkhe->pqhe", rows, values[:, :, list(weights.kv_of_head)])
        out = torch.einsum("pqhe,hed->pqd", mixed, in_double(weights["W_O"]).to(rows.device))
        if "b_O" in weights:
            out = out + in_double(weights["b_O"]).to(rows.device)
        self.x = out
        return out

    def _values(self, path: ValuePath, x: torch.Tensor) -> torch.Tensor:
        """Values of normed tokens. Where the norm stands after attention, it is taken here as well, without a gain."""
        there = torch.from_numpy if x.device.type == "cpu" else x.new_tensor
        gain, shift, W, bias = map(there, (path.gain, path.shift, path.matrices, path.biases))
        h = x - x.mean(-1, keepdim=True) if self.norm == "layer" else x
        h = h / (h.square().mean(-1, keepdim=True) + 1e-300).sqrt() * gain + shift
        return torch.einsum("pnd,hde->pnhe", h, W) + bias


class Collapse:
    """Runs each shard once and looks at every layer as it passes."""

    def __init__(self, parameters: CollapseParameters, context: Context) -> None:
        self.parameters, self.context = parameters, context

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """Entropy deficits, contraction and rates of collapse."""
        runner = runner.whole  # what attention alone makes of the stream goes through all layers and heads
        info = runner.info
        alone = AttentionOnly(runner)
        gathered = _Gathered(self.parameters.positions, self._projection(info))
        used = {i for i in range(len(prompts)) if _rows(prompts.text[i]).size >= 2}
        if not used:
            raise GausslensError(
                f"gaussian.collapse on {info.name}: no prompt has two text tokens after its first position; give "
                "longer prompts"
            )
        for shard in prompts.shards():
            chosen = [int(i) for i in shard if int(i) in used]
            if chosen:
                self._shard(runner, prompts, chosen, alone, gathered)
        return _dataset(gathered, self.context.model, self.parameters, len(used))

    def _shard(
        self, runner: Runner, prompts: Tokens, chosen: list[int], alone: AttentionOnly, gathered: _Gathered
    ) -> None:
        info = runner.info
        ids, text, mask = prompts.padded(chosen)
        rows = [_rows(one) for one in text]
        alone.start()

        def watch(layer: int, scores: Any, pattern: torch.Tensor, v: torch.Tensor) -> None:  # noqa: ARG001
            keys = visible(info, layer, mask)
            gathered.add_attention(layer, pattern, v, list(info.kv_of_head), keys, rows)
            gathered.add_stream("attention", layer, alone.step(layer, pattern, v), rows)

        found = runner.forward(ids, sites=("resid_post",), replace=watch, mask=mask, **prompts.beside(chosen))
        for layer in gathered.deficits:
            gathered.add_stream("residual", layer, wide(found[layer, "resid_post"]), rows)

    def _projection(self, info: ModelInfo) -> Floats:
        drawn = self.context.generator("projection").standard_normal((self.parameters.dims, info.d_model))
        found: Floats = drawn / np.sqrt(info.d_model)
        return found


def visible(info: ModelInfo, layer: int, mask: np.ndarray) -> np.ndarray:
    """How many keys each query [prompt, position] can see: all of the prompt, or the past, or a window of it."""
    if not info.causal:
        return np.broadcast_to(mask.sum(axis=1, keepdims=True), mask.shape)
    upto = np.cumsum(mask, axis=1)
    window = info.facts.window(layer)
    if window is None or window >= mask.shape[1]:
        return upto
    before = np.zeros_like(upto)
    before[:, window:] = upto[:, :-window]
    return np.asarray(upto - before)


def _rows(text: np.ndarray) -> np.ndarray:
    """The tokens that are looked at: text, beyond the first position."""
    found: np.ndarray = np.flatnonzero(text)
    return np.asarray(found[found > 0])


def _dataset(gathered: _Gathered, info: ModelInfo, parameters: CollapseParameters, prompts: int) -> xr.Dataset:
    """Variables [layer, head] and [layer] of the layers with attention in view, and the rates over them."""
    attended = [n for n in info.layers if n in gathered.deficits]
    heads = list(info.heads)
    variables: dict[str, Any] = {"count": variable((), np.int64(prompts), "prompts", "prompts", against=False)}
    variables |= _of_heads(gathered, attended, heads, np.array(gathered.rows[attended[0]], dtype=np.float64))
    left_out = []
    for stream, (suffix, words) in _STREAMS.items():
        variables |= _of_stream(gathered, stream, attended, suffix, words)
        states = [gathered.first.get((stream, n)) for n in attended]
        enough = all(p is not None and p.count > 2 * parameters.dims for p in states)
        if enough:
            distances = np.array([_between_positions(p) for p in states if p is not None])
            text = (
                f"mean distance between the distributions of two positions, {words}, over their root mean square size"
            )
            variables[f"position_distance{suffix}"] = variable("layer", distances, text)
        else:
            left_out.append(f"position_distance{suffix}")
    made = xr.Dataset(variables, coords={"layer": attended, "head": heads})
    notes = {
        "rate": "nats per layer by which the relative diameter of tokens falls, fitted over layers; 0: no collapse"
    }
    if left_out:
        notes["not_measured"] = (
            f"{', '.join(left_out)}: more than {2 * parameters.dims} prompts of {parameters.positions} text tokens "
            "are needed"
        )
    return made.assign_attrs(notes)


def _of_heads(gathered: _Gathered, layers: list[int], heads: list[int], rows: Floats) -> dict[str, Any]:
    deficits = np.stack([np.stack(gathered.deficits[n])[:, heads] for n in layers])
    means = deficits.sum(axis=1) / rows.sum()
    # Prompts are the independent units: the spread of their means, weighted by rows.
    apart = (deficits - means[:, None] * rows[None, :, None]) / rows.sum()
    m = len(rows)
    errors = np.sqrt((apart**2).sum(axis=1) * m / max(m - 1, 1)) if m > 1 else np.full_like(means, np.nan)
    narrowing = np.exp(np.stack([_mean_of_finite(np.stack(gathered.mixing[n])[:, heads]) for n in layers]))
    dims = ("layer", "head")
    deficit = "how far the entropy of attention rows is below that of uniform ones, log n"
    error = "standard error of the entropy deficit, over prompts (NaN: one prompt)"
    mixing = "diameter of a head's outputs over that of its values, geometric mean over prompts"
    return {
        "entropy_deficit": variable(dims, means, deficit, "nat"),
        "entropy_deficit_se": variable(dims, errors, error, "nat", against=False),
        "mixing": variable(dims, narrowing, mixing),
    }


def _mean_of_finite(logs: Floats) -> Floats:
    """Mean over prompts [prompt, head]; a prompt whose values or outputs are all equal has no ratio. NaN: all do."""
    finite = np.isfinite(logs)
    many = finite.sum(axis=0)
    found: Floats = np.where(many > 0, np.where(finite, logs, 0.0).sum(axis=0) / np.maximum(many, 1), np.nan)
    return found


def _of_stream(gathered: _Gathered, stream: str, layers: list[int], suffix: str, words: str) -> dict[str, Any]:
    diameters = np.stack([np.array(gathered.diameters[stream, n]) for n in layers], axis=1)
    cosines = np.array([np.mean(gathered.cosines[stream, n]) for n in layers])
    found = rates(diameters) if len(layers) > 1 else np.full(len(diameters), np.nan)
    known = found[~np.isnan(found)]
    rate, error = map(float, mean_and_error(known)) if len(known) else (np.nan, np.nan)
    of_diameter = f"diameter of a prompt's tokens over their length, {words}"
    of_rate = f"rate of collapse of {words} (NaN: fewer than two layers)"
    of_error = f"standard error of the rate of {words}, over prompts (NaN: one prompt)"
    return {
        f"diameter{suffix}": variable("layer", diameters.mean(axis=0), of_diameter),
        f"cosine{suffix}": variable("layer", cosines, f"mean cosine of two tokens of a prompt, {words}"),
        f"collapse_rate{suffix}": variable((), rate, of_rate, "nat/layer"),
        f"collapse_rate{suffix}_se": variable((), error, of_error, "nat/layer", against=False),
    }


def _between_positions(state: RunningMoments) -> float:
    """Mean Frechet distance of all pairs of positions, over the root mean square size of the vectors."""
    means, covariances = state.mean, state.covariance
    pairs = [(i, j) for i in range(len(means)) for j in range(i)]
    distances = [frechet_distance(means[i], covariances[i], means[j], covariances[j]) for i, j in pairs]
    size = np.sqrt((np.trace(covariances, axis1=-2, axis2=-1) + (means**2).sum(axis=-1)).mean())
    return float(np.mean(distances) / size) if size > 0 else 0.0


def estimate(parameters: CollapseParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory: one layer's patterns, and the residual stream after every layer, of one shard; time for float64."""
    if tokens is None:
        return Estimate()
    shards = tokens.shards()
    widest = max(len(s) * max(tokens.lengths[i] for i in s) for s in shards)
    longest = max(tokens.lengths)
    memory = widest * (4 * info.n_layers * info.d_model + 20 * info.n_heads * longest + 64 * info.d_model)
    flops = sum(
        4 * n * info.d_model * info.d_head * (info.n_heads + info.n_kv_heads) + 8 * n * n * info.d_head * info.n_heads
        for n in tokens.lengths
    )
    return Estimate(memory=memory, disk=8 * info.n_layers * (info.n_heads + 16), seconds=flops * info.n_layers / 1e10)
