"""Rotary position: the frequencies of each layer, as the config tells them, and the rotation itself.

Source: Su et al., RoFormer, arXiv:2104.09864, with the halves of a head (not neighbours) rotated against each other as
in the checkpoints of all families here: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), angle = position * frequency.
"""

from __future__ import annotations

from typing import Any

import torch


def frequencies(config: Any, layer: int, d_head: int) -> dict[str, Any]:
    """How a layer rotates: type, frequencies [rotated / 2], and what cos and sin are multiplied by.

    theta^(-2 i / rotated) for the default type; others (llama3, yarn, ...) as transformers computes them. The types
    "dynamic" and "longrope" change with the length of the text: their values here hold up to the original length.
    """
    parameters = getattr(config, "rope_parameters", None) or {"rope_theta": 10000.0, "rope_type": "default"}
    kinds = getattr(config, "layer_types", None)
    kind = kinds[layer] if kinds is not None and "rope_theta" not in parameters else None
    own = parameters[kind] if kind is not None else parameters
    if own["rope_type"] == "default":
        rotated = int(d_head * own.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, rotated, 2, dtype=torch.float) / rotated
        found, scaling = 1.0 / (own["rope_theta"] ** exponents), 1.0
    else:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        named = {"layer_type": kind} if kind is not None else {}
        found, scaling = ROPE_INIT_FUNCTIONS[own["rope_type"]](config, torch.device("cpu"), **named)
    return {"type": own["rope_type"], "frequencies": tuple(found.tolist()), "scaling": float(scaling)}


def rotate(x: torch.Tensor, rotary: dict[str, Any], positions: torch.Tensor) -> torch.Tensor:
    """q or k [prompt, position, head, d_head] with position applied; dimensions beyond the rotated ones stay."""
    angles = positions[:, None].to(x.device).float() * torch.tensor(rotary["frequencies"], device=x.device)
    cos = (angles.cos() * rotary["scaling"]).to(x.dtype)[None, :, None, :]
    sin = (angles.sin() * rotary["scaling"]).to(x.dtype)[None, :, None, :]
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
