"""Saved maps as an open model without weights, the engine that hands them out, and their prompts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from gausslens import Batch, InputError, ModelError, ModelInfo, Prompt, Tokens, site

from .saved_maps import BESIDE, OF_KV_HEADS, SavedMaps, Side

if TYPE_CHECKING:
    from gausslens import ModelSpec, Request, Sink, SourceContext, Twin

    from .parameters import MapsParameters, MatricesParameters

# Under what the facts of the model hold the prompts that its maps are of.
FACT = "saved_maps"


def open_matrices(spec: ModelSpec) -> MatricesModel:
    """What the loader does: read and check every map."""
    parameters: Any = spec.parameters
    return MatricesModel(SavedMaps(Path(spec.path), parameters), parameters, spec.dtype, spec.device)


class MatricesModel:
    """Maps as a model: its tokens are numbered through all prompts, so that each tells which map it is of."""

    def __init__(self, maps: SavedMaps, options: MatricesParameters, dtype: str | None, device: str) -> None:
        self.maps, self.device = maps, device
        self.starts = _starts([len(place.real) for place in maps.places])
        self.info = _info(maps, options, dtype or maps.dtype)
        self.dtype: torch.dtype = getattr(torch, self.info.dtype)

    @property
    def sites(self) -> tuple[str, ...]:
        """What the files hold."""
        return self.maps.sites

    def tokenise(self, prompts: Sequence[Prompt]) -> Tokens:
        """The tokens of maps, for prompts of the source `matrices`; there is no tokenizer for any other."""
        ids = []
        for prompt in prompts:
            if prompt.ids is None:
                raise ModelError(
                    f"{self.info.name}: saved maps read no text, they are of the prompts that they were made of: "
                    "use `prompts: {source: matrices}`"
                )
            ids.append(np.array(prompt.ids, dtype=np.int64))
        found = [self.prompt_of(each) for each in ids]
        names = tuple(prompt.name or str(number) for number, prompt in enumerate(prompts))
        queries, *others = self.maps.sides
        targets = self._tokens(queries, found, ids, names)
        if not others:
            return targets
        starts = _starts([len(place.keys) for place in self.maps.places])
        sources = self._tokens(others[0], found, [np.arange(*starts[n : n + 2]) for n in found], names)
        return replace(targets, sources=sources, crossed=True)

    def _tokens(self, side: Side, found: Sequence[int], ids: Sequence[np.ndarray], names: tuple[str, ...]) -> Tokens:
        """The tokens of these maps, or of one side of them."""
        pieces = [self.maps.pieces(number, side) for number in found]
        counts = [len(each) for each in ids]
        text = [self.maps.text(number, side) for number in found]
        # Special tokens are a segment, as those of models are; segments are in the order in which tokens have them.
        segments = tuple(dict.fromkeys("text" if each else "special" for row in text for each in row))
        return Tokens(
            ids=tuple(ids),
            text=tuple(text),
            word=tuple(np.full(n, -1, dtype=np.int32) for n in counts),
            segment=tuple((row != (segments[0] == "text")).astype(np.int16) for row in text),
            span=tuple(np.zeros((n, 2), dtype=np.int32) for n in counts),
            pieces=tuple(pieces),
            rendered=tuple(" ".join(each) for each in pieces),
            segments=segments,
            names=names,
        )

    def prompt_of(self, ids: np.ndarray) -> int:
        """Which map has these tokens; ModelError where none has them all, in this order."""
        found = int(np.searchsorted(self.starts, ids[0], side="right")) - 1 if len(ids) else -1
        if 0 <= found < len(self.maps.places):
            own = np.arange(self.starts[found], self.starts[found + 1])
            if np.array_equal(ids, own):
                return found
        raise ModelError(
            f"{self.info.name}: these tokens are of no saved map: maps cannot be shuffled or made of other "
            "prompts, for nothing runs that would compute them again"
        )

    def names(self, layer: int | None) -> tuple[str, ...]:  # noqa: ARG002
        """There are no weights."""
        return ()

    def tensor(self, layer: int | None, name: str) -> NoReturn:  # noqa: ARG002
        """There are no weights."""
        raise ModelError(f"{self.info.name} has no {name}: saved maps come without weights")

    def initial(self, layer: int | None, name: str, seed: int) -> NoReturn:  # noqa: ARG002
        """There are no weights."""
        self.tensor(layer, name)

    def close(self) -> None:
        """Maps are looked at in their files, which are let go with this."""


def _starts(lengths: Sequence[int]) -> np.ndarray:
    """The number of the first token of each prompt, and one more than the last of all."""
    return np.concatenate([[0], np.cumsum(lengths)])


def _info(maps: SavedMaps, options: MatricesParameters, dtype: str) -> ModelInfo:
    lengths = [len(place.real) for place in maps.places]
    width = next((maps.widths[s] for s in ("q", "q_rot", "k", "k_rot", "v", "z") if s in maps.widths), 0)
    value = next((maps.widths[s] for s in ("v", "z") if s in maps.widths), width)
    # Nothing is made up: what no file tells is a fact that is refused where it is needed.
    lacking = {name: f"the file holds no array {name}" for name in BESIDE if name not in maps.sites}
    starts = _starts(lengths)
    facts: dict[str, Any] = {
        # Queries and keys are as they meet, unless the file tells those behind norms and position apart.
        "position": "unknown" if "q_rot" in maps.sites else "none",
        "query_norm": False,
        "crossed": options.crossed,
        "sliding_window": (None,) * maps.layers,
        "notes": maps.notes(),
        FACT: {
            "path": str(maps.path),
            "options": {name: value for name, value in options.canonical().items() if name != "path"},
            "prompts": tuple(
                (place.name, int(start), n) for place, start, n in zip(maps.places, starts, lengths, strict=False)
            ),
        },
    }
    if maps.scale is not None:
        facts["scale"] = (maps.scale,) * maps.layers
    heads, layers, kv_heads = (tuple(range(n)) for n in (maps.heads, maps.layers, maps.kv_heads))
    return ModelInfo(
        name=maps.path.name,
        family="matrices",
        fingerprint=maps.fingerprint,
        dtype=dtype,
        n_layers=maps.layers,
        n_heads=maps.heads,
        n_kv_heads=maps.kv_heads,
        d_model=maps.heads * width,
        d_head=width,
        d_mlp=0,
        vocabulary=max(sum(len(side.real(place)) for place in maps.places) for side in maps.sides),
        n_parameters=0,
        kv_of_head=tuple(head * maps.kv_heads // maps.heads for head in heads),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        causal=maps.causal,
        lacking=dict.fromkeys(layers, lacking) if lacking else {},
        d_value=value if value != width else None,
        facts=facts,
    )


class MatricesEngine:
    """Hands out what the files hold, a layer of a shard at a time, and runs nothing."""

    def sites(self, model: Any) -> tuple[str, ...]:
        """What the files hold."""
        found: tuple[str, ...] = model.sites
        return found

    def run(self, twin: Twin, tokens: Tokens, shard: np.ndarray, request: Request, sink: Sink) -> None:
        """Each layer asked for, padded with zeros to the longest of the shard."""
        model: Any = twin.base
        info = model.info
        ids, text, mask = (torch.from_numpy(a).to(model.device) for a in tokens.padded(shard))
        keys, key_text, key_mask = (torch.from_numpy(a).to(model.device) for a in tokens.keys.padded(shard))
        prompts = [model.prompt_of(tokens.ids[index]) for index in shard]
        sizes = ids.shape[1], keys.shape[1]
        for layer in info.layers if request.layers is None else request.layers:
            wanted = [name for name in request.sites if name not in info.lacking.get(layer, {})]
            arrays = {name: _padded(model, name, prompts, layer, *sizes) for name in wanted}
            sink(
                Batch(
                    *(layer, shard, ids, text, mask, arrays, info.heads, info.kv_heads),
                    key_tokens=keys,
                    key_text=key_text,
                    key_mask=key_mask,
                )
            )

    def runner(self, twin: Twin) -> NoReturn:
        """Nothing can be run."""
        raise ModelError(
            f"{twin.info.name}: saved maps cannot be run, on themselves or on an approximation: this analysis "
            "needs the model itself"
        )


def _padded(
    model: MatricesModel, name: str, prompts: Sequence[int], layer: int, queries: int, keys: int
) -> torch.Tensor:
    """A site of a layer as batches have it, [prompt, head, query, key] or [prompt, position, head, width]."""
    parts = [model.maps.take(name, prompt, layer) for prompt in prompts]
    heads, width = parts[0].shape[0], parts[0].shape[-1]
    kept = np.float64 if model.dtype == torch.float64 else np.float32
    if site(name).square:
        found = np.zeros((len(parts), heads, queries, keys), dtype=kept)
        for row, part in enumerate(parts):
            found[row, :, : part.shape[1], : part.shape[2]] = part
    else:
        found = np.zeros((len(parts), keys if name in OF_KV_HEADS else queries, heads, width), dtype=kept)
        for row, part in enumerate(parts):
            found[row, : part.shape[1]] = part.swapaxes(0, 1)
    return torch.from_numpy(found).to(device=model.device, dtype=model.dtype)


def prompts(parameters: MapsParameters, context: SourceContext) -> list[Prompt]:
    """One prompt for each map of the model, which must be that of the path and options given here, if any are."""
    held: Mapping[str, Any] | None = context.facts.get(FACT)
    if held is None:
        raise InputError(
            "prompts of the source matrices are those of saved maps, and `model:` opens something else: leave `model:` "
            "out and give `path:` here, or open the maps there"
        )
    if parameters.path is not None:
        place = os.path.normpath(context.directory / Path(parameters.path).expanduser())
        if place != held["path"]:
            raise InputError(f"prompts are said to be of {place}, and `model:` opens {held['path']}: give one path")
    options = parameters.options()
    differ = [name for name, value in options.items() if value != held["options"].get(name)]
    defaults = type(parameters).model_validate({}).options()
    if differ and (parameters.path is not None or options != defaults):
        raise InputError(f"{', '.join(differ)} of the prompts and of `model:` differ: leave them out of the prompts")
    return [Prompt(ids=tuple(range(start, start + n)), name=name) for name, start, n in held["prompts"]]
