"""A tiny model of attention between two stacks, written out: its queries read targets, its keys and values sources.

The tiny model of the testing kit, but for what keys and values read: the embeddings of the source, normed, as they are.
A prompt "source|target" is cut at the bar. The module is a plugin, too: loader and engine of the path builtin:crossed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gausslens import Batch, Engine, Loader, ModelInfo, ModelSpec, Part, Prompt, Tokens, hookimpl
from gausslens.testing import TinyEngine, TinyModel, TinyParameters, TinyRunner

LOADER = Loader(
    name="crossed",
    version=1,
    summary="The tiny model with attention to another stack",
    parameters="gausslens.testing:TinyParameters",
    claims=f"{__name__}:claims",
    open=f"{__name__}:open_crossed",
    rank=2000,
)
ENGINE = Engine(
    name="crossed",
    version=1,
    summary="Every site of it",
    engine=f"{__name__}:CrossedEngine",
    serves=("crossed",),
)


@hookimpl
def loaders() -> list[Loader]:
    return [LOADER]


@hookimpl
def captures() -> list[Engine]:
    return [ENGINE]


def claims(path: str) -> bool:
    return path == "builtin:crossed"


def open_crossed(spec: ModelSpec) -> CrossedModel:
    assert isinstance(spec.parameters, TinyParameters)
    return CrossedModel(spec.parameters, spec.dtype or "float32")


class CrossedModel(TinyModel):
    @property
    def info(self) -> ModelInfo:
        known = super().info
        facts = {**known.facts, "crossed": True, "position": "none"}
        return replace(known, name="crossed", family="crossed", causal=False, facts=facts)

    def tokenise(self, prompts: Sequence[Prompt]) -> Tokens:
        """Targets, with sources beside them."""
        cut = ["".join(part.text for part in prompt.parts).split("|") for prompt in prompts]
        sources, targets = (
            super(CrossedModel, self).tokenise(
                [Prompt((Part(texts[side], name),), name=p.name) for texts, p in zip(cut, prompts, strict=True)]
            )
            for side, name in enumerate(("source", "target"))
        )
        return replace(targets, sources=sources, crossed=True)


class CrossedEngine(TinyEngine):
    """Hands a layer of a shard over whole, or ``at_once`` prompts at a time, last ones first."""

    at_once = 10**9

    def run(self, twin: Any, tokens: Tokens, shard: np.ndarray, request: Any, sink: Any) -> None:
        own, other = ([torch.from_numpy(a) for a in side.padded(shard)] for side in (tokens, tokens.keys))
        beside = {f"key_{name}": array for name, array in zip(("tokens", "text", "mask"), other, strict=True)}

        def seen(layer: int | None, arrays: dict[str, torch.Tensor]) -> None:
            wanted = {site: array for site, array in arrays.items() if site in request.sites}
            if not wanted or (layer is not None and layer not in (request.layers or twin.info.layers)):
                return
            for start in reversed(range(0, len(shard), self.at_once)):
                rows = slice(start, start + self.at_once)
                told = {name: array[rows] for name, array in beside.items()}
                cut = {site: array[rows] for site, array in wanted.items()}
                text = (array[rows] for array in own)
                sink(Batch(layer, shard[rows], *text, cut, twin.info.heads, twin.info.kv_heads, **told))

        forward(twin, own[0], (other[0], other[2]), seen)

    def runner(self, twin: Any) -> CrossedRunner:
        return CrossedRunner(twin)


class CrossedRunner(TinyRunner):
    def forward(  # type: ignore[override]
        self,
        tokens: np.ndarray,
        sites: Sequence[str] = (),
        replace: Any = None,
        base: bool = False,
        mask: np.ndarray | None = None,
        sources: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Mapping[Any, torch.Tensor]:
        assert sources is not None, "a model of two stacks is given what its encoder reads"
        assert len(sources[0]) == len(tokens), "a source for each row"
        found: dict[Any, torch.Tensor] = {}

        def seen(layer: int | None, arrays: dict[str, torch.Tensor]) -> None:
            for site, array in arrays.items():
                if site in (tuple(sites) or ("logits",)):
                    found[site if layer is None else (layer, site)] = array

        twin = type(self.twin)(self.twin.base) if base else self.twin
        given = torch.as_tensor(sources[0]), torch.as_tensor(sources[1])
        forward(twin, torch.as_tensor(tokens), given, seen, replace)
        return found


def forward(
    twin: Any, ids: torch.Tensor, sources: tuple[torch.Tensor, torch.Tensor], seen: Any, put: Any = None
) -> None:
    """q of h = x / rms(x) of the target; k and v of what the other stack gives; softmax over its text."""
    outside = twin.weights(None)
    x = embed = outside.W_E[ids] + outside.W_pos[: ids.shape[1]]
    y = normed(outside.W_E[sources[0]] + outside.W_pos[: sources[0].shape[1]])
    for layer in twin.info.layers:
        weights, before = twin.weights(layer), x
        each = list(weights.kv_of_head)
        q = torch.einsum("pnd,hde->pnhe", normed(x), weights.W_Q)
        k, v = (torch.einsum("pmd,hde->pmhe", y, weights[name]) for name in ("W_K", "W_V"))
        scores = torch.einsum("pqhe,pkhe->phqk", q, k[:, :, each]) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~sources[1][:, None, None, :], torch.finfo(scores.dtype).min)
        pattern = scores.softmax(-1)
        given = put(layer, scores, pattern, v) if put else None
        pattern = pattern if given is None else given
        z = torch.einsum("phqk,pkhe->pqhe", pattern, v[:, :, each])
        out = torch.einsum("pqhe,hed->pqd", z, weights.W_O)
        x = before + out
        sites = {"resid_pre": before, "q": q, "k": k, "v": v, "scores": scores, "pattern": pattern, "z": z}
        seen(layer, sites | {"attn_out": out, "resid_post": x})
    seen(None, {"embed": embed, "logits": normed(x) @ outside.W_U})


def normed(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
