"""Latent attention (DeepSeek-V2, 2024): q, k and v are made of low-rank factors with a norm between.

A latent is x W_down, normed; W_up makes heads of it. W_Q, W_K and W_V are products of these factors with the gain of
the norm between them, but not of the norm itself, which depends on the text: q is x W_Q over the latent's root mean
square. A part of each key is the same for all heads; it has no norm, and it alone is turned.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from .mixtures import GLM4_MOE
from .slots import Family, Slot, Tap, norm
from .table import LLAMA

# How products are made of factors (maths/latent_products.py); those whose factors a layer has are its own.
PRODUCTS = {
    "W_Q": ("W_Q_down", "ln_Q.w", "W_Q_up"),
    "W_K": ("W_KV_down", "ln_KV.w", "W_K_up", "W_K_shared"),
    "W_V": ("W_KV_down", "ln_KV.w", "W_V_up"),
    "b_Q": ("b_Q_down", "ln_Q.w", "W_Q_up"),
    "b_K": ("b_KV_down", "ln_KV.w", "W_K_up", "b_K_shared"),
    "b_V": ("b_KV_down", "ln_KV.w", "W_V_up"),
}
_QUERIES = {
    "W_Q_down": Slot("self_attn.q_a_proj.weight", "in_out"),
    "b_Q_down": Slot("self_attn.q_a_proj.bias"),
    "W_Q_up": Slot("self_attn.q_b_proj.weight", "query"),
    **norm("ln_Q", "self_attn.q_a_layernorm"),
}
# Smaller models make queries at once.
_DIRECT = {"W_Q": Slot("self_attn.q_proj.weight", "query")}
_LATENT = {
    **_QUERIES,
    **_DIRECT,
    "W_KV_down": Slot("self_attn.kv_a_proj_with_mqa.weight", "in_out", "latent"),
    "W_K_shared": Slot("self_attn.kv_a_proj_with_mqa.weight", "in_out", "shared"),
    "b_KV_down": Slot("self_attn.kv_a_proj_with_mqa.bias", part="latent"),
    "b_K_shared": Slot("self_attn.kv_a_proj_with_mqa.bias", part="shared"),
    "W_K_up": Slot("self_attn.kv_b_proj.weight", "key_value", "k^"),
    "W_V_up": Slot("self_attn.kv_b_proj.weight", "key_value", "v^"),
    **norm("ln_KV", "self_attn.kv_a_layernorm"),
}
_PLAIN = ("W_Q", "W_K", "W_V", "b_Q", "b_K", "b_V")
_SHARED = Tap("self_attn.kv_a_proj_with_mqa", part="shared")

DEEPSEEK_V3 = replace(
    GLM4_MOE,
    name="deepseek_v3",
    model_types=("deepseek_v3", "glm4_moe_lite"),
    tensors={n: s for n, s in LLAMA.tensors.items() if n not in _PLAIN} | _LATENT,
    taps=LLAMA.taps
    | {
        "q": Tap("self_attn.q_b_proj"),
        "k": Tap("self_attn.kv_b_proj", part="k^", shared=_SHARED),
        "v": Tap("self_attn.kv_b_proj", part="v^"),
    },
    optional=(*LLAMA.optional, *_QUERIES, *_DIRECT, "b_KV_down", "b_K_shared"),
    when=(("q_lora_rank", None, {"q": Tap("self_attn.q_proj")}, {}),),
    latent="rope_interleave",
)

DEEPSEEK_V2 = replace(DEEPSEEK_V3, name="deepseek_v2", model_types=("deepseek_v2",), latent="pairs")
YOUTU = replace(DEEPSEEK_V3, name="youtu", model_types=("youtu",), mixture=None)
MINICPM3 = replace(
    YOUTU,
    name="minicpm3",
    model_types=("minicpm3",),
    latent="halves",
    multipliers={
        "embedding_scale": ("scale_emb", 1.0),
        "residual_scale": ("scale_depth", 1.0),
        "logit_scale": ("logits_scaling", -1.0),
    },
)
LATENT = (DEEPSEEK_V3, DEEPSEEK_V2, YOUTU, MINICPM3)


def latent_pairs(config: Any, family: Family) -> bool:
    """Whether latent attention turns neighbours of what heads share."""
    return family.latent == "pairs" or (family.latent != "halves" and bool(getattr(config, family.latent)))


def stretched(told: dict[str, Any]) -> float:
    """What YaRN multiplies scores by, (0.1 m log s + 1)^2 for a factor s > 1, where the config has it do so."""
    weight, factor = told.get("mscale_all_dim", 0), told.get("factor", 1.0)
    if told.get("rope_type", "default") == "default" or not weight or factor <= 1:
        return 1.0
    return float(0.1 * weight * math.log(factor) + 1.0) ** 2
