"""Tiny random models whose scores have a term of distance: {name: (config class, arguments, class)}."""

from __future__ import annotations

from typing import Any

from tiny_decoders import SMALL

ALIBI: dict[str, Any] = {"vocab_size": 61, "hidden_size": 24, "n_layer": 3, "n_head": 4}
MPT: dict[str, Any] = {"vocab_size": 61, "d_model": 24, "n_layers": 3, "n_heads": 4, "max_seq_len": 64}
DISENTANGLED = SMALL | {
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "max_relative_positions": 16,
    "type_vocab_size": 0,
}

RELATIVE: dict[str, tuple[str, dict[str, Any], str]] = {
    "bloom": ("BloomConfig", ALIBI, "BloomForCausalLM"),
    "bloom-six-heads": ("BloomConfig", ALIBI | {"n_head": 6}, "BloomForCausalLM"),
    "mpt": ("MptConfig", MPT | {"attn_config": {"softmax_scale": 0.3}}, "MptForCausalLM"),
    "mpt-six-heads": ("MptConfig", MPT | {"n_heads": 6}, "MptForCausalLM"),
    "mpnet": (
        "MPNetConfig",
        SMALL | {"pad_token_id": 1, "bos_token_id": 0, "max_position_embeddings": 66},
        "MPNetForMaskedLM",
    ),
    "mpnet-headless": (
        "MPNetConfig",
        SMALL | {"pad_token_id": 1, "bos_token_id": 0, "max_position_embeddings": 66},
        "MPNetModel",
    ),
    "deberta": ("DebertaConfig", DISENTANGLED | {"position_biased_input": False}, "DebertaForMaskedLM"),
    "deberta-plain": ("DebertaConfig", SMALL | {"type_vocab_size": 2}, "DebertaForMaskedLM"),
    "deberta-v2": ("DebertaV2Config", DISENTANGLED, "DebertaV2ForMaskedLM"),
    "deberta-v3": (
        "DebertaV2Config",
        DISENTANGLED
        | {
            "share_att_key": True,
            "position_buckets": 8,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
            "conv_kernel_size": 3,
        },
        "DebertaV2Model",
    ),
}
