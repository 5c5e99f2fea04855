"""Tiny random models that read images or sound beside text: a decoder of a plain type, and a tower of some kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_decoders import GROUPED, SLIDING, SMALL, WIDE

# Tokens of text are below it: the others stand for an image, a video or a sound.
OF_TEXT = 61
_VOCABULARY = {"vocab_size": OF_TEXT + 5}
_PLACES = {
    f"{what}_token_{how}": OF_TEXT + n for n, what in enumerate(("image", "video", "audio")) for how in ("id", "index")
}
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
_QWEN = {"depth": 2, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "patch_size": 4}
_AXES = {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [2, 1, 1]}
_WIDE = WIDE | {"head_dim": 8}
_AUDIO = {
    "num_mel_bins": 8,
    "d_model": 16,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 20,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_source_positions": 8,
}


def _clip(**more: Any) -> dict[str, Any]:
    return {"model_type": "clip_vision_model"} | _VISION | more


def _siglip(**more: Any) -> dict[str, Any]:
    return {"model_type": "siglip_vision_model"} | _VISION | more


# name: (config class, text_config, the rest of the config, class)
TOWERS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "llava": (
        "LlavaConfig",
        {"model_type": "llama"} | GROUPED,
        {"vision_config": _clip(), "tie_word_embeddings": False},
        "LlavaForConditionalGeneration",
    ),
    "llava-tied": (
        "LlavaConfig",
        {"model_type": "qwen2", "tie_word_embeddings": True} | GROUPED,
        {"vision_config": _clip(), "tie_word_embeddings": True},
        "LlavaForConditionalGeneration",
    ),
    "llava-mixture": (
        "LlavaConfig",
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2} | GROUPED,
        {"vision_config": _clip(), "tie_word_embeddings": False},
        "LlavaForConditionalGeneration",
    ),
    "llava-headless": ("LlavaConfig", {"model_type": "mistral"} | WIDE, {"vision_config": _clip()}, "LlavaModel"),
    "llava_next": (
        "LlavaNextConfig",
        {"model_type": "mistral"} | GROUPED,
        {"vision_config": _clip()},
        "LlavaNextForConditionalGeneration",
    ),
    "llava_onevision": (
        "LlavaOnevisionConfig",
        {"model_type": "qwen2"} | GROUPED,
        {"vision_config": _siglip(vision_use_head=False)},
        "LlavaOnevisionForConditionalGeneration",
    ),
    "gemma3": (
        "Gemma3Config",
        {"model_type": "gemma3_text"} | WIDE | SLIDING,
        {"vision_config": _siglip(vision_use_head=False), "mm_tokens_per_image": 4},
        "Gemma3ForConditionalGeneration",
    ),
    "paligemma": (
        "PaliGemmaConfig",
        {"model_type": "gemma"} | WIDE,
        {"vision_config": _siglip(projection_dim=24, vision_use_head=False), "projection_dim": 24},
        "PaliGemmaForConditionalGeneration",
    ),
    "paligemma2": (
        "PaliGemmaConfig",
        {"model_type": "gemma2", "sliding_window": 4} | WIDE,
        {"vision_config": _siglip(projection_dim=24, vision_use_head=False), "projection_dim": 24},
        "PaliGemmaForConditionalGeneration",
    ),
    "mistral3": (
        "Mistral3Config",
        {"model_type": "mistral", "sliding_window": None} | WIDE,
        {"vision_config": {"model_type": "pixtral"} | _VISION, "tie_word_embeddings": False},
        "Mistral3ForConditionalGeneration",
    ),
    "idefics3": (
        "Idefics3Config",
        {"model_type": "llama"} | GROUPED,
        {"vision_config": {"model_type": "idefics3_vision"} | _VISION, "scale_factor": 2},
        "Idefics3ForConditionalGeneration",
    ),
    "smolvlm": (
        "SmolVLMConfig",
        {"model_type": "llama", "tie_word_embeddings": True} | GROUPED,
        {"vision_config": {"model_type": "smolvlm_vision"} | _VISION, "scale_factor": 2, "tie_word_embeddings": True},
        "SmolVLMForConditionalGeneration",
    ),
    "internvl": (
        "InternVLConfig",
        {"model_type": "qwen3"} | WIDE,
        {"vision_config": {"model_type": "internvl_vision"} | _VISION | {"image_size": [8, 8], "patch_size": [4, 4]}},
        "InternVLForConditionalGeneration",
    ),
    "aya_vision": (
        "AyaVisionConfig",
        {"model_type": "cohere2"} | WIDE | SLIDING,
        {"vision_config": _siglip(vision_use_head=False)},
        "AyaVisionForConditionalGeneration",
    ),
    "blip-2": (
        "Blip2Config",
        {"model_type": "opt", "ffn_dim": 40, "word_embed_proj_dim": 24} | SMALL,
        {
            "vision_config": _VISION,
            "qformer_config": _VISION | {"vocab_size": 10, "encoder_hidden_size": 16},
            "num_query_tokens": 2,
        },
        "Blip2ForConditionalGeneration",
    ),
    "fuyu": (
        "FuyuConfig",
        {"model_type": "persimmon"} | SMALL | {"hidden_size": 32},
        {"image_size": 8, "patch_size": 4} | SMALL | {"hidden_size": 32, "vocab_size": 66},
        "FuyuForCausalLM",
    ),
    "qwen2_audio": (
        "Qwen2AudioConfig",
        {"model_type": "qwen2"} | GROUPED,
        {"audio_config": {"model_type": "qwen2_audio_encoder"} | _AUDIO},
        "Qwen2AudioForConditionalGeneration",
    ),
    "voxtral": (
        "VoxtralConfig",
        {"model_type": "llama"} | WIDE,
        {"audio_config": {"model_type": "voxtral_encoder"} | _AUDIO | {"intermediate_size": 64}},
        "VoxtralForConditionalGeneration",
    ),
    "qwen2_vl": (
        "Qwen2VLConfig",
        {"model_type": "qwen2_vl_text", "rope_parameters": _AXES | {"mrope_section": [1, 1, 1]}} | GROUPED,
        {"vision_config": {"embed_dim": 16, "depth": 2, "num_heads": 2, "hidden_size": 24, "patch_size": 4}},
        "Qwen2VLForConditionalGeneration",
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLConfig",
        {"model_type": "qwen2_5_vl_text", "rope_parameters": _AXES | {"mrope_section": [1, 1, 1]}} | GROUPED,
        {"vision_config": _QWEN | {"out_hidden_size": 24, "fullatt_block_indexes": [1]}, "tie_word_embeddings": True},
        "Qwen2_5_VLForConditionalGeneration",
    ),
    "qwen3_vl": (
        "Qwen3VLConfig",
        {"model_type": "qwen3_vl_text", "rope_parameters": _AXES | {"mrope_interleaved": True}} | _WIDE,
        {"vision_config": _QWEN | {"out_hidden_size": 24, "deepstack_visual_indexes": [0, 1]}},
        "Qwen3VLForConditionalGeneration",
    ),
    "qwen3_vl_moe": (
        "Qwen3VLMoeConfig",
        {"model_type": "qwen3_vl_moe_text", "rope_parameters": _AXES | {"mrope_interleaved": True}}
        | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
        | _WIDE,
        {"vision_config": _QWEN | {"out_hidden_size": 24, "deepstack_visual_indexes": [0, 1]}},
        "Qwen3VLMoeForConditionalGeneration",
    ),
    "aria": (
        "AriaConfig",
        {"model_type": "aria_text", "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1} | GROUPED,
        {"vision_config": {"model_type": "idefics3_vision"} | _VISION, "projector_patch_to_query_dict": {4: 2}},
        "AriaForConditionalGeneration",
    ),
    "mllama": (
        "MllamaConfig",
        {"model_type": "mllama_text_model", "cross_attention_layers": [1]}
        | GROUPED
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
        {
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 20,
                "num_hidden_layers": 2,
                "num_global_layers": 1,
                "attention_heads": 2,
                "image_size": 8,
                "patch_size": 4,
                "intermediate_layers_indices": [0],
                "vision_output_dim": 32,
            }
        },
        "MllamaForConditionalGeneration",
    ),
}


def build(name: str) -> Any:
    """A whole model whose every parameter is random, towers and all."""
    config_class, text, more, model_class = TOWERS[name]
    known = getattr(transformers, config_class)
    config = known(text_config=text | _VOCABULARY, **(_PLACES | more))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(map(ord, name)))
        model = getattr(transformers, model_class)(config)
        for parameter in model.parameters():
            spread = 0.3 if parameter.ndim > 1 else 0.2
            parameter.data += spread * torch.randn(parameter.shape)
    return model.eval()


def saved(name: str, directory: Path) -> Path:
    """The directory of one."""
    build(name).save_pretrained(directory)
    return directory
