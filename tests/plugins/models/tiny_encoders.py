"""Tiny random encoders: {name: (config class, arguments, class)}, as MODELS of conftest.py."""

from __future__ import annotations

from typing import Any

from tiny_decoders import SMALL

# Positions begin behind the padding's.
BEHIND = SMALL | {"pad_token_id": 1, "bos_token_id": 0, "max_position_embeddings": 66}
DISTILLED = {"vocab_size": 61, "dim": 24, "n_heads": 4, "n_layers": 3, "hidden_dim": 40, "max_position_embeddings": 64}
WINDOWED = SMALL | {
    "local_attention": 8,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "cls_token_id": 3,
    "sep_token_id": 4,
}

ENCODERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "clip-text": ("CLIPTextConfig", SMALL, "CLIPTextModel"),
    "ernie": ("ErnieConfig", SMALL | {"use_task_id": True}, "ErnieForMaskedLM"),
    "layoutlm": ("LayoutLMConfig", SMALL | {"max_2d_position_embeddings": 16}, "LayoutLMForMaskedLM"),
    "roc_bert": (
        "RoCBertConfig",
        SMALL
        | {"pronunciation_vocab_size": 61, "shape_vocab_size": 61, "pronunciation_embed_dim": 6, "shape_embed_dim": 8},
        "RoCBertForMaskedLM",
    ),
    "electra": ("ElectraConfig", SMALL | {"embedding_size": 12}, "ElectraForMaskedLM"),
    "electra-untied": (
        "ElectraConfig",
        SMALL | {"embedding_size": 24, "tie_word_embeddings": False},
        "ElectraForMaskedLM",
    ),
    "roberta": ("RobertaConfig", BEHIND, "RobertaForMaskedLM"),
    "roberta-headless": ("RobertaConfig", BEHIND, "RobertaModel"),
    "roberta-causal": ("RobertaConfig", BEHIND | {"is_decoder": True}, "RobertaForCausalLM"),
    "xlm-roberta": ("XLMRobertaConfig", BEHIND, "XLMRobertaForMaskedLM"),
    "camembert": ("CamembertConfig", BEHIND, "CamembertForMaskedLM"),
    "data2vec-text": ("Data2VecTextConfig", BEHIND, "Data2VecTextForMaskedLM"),
    "bert-generation": ("BertGenerationConfig", SMALL | {"is_decoder": True}, "BertGenerationDecoder"),
    "roberta-prelayernorm": ("RobertaPreLayerNormConfig", BEHIND, "RobertaPreLayerNormForMaskedLM"),
    "xlm-roberta-xl": ("XLMRobertaXLConfig", BEHIND, "XLMRobertaXLForMaskedLM"),
    "esm": (
        "EsmConfig",
        BEHIND | {"position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 5},
        "EsmForMaskedLM",
    ),
    "esm-absolute": (
        "EsmConfig",
        BEHIND | {"position_embedding_type": "absolute", "emb_layer_norm_before": True, "mask_token_id": 5},
        "EsmForMaskedLM",
    ),
    "distilbert": ("DistilBertConfig", DISTILLED, "DistilBertForMaskedLM"),
    "nomic_bert": ("NomicBertConfig", SMALL, "NomicBertForMaskedLM"),
    "gte": ("GteConfig", SMALL, "GteForMaskedLM"),
    "jina_embeddings_v3": ("JinaEmbeddingsV3Config", SMALL, "JinaEmbeddingsV3ForMaskedLM"),
    "eurobert": ("EuroBertConfig", SMALL | {"num_key_value_heads": 2, "mask_token_id": 5}, "EuroBertForMaskedLM"),
    "ultrabert": (
        "UltrabertConfig",
        SMALL
        | {
            "num_key_value_heads": 2,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "mask_token_id": 5,
        },
        "UltrabertForMaskedLM",
    ),
    "modernbert": ("ModernBertConfig", WINDOWED | {"attention_bias": True, "mlp_bias": True}, "ModernBertForMaskedLM"),
    "modernbert-headless": ("ModernBertConfig", WINDOWED | {"norm_bias": True}, "ModernBertModel"),
    "modernbert-decoder": ("ModernBertDecoderConfig", WINDOWED, "ModernBertDecoderForCausalLM"),
    "megatron-bert": ("MegatronBertConfig", SMALL, "MegatronBertForMaskedLM"),
    "rembert": (
        "RemBertConfig",
        SMALL | {"input_embedding_size": 12, "output_embedding_size": 16},
        "RemBertForMaskedLM",
    ),
    "ibert": ("IBertConfig", BEHIND, "IBertForMaskedLM"),
    "luke": ("LukeConfig", BEHIND | {"entity_vocab_size": 9, "entity_emb_size": 8}, "LukeForMaskedLM"),
    "tapas": ("TapasConfig", SMALL | {"type_vocab_sizes": [3, 8, 8, 2, 8, 8, 4]}, "TapasForMaskedLM"),
    "big_bird": ("BigBirdConfig", SMALL | {"attention_type": "original_full"}, "BigBirdForMaskedLM"),
    "roformer": ("RoFormerConfig", SMALL | {"embedding_size": 12}, "RoFormerForMaskedLM"),
    "esmc": ("EsmcConfig", SMALL | {"num_key_value_heads": 4}, "EsmcForMaskedLM"),
    "albert": ("AlbertConfig", SMALL | {"embedding_size": 12}, "AlbertForMaskedLM"),
    "albert-headless": ("AlbertConfig", SMALL | {"embedding_size": 24}, "AlbertModel"),
}
