"""Types of models that are not served, and why: data, for the error that names the reason."""

from __future__ import annotations

from typing import Any

from .slots import BY_BRIDGE

_SPARSE = "its attention is sparse: no pattern of a query over all keys is ever made"
_OTHER = "its attention is none: there is no softmax over keys"
_GATED = "heads are multiplied by a gate of the stream before `W_O`: z is not pattern times v"
_SINKS = "sinks scale what attention gives, while the patterns that the model tells leave them out"
_STATES = "it has no attention: a state is carried from token to token"
_CONVOLUTIONS = "half of what its heads give comes from convolutions"
_IMAGES = "it reads images"

REFUSED = {
    # Encoders
    "convbert": _CONVOLUTIONS,
    "flaubert": "its layers are not modules of their own: nothing stands for the stream before and after one",
    "fnet": _OTHER,
    "funnel": "its layers pool positions: queries and keys are not the same tokens",
    "longformer": _SPARSE,
    "led": _SPARSE,
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
    "moshi": "it has two stacks of layers, of time and of depth",
}


def reason(config: Any) -> str:
    """Why a type that no table names is not served; nothing where only its table is missing."""
    model_type = getattr(config, "model_type", "")
    if model_type in REFUSED:
        return f"the model type {model_type!r} is not served: {REFUSED[model_type]}; {BY_BRIDGE}"
    if getattr(config, "is_encoder_decoder", False):
        return (
            f"the model type {model_type!r} is not served: it has two stacks of layers, an encoder and a decoder that "
            "reads it, and here a model is one stack"
        )
    inner = getattr(config, "text_config", None)
    if inner is not None and (hasattr(config, "vision_config") or hasattr(config, "audio_config")):
        text = getattr(inner, "model_type", "")
        return (
            f"the model type {model_type!r} is not served as a whole: it reads more than text. Its text stack is of "
            f"type {text!r}: load the model in Python and pass that stack as `gausslens.run(..., model=module)`, or "
            "save it into a directory of its own"
        )
    return ""
