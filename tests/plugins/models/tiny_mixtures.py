"""Tiny random mixtures of experts, one row a type: name: (config class, arguments, model class)."""

from __future__ import annotations

from typing import Any

from tiny_decoders import GROUPED, SCALED, SLIDING, WIDE

LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}
NAMED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MIXTURES: dict[str, tuple[str, dict[str, Any], str]] = {
    "mixtral": ("MixtralConfig", WIDE | LOCAL, "MixtralForCausalLM"),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        GROUPED | NAMED | {"shared_expert_intermediate_size": 20, "mlp_only_layers": [1]},
        "Qwen2MoeForCausalLM",
    ),
    "qwen3_moe": ("Qwen3MoeConfig", WIDE | NAMED | {"mlp_only_layers": [0]}, "Qwen3MoeForCausalLM"),
    "mellum": ("MellumConfig", WIDE | NAMED, "MellumForCausalLM"),
    "olmoe": ("OlmoeConfig", GROUPED | NAMED | {"clip_qkv": 0.8}, "OlmoeForCausalLM"),
    "minimax_m2": ("MiniMaxM2Config", WIDE | LOCAL, "MiniMaxM2ForCausalLM"),
    "flex_olmo": ("FlexOlmoConfig", GROUPED | NAMED, "FlexOlmoForCausalLM"),
    "phimoe": ("PhimoeConfig", GROUPED | LOCAL | {"lm_head_bias": True}, "PhimoeForCausalLM"),
    "glm4_moe": ("Glm4MoeConfig", WIDE | ROUTED | {"use_qk_norm": True, "attention_bias": True}, "Glm4MoeForCausalLM"),
    "dots1": ("Dots1Config", WIDE | ROUTED | {"n_shared_experts": 1, "first_k_dense_replace": 1}, "Dots1ForCausalLM"),
    "exaone_moe": ("ExaoneMoeConfig", WIDE | SLIDING | NAMED | {"n_group": 1, "topk_group": 1}, "ExaoneMoeForCausalLM"),
    "hy_v3": ("HYV3Config", WIDE | NAMED, "HYV3ForCausalLM"),
    "solar_open": ("SolarOpenConfig", WIDE | ROUTED, "SolarOpenForCausalLM"),
    "kolibri1": ("Kolibri1Config", WIDE | NAMED, "Kolibri1ForCausalLM"),
    "flint": ("FlintConfig", WIDE | NAMED, "FlintForCausalLM"),
    "ernie4_5_moe": (
        "Ernie4_5_MoeConfig",
        GROUPED | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16, "use_bias": True},
        "Ernie4_5_MoeForCausalLM",
    ),
    "cohere2_moe": ("Cohere2MoeConfig", WIDE | SLIDING | NAMED, "Cohere2MoeForCausalLM"),
    "hunyuan_v1_moe": (
        "HunYuanMoEV1Config",
        WIDE | {"num_experts": 4, "moe_topk": 2},
        "HunYuanMoEV1ForCausalLM",
    ),
    "llama4": (
        "Llama4TextConfig",
        WIDE
        | LOCAL
        | {"interleave_moe_layer_step": 2, "intermediate_size_mlp": 44, "no_rope_layers": [1, 0, 1]}
        | {"floor_scale": 4, "attn_scale": 0.3, "use_qk_norm": True},
        "Llama4ForCausalLM",
    ),
    "gpt_oss": ("GptOssConfig", WIDE | LOCAL | {"sliding_window": 5}, "GptOssForCausalLM"),
    "granitemoe": ("GraniteMoeConfig", GROUPED | LOCAL | SCALED, "GraniteMoeForCausalLM"),
    "granitemoeshared": (
        "GraniteMoeSharedConfig",
        GROUPED | LOCAL | SCALED | {"shared_intermediate_size": 20},
        "GraniteMoeSharedForCausalLM",
    ),
    "aria_text": (
        "AriaTextConfig",
        WIDE | {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1},
        "AriaTextForCausalLM",
    ),
}
