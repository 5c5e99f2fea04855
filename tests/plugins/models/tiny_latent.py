"""Tiny random models with latent attention: {name: (config class, arguments, class)}."""

from __future__ import annotations

from typing import Any

from tiny_decoders import SMALL

RANKS = SMALL | {
    "num_key_value_heads": 4,
    "q_lora_rank": 10,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}
EXPERTS: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}

LATENT: dict[str, tuple[str, dict[str, Any], str]] = {
    "deepseek_v3": (
        "DeepseekV3Config",
        RANKS | EXPERTS | {"attention_bias": True},
        "DeepseekV3ForCausalLM",
    ),
    "deepseek_v3-halves": (
        "DeepseekV3Config",
        RANKS
        | EXPERTS
        | {"rope_interleave": False, "q_lora_rank": None}
        | {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "mscale": 1.0,
                "mscale_all_dim": 0.7,
                "original_max_position_embeddings": 16,
            }
        },
        "DeepseekV3ForCausalLM",
    ),
    "deepseek_v2": ("DeepseekV2Config", RANKS | EXPERTS, "DeepseekV2ForCausalLM"),
    "deepseek_v2-direct": ("DeepseekV2Config", RANKS | EXPERTS | {"q_lora_rank": None}, "DeepseekV2ForCausalLM"),
    "glm4_moe_lite": ("Glm4MoeLiteConfig", RANKS | EXPERTS, "Glm4MoeLiteForCausalLM"),
    "youtu": ("YoutuConfig", RANKS | {"pad_token_id": None}, "YoutuForCausalLM"),
    "minicpm3": ("MiniCPM3Config", RANKS | {"scale_emb": 3, "scale_depth": 0.9}, "MiniCPM3ForCausalLM"),
}
