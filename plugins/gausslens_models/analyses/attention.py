"""model.attention: where the heads look, as maps between tokens or words, and in numbers by layer and head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from gausslens.maths.moments import Arrays, packed, unpacked
from gausslens.maths.on_device import alike, in_numpy, wide
from gausslens.maths.ragged import Ragged

from ..maths.maps import (
    NUMBERS,
    between_groups,
    between_parts,
    between_segments,
    first_members,
    groups_of,
    row_numbers,
    weighted_mean,
)
from .token_segments import chosen_segments, group_texts, in_segments, parts_of_segments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..maths.maps import Map
    from ..parameters import AttentionMapParameters


@dataclass(frozen=True)
class PromptGroups:
    """The queries or the keys of one prompt at the chosen level: the group of each token, what it is called, its place
    among what is kept.
    """

    groups: NDArray[np.int64]
    texts: list[str]
    segment: NDArray[np.int16]
    counted: NDArray[np.bool_]  # of real text of the chosen segments
    kept: NDArray[np.int64]  # of the chosen segments


# Maps that nobody asked for are kept where they take no more.
UNASKED_BYTES = 16_000_000
# What a cell of a pattern takes, and a prompt of a layer beside its cells; how many copies of a pattern there are.
CELL_SECONDS, PROMPT_SECONDS, HELD = 3e-8, 1e-3, 4
# Of so many prompts it is remembered which tokens make a word: some hundred bytes a token.
PROMPTS_KEPT = 256
# The queries of a prompt and its keys: the same tokens, but in attention from one stack to another.
Sides = tuple[PromptGroups, PromptGroups]


@dataclass(frozen=True)
class AllGroups:
    """Queries and keys of every prompt. Those of the first prompts are kept: errors over prompts ask again and again.

    It holds what never changes, so copies of a state share it.
    """

    tokens: Tokens
    queries: Sequence[int]
    keys: Sequence[int]
    level: str
    kept: dict[int, Sides] = field(default_factory=dict)

    def of(self, prompt: int) -> Sides:
        """Those of one prompt."""
        if prompt in self.kept:
            return self.kept[prompt]
        made = (
            _groups(self.tokens, prompt, self.queries, self.level),
            _groups(self.tokens.keys, prompt, self.keys, self.level),
        )
        if len(self.kept) < PROMPTS_KEPT:
            self.kept[prompt] = made
        return made

    def __deepcopy__(self, memo: object) -> AllGroups:
        return self


@dataclass(frozen=True)
class PromptMap:
    """What is kept of one layer and prompt."""

    sums: NDArray[np.float64]  # [number, head], over counted rows
    between: NDArray[np.float64]  # [head, query segment, key segment], over counted rows
    rows: NDArray[np.int64]  # [query segment]: counted rows
    map: NDArray[np.float32] | None = None  # [query, key] or [head, query, key]


class Attention:
    """Keeps what is wanted of each layer and prompt seen; averages are made at the end, in the user's order.

    Arrays are never written to, so merged states share them.
    """

    def __init__(self, parameters: AttentionMapParameters, context: Context) -> None:
        assert context.tokens is not None
        self.parameters = parameters = settle(parameters, context.model, context.tokens)
        self.tokens: Tokens = context.tokens
        self.info = context.model
        self.queries = chosen_segments(self.tokens, parameters.queries)
        self.keys = chosen_segments(self.tokens.keys, parameters.keys)
        if parameters.parts and self.tokens.crossed:
            raise InputError("parts are of one prompt, and these keys are tokens of another stack: leave `parts` out")
        self.parts = parts_of_segments(self.tokens, parameters.parts)
        self.groups = AllGroups(self.tokens, self.queries, self.keys, parameters.level)
        self.context = context
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
        patterns = batch.values("pattern")
        weights = self._weights_of_heads(batch.layer) if self.parameters.maps == "weighted" else None
        for row, prompt in enumerate(batch.prompts):
            n, m = (side.lengths[prompt] for side in (self.tokens, self.tokens.keys))
            pattern = wide(patterns[row, :, :n, :m])
            self.of[batch.layer, int(prompt)] = self._kept(batch.layer, pattern, self.groups.of(int(prompt)), weights)

    def merge(self, other: Attention) -> None:
        """Take in another shard's prompts."""
        self.of |= other.of

    def state(self) -> Arrays:
        """All that is kept, of many layers and prompts in few arrays."""
        return packed(self.of)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what ``state`` gave."""
        self.of = {place: PromptMap(**kept) for place, kept in unpacked(state).items()}

    def result(self) -> xr.Dataset:
        """Numbers by layer and head, attention between segments, and maps; NaN for prompts not seen."""
        prompts = [self.groups.of(prompt) for prompt in range(len(self.tokens))]
        layers, seen = (sorted(set(places)) for places in zip(*self.of, strict=True)) if self.of else ([], [])
        if not any(prompts[prompt][0].counted.any() for prompt in seen or range(len(prompts))):
            raise GausslensError("model.attention: the prompts have no text in the chosen segments")
        looking = [s for s in self.queries if any((v.segment[v.counted] == s).any() for v, _ in prompts)]
        if not layers:
            raise GausslensError(f"model.attention: no layer in view of {self.info.name} has attention")
        variables = self._numbers(layers, seen) | self._between(layers, seen, looking) | self._to_parts(layers, seen)
        coords: dict[str, Any] = {
            "layer": layers,
            "head": list(self.info.heads),
            "query_segment": [self.tokens.segments[s] for s in looking],
            "segment": list(self.tokens.keys.segments),
        }
        if self.parameters.maps != "none":
            variables |= self._maps(layers, prompts)
            coords |= {"prompt": list(self.tokens.names), **_labels(prompts, self.tokens)}
        return xr.Dataset(variables, coords=coords, attrs={"level": self.parameters.level})

    def _weights_of_heads(self, layer: int) -> NDArray[np.float64]:
        """[head]: the size of each head's W_O, of sum 1."""
        weights = self.context.weights(layer)
        if "W_O" not in weights:
            raise InputError(f"maps: weighted needs W_O, which layer {layer} of {self.info.name} does not have")
        sizes: NDArray[np.float64] = np.sqrt((in_numpy(wide(weights["W_O"])) ** 2).sum(axis=(1, 2)))
        shares: NDArray[np.float64] = sizes / sizes.sum()
        return shares

    def _kept(self, layer: int, pattern: Map, sides: Sides, weights: NDArray[np.float64] | None) -> PromptMap:
        queries, keys = sides
        n, m = pattern.shape[-2:]
        even = alike(self._even(layer, n, m), pattern)
        if self.parameters.level == "word":
            pattern, even = (between_groups(one, queries.groups, keys.groups) for one in (pattern, even))
        counted = pattern[:, queries.counted]
        # No key of another stack is a query's own, or the one before it.
        places = None if self.tokens.crossed else np.flatnonzero(queries.counted)
        numbers = row_numbers(counted, places, even[queries.counted])
        from_segment = (queries.segment[:, None] == np.arange(len(self.tokens.segments)))[queries.counted]
        to_segment = keys.segment[:, None] == np.arange(len(self.tokens.keys.segments))
        between = between_segments(counted, from_segment, to_segment)
        kept: NDArray[np.float32] | None = None
        if self.parameters.maps != "none":
            chosen = pattern[:, queries.kept][:, :, keys.kept]
            if self.parameters.rows == "sum":
                chosen = chosen * alike(np.bincount(queries.groups)[queries.kept, None].astype(float), chosen)
            kept = in_numpy(chosen if self.parameters.maps == "heads" else weighted_mean(chosen, weights))
            kept = kept.astype(np.float32)
        return PromptMap(numbers.sum(axis=-1), between, from_segment.sum(axis=0), kept)

    def _even(self, layer: int, n: int, m: int) -> NDArray[np.float64]:
        """[query, key] of attention spread evenly over all tokens that a query of this layer can see."""
        if self.tokens.crossed:
            return np.full((n, m), 1.0 / m)
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
            for i, (name, (said, units)) in enumerate(list(NUMBERS.items())[: len(sums)])
        }

    def _between(self, layers: list[int], prompts: list[int], looking: list[int]) -> dict[str, Any]:
        rows = np.sum([self.of[layers[0], p].rows for p in prompts], axis=0)
        sums = np.stack([np.sum([self.of[layer, p].between for p in prompts], axis=0) for layer in layers])
        with np.errstate(invalid="ignore"):  # a segment of prompts not seen has no rows
            found = sums[:, :, looking] / rows[looking, None]
        said = "attention of a row of one segment to all of another, mean over rows"
        return {"between": variable(("layer", "head", "query_segment", "segment"), found, said)}

    def _to_parts(self, layers: list[int], prompts: list[int]) -> dict[str, Any]:
        """Attention to the own part of the prompt, and to those before it."""
        if not self.parts:
            return {}
        rows = np.stack([self.of[layers[0], p].rows for p in prompts])
        sums = np.stack([[self.of[layer, p].between for layer in layers] for p in prompts])
        found = between_parts(sums, rows, self.parts)
        said = "attention of a row of a part to all of the part so many before it (0: its own), mean over rows with one"
        return {"to_parts": variable(("layer", "head", "behind"), found, said)}

    def _maps(self, layers: list[int], prompts: list[Sides]) -> dict[str, Any]:
        """The maps: filled up to the largest, or one after another where that would be mostly filling."""
        over = {"heads": "", "weighted": ", mean over heads weighted by the size of W_O"}
        said = "attention" + over.get(self.parameters.maps, ", mean over heads")
        said += ", sum over the tokens of a query" if self.parameters.rows == "sum" else ""
        extents = [(len(queries.kept), len(keys.kept)) for queries, keys in prompts]
        layout = maps_layout(self.parameters, self.info, layers, extents)
        if layout.wasteful:
            flat = np.full(layout.flat_shape, np.nan, dtype=np.float32)
            for (layer, prompt), kept in self.of.items():
                assert kept.map is not None
                flat[layers.index(layer), layout.cells(prompt)] = layout.flat(kept.map)
            return ragged_variables("pattern", layout, flat, said)
        found = np.full(layout.shape, np.nan, dtype=np.float32)
        for (layer, prompt), kept in self.of.items():
            queries, keys = extents[prompt]
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


def _groups(tokens: Tokens, prompt: int, segments: Sequence[int], level: str) -> PromptGroups:
    """The tokens of a prompt at a level, those of these segments kept."""
    words = level == "word"
    groups = groups_of(tokens.word[prompt]) if words else np.arange(len(tokens.ids[prompt]))
    texts = group_texts(tokens, prompt, groups) if words else list(tokens.pieces[prompt])
    first = first_members(groups)
    wanted = in_segments(tokens, prompt, segments)[first]
    counted = tokens.text[prompt][first] & wanted
    return PromptGroups(groups, texts, tokens.segment[prompt][first], counted, np.flatnonzero(wanted))


def _labels(prompts: list[Sides], tokens: Tokens) -> dict[str, Any]:
    """The text and the segment of each row and column of the maps, "" where a prompt has no more."""
    found: dict[str, Any] = {}
    for place, (dim, named) in enumerate((("query", tokens), ("key", tokens.keys))):
        each = [sides[place] for sides in prompts]
        layout = Ragged.of(("prompt", dim), (dim,), [len(one.kept) for one in each], {})
        texts = [[one.texts[i] for i in one.kept] for one in each]
        segments = [[named.segments[one.segment[i]] for i in one.kept] for one in each]
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


def settle(parameters: AttentionMapParameters, info: ModelInfo, tokens: Tokens | None) -> AttentionMapParameters:
    """Maps that nobody asked for are kept where they are small, as each draw of a null keeps its own."""
    if parameters.maps != "auto":
        return parameters
    mean = parameters.model_copy(update={"maps": "mean"})
    small = _bytes_kept(mean, info, tokens) <= UNASKED_BYTES
    return mean if small else parameters.model_copy(update={"maps": "none"})


def estimate(parameters: AttentionMapParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:
    """Memory and disk of the maps, as large as if each token were a word; seconds by the cells of all patterns."""
    kept = _bytes_kept(parameters, info, tokens)
    if tokens is None:
        return Estimate(memory=2 * kept, disk=kept)
    cells = sum(n * m for n, m in zip(tokens.lengths, tokens.keys.lengths, strict=True))
    longest = max(tokens.lengths, default=0) * max(tokens.keys.lengths, default=0)
    seconds = len(info.layers) * (len(info.heads) * cells * CELL_SECONDS + len(tokens) * PROMPT_SECONDS)
    return Estimate(memory=2 * kept + HELD * 8 * len(info.heads) * longest, disk=kept, seconds=seconds)


def _bytes_kept(parameters: AttentionMapParameters, info: ModelInfo, tokens: Tokens | None) -> int:
    """What maps take."""
    if parameters.maps == "none" or tokens is None or not tokens.lengths:
        return 0
    layout = maps_layout(parameters, info, info.layers, list(zip(tokens.lengths, tokens.keys.lengths, strict=True)))
    return 4 * math.prod(layout.flat_shape if layout.wasteful else layout.shape)
