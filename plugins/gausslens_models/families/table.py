"""What gausslens knows of families of models, as data: the layouts that others vary (decoders, mixtures), no code.

Names on the left are TransformerLens' (HOOKS.md, loaders); names on the right are those of the checkpoint, below the
prefix of a layer. Any prefix may stand before ``layers`` ("model.", "transformer.", none).
"""

from __future__ import annotations

from dataclasses import replace

from .slots import (
    ATTENTION_BIASES,
    NO_ROTATION,
    Family,
    Other,
    Slot,
    Tap,
    attention,
    attention_taps,
    fused,
    fused_taps,
    mlp,
    mlp_taps,
    norm,
)

LLAMA = Family(
    name="llama",
    model_types=("llama",),
    layers="layers",
    attention="self_attn",
    tensors=attention("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    | mlp("mlp.up_proj", "mlp.down_proj")
    | {"W_gate": Slot("mlp.gate_proj.weight", "in_out"), "b_gate": Slot("mlp.gate_proj.bias")}
    | norm("ln1", "input_layernorm")
    | norm("ln2", "post_attention_layernorm"),
    taps={
        **attention_taps("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn"),
        "resid_mid": Tap("post_attention_layernorm", "in"),
        **mlp_taps("mlp.gate_proj", "mlp.down_proj", "mlp"),
    },
    outside={"W_E": Slot("embed_tokens.weight"), "W_U": Slot("lm_head.weight", "in_out")} | norm("ln_final", "norm"),
    optional=(*ATTENTION_BIASES, "b_in", "b_gate", "b_out", "W_U"),
)


MISTRAL = replace(LLAMA, name="mistral", model_types=("mistral",))

QWEN2 = replace(LLAMA, name="qwen2", model_types=("qwen2",), optional=("b_O", "b_in", "b_gate", "b_out", "W_U"))

QUERY_NORMS = {"q_norm.w": Slot("self_attn.q_norm.weight"), "k_norm.w": Slot("self_attn.k_norm.weight")}

QWEN3 = replace(LLAMA, name="qwen3", model_types=("qwen3",), tensors=LLAMA.tensors | QUERY_NORMS)

# Gemma multiplies by 1 + the stored weight: our gains are what multiplies.
GEMMA2 = replace(
    LLAMA,
    name="gemma2",
    model_types=("gemma2",),
    tensors=LLAMA.tensors
    | norm("ln1", "input_layernorm", plus=1.0)
    | norm("ln1_post", "post_attention_layernorm", plus=1.0)
    | norm("ln2", "pre_feedforward_layernorm", plus=1.0)
    | norm("ln2_post", "post_feedforward_layernorm", plus=1.0),
    taps=LLAMA.taps
    | {
        "attn_out": Tap("post_attention_layernorm"),
        "resid_mid": Tap("pre_feedforward_layernorm", "in"),
        "mlp_out": Tap("post_feedforward_layernorm"),
    },
    outside={"W_E": Slot("embed_tokens.weight"), "W_U": Slot("lm_head.weight", "in_out")}
    | norm("ln_final", "norm", plus=1.0),
    multipliers={"embedding_scale": ("hidden_size", 0.5)},
)

GEMMA3 = replace(
    GEMMA2,
    name="gemma3",
    model_types=("gemma3_text",),
    tensors=GEMMA2.tensors
    | {
        "q_norm.w": Slot("self_attn.q_norm.weight", plus=1.0),
        "k_norm.w": Slot("self_attn.k_norm.weight", plus=1.0),
    },
)

PHI3 = replace(
    LLAMA,
    name="phi3",
    model_types=("phi3",),
    tensors=fused("self_attn.qkv_proj", "self_attn.o_proj")
    | {
        "W_gate": Slot("mlp.gate_up_proj.weight", "in_out", "0/2"),
        "W_in": Slot("mlp.gate_up_proj.weight", "in_out", "1/2"),
        "W_out": Slot("mlp.down_proj.weight", "in_out"),
    }
    | norm("ln1", "input_layernorm")
    | norm("ln2", "post_attention_layernorm"),
    taps=LLAMA.taps
    | {
        "q": Tap("self_attn.qkv_proj", part="q"),
        "k": Tap("self_attn.qkv_proj", part="k"),
        "v": Tap("self_attn.qkv_proj", part="v"),
        "mlp_pre": Tap("mlp.gate_up_proj", part="0/2"),
    },
)

GPT2 = Family(
    name="gpt2",
    model_types=("gpt2",),
    layers="h",
    attention="attn",
    tensors=fused("attn.c_attn", "attn.c_proj", turned=True)
    | mlp("mlp.c_fc", "mlp.c_proj", turned=True)
    | norm("ln1", "ln_1", bias=True)
    | norm("ln2", "ln_2", bias=True),
    taps={
        **fused_taps("attn.c_attn", "attn"),
        "resid_mid": Tap("ln_2", "in"),
        **mlp_taps("mlp.c_fc", "mlp.c_proj", "mlp"),
    },
    outside={"W_E": Slot("wte.weight"), "W_pos": Slot("wpe.weight"), "W_U": Slot("lm_head.weight", "in_out")}
    | norm("ln_final", "ln_f", bias=True),
    optional=("W_U",),
    ignored=("attn.bias", "attn.masked_bias"),
    lacking={"q_rot": NO_ROTATION, "k_rot": NO_ROTATION},
    position="learned",
    norm="layer",
)

GPT_NEOX = Family(
    name="gpt_neox",
    model_types=("gpt_neox",),
    layers="layers",
    attention="attention",
    tensors=fused("attention.query_key_value", "attention.dense", interleaved="|")
    | mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    | norm("ln1", "input_layernorm", bias=True)
    | norm("ln2", "post_attention_layernorm", bias=True),
    taps={
        **fused_taps("attention.query_key_value", "attention", "|"),
        "resid_mid": Tap("post_attention_layernorm", "in"),
        **mlp_taps("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", "mlp"),
    },
    outside={"W_E": Slot("embed_in.weight"), "W_U": Slot("embed_out.weight|lm_head.weight", "in_out")}
    | norm("ln_final", "final_layer_norm", bias=True),
    optional=(*ATTENTION_BIASES, "W_U"),
    ignored=("rotary_emb.inv_freq", "attention.bias", "attention.masked_bias"),
    parallel="use_parallel_residual",
    norm="layer",
)

BERT = Family(
    name="bert",
    model_types=("bert",),
    layers="encoder.layer",
    attention="attention.self",
    tensors=attention("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
    | mlp("intermediate.dense", "output.dense")
    | norm("ln1", "attention.output.LayerNorm", bias=True)
    | norm("ln2", "output.LayerNorm", bias=True),
    taps={
        **attention_taps(
            "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"
        ),
        "resid_mid": Tap("attention.output"),
        **mlp_taps("intermediate.dense", "output.dense", "output.dense"),
    },
    outside={
        "W_E": Slot("embeddings.word_embeddings.weight"),
        "W_pos": Slot("embeddings.position_embeddings.weight"),
        "W_token_type": Slot("embeddings.token_type_embeddings.weight"),
        "W_head": Slot("cls.predictions.transform.dense.weight", "in_out"),
        "b_head": Slot("cls.predictions.transform.dense.bias"),
        "W_U": Slot("cls.predictions.decoder.weight", "in_out"),
        "b_U": Slot("cls.predictions.bias"),
        "W_pool": Slot("pooler.dense.weight", "in_out"),
        "b_pool": Slot("pooler.dense.bias"),
    }
    | norm("ln_embed", "embeddings.LayerNorm", bias=True)
    | norm("ln_head", "cls.predictions.transform.LayerNorm", bias=True),
    optional=("W_head", "b_head", "W_U", "b_U", "W_pool", "b_pool", "ln_head.w", "ln_head.b"),
    ignored=("position_ids", "cls.seq_relationship", "cls.predictions.decoder.bias"),
    lacking={"q_rot": NO_ROTATION, "k_rot": NO_ROTATION},
    position="learned",
    norm="layer",
    norm_first=False,
    causal=False,
)

OPT = Family(
    name="opt",
    model_types=("opt",),
    layers="layers",
    attention="self_attn",
    tensors=attention("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")
    | mlp("fc1", "fc2")
    | norm("ln1", "self_attn_layer_norm", bias=True)
    | norm("ln2", "final_layer_norm", bias=True),
    taps={
        **attention_taps("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn"),
        "resid_mid": Tap("final_layer_norm", "in"),
        **mlp_taps("fc1", "fc2", "fc2"),
    },
    outside={
        "W_E": Slot("embed_tokens.weight"),
        "W_pos": Slot("embed_positions.weight", skip=2),
        "W_project_in": Slot("project_in.weight", "in_out"),
        "W_project_out": Slot("project_out.weight", "in_out"),
        "W_U": Slot("lm_head.weight", "in_out"),
    }
    | norm("ln_final", "final_layer_norm", bias=True),
    optional=(
        *ATTENTION_BIASES,
        *("b_in", "b_out", "ln1.w", "ln1.b", "ln2.w", "ln2.b", "ln_final.w", "ln_final.b"),
        *("W_project_in", "W_project_out", "W_U"),
    ),
    lacking={"q_rot": NO_ROTATION, "k_rot": NO_ROTATION},
    when=(("do_layer_norm_before", False, {"resid_mid": Tap("self_attn_layer_norm")}, {}),),
    position="learned",
    norm="layer",
)

_LFM2_MLP = {
    "W_gate": Slot("feed_forward.w1.weight", "in_out"),
    "W_in": Slot("feed_forward.w3.weight", "in_out"),
    "W_out": Slot("feed_forward.w2.weight", "in_out"),
    **norm("ln1", "operator_norm"),
    **norm("ln2", "ffn_norm"),
}
LFM2 = Family(
    name="lfm2",
    model_types=("lfm2",),
    layers="layers",
    attention="self_attn",
    tensors=attention("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")
    | {"q_norm.w": Slot("self_attn.q_layernorm.weight"), "k_norm.w": Slot("self_attn.k_layernorm.weight")}
    | _LFM2_MLP,
    taps={
        **attention_taps("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn"),
        "resid_mid": Tap("ffn_norm", "in"),
        **mlp_taps("feed_forward.w1", "feed_forward.w2", "feed_forward"),
    },
    outside={"W_E": Slot("embed_tokens.weight"), "W_U": Slot("lm_head.weight", "in_out")}
    | norm("ln_final", "embedding_norm"),
    optional=(*ATTENTION_BIASES, "b_conv", "b_conv_in", "b_conv_out", "W_U"),
    others={
        "conv": Other(
            {
                "W_conv": Slot("conv.conv.weight"),
                "W_conv_in": Slot("conv.in_proj.weight", "in_out"),
                "W_conv_out": Slot("conv.out_proj.weight", "in_out"),
                "b_conv": Slot("conv.conv.bias"),
                "b_conv_in": Slot("conv.in_proj.bias"),
                "b_conv_out": Slot("conv.out_proj.bias"),
                **_LFM2_MLP,
            },
            "this layer is a short convolution: it has no attention",
        )
    },
)

TABLE = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3, PHI3, GPT2, GPT_NEOX, BERT, OPT, LFM2)
