"""Tiny random models of two stacks: encoder and decoder differ in layers, heads and widths wherever they can."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from gausslens import Part, Prompt, Tokens

_SHARED = {"vocab_size": 61, "d_model": 24, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
_BART = _SHARED | {
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 28,
    "max_position_embeddings": 64,
    "scale_embedding": True,
    "forced_eos_token_id": None,
}
_T5 = _SHARED | {
    "d_kv": 5,
    "d_ff": 28,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
_OWN = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 53}

# name: (config class, arguments, class with a language-model head)
STACKED: dict[str, tuple[str, dict[str, Any], str]] = {
    "t5": ("T5Config", _T5, "T5ForConditionalGeneration"),
    "t5-gated": (
        "T5Config",
        _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        "T5ForConditionalGeneration",
    ),
    "mt5": ("MT5Config", _T5, "MT5ForConditionalGeneration"),
    "umt5": ("UMT5Config", _T5, "UMT5ForConditionalGeneration"),
    "bart": ("BartConfig", _BART, "BartForConditionalGeneration"),
    "bart-untied": ("BartConfig", _BART | {"tie_word_embeddings": False}, "BartForConditionalGeneration"),
    "plbart": ("PLBartConfig", _BART, "PLBartForConditionalGeneration"),
    "mbart": ("MBartConfig", _BART, "MBartForConditionalGeneration"),
    "pegasus": ("PegasusConfig", _BART, "PegasusForConditionalGeneration"),
    "marian": ("MarianConfig", _BART, "MarianMTModel"),
    "marian-own": ("MarianConfig", _BART | _OWN, "MarianMTModel"),
    "m2m_100": ("M2M100Config", _BART, "M2M100ForConditionalGeneration"),
    "blenderbot": ("BlenderbotConfig", _BART, "BlenderbotForConditionalGeneration"),
    "blenderbot-small": ("BlenderbotSmallConfig", _BART, "BlenderbotSmallForConditionalGeneration"),
}
# Sources and targets of other lengths: the longer source has the shorter target.
PAIRS = [("w5 w6 w7 w8 w9 w10 w11", "w12 w13"), ("w20 w21 w22", "w23 w24 w25 w26 w27"), ("w5 w30", "w31 w5 w33")]
WORDS = ["<pad>", "<s>", "</s>", "<unk>", "<en>", *(f"w{i}" for i in range(5, 53))]


def built(name: str, model_class: str | None = None) -> Any:
    """A model whose every weight, bias and gain is random; waves alone are what they must be."""
    config_class, arguments, headed = STACKED[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(map(ord, name)))
        config = getattr(transformers, config_class)(**arguments)
        model = getattr(transformers, model_class or headed)(config)
        # T5 scales no scores: small matrices keep them where float32 has six digits of a pattern.
        spread = 0.05 if "t5" in name else 0.15
        for parameter in filter(lambda p: p.requires_grad, model.parameters()):
            parameter.data += (spread if parameter.ndim > 1 else 0.2) * torch.randn(parameter.shape)
        for place, buffer in model.named_buffers():
            if place.endswith("final_logits_bias"):
                buffer += torch.randn(buffer.shape)
    return model.eval()


def tokenizer(after: Sequence[str] = ("</s>",)) -> Any:
    """Words for tokens, and special tokens after each text."""
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [(word, WORDS.index(word)) for word in after]
    made.post_processor = processors.TemplateProcessing(single=f"$A {' '.join(after)}", special_tokens=special)
    known = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, additional_special_tokens=["<en>"], **known)


def saved(name: str, directory: Path, model_class: str | None = None) -> Path:
    """The directory of a tiny model with its tokenizer; those that begin with a language end with one too."""
    built(name, model_class).save_pretrained(directory)
    tokenizer(("</s>", "<en>") if name in ("mbart", "plbart") else ("</s>",)).save_pretrained(directory)
    return directory


def pair(source: str, target: str) -> Prompt:
    """A prompt of two texts."""
    return Prompt((Part(source, "source"), Part(target, "target")))


def pairs_of(model: Any) -> Tokens:
    """All pairs as the tokens of a model."""
    found: Tokens = model.tokenise([pair(*one) for one in PAIRS])
    return found
