"""Families whose scores have a term of distance: ALiBi's slopes, buckets with a number each, disentangled positions."""

from __future__ import annotations

from dataclasses import replace

from .encoders import UNWATCHED_BERT
from .slots import BY_BRIDGE, NO_LOADER, NO_ROTATION, Family, Slot, Tap, attention, fused, mlp, mlp_taps, norm
from .table import BERT

_LACKING = {"q_rot": NO_ROTATION, "k_rot": NO_ROTATION}

BLOOM = Family(
    name="bloom",
    model_types=("bloom",),
    layers="h",
    attention="self_attention",
    tensors=fused("self_attention.query_key_value", "self_attention.dense", interleaved="|")
    | mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    | norm("ln1", "input_layernorm", bias=True)
    | norm("ln2", "post_attention_layernorm", bias=True),
    taps={
        **{letter: Tap("self_attention.query_key_value", part=f"{letter}|") for letter in "qkv"},
        "pattern": Tap("self_attention", item=1),
        "z": Tap("self_attention.dense", "in"),
        "attn_out": Tap("self_attention.dense"),
        "resid_mid": Tap("post_attention_layernorm", "in"),
        **mlp_taps("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", "mlp.dense_4h_to_h"),
    },
    outside={"W_E": Slot("word_embeddings.weight"), "W_U": Slot("lm_head.weight", "in_out")}
    | norm("ln_embed", "word_embeddings_layernorm", bias=True)
    | norm("ln_final", "ln_f", bias=True),
    optional=("W_U",),
    refused=(
        (
            "apply_residual_connection_post_layernorm",
            True,
            f"is not served: what its norms give goes on as the stream; {BY_BRIDGE}",
        ),
    ),
    lacking=_LACKING,
    watched=False,
    bridged=True,
    position="alibi",
    norm="layer",
)

MPT = replace(
    BLOOM,
    name="mpt",
    model_types=("mpt",),
    layers="blocks",
    attention="attn",
    tensors=fused("attn.Wqkv", "attn.out_proj")
    | mlp("ffn.up_proj", "ffn.down_proj")
    | norm("ln1", "norm_1", bias=True)
    | norm("ln2", "norm_2", bias=True),
    taps={
        **{letter: Tap("attn.Wqkv", part=letter) for letter in "qkv"},
        "pattern": Tap("attn", item=1),
        "z": Tap("attn.out_proj", "in"),
        "attn_out": Tap("attn"),
        "resid_mid": Tap("norm_2", "in"),
        **mlp_taps("ffn.up_proj", "ffn.down_proj", "ffn.down_proj"),
    },
    outside={"W_E": Slot("wte.weight"), "W_U": Slot("lm_head.weight", "in_out")}
    | norm("ln_final", "norm_f", bias=True),
    optional=(*("b_Q", "b_K", "b_V", "b_O", "b_in", "b_out", "ln1.b", "ln2.b", "ln_final.b", "W_U"),),
    refused=(
        ("attn_config.clip_qkv", True, f"is not served: q, k and v are clipped where nothing can see it; {BY_BRIDGE}"),
    ),
)

MPNET = replace(
    UNWATCHED_BERT,
    name="mpnet",
    model_types=("mpnet",),
    attention="attention.attn",
    tensors=BERT.tensors
    | attention("attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o")
    | norm("ln1", "attention.LayerNorm", bias=True),
    taps=BERT.taps
    | {letter: Tap(f"attention.attn.{letter}") for letter in "qkv"}
    | {
        "pattern": Tap("attention.attn.dropout", "in"),
        "z": Tap("attention.attn.o", "in"),
        "attn_out": Tap("attention.attn.o"),
        "resid_mid": Tap("attention.LayerNorm"),
    },
    outside={name: BERT.outside[name] for name in ("W_E", "ln_embed.w", "ln_embed.b", "W_pool", "b_pool")}
    | {
        "W_pos": Slot("embeddings.position_embeddings.weight", skip=2),
        "W_distance": Slot("encoder.relative_attention_bias.weight"),
        "W_head": Slot("lm_head.dense.weight", "in_out"),
        "b_head": Slot("lm_head.dense.bias"),
        "W_U": Slot("lm_head.decoder.weight", "in_out"),
        "b_U": Slot("lm_head.bias"),
    }
    | norm("ln_head", "lm_head.layer_norm", bias=True),
    ignored=("position_ids", "lm_head.decoder.bias"),
    position="buckets",
)

_RELATIVE = {
    "W_K_pos": Slot("attention.self.pos_key_proj.weight", "query"),
    "b_K_pos": Slot("attention.self.pos_key_proj.bias", "query"),
    "W_Q_pos": Slot("attention.self.pos_query_proj.weight", "query"),
    "b_Q_pos": Slot("attention.self.pos_query_proj.bias", "query"),
}
_DEBERTA_OUTSIDE = {
    "W_project_in": Slot("embeddings.embed_proj.weight", "in_out"),
    "W_rel_pos": Slot("encoder.rel_embeddings.weight"),
    "W_conv": Slot("encoder.conv.conv.weight"),
    "b_conv": Slot("encoder.conv.conv.bias"),
    **norm("ln_rel_pos", "encoder.LayerNorm", bias=True),
    **norm("ln_conv", "encoder.conv.LayerNorm", bias=True),
}
DEBERTA_V2 = replace(
    UNWATCHED_BERT,
    name="deberta-v2",
    model_types=("deberta-v2",),
    tensors=BERT.tensors
    | attention(
        "attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj", "attention.output.dense"
    )
    | _RELATIVE,
    taps=UNWATCHED_BERT.taps
    | {
        # Where they serve positions too, that comes afterwards.
        "q": Tap("attention.self.query_proj", first=True),
        "k": Tap("attention.self.key_proj", first=True),
        "v": Tap("attention.self.value_proj"),
    },
    outside=BERT.outside | _DEBERTA_OUTSIDE,
    optional=(*BERT.optional, "W_pos", "W_token_type", *_DEBERTA_OUTSIDE, *_RELATIVE),
    ignored=(*BERT.ignored, "lm_predictions", "mask_predictions"),
    refused=(("legacy", False, "has a head of the newer kind, which is not served: open the model without its head"),),
    position="disentangled",
)

DEBERTA = replace(
    DEBERTA_V2,
    name="deberta",
    model_types=("deberta",),
    tensors={name: slot for name, slot in BERT.tensors.items() if name != "b_K"}
    | {f"W_{s}": Slot("attention.self.in_proj.weight", "query", f"{s.lower()}|") for s in "QKV"}
    | {"b_Q": Slot("attention.self.q_bias", "query"), "b_V": Slot("attention.self.v_bias", "query")}
    | {
        "W_K_pos": Slot("attention.self.pos_proj.weight", "query"),
        "W_Q_pos": Slot("attention.self.pos_q_proj.weight", "query"),
        "b_Q_pos": Slot("attention.self.pos_q_proj.bias", "query"),
    },
    taps=UNWATCHED_BERT.taps
    | {
        "q": Tap("attention.self.in_proj", part="q|", plus="attention.self.q_bias"),
        "k": Tap("attention.self.in_proj", part="k|"),
        "v": Tap("attention.self.in_proj", part="v|", plus="attention.self.v_bias"),
    },
    refused=(("talking_head", True, f"is not served: its heads are mixed before and after the softmax; {NO_LOADER}"),),
)
RELATIVE = (BLOOM, MPT, MPNET, DEBERTA_V2, DEBERTA)
