"""Tiny random decoders, one row a type: name: (config class, arguments, model class)."""

from __future__ import annotations

from typing import Any

VOCABULARY = 61
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = SMALL | {"num_key_value_heads": 2}
WIDE = GROUPED | {"head_dim": 10}
THIRTY_TWO = GROUPED | {"hidden_size": 32}
BIASED = WIDE | {"attention_bias": True}
SLIDING = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
SCALED = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 1.7,
}
_OLD = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_PARTLY = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "llama_4_scaling_beta": 0.1,
}
DECODERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "cwm": ("CwmConfig", WIDE | SLIDING, "CwmForCausalLM"),
    "seed_oss": ("SeedOssConfig", WIDE | {"attention_out_bias": True}, "SeedOssForCausalLM"),
    "ministral": ("MinistralConfig", WIDE | SLIDING, "MinistralForCausalLM"),
    "ministral3": ("Ministral3Config", WIDE | {"rope_parameters": _YARN}, "Ministral3ForCausalLM"),
    "smollm3": ("SmolLM3Config", GROUPED | {"no_rope_layers": [1, 0, 1]}, "SmolLM3ForCausalLM"),
    "ernie4_5": ("Ernie4_5Config", WIDE | {"use_bias": True}, "Ernie4_5ForCausalLM"),
    "helium": ("HeliumConfig", GROUPED | {"head_dim": 6}, "HeliumForCausalLM"),
    "gemma": ("GemmaConfig", WIDE, "GemmaForCausalLM"),
    "vaultgemma": (
        "VaultGemmaConfig",
        WIDE | {"query_pre_attn_scalar": 7, "sliding_window": 4},
        "VaultGemmaForCausalLM",
    ),
    "granite": ("GraniteConfig", GROUPED | SCALED, "GraniteForCausalLM"),
    "hyperclovax": ("HyperCLOVAXConfig", GROUPED | SCALED | {"use_post_norm": True}, "HyperCLOVAXForCausalLM"),
    "arcee": ("ArceeConfig", BIASED | {"mlp_bias": True}, "ArceeForCausalLM"),
    "jais2": ("Jais2Config", WIDE, "Jais2ForCausalLM"),
    "nemotron": ("NemotronConfig", WIDE | _PARTLY, "NemotronForCausalLM"),
    "starcoder2": ("Starcoder2Config", GROUPED | {"sliding_window": 5}, "Starcoder2ForCausalLM"),
    "apertus": ("ApertusConfig", GROUPED, "ApertusForCausalLM"),
    "nanochat": ("NanoChatConfig", GROUPED, "NanoChatForCausalLM"),
    "bitnet": ("BitNetConfig", GROUPED, "BitNetForCausalLM"),
    "olmo": ("OlmoConfig", GROUPED | {"clip_qkv": 0.8}, "OlmoForCausalLM"),
    "exaone4": ("Exaone4Config", WIDE | SLIDING, "Exaone4ForCausalLM"),
    "olmo2": ("Olmo2Config", GROUPED, "Olmo2ForCausalLM"),
    "olmo3": ("Olmo3Config", GROUPED | SLIDING, "Olmo3ForCausalLM"),
    "cohere": ("CohereConfig", GROUPED | {"use_qk_norm": True}, "CohereForCausalLM"),
    "cohere2": ("Cohere2Config", WIDE | SLIDING, "Cohere2ForCausalLM"),
    "hunyuan_v1_dense": ("HunYuanDenseV1Config", WIDE, "HunYuanDenseV1ForCausalLM"),
    "glm": ("GlmConfig", GROUPED | {"head_dim": 8}, "GlmForCausalLM"),
    "glm4": ("Glm4Config", GROUPED | {"head_dim": 8}, "Glm4ForCausalLM"),
    "stablelm": ("StableLmConfig", THIRTY_TWO | {"use_qkv_bias": True}, "StableLmForCausalLM"),
    "stablelm-parallel": ("StableLmConfig", THIRTY_TWO | {"use_parallel_residual": True}, "StableLmForCausalLM"),
    "phi": ("PhiConfig", THIRTY_TWO | {"qk_layernorm": True} | _PARTLY, "PhiForCausalLM"),
    "persimmon": ("PersimmonConfig", SMALL | {"hidden_size": 32} | _PARTLY, "PersimmonForCausalLM"),
    "gpt_bigcode": ("GPTBigCodeConfig", SMALL | {"n_inner": 40}, "GPTBigCodeForCausalLM"),
    "gpt_bigcode-many": ("GPTBigCodeConfig", SMALL | {"n_inner": 40, "multi_query": False}, "GPTBigCodeForCausalLM"),
    "biogpt": ("BioGptConfig", SMALL, "BioGptForCausalLM"),
    "ctrl": (
        "CTRLConfig",
        _OLD | {"n_embd": 24, "n_layer": 3, "n_head": 4, "dff": 40, "n_positions": 64},
        "CTRLLMHeadModel",
    ),
    "internlm3": ("InternLM3Config", WIDE, "LlamaForCausalLM"),
}
# Patterns through TransformerLens alone: plain transformers does not let their attention be watched.
BRIDGED: dict[str, tuple[str, dict[str, Any], str]] = {
    "xglm": (
        "XGLMConfig",
        _OLD | {"d_model": 24, "ffn_dim": 40, "num_layers": 3, "attention_heads": 4, "max_position_embeddings": 64},
        "XGLMForCausalLM",
    ),
    "gpt_neo": (
        "GPTNeoConfig",
        _OLD
        | {"hidden_size": 24, "intermediate_size": 40, "num_layers": 4, "num_heads": 4, "window_size": 5}
        | {"attention_types": [[["global", "local"], 2]], "max_position_embeddings": 64},
        "GPTNeoForCausalLM",
    ),
    "gptj": (
        "GPTJConfig",
        _OLD | {"n_embd": 24, "n_layer": 3, "n_head": 3, "n_inner": 40, "n_positions": 64, "rotary_dim": 4},
        "GPTJForCausalLM",
    ),
    "codegen": (
        "CodeGenConfig",
        _OLD | {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 40, "n_positions": 64, "rotary_dim": 4},
        "CodeGenForCausalLM",
    ),
    "falcon": (
        "FalconConfig",
        _OLD | {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_hidden_size": 40},
        "FalconForCausalLM",
    ),
    "falcon-groups": (
        "FalconConfig",
        _OLD
        | {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_hidden_size": 40}
        | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
        "FalconForCausalLM",
    ),
    "falcon-sequential": (
        "FalconConfig",
        _OLD
        | {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_hidden_size": 40}
        | {"parallel_attn": False, "multi_query": False, "bias": True},
        "FalconForCausalLM",
    ),
}
