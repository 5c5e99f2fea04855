"""Types of models that are not served, and why: data, for the error that names the reason."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

_SPARSE = "its attention is sparse: no pattern of a query over all keys is ever made"
_OTHER = "its attention is none: there is no softmax over keys"
_GATED = "heads are multiplied by a gate of the stream before `W_O`: z is not pattern times v"
_SINKS = "sinks scale what attention gives, while the patterns that the model tells leave them out"
_STATES = "it has no attention: a state is carried from token to token"
_CONVOLUTIONS = "half of what its heads give comes from convolutions"
_IMAGES = "it reads images"
_SOUND = "its encoder reads sound: the source of its decoder is no text"

REFUSED = {
    # Encoders
    "convbert": _CONVOLUTIONS,
    "flaubert": "its layers are not modules of their own: nothing stands for the stream before and after one",
    "fnet": _OTHER,
    "funnel": "its layers pool positions: queries and keys are not the same tokens",
    "longformer": _SPARSE,
    "led": _SPARSE,
    "longt5": _SPARSE,
    "pegasus_x": _SPARSE,
    "bigbird_pegasus": _SPARSE,
    "mobilebert": "its attention reads a bottleneck beside the stream, in four small layers for each",
    "mra": _SPARSE,
    "modernvbert": _IMAGES,
    "neomme": "values of a table by token, and a gate, stand between its weights and what attention gives",
    "nystromformer": "its patterns are products of three small ones (Nystrom): none of a query over all keys is made",
    "perceiver": "its queries are not its tokens",
    "reformer": _SPARSE,
    "squeezebert": "its queries, keys and values are grouped convolutions, not matrices",
    "ultravbert": _IMAGES,
    "xlm": "its layers are not modules of their own: nothing stands for the stream before and after one",
    "xlnet": "it computes two streams at once",
    "xmod": "each of its layers has adapters by language, which this reads nowhere",
    "yoso": _SPARSE,
    # Layers without attention, all of them
    "falcon_mamba": _STATES,
    "mamba": _STATES,
    "mamba2": _STATES,
    "rwkv": _STATES,
    "xlstm": _STATES,
    # Latent attention with more beside it
    "axk2": "its keys are chosen by an index beside attention",
    "bailing_hybrid": "its linear layers and its latent ones are not told apart yet",
    "deepseek_v32": "its keys are chosen by an index beside attention",
    "deepseek_v4": "its keys are chosen and compressed beside attention",
    "glm_moe_dsa": "its keys are chosen by an index beside attention",
    "kimi_linear": "its linear layers are of a kind that no table says yet",
    "longcat_flash": "each of its layers has two attentions",
    "mistral4": "its queries grow with position behind the rotation of latent attention",
    # Scores that are not those of one q and one k, heads that are not one for one
    "afmoe": _GATED,
    "beam": _GATED,
    "laguna": _GATED,
    "diffllama": "a head is the difference of two softmaxes: it has no one pattern",
    "doge": "values put a mask of their own over the scores",
    "gemma4_text": "heads of other sizes in other layers",
    "granite_swa": _SINKS,
    "granitemoe_swa": _SINKS,
    "jetmoe": "heads are experts, another few for each token",
    "mimo_v2_flash": "heads of v are wider than those of q and k, other layers have other sizes",
    "falcon_h1": "its attention and a state-space block stand beside each other, with multipliers",
    "minimax": "what its layers add is weighed against the stream, by numbers that differ by kind",
    "olmo_hybrid": "its layers put their norms elsewhere by kind",
    "zamba": "its attention is one module for several layers, and reads two streams",
    "zamba2": "its attention is one module for several layers, and reads two streams",
    "zaya": "its queries and keys go through convolutions",
    "blt": "it has several stacks of layers, of bytes and of patches",
    "gemma3n_text": "heads of other sizes in other layers, and four streams",
    # Text stacks of models that read more
    "mllama_text_model": "some of its layers read the states of an image alone, and are skipped where there is none",
    "qwen3_vl_moe_text": "its files hold experts turned, which no table says",
    "moshi": "it has two stacks of layers, of time and of depth",
    # What is not text
    **dict.fromkeys(("moonshine", "speech_to_text", "speecht5", "whisper"), _SOUND),
    **dict.fromkeys(("beit", "deit", "dinov2", "swin", "trocr", "vision-encoder-decoder", "vit"), _IMAGES),
}
# TransformerLens names their architectures; what it shows is no single stack of like layers, or not what they compute.
NOT_BRIDGED = ("deepseek_v4", "gemma4_text", "glm_moe_dsa", "hrm_text", "olmo_hybrid", "openai-gpt")


def bridge_takes(config: Any) -> bool:
    """Whether `loader: transformer-lens` opens such a checkpoint: a decoder of one stack that TransformerLens names."""
    architecture = (getattr(config, "architectures", None) or [""])[0]
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "model_type", "") in NOT_BRIDGED:
        return False
    if not architecture.endswith(("ForCausalLM", "LMHeadModel")) or not hasattr(config, "vocab_size"):
        return False
    return is_named(architecture)


def is_named(architecture: str) -> bool:
    """Whether TransformerLens is installed and names a class of transformers."""
    with contextlib.suppress(Exception), as_before():
        import transformers
        from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES

        return architecture in SUPPORTED_ARCHITECTURES and hasattr(transformers, architecture)
    return False


def advice(config: Any) -> str:
    """The loader that shows something of a model without a table, where one does."""
    shown = "; `loader: transformer-lens` runs it without weights: `gausslens model` tells which sites that shows"
    return shown if bridge_takes(config) else ""


@contextlib.contextmanager
def as_before() -> Iterator[None]:
    """Importing TransformerLens turns transformers' logger down and adds filters of warnings: both are put back."""
    logger = logging.getLogger("transformers")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)


def reason(config: Any) -> str:
    """Why a type that no table names is not served; nothing where only its table is missing."""
    model_type = getattr(config, "model_type", "")
    if model_type in REFUSED:
        return f"the model type {model_type!r} is not served: {REFUSED[model_type]}"
    if getattr(config, "is_encoder_decoder", False):
        return (
            f"the model type {model_type!r} is not served: it has two stacks of layers, an encoder and a decoder that "
            "reads it, and no table names its tensors; docs/models.md lists those of two stacks that are read"
        )
    inner = getattr(config, "text_config", None)
    if inner is not None and (hasattr(config, "vision_config") or hasattr(config, "audio_config")):
        text = getattr(inner, "model_type", "")
        if text in REFUSED:
            return (
                f"the model type {model_type!r} is not served: it reads more than text, and its text stack, of type "
                f"{text!r}, is none that can be read alone: {REFUSED[text]}"
            )
        return (
            f"the model type {model_type!r} is not served as a whole: it reads more than text. Its text stack is of "
            f"type {text!r}: load the model in Python and pass that stack as `gausslens.run(..., model=module)`, or "
            "save it into a directory of its own"
        )
    return ""
