"""The facts of a model that its config, its layout and its tokenizer tell."""

from __future__ import annotations

from typing import Any

import torch

from gausslens import ModelInfo

from .layout import Layout
from .slots import Family
from .table import ATTENTION_BIASES


def model_info(
    name: str, config: Any, layout: Layout, fingerprint: str, dtype: str, tokenizer: Any = None
) -> ModelInfo:
    """The host's view of a model."""
    sizes, family = layout.sizes, layout.family
    n_layers = len(layout.places) - 1
    counted = {p.theirs for places in layout.places.values() for p in places.values()} | set(layout.unclaimed)
    return ModelInfo(
        name=name,
        family=family.name,
        fingerprint=fingerprint,
        dtype=dtype,
        n_layers=n_layers,
        n_heads=sizes.heads,
        n_kv_heads=sizes.kv_heads,
        d_model=sizes.d_model,
        d_head=sizes.d_head,
        d_mlp=_d_mlp(layout),
        vocabulary=_vocabulary(config, layout),
        n_parameters=sum(_count(layout.shapes[n]) for n in counted),
        kv_of_head=tuple(h * sizes.kv_heads // sizes.heads for h in range(sizes.heads)),
        layers=tuple(range(n_layers)),
        heads=tuple(range(sizes.heads)),
        kv_heads=tuple(range(sizes.kv_heads)),
        causal=family.causal or bool(getattr(config, "is_decoder", False)),
        max_positions=_up_to_original(config, getattr(config, "max_position_embeddings", None)),
        lacking=lacking(config, layout),
        facts=_facts(config, layout) | _of_tokenizer(tokenizer),
    )


def lacking(config: Any, layout: Layout) -> dict[int, dict[str, str]]:
    """Why a layer does not have a site, by layer and site."""
    everywhere = dict(layout.family.lacking)
    for key, value, _, lost in layout.family.when:
        if getattr(config, key, None) == value:
            everywhere |= lost
    found = {}
    for layer, kind in enumerate(layout.kinds):
        other = layout.family.others.get(kind)
        reasons = everywhere | (dict.fromkeys(layout.family.sites_of_attention(), other.reason) if other else {})
        if reasons:
            found[layer] = reasons
    return found


def _facts(config: Any, layout: Layout) -> dict[str, Any]:
    """What a family adds, under names that are the same for all; per-layer facts are tuples with one entry a layer."""
    family, layers = layout.family, range(len(layout.places) - 1)
    if family.position == "unknown":
        return {"position": "unknown", "norm": "unknown", "unclaimed": layout.unclaimed}
    facts: dict[str, Any] = {
        "position": family.position,
        "norm": family.norm,
        "norm_epsilon": _first(config, ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps"), 1e-5),
        "norm_first": family.norm_first and getattr(config, "do_layer_norm_before", True),
        "gains": any("ln1.w" in layout.places[layer] for layer in layers),
        "biases": tuple(b for b in ATTENTION_BIASES if any(b in layout.places[layer] for layer in layers)),
        "query_norm": "q_norm.w" in family.tensors,
        "scale": tuple(_scale(config, layer, layout.sizes.d_head) for layer in layers),
        "soft_cap": getattr(config, "attn_logit_softcapping", None),
        "final_soft_cap": getattr(config, "final_logit_softcapping", None),
        "sliding_window": _windows(config, len(layers)),
        "tied": layout.tied,
        "unclaimed": layout.unclaimed,
        "notes": _notes(layout),
    }
    facts |= _of_stream(config, family)
    if any(n < (getattr(config, "max_position_embeddings", None) or n + 1) for n in _originals(config)):
        facts["longest"] = "beyond that its rotary table is another (longrope), which gausslens does not read"
    if family.position == "rotary":
        facts["rotary"] = tuple(frequencies(config, layer, layout.sizes.d_head) for layer in layers)
    return facts


def _notes(layout: Layout) -> tuple[str, ...]:
    """What is missing in the checkpoint and nobody needs; a model with a language-model head has no pooler at all."""
    outside = layout.places[None]
    if "W_pool" not in layout.family.outside or "W_pool" in outside or "W_U" in outside:
        return ()
    return (f"the checkpoint has no {layout.family.outside['W_pool'].tensor} (W_pool): no site needs it",)


def _of_stream(config: Any, family: Family) -> dict[str, Any]:
    """What embedding and MLP do beside their weights."""
    named = (getattr(config, key, None) for key in ("hidden_activation", "hidden_act", "activation_function"))
    return {
        "activation": next((name for name in named if isinstance(name, str)), None),
        "embedding_scale": float(config.hidden_size) ** 0.5 if family.name.startswith("gemma") else 1.0,
        "parallel": any(key == "use_parallel_residual" and getattr(config, key, v) == v for key, v, *_ in family.when),
    }


def frequencies(config: Any, layer: int, d_head: int) -> dict[str, Any]:
    """How a layer rotates: type, frequencies [rotated / 2], and what cos and sin are multiplied by.

    theta^(-2 i / rotated) for the default type; others (llama3, yarn, ...) as transformers computes them. The types
    "dynamic" and "longrope" change with the length of the text: their values here hold up to the original length.
    """
    parameters = getattr(config, "rope_parameters", None) or {"rope_theta": 10000.0, "rope_type": "default"}
    kinds = getattr(config, "layer_types", None)
    kind = kinds[layer] if kinds is not None and "rope_theta" not in parameters else None
    own = parameters[kind] if kind is not None else parameters
    if own["rope_type"] == "default":
        rotated = int(d_head * own.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, rotated, 2, dtype=torch.float) / rotated
        found, scaling = 1.0 / (own["rope_theta"] ** exponents), 1.0
    else:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        named = {"layer_type": kind} if kind is not None else {}
        found, scaling = ROPE_INIT_FUNCTIONS[own["rope_type"]](config, torch.device("cpu"), **named)
    return {"type": own["rope_type"], "frequencies": tuple(found.tolist()), "scaling": float(scaling)}


def _originals(config: Any) -> list[int]:
    """The lengths of text at which a rotary table gives way to another one (longrope)."""
    told = getattr(config, "rope_parameters", None) or {}
    tables = [told] if "rope_type" in told else [t for t in told.values() if isinstance(t, dict)]
    keys = ("original_max_position_embeddings",)
    return [int(t[k]) for t in tables for k in keys if t.get("rope_type") == "longrope" and t.get(k)]


def _up_to_original(config: Any, most: int | None) -> int | None:
    """The longest text: beyond the original length of longrope all positions turn by another table.

    The model would take more, but there the table would depend on which prompts are run together.
    """
    return min([*_originals(config), *([] if most is None else [most])], default=None)


def _scale(config: Any, layer: int, d_head: int) -> float:
    """What q . k is multiplied by."""
    if getattr(config, "scale_attn_weights", True) is False:
        scale = 1.0
    else:
        scale = float(getattr(config, "query_pre_attn_scalar", None) or d_head) ** -0.5
    return scale / (layer + 1) if getattr(config, "scale_attn_by_inverse_layer_idx", False) else scale


def _of_tokenizer(tokenizer: Any) -> dict[str, Any]:
    """Which tokens are special, whether the tokenizer puts BOS before a text, and whether it can write chats."""
    if tokenizer is None:
        return {"special_ids": (), "bos": None, "chat_template": False}
    put = tokenizer("a", add_special_tokens=True)["input_ids"]
    bos = tokenizer.bos_token_id
    return {
        "special_ids": tuple(sorted(tokenizer.all_special_ids)),
        "bos": bos if bos is not None and put[:1] == [bos] else None,
        "chat_template": bool(getattr(tokenizer, "chat_template", None)),
    }


def _windows(config: Any, n_layers: int) -> tuple[int | None, ...]:
    """The sliding window of each layer, None where a layer sees everything before it."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if window is None or getattr(config, "use_sliding_window", True) is False:
        return (None,) * n_layers
    if kinds is None:
        return (int(window),) * n_layers
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)


def _vocabulary(config: Any, layout: Layout) -> int:
    place = layout.places[None].get("W_E")
    return int(config.vocab_size if place is None else layout.shapes[place.theirs][0])


def _d_mlp(layout: Layout) -> int:
    for places in layout.places.values():
        if "W_out" in places:
            place = places["W_out"]
            shape = layout.shapes[place.theirs]
            return int(shape[0] if place.slot.turned else shape[1])
    return 0


def _first(config: Any, keys: tuple[str, ...], default: float) -> float:
    for key in keys:
        value = getattr(config, key, None)
        if value is not None:
            return float(value)
    return default


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total
