"""Tiny random models of which some layers have no attention: {name: (config class, arguments, class)}."""

from __future__ import annotations

from typing import Any

from tiny_decoders import GROUPED

KINDS = ["linear_attention", "full_attention", "linear_attention"]
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 12,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
DELTA: dict[str, Any] = {
    "head_dim": 8,
    "layer_types": KINDS,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 6,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 12,
}

HYBRIDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bamba": ("BambaConfig", GROUPED | MAMBA | {"attn_layer_indices": [1]}, "BambaForCausalLM"),
    "jamba": (
        "JambaConfig",
        GROUPED
        | {"attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
        | {"num_experts": 2, "num_experts_per_tok": 1, "mamba_d_state": 4, "mamba_dt_rank": 2},
        "JambaForCausalLM",
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        GROUPED | DELTA | EXPERTS | {"decoder_sparse_step": 2, "attention_bias": True},
        "Qwen3NextForCausalLM",
    ),
    "qwen3_5": ("Qwen3_5TextConfig", GROUPED | DELTA, "Qwen3_5ForCausalLM"),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", GROUPED | DELTA | EXPERTS, "Qwen3_5MoeForCausalLM"),
    "lfm2_moe": (
        "Lfm2MoeConfig",
        GROUPED
        | {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1}
        | {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        "Lfm2MoeForCausalLM",
    ),
    "recurrent_gemma": (
        "RecurrentGemmaConfig",
        GROUPED | {"block_types": ["recurrent", "attention"], "attention_window_size": 5, "lru_width": 24},
        "RecurrentGemmaForCausalLM",
    ),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        GROUPED
        | MAMBA
        | {"layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 3, "num_experts_per_tok": 2}
        | {"shared_intermediate_size": 20, "attention_multiplier": 0.3, "residual_multiplier": 0.7},
        "GraniteMoeHybridForCausalLM",
    ),
    "granitemoehybrid-turned": (
        "GraniteMoeHybridConfig",
        GROUPED
        | MAMBA
        | {"layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 3, "num_experts_per_tok": 2}
        | {"shared_intermediate_size": 20, "position_embedding_type": "rope"},
        "GraniteMoeHybridForCausalLM",
    ),
    "nemotron_h": (
        "NemotronHConfig",
        GROUPED
        | {"layers_block_type": ["mamba", "attention", "moe"], "mamba_num_heads": 4, "mamba_head_dim": 12}
        | {"ssm_state_size": 8, "n_groups": 1, "chunk_size": 8, "n_routed_experts": 3, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 12, "head_dim": 8},
        "NemotronHForCausalLM",
    ),
}
