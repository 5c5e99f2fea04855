"""gaussian.collapse: does attention make tokens alike, with the residual stream and without it?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gausslens import Context, Estimate, GausslensError, ModelInfo, Runner, Tokens
from gausslens.maths.moments import Floats, RunningMoments

from .collapsed import dataset
from .pureattention import PureAttention
from .uniformity import cosine, diameter, relative_diameter

if TYPE_CHECKING:
    import xarray as xr

    from .parameters import CollapseParameters

# The two streams that are followed: as the model runs, and by attention alone.
STREAMS = ("residual", "attention")


@dataclass
class Seen:
    """What was seen of all prompts.

    ``deficits`` [prompt, head] are sums over rows, ``rows`` [prompt] how many; ``mixing`` [prompt, head] is the
    logarithm of how much a head narrows its values. ``spread`` and ``alike`` hold [prompt] by (stream, layer).
    """

    deficits: dict[int, list[np.ndarray]] = field(default_factory=dict)
    rows: dict[int, list[int]] = field(default_factory=dict)
    mixing: dict[int, list[np.ndarray]] = field(default_factory=dict)
    spread: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    alike: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    places: dict[tuple[str, int], RunningMoments] = field(default_factory=dict)


class Collapse:
    """Runs each shard once and looks at every layer as it passes."""

    def __init__(self, parameters: CollapseParameters, context: Context) -> None:
        self.parameters, self.context = parameters, context

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """Entropy deficits, contraction and rates of collapse."""
        info = runner.info
        pure = PureAttention(runner)
        seen = Seen()
        projection = self._projection(info)
        used = {i for i in range(len(prompts)) if _rows(prompts.text[i]).size >= 2}
        if not used:
            raise GausslensError(
                f"gaussian.collapse on {info.name}: no prompt has two text tokens after its first position; give "
                "longer prompts"
            )
        for shard in prompts.shards():
            chosen = [int(i) for i in shard if int(i) in used]
            if chosen:
                self._shard(runner, prompts, chosen, pure, seen, projection)
        return dataset(seen, self.context.model, self.parameters, len(used))

    def _shard(
        self,
        runner: Runner,
        prompts: Tokens,
        chosen: list[int],
        pure: PureAttention,
        seen: Seen,
        projection: np.ndarray,
    ) -> None:
        ids, text, mask = prompts.padded(chosen)
        rows = [_rows(one) for one in text]
        pure.start()

        def watch(layer: int, scores: Any, pattern: torch.Tensor, v: torch.Tensor) -> None:  # noqa: ARG001
            self._attention(runner.info, layer, pattern, v, mask, rows, seen)
            after = pure.step(layer, pattern, v)
            for row, kept in enumerate(rows):
                self._look(seen, "attention", layer, after[row][kept].cpu().numpy())
            self._place(seen, "attention", layer, after, rows, projection)

        found = runner.forward(ids, sites=("resid_post",), replace=watch, mask=mask)
        for layer in seen.deficits:
            after = found[layer, "resid_post"].detach().double()
            for row, kept in enumerate(rows):
                self._look(seen, "residual", layer, after[row][kept].cpu().numpy())
            self._place(seen, "residual", layer, after, rows, projection)

    def _attention(
        self,
        info: ModelInfo,
        layer: int,
        pattern: torch.Tensor,
        v: torch.Tensor,
        mask: np.ndarray,
        rows: list[np.ndarray],
        seen: Seen,
    ) -> None:
        """Deficit of each head's rows, and how much narrower its outputs are than its values."""
        many = np.log(np.maximum(visible(info, layer, mask), 1))
        entropy = torch.special.entr(pattern.detach().float()).sum(-1).cpu().double().numpy()
        values = v.detach().double()
        mixed = torch.einsum("phqk,pkhe->phqe", pattern.detach().double(), values[:, :, list(info.kv_of_head)])
        for row, kept in enumerate(rows):
            lacking = many[row, kept] - entropy[row][:, kept]
            seen.deficits.setdefault(layer, []).append(lacking.sum(axis=1))
            seen.rows.setdefault(layer, []).append(len(kept))
            before = diameter(values[row, kept].transpose(0, 1).cpu().numpy())[list(info.kv_of_head)]
            after = diameter(mixed[row, :, kept].cpu().numpy())
            with np.errstate(divide="ignore", invalid="ignore"):
                seen.mixing.setdefault(layer, []).append(np.log(after / before))

    def _look(self, seen: Seen, stream: str, layer: int, vectors: np.ndarray) -> None:
        seen.spread.setdefault((stream, layer), []).append(relative_diameter(vectors))
        seen.alike.setdefault((stream, layer), []).append(cosine(vectors))

    def _place(
        self,
        seen: Seen,
        stream: str,
        layer: int,
        vectors: torch.Tensor,
        rows: list[np.ndarray],
        projection: np.ndarray,
    ) -> None:
        """The first text positions of each prompt long enough, for the distribution at each position."""
        count = self.parameters.positions
        long = [row for row, kept in enumerate(rows) if len(kept) >= count]
        if long:
            first = np.stack([vectors[row][rows[row][:count]].cpu().numpy() for row in long]) @ projection.T
            seen.places.setdefault((stream, layer), RunningMoments()).add(first.swapaxes(0, 1))

    def _projection(self, info: ModelInfo) -> Floats:
        drawn = self.context.generator("projection").standard_normal((self.parameters.dims, info.d_model))
        found: Floats = drawn / np.sqrt(info.d_model)
        return found


def visible(info: ModelInfo, layer: int, mask: np.ndarray) -> np.ndarray:
    """How many keys each query [prompt, position] can see: all of the prompt, or the past, or a window of it."""
    if not info.causal:
        return np.broadcast_to(mask.sum(axis=1, keepdims=True), mask.shape)
    upto = np.cumsum(mask, axis=1)
    windows = info.facts.get("sliding_window")
    window = windows[layer] if windows else None
    if window is None or window >= mask.shape[1]:
        return upto
    before = np.zeros_like(upto)
    before[:, window:] = upto[:, :-window]
    return np.asarray(upto - before)


def _rows(text: np.ndarray) -> np.ndarray:
    """The tokens that are looked at: text, beyond the first position."""
    found: np.ndarray = np.flatnonzero(text)
    return np.asarray(found[found > 0])


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
