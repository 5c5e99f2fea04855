"""model.loss: how well a model predicts each token, in nats, and its text, in bits per byte."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import (
    Batch,
    Context,
    Estimate,
    GausslensError,
    ModelInfo,
    Request,
    Tokens,
    ragged_variables,
    variable,
)
from gausslens.maths.moments import Arrays, packed, unpacked
from gausslens.maths.ragged import Ragged

from .token_segments import bytes_of, chosen_segments, in_segments

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from numpy.typing import NDArray

    from ..parameters import LossParameters

# Logits of so many rows are worked on at a time: the temporary arrays stay small beside the logits themselves.
ROWS = 256
# What the host puts into one shard at most, as long as prompts are not longer themselves.
SHARD = 2048


def token_losses(logits: torch.Tensor, ids: torch.Tensor, causal: bool = True) -> torch.Tensor:
    """-log p(token) in nats for each token of [prompt, position]; of a causal model the first is NaN.

    A causal model predicts a token from those before it. Of any other (a masked language model) it is the probability
    that it gives the token in its own place, which it sees.
    """
    import torch

    if causal:
        after = token_losses(logits[:, :-1], ids[:, 1:], causal=False)
        return torch.cat([after.new_full((len(ids), 1), torch.nan), after], dim=1)
    flat, targets = logits.flatten(0, 1), ids.flatten()
    found = flat.new_empty((2, len(flat)), dtype=torch.float32)  # a device may have no float64
    for start in range(0, len(flat), ROWS):
        rows = flat[start : start + ROWS].float()
        found[0, start : start + ROWS] = rows.logsumexp(-1)
        found[1, start : start + ROWS] = rows.gather(1, targets[start : start + ROWS, None])[:, 0]
    total, own = found.cpu().double()
    losses: torch.Tensor = (total - own).view(ids.shape)
    return losses


class LogitsInColumns:
    """-log p of each token of a shard, of logits that come some of the vocabulary at a time.

    With the largest logit m so far and s, the sum of exp(x - m), log sum exp(x) is m + log(s): a larger m of a later
    block multiplies s by exp(m - m'). Sums over blocks are in double precision.
    """

    def __init__(self, tokens: torch.Tensor) -> None:
        import torch

        self.targets = tokens.flatten()
        self.own = torch.zeros(len(self.targets), dtype=torch.float64)
        self.largest = torch.full_like(self.own, -torch.inf)
        self.total = torch.zeros_like(self.own)

    def add(self, logits: torch.Tensor, first: int) -> None:
        """Take in the logits [prompt, position, token] of the tokens from ``first`` on."""
        flat, width = logits.flatten(0, 1), logits.shape[-1]
        for start in range(0, len(flat), ROWS):
            some = slice(start, start + ROWS)
            rows, places = flat[some].float(), self.targets[some] - first
            here = ((places >= 0) & (places < width)).cpu()
            own = rows.gather(1, places.clamp(0, width - 1)[:, None])[:, 0].cpu().double()
            self.own[some] = own.where(here, self.own[some])
            most = rows.amax(-1)
            total = (rows - most[:, None]).exp().sum(-1).cpu().double()
            seen, most = self.largest[some], most.cpu().double()
            larger = seen.maximum(most)
            self.total[some] = self.total[some] * (seen - larger).exp() + total * (most - larger).exp()
            self.largest[some] = larger

    def losses(self) -> torch.Tensor:
        """Of each token, once all logits are in; the sum is rounded as that of whole logits is."""
        return (self.largest + self.total.log()).float().double() - self.own


class Loss:
    """Keeps the loss of each token of each prompt seen; sums are made at the end, in the user's order.

    Arrays are never written to, so merged states share them.
    """

    def __init__(self, parameters: LossParameters, context: Context) -> None:
        assert context.tokens is not None
        self.tokens: Tokens = context.tokens
        # Attention to a source sees all of it, and yet predicts the next token of the target.
        self.causal = context.model.causal or context.model.facts.crossed
        self.segments = chosen_segments(self.tokens, parameters.segments)
        self.of: dict[int, NDArray[np.float64]] = {}
        self.open: LogitsInColumns | None = None  # of a shard whose logits come in blocks

    def request(self) -> Request:
        """The logits."""
        return Request(sites=("logits",))

    def update(self, batch: Batch) -> None:
        """Take the losses of a shard; of logits in blocks, once the last of them is there."""
        if batch.columns == 0 and batch.last_rows:
            found = token_losses(batch["logits"], batch.tokens, self.causal).numpy()
        else:
            self._add(batch)
            if not batch.last_rows:
                return
            found = self._closed(batch)
        for row, prompt in enumerate(batch.prompts):
            self.of[int(prompt)] = found[row, : len(self.tokens.ids[prompt])].copy()

    def _add(self, batch: Batch) -> None:
        """Take in a block of logits."""
        tokens, logits = batch.tokens, batch["logits"]
        if self.causal:
            tokens, logits = tokens[:, 1:], logits[:, :-1]
        self.open = self.open or LogitsInColumns(tokens)
        self.open.add(logits, batch.columns)

    def _closed(self, batch: Batch) -> NDArray[np.float64]:
        """The losses of a shard [prompt, position] of which all logits are in; of a causal model the first is NaN."""
        assert self.open is not None
        found = np.full(tuple(batch.tokens.shape), np.nan)
        found[:, int(self.causal) :] = self.open.losses().view(len(found), -1).numpy()
        self.open = None
        return found

    def merge(self, other: Loss) -> None:
        """Take in another shard's prompts."""
        self.of |= other.of

    def state(self) -> Arrays:
        """All losses, one prompt after another."""
        return packed({prompt: {"loss": loss} for prompt, loss in self.of.items()})

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what ``state`` gave."""
        self.of = {prompt: found["loss"] for prompt, found in unpacked(state).items()}

    def result(self) -> xr.Dataset:
        """Loss by token, by prompt, by segment and in all; NaN for prompts not seen."""
        counted = [self._counted(prompt) for prompt in range(len(self.tokens))]
        if not any(c.any() for c in counted):
            raise GausslensError("model.loss: no token is predicted: the prompts have no text beyond their first token")
        by_prompt = np.array([self._sums(range(p, p + 1), [c]) for p, c in enumerate(counted)])
        names, by_segment = self._by_segment(counted)
        variables: dict[str, Any] = {
            **self._by_token(),
            **_averages("", (), by_prompt.sum(axis=0)),
            **_averages("prompt_", ("prompt",), by_prompt),
            **_averages("segment_", ("segment",), by_segment),
        }
        coords = {"prompt": list(self.tokens.names), "segment": names}
        said = "each token from those before it" if self.causal else "each token in its own place, which the model sees"
        return xr.Dataset(variables, coords=coords, attrs={"predicted": said})

    def _by_token(self) -> dict[str, Any]:
        """The loss of each token; one prompt after another where most of it would be filling up."""
        said, layout = "-log p of each token", _layout(self.tokens)
        if layout.wasteful:
            flat = np.full(layout.flat_shape, np.nan)
            for prompt, values in self.of.items():
                flat[layout.cells(prompt)] = values
            return ragged_variables("loss", layout, flat, said, "nat")
        loss = np.full(layout.shape, np.nan)
        for prompt, values in self.of.items():
            loss[prompt, : len(values)] = values
        return {"loss": variable(layout.dims, loss, said, "nat")}

    def _counted(self, prompt: int) -> NDArray[np.bool_]:
        """Real text of the chosen segments that something predicts; nothing of a prompt that was not seen."""
        if prompt not in self.of:
            return np.zeros(len(self.tokens.ids[prompt]), dtype=bool)
        return self._chosen(prompt) & np.isfinite(self.of[prompt])

    def _chosen(self, prompt: int) -> NDArray[np.bool_]:
        """Real text of the chosen segments; a causal model predicts nothing first."""
        chosen: NDArray[np.bool_] = self.tokens.text[prompt] & in_segments(self.tokens, prompt, self.segments)
        if self.causal:
            chosen[:1] = False
        return chosen

    def _sums(self, prompts: range, counted: list[NDArray[np.bool_]]) -> tuple[float, int, int]:
        """Nats, tokens and bytes."""
        nats = math.fsum(x for p, c in zip(prompts, counted, strict=True) if p in self.of for x in self.of[p][c])
        tokens = sum(int(c.sum()) for c in counted)
        return nats, tokens, sum(bytes_of(self.tokens, p, c) for p, c in zip(prompts, counted, strict=True))

    def _by_segment(self, counted: list[NDArray[np.bool_]]) -> tuple[list[str], NDArray[np.float64]]:
        """The segments that are predicted, those of prompts not seen among them, and their sums."""
        names, sums = [], []
        every = range(len(self.tokens))
        for number in self.segments:
            of_it = [c & in_segments(self.tokens, p, [number]) for p, c in zip(every, counted, strict=True)]
            unseen = (self._chosen(p) & in_segments(self.tokens, p, [number]) for p in every if p not in self.of)
            if any(c.any() for c in of_it) or any(c.any() for c in unseen):
                names.append(self.tokens.segments[number])
                sums.append(self._sums(every, of_it))
        return names, np.array(sums)


def _averages(prefix: str, dims: tuple[str, ...], sums: NDArray[np.float64]) -> dict[str, Any]:
    """Mean loss, perplexity and bits per byte from nats, tokens and bytes along the last axis."""
    nats, tokens, size = np.moveaxis(sums, -1, 0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean = nats / tokens
        found = {
            "mean_loss": variable(dims, mean, "mean loss of a token", "nat"),
            "perplexity": variable(dims, np.exp(mean), "perplexity: exp of the mean loss"),
            "bits_per_byte": variable(dims, nats / math.log(2) / size, "loss by byte of UTF-8 text", "bit / byte"),
        }
    found["tokens"] = variable(dims, tokens.astype(np.int64), "tokens counted", "token", against=False)
    return {f"{prefix}{name}": one for name, one in found.items()}


def estimate(parameters: LossParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory: the logits of one shard; disk: a number for each token."""
    if tokens is None:
        return Estimate(memory=4 * SHARD * info.vocabulary, disk=0)
    layout = _layout(tokens)
    kept = math.prod(layout.flat_shape if layout.wasteful else layout.shape)
    return Estimate(memory=4 * max((SHARD, *tokens.lengths)) * info.vocabulary, disk=8 * kept)


def _layout(tokens: Tokens) -> Ragged:
    """How a number for each token lies."""
    return Ragged.of(("prompt", "position"), ("position",), tokens.lengths, {})
