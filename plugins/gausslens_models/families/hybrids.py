"""Families of which some layers have no attention but a state carried along, and lack its sites. Data alone."""

from __future__ import annotations

from dataclasses import replace

from .mixtures import GRANITE_MOE_SHARED
from .slots import BY_BRIDGE, NO_ROTATION, Other, Slot, Tap, attention, experts, gated_mlp, mlp, mlp_taps, norm
from .table import LFM2, LLAMA

_STATES = "this layer carries a state from token to token: it has no attention"
_UNTURNED = {"q_rot": NO_ROTATION, "k_rot": NO_ROTATION}


def _mamba(at: str) -> dict[str, Slot]:
    """A state-space block (Mamba 1 or 2)."""
    found = {
        "A_log": Slot(f"{at}.A_log"),
        "D": Slot(f"{at}.D"),
        "b_dt": Slot(f"{at}.dt_bias|{at}.dt_proj.bias"),
        "W_conv": Slot(f"{at}.conv1d.weight"),
        "b_conv": Slot(f"{at}.conv1d.bias"),
        "W_state_in": Slot(f"{at}.in_proj.weight", "in_out"),
        "b_state_in": Slot(f"{at}.in_proj.bias"),
        "W_state_out": Slot(f"{at}.out_proj.weight", "in_out"),
        "b_state_out": Slot(f"{at}.out_proj.bias"),
        "ln_state.w": Slot(f"{at}.norm.weight"),
        "W_state_x": Slot(f"{at}.x_proj.weight", "in_out"),
        "W_dt": Slot(f"{at}.dt_proj.weight", "in_out"),
    }
    return found | {f"ln_{name}.w": Slot(f"{at}.{name}_layernorm.weight") for name in ("dt", "b", "c")}


def _delta(at: str) -> dict[str, Slot]:
    """Linear attention with a gated delta rule."""
    return {
        "A_log": Slot(f"{at}.A_log"),
        "b_dt": Slot(f"{at}.dt_bias"),
        "W_conv": Slot(f"{at}.conv1d.weight"),
        "W_state_in": Slot(f"{at}.in_proj_qkvz.weight|{at}.in_proj_qkv.weight", "in_out"),
        "W_state_z": Slot(f"{at}.in_proj_z.weight", "in_out"),
        "W_state_ba": Slot(f"{at}.in_proj_ba.weight", "in_out"),
        "W_state_b": Slot(f"{at}.in_proj_b.weight", "in_out"),
        "W_state_a": Slot(f"{at}.in_proj_a.weight", "in_out"),
        "ln_state.w": Slot(f"{at}.norm.weight"),
        "W_state_out": Slot(f"{at}.out_proj.weight", "in_out"),
    }


_MAY_LACK = (
    *("b_dt", "b_conv", "b_state_in", "b_state_out", "ln_state.w", "W_state_x", "W_dt", "ln_dt.w", "ln_b.w", "ln_c.w"),
    *("W_state_z", "W_state_ba", "W_state_b", "W_state_a", "D"),
)
_HYBRID_MLP = gated_mlp("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj") | {
    **norm("ln1", "input_layernorm"),
    **norm("ln2", "pre_ff_layernorm"),
}
BAMBA = replace(
    LLAMA,
    name="bamba",
    model_types=("bamba",),
    tensors=LLAMA.tensors | _HYBRID_MLP,
    taps=LLAMA.taps
    | {
        "resid_mid": Tap("pre_ff_layernorm", "in"),
        **mlp_taps("feed_forward.gate_proj", "feed_forward.down_proj", "feed_forward"),
    },
    outside=LLAMA.outside | norm("ln_final", "final_layernorm"),
    optional=(*LLAMA.optional, *_MAY_LACK),
    others={"linear_attention": Other(_mamba("mamba") | _HYBRID_MLP, _STATES)},
)
JAMBA = replace(
    BAMBA,
    name="jamba",
    model_types=("jamba",),
    mixture=experts("feed_forward.router", at="feed_forward.experts"),
    lacking=_UNTURNED,
    position="none",
)

_QWEN_MLP = gated_mlp("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj") | {
    **norm("ln1", "input_layernorm", plus=1.0),
    **norm("ln2", "post_attention_layernorm", plus=1.0),
}
# Half of each head's queries are a gate: what the head gives is multiplied by its sigmoid.
QWEN3_NEXT = replace(
    LLAMA,
    name="qwen3_next",
    model_types=("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
    tensors=LLAMA.tensors
    | _QWEN_MLP
    | {
        "W_Q": Slot("self_attn.q_proj.weight", "query", "q&"),
        "b_Q": Slot("self_attn.q_proj.bias", "query", "q&"),
        "W_gate_z": Slot("self_attn.q_proj.weight", "query", "g&"),
        "b_gate_z": Slot("self_attn.q_proj.bias", "query", "g&"),
        **norm("q_norm", "self_attn.q_norm", plus=1.0),
        **norm("k_norm", "self_attn.k_norm", plus=1.0),
    },
    taps=LLAMA.taps | {"q": Tap("self_attn.q_proj", part="q&")},
    outside=LLAMA.outside | norm("ln_final", "norm", plus=1.0),
    optional=(*LLAMA.optional, "b_gate_z", *_MAY_LACK),
    ignored=(*LLAMA.ignored, "mtp."),
    others={"linear_attention": Other(_delta("linear_attn") | _QWEN_MLP, _STATES)},
    mixture=experts("mlp.gate", shared="mlp.shared_expert", shared_router="mlp.shared_expert_gate"),
)

LFM2_MOE = replace(
    LFM2,
    name="lfm2_moe",
    model_types=("lfm2_moe",),
    ignored=(*LFM2.ignored, "expert_bias"),
    mixture=experts("feed_forward.gate", at="feed_forward.experts"),
)

_GRIFFIN_MLP = gated_mlp("mlp_block.gate_proj", "mlp_block.up_proj", "mlp_block.down_proj") | {
    **norm("ln1", "temporal_pre_norm", plus=1.0),
    **norm("ln2", "channel_pre_norm", plus=1.0),
}
_GRIFFIN = {
    "W_state_y": Slot("temporal_block.linear_y.weight", "in_out"),
    "b_state_y": Slot("temporal_block.linear_y.bias"),
    "W_state_in": Slot("temporal_block.linear_x.weight", "in_out"),
    "b_state_in": Slot("temporal_block.linear_x.bias"),
    "W_state_out": Slot("temporal_block.linear_out.weight", "in_out"),
    "b_state_out": Slot("temporal_block.linear_out.bias"),
    "W_conv": Slot("temporal_block.conv_1d.weight"),
    "b_conv": Slot("temporal_block.conv_1d.bias"),
    "A_log": Slot("temporal_block.rg_lru.recurrent_param"),
    "W_state_b": Slot("temporal_block.rg_lru.input_gate_weight"),
    "b_state_b": Slot("temporal_block.rg_lru.input_gate_bias"),
    "W_state_a": Slot("temporal_block.rg_lru.recurrent_gate_weight"),
    "b_state_a": Slot("temporal_block.rg_lru.recurrent_gate_bias"),
}
RECURRENT_GEMMA = replace(
    LLAMA,
    name="recurrent_gemma",
    model_types=("recurrent_gemma",),
    attention="temporal_block",
    tensors=attention(*(f"temporal_block.{letter}_proj" for letter in "qkvo")) | _GRIFFIN_MLP,
    taps={
        **{letter: Tap(f"temporal_block.{letter}_proj") for letter in "qkv"},
        "attn_out": Tap("temporal_block"),
        "resid_mid": Tap("channel_pre_norm", "in"),
        **mlp_taps("mlp_block.gate_proj", "mlp_block.down_proj", "mlp_block"),
    },
    outside=LLAMA.outside | norm("ln_final", "final_norm", plus=1.0),
    others={"linear_attention": Other(_GRIFFIN | _GRIFFIN_MLP, _STATES)},
    multipliers={"embedding_scale": ("hidden_size", 0.5)},
    unproved={"embed": "its scale is rounded to bfloat16"},
)

_SHARED = GRANITE_MOE_SHARED.mixture.tensors if GRANITE_MOE_SHARED.mixture is not None else {}
_GRANITE_NORMS = norm("ln1", "input_layernorm") | norm("ln2", "post_attention_layernorm")
GRANITE_HYBRID = replace(
    GRANITE_MOE_SHARED,
    name="granitemoehybrid",
    model_types=("granitemoehybrid",),
    optional=(*GRANITE_MOE_SHARED.optional, *_MAY_LACK),
    others={"linear_attention": Other(_mamba("mamba") | _GRANITE_NORMS, _STATES)},
    when=(("position_embedding_type", None, {}, _UNTURNED), ("position_embedding_type", "nope", {}, _UNTURNED)),
    refused=(("num_local_experts", 0, f"is not served: of this type those with experts are; {BY_BRIDGE}"),),
    position="none",
    positions=(("position_embedding_type", "rope", "rotary"),),
)

_ALONE = "a layer of this family is attention, an MLP or a state by itself"
_NEMOTRON = norm("ln1", "norm")
NEMOTRON_H = replace(
    LLAMA,
    name="nemotron_h",
    model_types=("nemotron_h",),
    attention="mixer",
    tensors=attention(*(f"mixer.{letter}_proj" for letter in "qkvo")) | _NEMOTRON,
    taps={**{letter: Tap(f"mixer.{letter}_proj") for letter in "qkv"}, "attn_out": Tap("mixer")},
    outside={"W_E": Slot("embeddings.weight"), "W_U": Slot("lm_head.weight", "in_out")} | norm("ln_final", "norm_f"),
    optional=(*LLAMA.optional, *_MAY_LACK, "W_latent_in", "W_latent_out"),
    ignored=(*LLAMA.ignored, "e_score_correction_bias", "mtp."),
    lacking=_UNTURNED | dict.fromkeys(("resid_mid", "mlp_pre", "mlp_post", "mlp_out"), _ALONE),
    others={
        "linear_attention": Other(_mamba("mixer") | _NEMOTRON, _STATES),
        "mlp": Other(mlp("mixer.up_proj", "mixer.down_proj") | _NEMOTRON, "this layer is an MLP: it has no attention"),
        "moe": Other(
            {
                "W_router": Slot("mixer.gate.weight", "in_out"),
                "W_in": Slot("mixer.experts.up_proj", "in_out"),
                "W_out": Slot("mixer.experts.down_proj", "in_out"),
                "W_shared_in": Slot("mixer.shared_experts.up_proj.weight", "in_out"),
                "W_shared_out": Slot("mixer.shared_experts.down_proj.weight", "in_out"),
                **_NEMOTRON,
            },
            "this layer is a mixture of experts: it has no attention",
        ),
    },
    position="none",
)

HYBRIDS = (BAMBA, JAMBA, QWEN3_NEXT, LFM2_MOE, RECURRENT_GEMMA, GRANITE_HYBRID, NEMOTRON_H)
