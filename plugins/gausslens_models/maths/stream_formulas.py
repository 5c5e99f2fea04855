"""The stream around attention, written out: embedding, MLP, what is added, and the head; with our tensors.

Plain formulas on arrays, next to nothing of which the capture uses. What a family adds to them is data in its facts:
``embedding_scale``, ``residual_scale``, ``logit_scale``, ``final_soft_cap``, ``parallel``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from .attention_formulas import normed

if TYPE_CHECKING:
    from gausslens import LayerWeights, ModelInfo

Activation = Callable[[torch.Tensor], torch.Tensor]
# Tokens of the vocabulary that are looked at together.
TOKENS = 2048


# What the embedding is made of here, and what stands outside the layers and has no part in it.
WRITTEN = {"W_E", "W_pos", "W_token_type", "W_project_in", "b_project_in", "ln_embed.w", "ln_embed.b"}
ELSEWHERE = re.compile(
    r"(W|b|ln)_(U|head|head_in|head_out|pool|final|project_out|contact|distance|rel_pos)\b.*|ln_(head|final)\..*|.*_entity.*"
)


def not_written(outside: LayerWeights, info: ModelInfo) -> str:
    """Why the embedding of a model is not what ``embedded`` makes; nothing where it is."""
    others = sorted(name for name in outside.names if name not in WRITTEN and not ELSEWHERE.fullmatch(name))
    if others or "W_E" not in outside:
        return f"it has more to it: {', '.join(others)}" if others else "no W_E"
    unknown = info.facts.position == "sinusoidal" and "waves" not in info.facts
    return "its positions are waves that no weight holds" if unknown else ""


def waves(length: int, width: int, first: int, steps: int) -> torch.Tensor:
    """Positions [position, d_model] that no weight holds: sin, then cos, of (t + first) 10000^(-i / steps).

    Vaswani et al., "Attention is all you need", 2017, with all sines before the cosines.
    """
    angles = (torch.arange(length).double() + first)[:, None] * 10000.0 ** (-torch.arange(width // 2).double() / steps)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def embedded(
    ids: torch.Tensor, outside: LayerWeights, info: ModelInfo, dtype: torch.dtype, table: torch.Tensor | None = None
) -> torch.Tensor:
    """The stream before the first layer: token and position embeddings, widened and normed where the family does so.

    ``table`` are positions that are waves as the model holds them, in half precision perhaps; None: they are computed.
    """
    found = outside["W_E"][ids].to(dtype) * info.facts.embedding_scale
    # OPT widens tokens before positions join them, ALBERT and its kind what all of it makes.
    wide_first = "W_pos" in outside and outside["W_pos"].shape[1] != found.shape[-1]
    found = _widened(found, outside) if wide_first else found
    if "W_pos" in outside:
        found = found + outside["W_pos"][: ids.shape[1]]
    if "waves" in info.facts:
        length, (first, _) = ids.shape[1], info.facts["waves"]
        held = waves(length, found.shape[-1], *info.facts["waves"]) if table is None else table[first : first + length]
        found = found + held.to(found)
    if "W_token_type" in outside:
        found = found + outside["W_token_type"][0]
    found = normed(found, outside, "ln_embed", info) if "ln_embed.w" in outside else found
    return found if wide_first else _widened(found, outside)


def _widened(found: torch.Tensor, outside: LayerWeights) -> torch.Tensor:
    if "W_project_in" not in outside:
        return found
    found = found @ outside["W_project_in"]
    return found + outside["b_project_in"] if "b_project_in" in outside else found


def mlp_input(resid: torch.Tensor, weights: LayerWeights, info: ModelInfo) -> torch.Tensor:
    """What the MLP reads of the stream before it (of resid_pre where it is parallel to attention)."""
    if not info.facts.norm_first:
        return resid
    name = "ln2" if "ln2.w" in weights or not info.facts.parallel else "ln1"
    return normed(resid, weights, name, info)


def linear(x: torch.Tensor, weights: LayerWeights, name: str) -> torch.Tensor:
    """x W + b, of W_in, W_gate or W_out."""
    found = x @ weights[f"W_{name}"]
    return found + weights[f"b_{name}"] if f"b_{name}" in weights else found


def mlp_post(pre: torch.Tensor, up: torch.Tensor | None, activation: Activation) -> torch.Tensor:
    """What W_out reads: the activation, times x W_in where there is a gate."""
    found = activation(pre)
    return found if up is None else found * up


def mlp_output(post: torch.Tensor, weights: LayerWeights, info: ModelInfo) -> torch.Tensor:
    """What the MLP adds to the stream, normed and scaled where the family does so."""
    found = linear(post, weights, "out")
    found = normed(found, weights, "ln2_post", info) if "ln2_post.w" in weights else found
    return found * info.facts.residual_scale


def added(
    resid: torch.Tensor, parts: tuple[torch.Tensor, ...], weights: LayerWeights, name: str, info: ModelInfo
) -> torch.Tensor:
    """The stream after what is added to it; normed by ``name`` (ln1, ln2) in families that put their norms last."""
    found = resid + sum(parts)
    return normed(found, weights, name, info) if not info.facts.norm_first and f"{name}.w" in weights else found


def head_input(resid: torch.Tensor, outside: LayerWeights, info: ModelInfo, activation: Activation) -> torch.Tensor:
    """What W_U reads of the stream after the last layer."""
    if "ln_final.w" in outside or (info.facts.norm_first and not info.facts.gains):
        resid = normed(resid, outside, "ln_final", info)
    if "W_project_out" in outside:
        resid = resid @ outside["W_project_out"]
    if "W_head" in outside:
        resid = normed(activation(linear(resid, outside, "head")), outside, "ln_head", info)
    return resid


def logits(
    read: torch.Tensor, size: torch.Tensor, outside: LayerWeights, info: ModelInfo
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """(tokens, their logits, size of what is summed), some tokens at a time: W_U may be the largest tensor by far."""
    W_U, scale, cap = outside["W_U"], info.facts.logit_scale, info.facts.get("final_soft_cap")
    for start in range(0, W_U.shape[1], TOKENS):
        some = slice(start, min(start + TOKENS, W_U.shape[1]))
        W = W_U[:, some].to(read.dtype)
        found, summed = (read @ W) * scale, (size.square() @ W.square()).sqrt() * abs(scale)
        if "b_U" in outside:
            bias = outside["b_U"][some]
            found, summed = found + bias, summed + bias.abs()
        yield some, found if cap is None else cap * torch.tanh(found / cap), summed
