"""Tiny random models by name: their configs, and how they are built."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tiny_decoders import BRIDGED, DECODERS, GROUPED, SMALL
from tiny_encoders import ENCODERS
from tiny_hybrids import HYBRIDS
from tiny_latent import LATENT
from tiny_mixtures import MIXTURES
from tiny_relative import RELATIVE

# name: (config class, arguments, class with or without a language-model head)
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "gpt2": ("GPT2Config", SMALL | {"n_inner": 40}, "GPT2LMHeadModel"),
    "gpt2-layer-scaled": (
        "GPT2Config",
        SMALL | {"scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False},
        "GPT2LMHeadModel",
    ),
    "gpt2-headless": ("GPT2Config", SMALL, "GPT2Model"),
    "llama": ("LlamaConfig", GROUPED | {"attention_bias": True, "mlp_bias": True}, "LlamaForCausalLM"),
    "llama-tied": (
        "LlamaConfig",
        GROUPED
        | {
            "head_dim": 10,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
        "LlamaForCausalLM",
    ),
    "mistral": ("MistralConfig", GROUPED | {"head_dim": 8, "sliding_window": 5}, "MistralForCausalLM"),
    "qwen2": (
        "Qwen2Config",
        GROUPED | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        "Qwen2ForCausalLM",
    ),
    "qwen3": ("Qwen3Config", GROUPED | {"head_dim": 10, "tie_word_embeddings": True}, "Qwen3ForCausalLM"),
    "gemma2": (
        "Gemma2Config",
        GROUPED | {"head_dim": 10, "query_pre_attn_scalar": 7, "sliding_window": 4, "attn_logit_softcapping": 2.0},
        "Gemma2ForCausalLM",
    ),
    "gemma3": (
        "Gemma3TextConfig",
        GROUPED | {"head_dim": 10, "sliding_window": 4, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
        "Gemma3ForCausalLM",
    ),
    "phi3": (
        "Phi3Config",
        GROUPED | {"partial_rotary_factor": 0.5, "original_max_position_embeddings": 64},
        "Phi3ForCausalLM",
    ),
    "gpt_neox": ("GPTNeoXConfig", SMALL | {"rotary_pct": 0.5}, "GPTNeoXForCausalLM"),
    "gpt_neox-sequential": ("GPTNeoXConfig", SMALL | {"use_parallel_residual": False}, "GPTNeoXForCausalLM"),
    "bert": ("BertConfig", SMALL, "BertModel"),
    "bert-masked": ("BertConfig", SMALL, "BertForMaskedLM"),
    "opt": ("OPTConfig", SMALL | {"ffn_dim": 40, "word_embed_proj_dim": 24}, "OPTForCausalLM"),
    "opt-after": (
        "OPTConfig",
        SMALL | {"ffn_dim": 40, "word_embed_proj_dim": 16, "do_layer_norm_before": False},
        "OPTForCausalLM",
    ),
    "lfm2": (
        "Lfm2Config",
        GROUPED | {"layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
        "Lfm2ForCausalLM",
    ),
}

MORE = DECODERS | MIXTURES
ALL = MODELS | MORE
# Those that lack a site, or are no decoders: test_encoders.py and its neighbours ask of them what they have.
OTHERS = ENCODERS | RELATIVE | LATENT | HYBRIDS | BRIDGED


def _class_of(config_class: str) -> Any:
    """A config class; some are only known by their type."""
    found = getattr(transformers, config_class, None)
    return found or transformers.AutoConfig.for_model(config_class.removesuffix("Config").lower()).__class__


def build(name: str) -> Any:
    """A model whose every parameter is random: biases and gains too, so that none can be forgotten unseen."""
    config_class, arguments, model_class = (ALL | OTHERS)[name]
    config = _class_of(config_class)(**arguments)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(map(ord, name)))
        model = getattr(transformers, model_class)(config)
        for parameter in filter(lambda p: p.requires_grad, model.parameters()):
            spread = 0.3 if parameter.ndim > 1 else 0.2
            parameter.data += spread * torch.randn(parameter.shape)
    return model.eval()
