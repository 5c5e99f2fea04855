"""The facts of a model that its config, its layout and its tokenizer tell."""

from __future__ import annotations

import math
from typing import Any

import torch

from gausslens import HEAD_AXIS, KV_HEAD_AXIS, ModelInfo

from .latent import latent_pairs, stretched
from .layout import Layout
from .slots import ATTENTION_BIASES, BRIDGED, OF_EXPERTS, PARALLEL, UNWATCHED, Family

EPSILONS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "layernorm_epsilon", "norm_eps")


def model_info(
    name: str,
    config: Any,
    layout: Layout,
    fingerprint: str,
    dtype: str,
    tokenizer: Any = None,
    notes: tuple[str, ...] = (),
) -> ModelInfo:
    """The host's view of a model; ``notes`` are what its loader has to tell."""
    sizes, family = layout.sizes, layout.family
    config = family.viewed(config)
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
        d_value=sizes.value if sizes.value != sizes.d_head else None,
        d_mlp=_d_mlp(layout),
        vocabulary=_vocabulary(config, layout),
        n_parameters=sum(_count(layout.shapes[n]) for n in counted),
        kv_of_head=tuple(h * sizes.kv_heads // sizes.heads for h in range(sizes.heads)),
        layers=tuple(range(n_layers)),
        heads=tuple(range(sizes.heads)),
        kv_heads=tuple(range(sizes.kv_heads)),
        causal=family.causal or bool(getattr(config, "is_decoder", False)),
        max_positions=_up_to_original(config, _max_positions(config, layout)),
        lacking=lacking(config, layout),
        facts=_facts(config, layout) | {"notes": (*_notes(layout), *notes)} | _of_tokenizer(tokenizer),
    )


def lacking(config: Any, layout: Layout) -> dict[int, dict[str, str]]:
    """Why a layer does not have a site, by layer and site."""
    everywhere = _unwatched(layout.family) | layout.family.lacking
    for key, value, _, lost in layout.family.when:
        if getattr(config, key, None) == value:
            everywhere |= lost
    if _parallel(config, layout.family):
        everywhere["resid_mid"] = PARALLEL
    found = {}
    for layer, kind in enumerate(layout.kinds):
        other = layout.family.others.get(kind)
        reasons = everywhere | (dict.fromkeys(layout.family.sites_of_attention(), other.reason) if other else {})
        if layout.mixed[layer]:
            reasons |= dict.fromkeys(("mlp_pre", "mlp_post"), OF_EXPERTS)
        if reasons:
            found[layer] = reasons
    return found


def _unwatched(family: Family) -> dict[str, str]:
    """The sites of heads that no module of this family hands on, where its attention cannot be watched."""
    of_heads = () if family.watched else (*HEAD_AXIS, *KV_HEAD_AXIS)
    return {s: BRIDGED if s == "scores" and family.bridged else UNWATCHED for s in of_heads if s not in family.taps}


def _facts(config: Any, layout: Layout) -> dict[str, Any]:
    """What a family adds, under names that are the same for all; per-layer facts are tuples with one entry a layer."""
    family, layers = layout.family, range(len(layout.places) - 1)
    if family.position == "unknown":
        return {"position": "unknown", "norm": "unknown", "unclaimed": layout.unclaimed}
    facts: dict[str, Any] = {
        "position": family.position_in(config),
        "norm": family.norm,
        "norm_epsilon": _first(config, EPSILONS if family.epsilon_of_config else (), family.epsilon),
        "norm_first": family.norm_first and getattr(config, "do_layer_norm_before", True),
        "unnormed_layers": family.unnormed,
        "gains": any("ln1.w" in layout.places[layer] for layer in layers),
        "biases": tuple(b for b in ATTENTION_BIASES if any(b in layout.names(layer) for layer in layers)),
        "scale": tuple(_scale(config, family, layer, layout.sizes.d_head) for layer in layers),
        "soft_cap": getattr(config, "attn_logit_softcapping", None),
        "final_soft_cap": getattr(config, "final_logit_softcapping", getattr(config, "logits_soft_cap", None)),
        "sliding_window": _windows(config, len(layers), family.causal),
        "tied": layout.tied,
        "parallel": _parallel(config, family),
        "query_growth": tuple(_growth(config, family, layer) for layer in layers),
        "sinks": any("sinks" in layout.places[layer] for layer in layers),
        "clip": getattr(config, "clip_qkv", None),
        "one_layer": family.shared,
        "head_axes": _head_axes(layout),
        "experts": tuple(_experts(layout, layer) for layer in layers),
        "unproved": _unproved(config, family),
        "read_as": family.read_as,
        "activation": _activation(config),
        "unclaimed": layout.unclaimed,
    }
    if facts["position"] == "alibi":
        facts["alibi_slopes"] = slopes(config, layout.sizes.heads, facts["scale"][0])
    if facts["position"] == "buckets":
        farthest = int(getattr(config, "relative_attention_max_distance", 128))
        facts["distance_buckets"] = (int(config.relative_attention_num_buckets), farthest)
    if family.waves is not None:
        facts["waves"] = _waves(config, family.waves, layout.sizes.d_model)
    if family.stack:
        facts |= {"stack": family.stack, "crossed": family.stack == "cross"}
    if family.latent:  # the norms of latents have an epsilon of their own
        facts |= {"products": {layer: layout.products(layer) for layer in layers}, "latent_epsilon": 1e-6}
    facts |= _of_query_norms(config, layout) | _multipliers(config, family)
    if any(n < (getattr(config, "max_position_embeddings", None) or n + 1) for n in _originals(config)):
        facts["longest"] = "beyond that its rotary table is another (longrope), which gausslens does not read"
    if facts["position"] == "rotary":
        facts["rotary"] = tuple(_rotary(config, family, layer, layout.sizes.d_head) for layer in layers)
    return facts


def _head_axes(layout: Layout) -> dict[str, tuple[int, str]]:
    """The head axes of tensors beyond those of which the host knows: as they are cut, or as checkpoints store them.

    The gain of a norm over all heads has none: of some heads alone it would be another norm.
    """
    forms = {"query": (0, "head"), "key_value": (0, "kv_head")}
    found: dict[str, tuple[int, str]] = {}
    every = [place for places in layout.places.values() for place in places.items()]
    for name, place in [] if layout.family.latent else every:  # factors are shared: of some heads the product is edited
        of_norm = name.startswith(("q_norm.", "k_norm."))
        if name in _STORED_BY_HEAD:
            found[name] = _STORED_BY_HEAD[name]
        elif of_norm and layout.family.query_norm == "head" and len(layout.shapes.get(place.theirs, ())) == 2:
            found[name] = forms["query" if name[0] == "q" else "key_value"]
        elif not of_norm and name not in _KNOWN_TO_THE_HOST and place.slot.form in forms:
            found[name] = forms[place.slot.form]
    return found


_KNOWN_TO_THE_HOST = ("W_Q", "b_Q", "W_K", "W_V", "b_K", "b_V", "W_O")
_STORED_BY_HEAD = {"sinks": (0, "head"), "W_distance": (1, "head")}


def _waves(config: Any, told: tuple[int | str, int], width: int) -> tuple[int, int]:
    """(p, n) where positions are sin and cos of (t + p) 10000^(-i / n)."""
    first, fewer = told
    return (int(getattr(config, first)) + 1 if isinstance(first, str) else first), width // 2 - fewer


def _unproved(config: Any, family: Family) -> dict[str, str]:
    """The sites that no formula of ours makes, as this config has it, and why."""
    found = {site: told if isinstance(told, tuple) else ("", told) for site, told in family.unproved.items()}
    return {site: reason for site, (key, reason) in found.items() if not key or getattr(config, key, None)}


def _notes(layout: Layout) -> tuple[str, ...]:
    """What is missing in the checkpoint and nobody needs; a model with a language-model head has no pooler at all.

    And a head in the file that is none of the model's.
    """
    outside, head = layout.places[None], layout.family.outside.get("W_U")
    heads = () if head is None or "W_U" in outside else tuple(head.tensor.split("|"))
    stray = [name for name in layout.unclaimed if heads and name.endswith(heads)]
    if stray:
        return (f"the class that config.json names (architectures) has no language-model head: {stray[0]} is not read",)
    if "W_pool" not in layout.family.outside or "W_pool" in outside or "W_U" in outside:
        return ()
    return (f"the checkpoint has no {layout.family.outside['W_pool'].tensor} (W_pool): no site needs it",)


def _activation(config: Any) -> str | None:
    """The name that transformers has for the function of the MLP."""
    keys = (
        "hidden_activation",
        "hidden_act",
        "activation_function",
        "hidden_activations",
        "mlp_hidden_act",
        "activation",
        "dense_act_fn",
    )
    return next((name for key in keys if isinstance(name := getattr(config, key, None), str)), None)


def _parallel(config: Any, family: Family) -> bool:
    """Whether attention and MLP read the same stream."""
    return bool(getattr(config, family.parallel, False)) if isinstance(family.parallel, str) else family.parallel


def _of_query_norms(config: Any, layout: Layout) -> dict[str, Any]:
    """Whether q and k are normed: where they have gains, or where the config says so."""
    family = layout.family
    with_gains = any("q_norm.w" in places for places in layout.places.values())
    bare = bool(family.query_norm_bare) and bool(getattr(config, family.query_norm_bare, False))
    return {
        "query_norm": with_gains or bare,
        "query_norm_over": family.query_norm,
        "query_norm_late": family.query_norm_late,
    }


def _multipliers(config: Any, family: Family) -> dict[str, float]:
    """What the embedding, what is added to the stream, and the logits are multiplied by."""
    found = dict.fromkeys(("embedding_scale", "residual_scale", "logit_scale"), 1.0)
    for fact, (key, power, *switch) in family.multipliers.items():
        if all(getattr(config, name, False) for name in switch):
            found[fact] = float(getattr(config, key)) ** power
    if config.model_type == "minicpm3":
        found["residual_scale"] /= math.sqrt(config.num_hidden_layers)
    if config.model_type == "esmc":
        found["residual_scale"] *= 6.0  # sqrt(36 / layers)
    return found


def _experts(layout: Layout, layer: int) -> int:
    """How many experts a layer has."""
    place = layout.places[layer].get("W_out") if layout.mixed and layout.mixed[layer] else None
    return 0 if place is None else int(layout.shapes[place.theirs][0])


def _rotary(config: Any, family: Family, layer: int, d_head: int) -> dict[str, Any]:
    """How a layer rotates; a layer that does not has no frequencies."""
    if _is_unrotated(config, family.unrotated, layer):
        return {"type": "none", "frequencies": (), "scaling": 1.0, "pairs": family.pairs}
    if family.latent:
        shared = int(config.qk_rope_head_dim)
        return frequencies(config, layer, shared) | {"pairs": latent_pairs(config, family), "start": d_head - shared}
    found = frequencies(config, layer, d_head) | {"pairs": family.pairs}
    return found | {"frequencies": tuple(-f for f in found["frequencies"])} if family.backwards else found


def _growth(config: Any, family: Family, layer: int) -> tuple[float, float, float] | None:
    """(b, n, s) where q at position t is multiplied by 1 + b log(1 + floor((t + s) / n)): Llama 4, Ministral 3."""
    if getattr(config, "attn_temperature_tuning", False) and _is_unrotated(config, family.unrotated, layer):
        return float(config.attn_scale), float(config.floor_scale), 1.0
    told = getattr(config, "rope_parameters", None) or {}
    if told.get("llama_4_scaling_beta") is not None:
        return float(told["llama_4_scaling_beta"]), float(told["original_max_position_embeddings"]), 0.0
    return None


def _is_unrotated(config: Any, how: str, layer: int) -> bool:
    """Whether this layer has no rotation: a list of the config has 0 for it, or its kind sees without position."""
    if not how:
        return False
    listed = getattr(config, how, None)
    if listed is not None:
        return not listed[layer]
    kinds = getattr(config, "layer_types", None)
    return kinds is not None and kinds[layer] == how and getattr(config, "sliding_window", None) is not None


def frequencies(config: Any, layer: int, d_head: int) -> dict[str, Any]:
    """How a layer rotates: type, frequencies [rotated / 2], and what cos and sin are multiplied by.

    theta^(-2 i / rotated) for the default type; others (llama3, yarn, ...) as transformers computes them. The types
    "dynamic" and "longrope" change with the length of the text: their values here hold up to the original length.
    """
    parameters = getattr(config, "rope_parameters", None) or _old_rotary(config, d_head)
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


def _old_rotary(config: Any, d_head: int) -> dict[str, Any]:
    """The rotation of configs that say at most how many dimensions of a head turn."""
    turned = getattr(config, "rotary_dim", None) or d_head
    return {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": turned / d_head}


def _scale(config: Any, family: Family, layer: int, d_head: int) -> float:
    """What q . k is multiplied by."""
    if family.scale:
        return float(getattr(config, family.scale) if isinstance(family.scale, str) else family.scale)
    own = getattr(getattr(config, "attn_config", None), "softmax_scale", None)  # MPT
    if own is not None:
        return float(own)
    if getattr(config, "pos_att_type", None):  # DeBERTa: with so many terms beside it
        return float((d_head * (1 + len(set(config.pos_att_type) & {"c2p", "p2c"}))) ** -0.5)
    if family.latent:
        return float(d_head**-0.5 * stretched(getattr(config, "rope_parameters", None) or {}))
    if getattr(config, "scale_attn_weights", True) is False:
        scale = 1.0
    else:
        scale = float(getattr(config, "query_pre_attn_scalar", None) or d_head) ** -0.5
    return scale / (layer + 1) if getattr(config, "scale_attn_by_inverse_layer_idx", False) else scale


def slopes(config: Any, heads: int, scale: float) -> tuple[float, ...]:
    """What a score gains for each token that its key is further on (Press et al., "Train Short, Test Long", 2021).

    MPT takes the powers of the next power of two, every other where there are too many; others those of the one
    before, and for the heads beyond it every other of the next. Falcon scales them as it does q . k.
    """
    if config.model_type == "mpt":
        count = 2 ** math.ceil(math.log2(heads))
        steps = [config.attn_config.alibi_bias_max * n / count for n in range(1, count + 1)]
        return tuple(2.0**-step for step in (steps if count == heads else steps[1::2] + steps[::2])[:heads])
    count = 2 ** math.floor(math.log2(heads))
    steps = [8 * n / count for n in range(1, count + 1)] + [4 * n / count for n in range(1, 2 * count, 2)]
    slopes = torch.tensor([2.0**-step for step in steps[:heads]])
    if config.model_type == "falcon":
        return tuple((slopes.bfloat16().float() * scale).tolist())  # it keeps them so
    return tuple(slopes.tolist())


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


def _windows(config: Any, n_layers: int, causal: bool) -> tuple[int | None, ...]:
    """The sliding window of each layer, None where a layer sees everything before it.

    A layer that sees both sides counts its own token apart: so many to each side, and one.
    """
    locals_ = getattr(config, "attention_layers", None)  # GPT-Neo
    if locals_ is not None:
        return tuple(int(config.window_size) if kind == "local" else None for kind in locals_)
    window = getattr(config, "sliding_window", None)
    window = window if window is None or causal else window + 1
    kinds = getattr(config, "layer_types", None)
    if window is None or getattr(config, "use_sliding_window", True) is False:
        return (None,) * n_layers
    if kinds is None:
        return (int(window),) * n_layers
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)


def _max_positions(config: Any, layout: Layout) -> int | None:
    """The longest text: where positions have vectors, as many as there are rows for them."""
    place = layout.places[None].get("W_pos")
    if place is None or not place.slot.skip:
        return getattr(config, "max_position_embeddings", None)
    return layout.shapes[place.theirs][0] - place.slot.skip


def _vocabulary(config: Any, layout: Layout) -> int:
    place = layout.places[None].get("W_E")
    return int(config.vocab_size if place is None else layout.shapes[place.theirs][0])


def _d_mlp(layout: Layout) -> int:
    """The width of the MLP; where all layers have experts, of one expert."""
    having = [layer for layer in range(len(layout.places) - 1) if "W_out" in layout.places[layer]]
    for layer in sorted(having, key=lambda layer: bool(layout.mixed) and layout.mixed[layer]):
        place = layout.places[layer]["W_out"]
        return int(layout.view(place, torch.empty(layout.shapes[place.theirs], device="meta")).shape[-2])
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
