"""model.attention: where the heads look, as maps between tokens or words, and in numbers by layer and head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import (
    Batch,
    Context,
    Estimate,
    GausslensError,
    InputError,
    ModelInfo,
    Request,
    Tokens,
    ragged_variables,
    variable,
)
from gausslens.maths.ragged import Ragged

from ..maths.maps import NUMBERS, between_groups, first_members, groups_of, row_numbers
from .token_segments import chosen_segments, group_texts, in_segments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..parameters import AttentionMapParameters


@dataclass(frozen=True)
class PromptGroups:
    """One prompt at the chosen level: the group of each token, what it is called, and what is kept of it."""

    groups: NDArray[np.int64]
    texts: list[str]
    segment: NDArray[np.int16]
    counted: NDArray[np.bool_]  # rows of real text of the chosen segments
    queries: NDArray[np.int64]
    keys: NDArray[np.int64]


@dataclass(frozen=True)
class PromptMap:
    """What is kept of one layer and prompt."""

    sums: NDArray[np.float64]  # [number, head], over counted rows
    between: NDArray[np.float64]  # [head, query segment, segment], over counted rows
    rows: NDArray[np.int64]  # [query segment]: counted rows
    map: NDArray[np.float32] | None  # [query, key] or [head, query, key]


class Attention:
    """Keeps what is wanted of each layer and prompt seen; averages are made at the end, in the user's order.

    Arrays are never written to, so merged states share them.
    """

    def __init__(self, parameters: AttentionMapParameters, context: Context) -> None:
        assert context.tokens is not None
        self.parameters = parameters
        self.tokens: Tokens = context.tokens
        self.info = context.model
        self.queries = chosen_segments(self.tokens, parameters.queries)
        self.keys = chosen_segments(self.tokens, parameters.keys)
        self.of: dict[tuple[int, int], PromptMap] = {}
        needed = estimate(parameters, self.info, self.tokens).disk / 1e9
        if needed > parameters.most_gigabytes:
            raise InputError(
                f"model.attention would keep {needed:.3g} GB of maps, more than most_gigabytes: "
                f"{parameters.most_gigabytes}; keep `maps: mean` or `none`, fewer layers or prompts, or raise it"
            )

    def request(self) -> Request:
        """The patterns."""
        return Request(sites=("pattern",))

    def update(self, batch: Batch) -> None:
        """Take one layer of a shard."""
        assert batch.layer is not None
        patterns = batch.numpy("pattern")
        for row, prompt in enumerate(batch.prompts):
            n = len(self.tokens.ids[prompt])
            pattern = patterns[row, :, :n, :n].astype(np.float64)
            self.of[batch.layer, int(prompt)] = self._kept(batch.layer, pattern, self._grouped(int(prompt)))

    def merge(self, other: Attention) -> None:
        """Take in another shard's prompts."""
        self.of |= other.of

    def result(self) -> xr.Dataset:
        """Numbers by layer and head, attention between segments, and maps; NaN for prompts not seen."""
        prompts = [self._grouped(prompt) for prompt in range(len(self.tokens))]
        layers, seen = (sorted(set(places)) for places in zip(*self.of, strict=True)) if self.of else ([], [])
        if not any(prompts[prompt].counted.any() for prompt in seen or range(len(prompts))):
            raise GausslensError("model.attention: the prompts have no text in the chosen segments")
        looking = [s for s in self.queries if any((v.segment[v.counted] == s).any() for v in prompts)]
        if not layers:
            raise GausslensError(f"model.attention: no layer in view of {self.info.name} has attention")
        variables = self._numbers(layers, seen) | self._between(layers, seen, looking)
        coords: dict[str, Any] = {
            "layer": layers,
            "head": list(self.info.heads),
            "query_segment": [self.tokens.segments[s] for s in looking],
            "segment": list(self.tokens.segments),
        }
        if self.parameters.maps != "none":
            variables |= self._maps(layers, prompts)
            coords |= {"prompt": list(self.tokens.names), **_labels(prompts, self.tokens)}
        return xr.Dataset(variables, coords=coords, attrs={"level": self.parameters.level})

    def _grouped(self, prompt: int) -> PromptGroups:
        n = len(self.tokens.ids[prompt])
        words = self.parameters.level == "word"
        groups = groups_of(self.tokens.word[prompt]) if words else np.arange(n)
        texts = group_texts(self.tokens, prompt, groups) if words else list(self.tokens.pieces[prompt])
        first = first_members(groups)
        wanted = in_segments(self.tokens, prompt, self.queries)[first]
        keys = np.flatnonzero(in_segments(self.tokens, prompt, self.keys)[first])
        counted = self.tokens.text[prompt][first] & wanted
        return PromptGroups(groups, texts, self.tokens.segment[prompt][first], counted, np.flatnonzero(wanted), keys)

    def _kept(self, layer: int, pattern: NDArray[np.float64], grouped: PromptGroups) -> PromptMap:
        even = self._even(layer, pattern.shape[-1])
        if self.parameters.level == "word":
            pattern, even = between_groups(pattern, grouped.groups), between_groups(even, grouped.groups)
        counted = pattern[:, grouped.counted]
        numbers = row_numbers(counted, np.flatnonzero(grouped.counted), even[grouped.counted])
        member = grouped.segment[:, None] == np.arange(len(self.tokens.segments))
        from_segment = member[grouped.counted]
        between = np.einsum("hqk,qa,kb->hab", counted, from_segment.astype(float), member.astype(float), optimize=True)
        kept: NDArray[np.float32] | None = None
        if self.parameters.maps != "none":
            chosen = pattern[:, grouped.queries][:, :, grouped.keys]
            kept = (chosen if self.parameters.maps == "heads" else chosen.mean(axis=0)).astype(np.float32)
        return PromptMap(numbers.sum(axis=-1), between, from_segment.sum(axis=0), kept)

    def _even(self, layer: int, n: int) -> NDArray[np.float64]:
        """[query, key] of attention spread evenly over all tokens that a query of this layer can see."""
        behind = np.arange(n)[:, None] - np.arange(n)
        seen = behind >= 0 if self.info.causal else np.ones((n, n), dtype=bool)
        # Of families without a table nobody knows windows: all that is behind counts.
        window = self.info.facts.window(layer) if self.info.facts.position_is_known else None
        if window is not None:
            seen &= abs(behind) < window
        found: NDArray[np.float64] = seen / seen.sum(axis=1, keepdims=True)
        return found

    def _numbers(self, layers: list[int], prompts: list[int]) -> dict[str, Any]:
        rows = sum(int(self.of[layers[0], p].rows.sum()) for p in prompts)
        sums = np.stack([sum(self.of[layer, p].sums for p in prompts) for layer in layers], axis=1)
        return {
            name: variable(("layer", "head"), sums[i] / rows, f"{said}, mean over rows", units)
            for i, (name, (said, units)) in enumerate(NUMBERS.items())
        }

    def _between(self, layers: list[int], prompts: list[int], looking: list[int]) -> dict[str, Any]:
        rows = np.sum([self.of[layers[0], p].rows for p in prompts], axis=0)
        sums = np.stack([np.sum([self.of[layer, p].between for p in prompts], axis=0) for layer in layers])
        with np.errstate(invalid="ignore"):  # a segment of prompts not seen has no rows
            found = sums[:, :, looking] / rows[looking, None]
        said = "attention of a row of one segment to all of another, mean over rows"
        return {"between": variable(("layer", "head", "query_segment", "segment"), found, said)}

    def _maps(self, layers: list[int], prompts: list[PromptGroups]) -> dict[str, Any]:
        """The maps: filled up to the largest, or one after another where that would be mostly filling."""
        said = "attention" if self.parameters.maps == "heads" else "attention, mean over heads"
        layout = maps_layout(self.parameters, self.info, layers, [(len(v.queries), len(v.keys)) for v in prompts])
        if layout.wasteful:
            flat = np.full(layout.flat_shape, np.nan, dtype=np.float32)
            for (layer, prompt), kept in self.of.items():
                assert kept.map is not None
                flat[layers.index(layer), layout.cells(prompt)] = layout.flat(kept.map)
            return ragged_variables("pattern", layout, flat, said)
        found = np.full(layout.shape, np.nan, dtype=np.float32)
        for (layer, prompt), kept in self.of.items():
            queries, keys = len(prompts[prompt].queries), len(prompts[prompt].keys)
            found[layers.index(layer), prompt, ..., :queries, :keys] = kept.map
        return {"pattern": variable(layout.dims, found, said)}


def maps_layout(
    parameters: AttentionMapParameters, info: ModelInfo, layers: Sequence[int], extents: Sequence[tuple[int, int]]
) -> Ragged:
    """How the maps of prompts of so many rows and columns lie."""
    heads = ("head",) if parameters.maps == "heads" else ()
    sizes = {"layer": len(layers), "head": len(info.heads)}
    table = np.asarray(extents, dtype=np.int64).reshape(-1, 2)
    return Ragged.of(("layer", "prompt", *heads, "query", "key"), ("query", "key"), table, sizes)


def _labels(prompts: list[PromptGroups], tokens: Tokens) -> dict[str, Any]:
    """The text and the segment of each row and column of the maps, "" where a prompt has no more."""
    found: dict[str, Any] = {}
    for dim, kept in (("query", [v.queries for v in prompts]), ("key", [v.keys for v in prompts])):
        layout = Ragged.of(("prompt", dim), (dim,), [len(places) for places in kept], {})
        each = list(zip(prompts, kept, strict=True))
        texts = [[grouped.texts[i] for i in places] for grouped, places in each]
        segments = [[tokens.segments[grouped.segment[i]] for i in places] for grouped, places in each]
        for name, rows in ((f"{dim}_text", texts), (f"{dim}_segment_of", segments)):
            if layout.wasteful:
                flat = np.array([text for row in rows for text in row], dtype=object)
                found |= ragged_variables(name, layout, flat, f"{name.replace('_', ' ')}")
                continue
            whole = np.full(layout.shape, "", dtype=object)
            for prompt, row in enumerate(rows):
                whole[prompt, : len(row)] = row
            found[name] = (("prompt", dim), whole)
    return found


def estimate(parameters: AttentionMapParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:
    """Memory and disk of the maps, as large as if each token were a word."""
    lengths = tokens.lengths if tokens is not None else ()
    kept = 0
    if parameters.maps != "none" and lengths:
        layout = maps_layout(parameters, info, info.layers, [(n, n) for n in lengths])
        kept = 4 * math.prod(layout.flat_shape if layout.wasteful else layout.shape)
    return Estimate(memory=2 * kept + 8 * len(info.heads) * max(lengths, default=0) ** 2, disk=kept)
