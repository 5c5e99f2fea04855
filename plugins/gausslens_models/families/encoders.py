"""Encoders: BERT's kin, those that put the norm first, and those that turn q and k. Data, as in table.py."""

from __future__ import annotations

from dataclasses import replace

from .decoders import QUERY_NORMS_OVER_ALL
from .slots import (
    ATTENTION_BIASES,
    NO_LOADER,
    NO_ROTATION,
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
from .table import BERT, LLAMA

# A head as RoBERTa has it: a dense layer, a norm, and the embedding turned.
_HEAD = {
    "W_head": Slot("lm_head.dense.weight", "in_out"),
    "b_head": Slot("lm_head.dense.bias"),
    "W_U": Slot("lm_head.decoder.weight", "in_out"),
    "b_U": Slot("lm_head.bias|lm_head.decoder.bias"),
} | norm("ln_head", "lm_head.layer_norm", bias=True)
_POOLER = {"W_pool": BERT.outside["W_pool"], "b_pool": BERT.outside["b_pool"]}
_EMBEDDED = {name: BERT.outside[name] for name in ("W_token_type", "ln_embed.w", "ln_embed.b")} | {
    # Where it is tied, a file may hold it as the head's alone.
    "W_E": Slot("embeddings.word_embeddings.weight|lm_head.decoder.weight|generator_lm_head.weight")
}
# Position 0 is the row behind that of the padding.
_POSITIONS = {"W_pos": Slot("embeddings.position_embeddings.weight", behind="pad_token_id")}
_TWICE = ("lm_head.decoder.bias", "position_ids", "embeddings.token_type_ids")

ERNIE = replace(
    BERT,
    name="ernie",
    model_types=("ernie",),
    outside=BERT.outside | {"W_task_type": Slot("embeddings.task_type_embeddings.weight")},
    optional=(*BERT.optional, "W_task_type"),
)

# Its images' boxes are positions beside that of the text; text alone puts every box at the origin.
LAYOUTLM = replace(
    BERT,
    name="layoutlm",
    model_types=("layoutlm",),
    outside=BERT.outside | {f"W_pos_{c}": Slot(f"embeddings.{c}_position_embeddings.weight") for c in "xyhw"},
)

ROC_BERT = replace(
    BERT,
    name="roc_bert",
    model_types=("roc_bert",),
    outside=BERT.outside
    | {
        "W_sound": Slot("embeddings.pronunciation_embed.weight"),
        "W_shape": Slot("embeddings.shape_embed.weight"),
        "W_embed_in": Slot("embeddings.map_inputs_layer.weight", "in_out"),
        "b_embed_in": Slot("embeddings.map_inputs_layer.bias"),
    },
    optional=(*BERT.optional, "W_sound", "W_shape", "W_embed_in", "b_embed_in"),
)

ELECTRA = replace(
    BERT,
    name="electra",
    model_types=("electra",),
    outside=_EMBEDDED
    | {
        "W_pos": BERT.outside["W_pos"],
        "W_project_in": Slot("embeddings_project.weight", "in_out"),
        "b_project_in": Slot("embeddings_project.bias"),
        "W_head": Slot("generator_predictions.dense.weight", "in_out"),
        "b_head": Slot("generator_predictions.dense.bias"),
        "W_U": Slot("generator_lm_head.weight", "in_out"),
        "b_U": Slot("generator_lm_head.bias"),
    }
    | norm("ln_head", "generator_predictions.LayerNorm", bias=True),
    optional=("W_project_in", "b_project_in", "W_head", "b_head", "W_U", "b_U", "ln_head.w", "ln_head.b"),
    ignored=("position_ids", "discriminator_predictions"),
)

ROBERTA = replace(
    BERT,
    name="roberta",
    model_types=("roberta", "xlm-roberta", "camembert", "data2vec-text"),
    outside=_EMBEDDED | _POSITIONS | _HEAD | _POOLER,
    ignored=_TWICE,
)

BERT_GENERATION = replace(
    BERT,
    name="bert-generation",
    model_types=("bert-generation",),
    outside={
        "W_E": BERT.outside["W_E"],
        "W_pos": BERT.outside["W_pos"],
        "W_U": Slot("lm_head.decoder.weight", "in_out"),
        "b_U": Slot("lm_head.bias"),
    }
    | norm("ln_embed", "embeddings.LayerNorm", bias=True),
    optional=("W_U", "b_U"),
    ignored=_TWICE,
)

ROBERTA_FIRST = replace(
    ROBERTA,
    name="roberta-prelayernorm",
    model_types=("roberta-prelayernorm",),
    tensors=BERT.tensors
    | norm("ln1", "attention.LayerNorm", bias=True)
    | norm("ln2", "intermediate.LayerNorm", bias=True),
    taps=BERT.taps | {"resid_mid": Tap("intermediate.LayerNorm", "in")},
    outside=ROBERTA.outside
    | {
        "ln_final.w": Slot("roberta_prelayernorm.LayerNorm.weight|LayerNorm.weight"),
        "ln_final.b": Slot("roberta_prelayernorm.LayerNorm.bias|LayerNorm.bias"),
    },
    norm_first=True,
)

XLM_ROBERTA_XL = replace(
    ROBERTA,
    name="xlm-roberta-xl",
    model_types=("xlm-roberta-xl",),
    tensors=BERT.tensors
    | norm("ln1", "attention.self_attn_layer_norm", bias=True)
    | norm("ln2", "LayerNorm", bias=True),
    taps=BERT.taps | {"resid_mid": Tap("LayerNorm", "in")},
    outside={n: s for n, s in ROBERTA.outside.items() if not n.startswith("ln_embed")}
    | norm("ln_final", "encoder.LayerNorm", bias=True),
    norm_first=True,
)

# Proteins. The query is scaled before it is turned.
ESM = replace(
    ROBERTA,
    name="esm",
    model_types=("esm",),
    tensors=BERT.tensors | norm("ln1", "attention.LayerNorm", bias=True) | norm("ln2", "LayerNorm", bias=True),
    taps=BERT.taps | {"resid_mid": Tap("LayerNorm", "in")},
    outside={"W_E": BERT.outside["W_E"]}
    | _POSITIONS
    | _HEAD
    | _POOLER
    | {"W_contact": Slot("contact_head.regression.weight"), "b_contact": Slot("contact_head.regression.bias")}
    | norm("ln_embed", "embeddings.layer_norm", bias=True)
    | norm("ln_final", "encoder.emb_layer_norm_after", bias=True),
    optional=(*BERT.optional, "W_pos", "ln_embed.w", "ln_embed.b", "W_contact", "b_contact"),
    ignored=(*_TWICE, "rotary_embeddings.inv_freq", "rotary_emb.inv_freq"),
    unproved={"embed": ("token_dropout", "it is scaled by the share of masked tokens")},
    lacking={},
    when=(("position_embedding_type", "absolute", {}, {"q_rot": NO_ROTATION, "k_rot": NO_ROTATION}),),
    positions=(("position_embedding_type", "absolute", "learned"),),
    position="rotary",
    norm_first=True,
    query_scaled=True,
)

DISTILBERT = replace(
    BERT,
    name="distilbert",
    model_types=("distilbert",),
    layers="transformer.layer",
    attention="attention",
    tensors={
        **{f"W_{s}": replace(BERT.tensors[f"W_{s}"], tensor=f"attention.{s.lower()}_lin.weight") for s in "QKV"},
        **{f"b_{s}": replace(BERT.tensors[f"b_{s}"], tensor=f"attention.{s.lower()}_lin.bias") for s in "QKV"},
        "W_O": Slot("attention.out_lin.weight", "output"),
        "b_O": Slot("attention.out_lin.bias"),
        "W_in": Slot("ffn.lin1.weight", "in_out"),
        "b_in": Slot("ffn.lin1.bias"),
        "W_out": Slot("ffn.lin2.weight", "in_out"),
        "b_out": Slot("ffn.lin2.bias"),
    }
    | norm("ln1", "sa_layer_norm", bias=True)
    | norm("ln2", "output_layer_norm", bias=True),
    taps={
        **attention_taps("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"),
        "resid_mid": Tap("sa_layer_norm"),
        **mlp_taps("ffn.lin1", "ffn.lin2", "ffn"),
    },
    outside={
        "W_E": BERT.outside["W_E"],
        "W_pos": BERT.outside["W_pos"],
        "W_head": Slot("vocab_transform.weight", "in_out"),
        "b_head": Slot("vocab_transform.bias"),
        "W_U": Slot("vocab_projector.weight", "in_out"),
        "b_U": Slot("vocab_projector.bias"),
    }
    | norm("ln_embed", "embeddings.LayerNorm", bias=True)
    | norm("ln_head", "vocab_layer_norm", bias=True),
    optional=("W_head", "b_head", "W_U", "b_U", "ln_head.w", "ln_head.b"),
    epsilon=1e-12,
)


def _stored(qkv: str) -> dict[str, Slot]:
    """q, k and v as one matrix, in files alone."""
    return {name: slot for name, slot in fused(qkv, "").items() if not name.endswith("_O")}


# Llama's modules, the norms behind the sums, q and k turned. Files hold q, k and v as one.
_ROTARY_BERT = replace(
    LLAMA,
    tensors=LLAMA.tensors
    | norm("ln1", "post_attention_layernorm", bias=True)
    | norm("ln2", "post_mlp_layernorm", bias=True),
    taps=LLAMA.taps | {"resid_mid": Tap("post_attention_layernorm")},
    optional=(*LLAMA.optional, *BERT.optional),
    ignored=("rotary_emb.inv_freq", "cls.predictions.decoder.bias", *_TWICE),
    norm="layer",
    norm_first=False,
    causal=False,
)

NOMIC_BERT = replace(
    _ROTARY_BERT,
    name="nomic_bert",
    model_types=("nomic_bert",),
    outside={name: slot for name, slot in BERT.outside.items() if name != "W_pos"}
    | {
        "ln_embed.w": Slot("embeddings.LayerNorm.weight|emb_ln.weight"),
        "ln_embed.b": Slot("embeddings.LayerNorm.bias|emb_ln.bias"),
    }
    | norm("ln_head", "cls.predictions.transform.layer_norm", bias=True),
    stored=_stored("attn.Wqkv"),
)
GTE = replace(
    _ROTARY_BERT,
    name="gte",
    model_types=("gte",),
    outside=_EMBEDDED
    | _HEAD
    | _POOLER
    | {
        "ln_head.w": Slot("lm_head.layer_norm.weight|lm_head.norm.weight"),
        "ln_head.b": Slot("lm_head.layer_norm.bias|lm_head.norm.bias"),
        "b_U": Slot("lm_head.decoder.bias"),
    },
    ignored=("rotary_emb.inv_freq", "position_ids", "token_type_ids"),
    stored=_stored("attention.qkv_proj")
    | {
        "W_in": Slot("mlp.up_gate_proj.weight", "in_out", "0/2"),
        "W_gate": Slot("mlp.up_gate_proj.weight", "in_out", "1/2"),
    },
)

_JINA_MLP = {
    "W_in": Slot("mlp.fc1.weight", "in_out"),
    "b_in": Slot("mlp.fc1.bias"),
    "W_out": Slot("mlp.fc2.weight", "in_out"),
    "b_out": Slot("mlp.fc2.bias"),
}
JINA = replace(
    _ROTARY_BERT,
    name="jina_embeddings_v3",
    model_types=("jina_embeddings_v3",),
    tensors={n: s for n, s in _ROTARY_BERT.tensors.items() if not n.endswith("_gate")} | _JINA_MLP,
    taps=_ROTARY_BERT.taps | {"mlp_pre": Tap("mlp.fc1"), "mlp_post": Tap("mlp.fc2", "in")},
    outside=_EMBEDDED
    | _HEAD
    | _POOLER
    | {
        "ln_embed.w": Slot("embeddings.LayerNorm.weight|emb_ln.weight"),
        "ln_embed.b": Slot("embeddings.LayerNorm.bias|emb_ln.bias"),
    },
    stored=_stored("mixer.Wqkv"),
)

EUROBERT = replace(LLAMA, name="eurobert", model_types=("eurobert",), causal=False)

ULTRABERT = replace(
    EUROBERT,
    name="ultrabert",
    model_types=("ultrabert",),
    outside={
        "W_E": LLAMA.outside["W_E"],
        "W_head_in": Slot("head.linear1.weight", "in_out"),
        "W_head_out": Slot("head.linear2.weight", "in_out"),
        "W_U": Slot("head.decoder.weight|cls.weight", "in_out"),
        "b_U": Slot("head.decoder.bias|cls.bias"),
    }
    | norm("ln_final", "norm"),
    optional=(*LLAMA.optional, "W_head_in", "W_head_out", "b_U"),
    unproved={"logits": "its head has a gate"},
)

_MODERN_MLP = {
    "W_gate": Slot("mlp.Wi.weight", "in_out", "0/2"),
    "W_in": Slot("mlp.Wi.weight", "in_out", "1/2"),
    "W_out": Slot("mlp.Wo.weight", "in_out"),
    "b_gate": Slot("mlp.Wi.bias", part="0/2"),
    "b_in": Slot("mlp.Wi.bias", part="1/2"),
    "b_out": Slot("mlp.Wo.bias"),
    **norm("ln1", "attn_norm", bias=True),
    **norm("ln2", "mlp_norm", bias=True),
}
_MODERN_BIASES = (*ATTENTION_BIASES, "b_gate", "b_in", "b_out", "ln1.b", "ln2.b")
# The first layer reads what the embedding's norm has normed: it has no norm of its own before attention.
MODERNBERT = replace(
    LLAMA,
    name="modernbert",
    model_types=("modernbert",),
    attention="attn",
    tensors=fused("attn.Wqkv", "attn.Wo") | _MODERN_MLP,
    taps={
        **fused_taps("attn.Wqkv", "attn"),
        "resid_mid": Tap("mlp_norm", "in"),
        **mlp_taps("mlp.Wi", "mlp.Wo", "mlp", "0/2"),
    },
    outside={
        "W_E": Slot("embeddings.tok_embeddings.weight"),
        "W_head": Slot("head.dense.weight|lm_head.dense.weight", "in_out"),
        "b_head": Slot("head.dense.bias|lm_head.dense.bias"),
        "W_U": Slot("decoder.weight", "in_out"),
        "b_U": Slot("decoder.bias"),
        "ln_head.w": Slot("head.norm.weight|lm_head.norm.weight"),
        "ln_head.b": Slot("head.norm.bias|lm_head.norm.bias"),
    }
    | norm("ln_embed", "embeddings.norm", bias=True)
    | norm("ln_final", "final_norm", bias=True),
    optional=(
        *_MODERN_BIASES,
        *("W_head", "b_head", "W_U", "b_U", "ln_head.w", "ln_head.b", "ln_embed.b", "ln_final.b"),
    ),
    unnormed=(0,),
    norm="layer",
    causal=False,
)

_SEPARATE = {
    n: replace(s, tensor=s.tensor.replace("self_attn", "attn").replace("o_proj", "Wo"))
    for n, s in LLAMA.tensors.items()
    if n[2:] in ("Q", "K", "V", "O")
}
MODERNBERT_DECODER = replace(
    MODERNBERT,
    name="modernbert-decoder",
    model_types=("modernbert-decoder",),
    tensors=_SEPARATE | _MODERN_MLP,
    taps=MODERNBERT.taps | {"q": Tap("attn.q_proj"), "k": Tap("attn.k_proj"), "v": Tap("attn.v_proj")},
    causal=True,
)

# BERT's modules without a function of attention that can be registered: what its own modules hand on is seen.
UNWATCHED_BERT = replace(
    BERT,
    taps=BERT.taps | {"pattern": Tap("attention.self.dropout", "in"), "z": Tap("attention.output.dense", "in")},
    watched=False,
)

MEGATRON_BERT = replace(
    UNWATCHED_BERT,
    name="megatron-bert",
    model_types=("megatron-bert",),
    tensors=BERT.tensors | norm("ln1", "attention.ln", bias=True) | norm("ln2", "ln", bias=True),
    taps=UNWATCHED_BERT.taps | {"resid_mid": Tap("ln", "in")},
    outside={n: s for n, s in BERT.outside.items() if not n.startswith("ln_embed")}
    | norm("ln_final", "encoder.ln", bias=True),
    norm_first=True,
)

REMBERT = replace(
    UNWATCHED_BERT,
    name="rembert",
    model_types=("rembert",),
    outside=BERT.outside
    | {
        "W_project_in": Slot("encoder.embedding_hidden_mapping_in.weight", "in_out"),
        "b_project_in": Slot("encoder.embedding_hidden_mapping_in.bias"),
        "W_head": Slot("cls.predictions.dense.weight", "in_out"),
        "b_head": Slot("cls.predictions.dense.bias"),
        "b_U": Slot("cls.predictions.decoder.bias|cls.predictions.bias"),
    }
    | norm("ln_head", "cls.predictions.LayerNorm", bias=True),
    ignored=("position_ids", "cls.predictions.bias"),
)

IBERT = replace(
    UNWATCHED_BERT,
    name="ibert",
    model_types=("ibert",),
    outside=ROBERTA.outside,
    ignored=(*_TWICE, "_integer", "scaling_factor", "act_", "x_min", "x_max", "LayerNorm.shift"),
    refused=(
        (
            "quant_mode",
            True,
            "is not served: it computes in integers; with quant_mode: false in config.json the model opens",
        ),
    ),
)

# Words that attend to entities have queries of their own; without entities none of them is used.
_ENTITY_QUERIES = {
    f"{letter}_Q_{pair}": Slot(f"attention.self.{pair}_query.{kind}", "query")
    for pair in ("w2e", "e2w", "e2e")
    for letter, kind in (("W", "weight"), ("b", "bias"))
}
_ENTITIES = {
    "W_E_entity": Slot("entity_embeddings.entity_embeddings.weight"),
    "W_entity_in": Slot("entity_embeddings.entity_embedding_dense.weight", "in_out"),
    "W_pos_entity": Slot("entity_embeddings.position_embeddings.weight"),
    "W_type_entity": Slot("entity_embeddings.token_type_embeddings.weight"),
    "W_head_entity": Slot("entity_predictions.transform.dense.weight", "in_out"),
    "b_head_entity": Slot("entity_predictions.transform.dense.bias"),
    "W_U_entity": Slot("entity_predictions.decoder.weight", "in_out"),
    "b_U_entity": Slot("entity_predictions.bias"),
    **norm("ln_embed_entity", "entity_embeddings.LayerNorm", bias=True),
    **norm("ln_head_entity", "entity_predictions.transform.LayerNorm", bias=True),
}
LUKE = replace(
    UNWATCHED_BERT,
    name="luke",
    model_types=("luke",),
    tensors=BERT.tensors | _ENTITY_QUERIES,
    outside=_EMBEDDED | _POSITIONS | _HEAD | _POOLER | _ENTITIES,
    optional=(*BERT.optional, *_ENTITY_QUERIES, *_ENTITIES),
    ignored=_TWICE,
)

# Text alone: every cell of a table is none.
TAPAS = replace(
    UNWATCHED_BERT,
    name="tapas",
    model_types=("tapas",),
    outside={n: s for n, s in BERT.outside.items() if n != "W_token_type"}
    | {f"W_token_type_{n}": Slot(f"embeddings.token_type_embeddings_{n}.weight") for n in range(7)},
)

BIG_BIRD = replace(
    UNWATCHED_BERT,
    name="big_bird",
    model_types=("big_bird",),
    outside=BERT.outside
    | {"W_pool": Slot("bert.pooler.weight|pooler.weight", "in_out"), "b_pool": Slot("pooler.bias")},
    refused=(
        (
            "attention_type",
            "block_sparse",
            "is not served: its attention is sparse; with original_full in config.json the model opens",
        ),
    ),
)

ROFORMER = replace(
    UNWATCHED_BERT,
    name="roformer",
    model_types=("roformer",),
    outside={n: s for n, s in BERT.outside.items() if n != "W_pos"}
    | {
        "W_angles": Slot("encoder.embed_positions.weight"),
        "W_project_in": Slot("embeddings_project.weight", "in_out"),
        "b_project_in": Slot("embeddings_project.bias"),
    },
    optional=(*BERT.optional, "W_angles", "W_project_in", "b_project_in"),
    lacking={},
    refused=(("rotary_value", True, f"is not served: its values are turned as q and k are; {NO_LOADER}"),),
    position="rotary",
    pairs=True,
)

ESMC = replace(
    LLAMA,
    name="esmc",
    model_types=("esmc",),
    tensors=LLAMA.tensors
    | norm("ln1", "input_layernorm", bias=True)
    | norm("ln2", "post_attention_layernorm", bias=True)
    | QUERY_NORMS_OVER_ALL,
    outside={"W_E": LLAMA.outside["W_E"]} | _HEAD | norm("ln_final", "norm"),
    optional=(*LLAMA.optional, *BERT.optional),
    norm="layer",
    causal=False,
    query_norm="all",
    multipliers={"residual_scale": ("num_hidden_layers", -0.5)},
    unproved={"logits": "its head has an activation that no config names"},
)

# One layer for all depths.
ALBERT = replace(
    BERT,
    name="albert",
    model_types=("albert",),
    layers="encoder.albert_layer_groups.0.albert_layers",
    attention="attention",
    tensors={
        **attention("attention.query", "attention.key", "attention.value", "attention.dense"),
        **mlp("ffn", "ffn_output"),
        **norm("ln1", "attention.LayerNorm", bias=True),
        **norm("ln2", "full_layer_layer_norm", bias=True),
    },
    taps={
        **attention_taps("attention.query", "attention.key", "attention.value", "attention.dense"),
        "resid_mid": Tap("attention"),
        **mlp_taps("ffn", "ffn_output", "ffn_output"),
    },
    outside=_EMBEDDED
    | {
        "W_pos": BERT.outside["W_pos"],
        "W_project_in": Slot("encoder.embedding_hidden_mapping_in.weight", "in_out"),
        "b_project_in": Slot("encoder.embedding_hidden_mapping_in.bias"),
        "W_head": Slot("predictions.dense.weight", "in_out"),
        "b_head": Slot("predictions.dense.bias"),
        "W_U": Slot("predictions.decoder.weight", "in_out"),
        "b_U": Slot("predictions.bias"),
        "W_pool": Slot("pooler.weight", "in_out"),
        "b_pool": Slot("pooler.bias"),
    }
    | norm("ln_head", "predictions.LayerNorm", bias=True),
    ignored=("position_ids", "token_type_ids", "sop_classifier", "predictions.decoder.bias"),
    refused=tuple(
        (key, range(2, 10_000), f"is not served: it has several layers where here one serves all depths; {NO_LOADER}")
        for key in ("num_hidden_groups", "inner_group_num")
    ),
    shared=True,
)

# The text stack of a model that reads images too, where it was saved by itself.
CLIP_TEXT = replace(
    BERT,
    name="clip-text",
    model_types=("clip_text_model",),
    layers="encoder.layers",
    attention="self_attn",
    tensors=attention("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")
    | mlp("mlp.fc1", "mlp.fc2")
    | norm("ln1", "layer_norm1", bias=True)
    | norm("ln2", "layer_norm2", bias=True),
    taps={
        **attention_taps("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn"),
        "resid_mid": Tap("layer_norm2", "in"),
        **mlp_taps("mlp.fc1", "mlp.fc2", "mlp"),
    },
    outside={
        "W_E": Slot("embeddings.token_embedding.weight"),
        "W_pos": Slot("embeddings.position_embedding.weight"),
    }
    | norm("ln_final", "final_layer_norm", bias=True),
    optional=(),
    ignored=("position_ids", "text_projection"),
    norm_first=True,
    causal=True,
)

ENCODERS = (
    *(ERNIE, LAYOUTLM, ROC_BERT, ELECTRA, ROBERTA, BERT_GENERATION, ROBERTA_FIRST, XLM_ROBERTA_XL, ESM, DISTILBERT),
    *(NOMIC_BERT, GTE, JINA, EUROBERT, ULTRABERT, MODERNBERT, MODERNBERT_DECODER),
    *(MEGATRON_BERT, REMBERT, IBERT, LUKE, TAPAS, BIG_BIRD, ROFORMER, ESMC, ALBERT, CLIP_TEXT),
)
