"""Attention from weights, written out: what a layer must do with our tensors if we read them rightly.

Plain formulas on arrays, next to nothing of which the capture uses: so the two can be held against each other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from .latent_products import root_mean_square

if TYPE_CHECKING:
    from gausslens import LayerWeights, ModelInfo


def normed(x: torch.Tensor, weights: LayerWeights, name: str, info: ModelInfo, axes: int = 1) -> torch.Tensor:
    """A norm over the last axis (or axes): x / rms(x) * w, or (x - mean) / sd * w + b; without tensors w = 1, b = 0."""
    over = tuple(range(-axes, 0))
    wide = x.float()
    if info.facts.norm == "layer":
        wide = wide - wide.mean(over, keepdim=True)
    wide = wide * torch.rsqrt(wide.pow(2).mean(over, keepdim=True) + info.facts.epsilon)
    gain = f"{name}.w"
    wide = wide * weights[gain].float() if gain in weights else wide
    bias = f"{name}.b"
    return (wide + weights[bias].float() if bias in weights else wide).to(x.dtype)


def attention_input(resid_pre: torch.Tensor, weights: LayerWeights, info: ModelInfo) -> torch.Tensor:
    """What W_Q, W_K and W_V read: the residual stream, after ln1 where the family puts its norm first."""
    first = info.facts.norm_first and weights.layer not in info.facts.unnormed_layers
    return normed(resid_pre, weights, "ln1", info) if first else resid_pre


def projected(x: torch.Tensor, weights: LayerWeights, letter: str) -> torch.Tensor:
    """q, k or v [prompt, position, head, d_head]: x W + b."""
    found = torch.einsum("ptd,hde->pthe", x, weights[f"W_{letter}"])
    bias = f"b_{letter}"
    found = found + weights[bias] if bias in weights else found
    latent = "Q" if letter == "Q" else "KV"
    if f"ln_{latent}.w" not in weights:
        return found
    # W is then a product of factors and of the gain between them: the norm itself is left to do.
    inner = x @ weights[f"W_{latent}_down"]
    inner = inner + weights[f"b_{latent}_down"] if f"b_{latent}_down" in weights else inner
    size = root_mean_square(inner, weights.info.facts.latent_epsilon)[:, :, None].to(found.dtype)
    shared = weights["W_K_shared"].shape[-1] if letter == "K" else 0
    own = found.shape[-1] - shared
    return torch.cat([found[..., :own] / size, found[..., own:]], dim=-1)


def clipped(x: torch.Tensor, info: ModelInfo) -> torch.Tensor:
    """q, k or v as attention takes them: kept between -c and c where the family does so."""
    return x if info.facts.clip is None else x.clamp(-info.facts.clip, info.facts.clip)


def positioned(x: torch.Tensor, weights: LayerWeights, letter: str, layer: int, info: ModelInfo) -> torch.Tensor:
    """q or k as the scores see it: normed where the family norms it, rotated where the family rotates."""
    facts, name = info.facts, f"{letter.lower()}_norm"
    rotation, places = facts.rotation(layer), torch.arange(x.shape[1], device=x.device)
    axes = 2 if facts.query_norm_over == "all" else 1
    if facts.query_norm and not facts.query_norm_late:
        x = normed(x, weights, name, info, axes)
    x = rotation.turned(clipped(x, info), places)
    if facts.query_norm and facts.query_norm_late and rotation.frequencies:
        x = normed(x, weights, name, info, axes)
    growth = facts.query_growth(layer) if letter == "Q" else None
    if growth is not None:
        b, n, s = growth
        x = x * (1 + b * torch.log1p(torch.floor((places.float() + s) / n)))[None, :, None, None].to(x.dtype)
    return x


def scores(
    q: torch.Tensor,
    k: torch.Tensor,
    layer: int,
    info: ModelInfo,
    mask: torch.Tensor,
    distance: torch.Tensor | None = None,
) -> torch.Tensor:
    """What enters the softmax [prompt, head, query, key]: scaled q . k, soft-capped; -inf where none may look.

    ``distance`` is what distance adds, [head, query, key]; ``mask`` is of the keys.
    """
    k = k[:, :, list(info.kv_of_head)]
    found: torch.Tensor = torch.einsum("pqhe,pkhe->phqk", q, k) * info.facts.scale(layer)
    if distance is not None:
        found = found + distance.to(found.dtype)
    cap = info.facts.soft_cap
    if cap is not None:
        found = cap * torch.tanh(found / cap)
    seen = mask[:, None].expand(-1, q.shape[1], -1) if info.facts.crossed else visible(layer, info, mask)
    return found.masked_fill(~seen[:, None], -torch.inf)


def distance_term(length: int, info: ModelInfo, weights: LayerWeights) -> torch.Tensor | None:
    """What scores gain by distance [head, query, key], up to a number for each row; None where they gain nothing.

    ALiBi: slope (key - query). Buckets (Raffel et al., "T5", 2020): the head's number in the bucket of the distance,
    which the ``weights`` of the layer or those outside the layers have.
    """
    facts = info.facts
    places = torch.arange(length)
    ahead = places[None, :] - places[:, None]
    if facts.position == "alibi":
        return torch.tensor(facts.alibi_slopes)[:, None, None] * ahead
    if facts.position == "buckets":
        found = bucket(ahead, *facts.distance_buckets, backwards=info.causal)
        return weights["W_distance"].detach()[found].permute(2, 0, 1)
    return None


def levelled(scores: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Scores with the number added to each row that gives it the largest score of the other: no pattern tells them."""
    return scores + (other.amax(-1, keepdim=True) - scores.amax(-1, keepdim=True)).to(scores.dtype).nan_to_num()


def bucket(ahead: torch.Tensor, buckets: int, farthest: int, backwards: bool = False) -> torch.Tensor:
    """The bucket of each distance: half of them for what is ahead; near ones one each, far ones by their logarithm.

    ``backwards``: all of them are for what is behind.
    """
    side = buckets if backwards else buckets // 2
    near = side // 2
    distance = (-ahead).clamp(min=0) if backwards else ahead.abs()
    far = near + (torch.log(distance.clamp(min=1) / near) / math.log(farthest / near) * (side - near)).long()
    found = torch.where(distance < near, distance, far.clamp(max=side - 1))
    return found if backwards else found + (ahead > 0) * side


def visible(layer: int, info: ModelInfo, mask: torch.Tensor) -> torch.Tensor:
    """Which keys each query may look at [prompt, query, key]: not padding, not later, not before the window."""
    places = torch.arange(mask.shape[1], device=mask.device)
    distance = places[:, None] - places[None, :]
    allowed = distance >= 0 if info.causal else torch.ones_like(distance, dtype=torch.bool)
    window = info.facts.window(layer)
    if window is not None:
        allowed = allowed & (distance.abs() < window)
    return allowed[None] & mask[:, None, :]


def pattern(scores: torch.Tensor, weights: LayerWeights) -> torch.Tensor:
    """The softmax over keys; with sinks beside them a number for each head, whose share goes nowhere."""
    if "sinks" not in weights:
        return scores.float().softmax(-1)
    sinks = weights["sinks"].float()[None, :, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([scores.float(), sinks], dim=-1).softmax(-1)[..., :-1]


def gated(z: torch.Tensor, read: torch.Tensor, weights: LayerWeights) -> torch.Tensor:
    """Head outputs as W_O reads them: times sigmoid(x W_gate_z + b), where heads have such a gate."""
    if "W_gate_z" not in weights:
        return z
    gate = torch.einsum("ptd,hde->pthe", read, weights["W_gate_z"])
    return z * torch.sigmoid(gate + weights["b_gate_z"] if "b_gate_z" in weights else gate)


def attention_output(z: torch.Tensor, weights: LayerWeights, info: ModelInfo) -> torch.Tensor:
    """What attention adds to the stream: sum over heads of z W_O, plus b_O; normed, scaled where the family does so."""
    if "z_norm.w" in weights:
        z = normed(z, weights, "z_norm", info, axes=2)
    found = torch.einsum("pthe,hed->ptd", z, weights["W_O"])
    if "b_O" in weights:
        found = found + weights["b_O"]
    return (normed(found, weights, "ln1_post", info) if "ln1_post.w" in weights else found) * info.facts.residual_scale
