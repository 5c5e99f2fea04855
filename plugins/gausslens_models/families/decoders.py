"""Decoders of one MLP a layer, each as what it changes in a layout of table.py; a table, no code."""

from __future__ import annotations

from dataclasses import replace

from .slots import (
    BY_BRIDGE,
    NO_ROTATION,
    UNWATCHED,
    Family,
    Slot,
    Tap,
    attention,
    fused,
    fused_gate,
    mlp,
    mlp_taps,
    norm,
    unwatched,
)
from .table import GEMMA2, GPT2, LLAMA, OPT, QUERY_NORMS

# With nothing but another name.
LLAMA_LIKE = tuple(
    replace(LLAMA, name=name, model_types=(name,))
    for name in ("internlm3", "iquestcoder", "cwm", "ministral", "ministral3", "seed_oss")
)
SMOLLM3 = replace(LLAMA, name="smollm3", model_types=("smollm3",), unrotated="no_rope_layers")
ERNIE4_5 = replace(LLAMA, name="ernie4_5", model_types=("ernie4_5",), pairs=True)
HELIUM = replace(LLAMA, name="helium", model_types=("helium",), pairs=True)
GEMMA = replace(
    LLAMA,
    name="gemma",
    model_types=("gemma",),
    tensors=LLAMA.tensors
    | norm("ln1", "input_layernorm", plus=1.0)
    | norm("ln2", "post_attention_layernorm", plus=1.0),
    outside=GEMMA2.outside,
    multipliers=GEMMA2.multipliers,
)
VAULTGEMMA = replace(
    GEMMA,
    name="vaultgemma",
    model_types=("vaultgemma",),
    tensors=GEMMA.tensors | norm("ln2", "pre_feedforward_layernorm", plus=1.0),
    taps=LLAMA.taps | {"resid_mid": Tap("pre_feedforward_layernorm", "in")},
)

GRANITE = replace(
    LLAMA,
    name="granite",
    model_types=("granite",),
    scale="attention_multiplier",
    multipliers={
        "embedding_scale": ("embedding_multiplier", 1),
        "residual_scale": ("residual_multiplier", 1),
        "logit_scale": ("logits_scaling", -1),
    },
)
HYPERCLOVAX = replace(
    GRANITE,
    name="hyperclovax",
    model_types=("hyperclovax",),
    tensors=LLAMA.tensors | norm("ln1_post", "post_norm1") | norm("ln2_post", "post_norm2"),
    taps=LLAMA.taps | {"attn_out": Tap("post_norm1"), "mlp_out": Tap("post_norm2")},
    optional=(*LLAMA.optional, "ln1_post.w", "ln2_post.w"),
    multipliers=GRANITE.multipliers | {"logit_scale": ("logits_scaling", 1)},
)

# An MLP without a gate; where layer norms have biases, those too.
UNGATED = {name: slot for name, slot in LLAMA.tensors.items() if "gate" not in name}
UNGATED_TAPS = LLAMA.taps | {"mlp_pre": Tap("mlp.up_proj")}
LAYER_NORMS = norm("ln1", "input_layernorm", bias=True) | norm("ln2", "post_attention_layernorm", bias=True)
OUTSIDE = {"W_E": Slot("embed_tokens.weight"), "W_U": Slot("lm_head.weight", "in_out"), "b_U": Slot("lm_head.bias")}
ARCEE = replace(LLAMA, name="arcee", model_types=("arcee",), tensors=UNGATED, taps=UNGATED_TAPS)
JAIS2 = replace(
    ARCEE,
    name="jais2",
    model_types=("jais2",),
    tensors=UNGATED | LAYER_NORMS,
    outside=LLAMA.outside | norm("ln_final", "norm", bias=True),
    norm="layer",
)
NEMOTRON = replace(
    JAIS2,
    name="nemotron",
    model_types=("nemotron",),
    tensors=UNGATED
    | norm("ln1", "input_layernorm", plus=1.0, bias=True)
    | norm("ln2", "post_attention_layernorm", plus=1.0, bias=True),
    outside=LLAMA.outside | norm("ln_final", "norm", plus=1.0, bias=True),
)
STARCODER2 = replace(
    JAIS2,
    name="starcoder2",
    model_types=("starcoder2",),
    tensors=JAIS2.tensors | mlp("mlp.c_fc", "mlp.c_proj"),
    taps=LLAMA.taps | {"mlp_pre": Tap("mlp.c_fc"), "mlp_post": Tap("mlp.c_proj", "in")},
)
APERTUS = replace(
    ARCEE,
    name="apertus",
    model_types=("apertus",),
    tensors=UNGATED
    | QUERY_NORMS
    | {"alpha_p": Slot("mlp.act_fn.alpha_p"), "alpha_n": Slot("mlp.act_fn.alpha_n")}
    | norm("ln1", "attention_layernorm")
    | norm("ln2", "feedforward_layernorm"),
    taps=UNGATED_TAPS | {"resid_mid": Tap("feedforward_layernorm", "in")},
    ignored=(*LLAMA.ignored, "act_fn.beta", "act_fn.eps"),
    unproved={"mlp_post": "its activation learns (alpha_p, alpha_n)"},
)
NANOCHAT = replace(
    ARCEE,
    name="nanochat",
    model_types=("nanochat",),
    tensors={name: slot for name, slot in UNGATED.items() if not name.startswith("ln")} | mlp("mlp.fc1", "mlp.fc2"),
    taps=LLAMA.taps | {"mlp_pre": Tap("mlp.fc1"), "mlp_post": Tap("mlp.fc2", "in")},
    outside={name: slot for name, slot in LLAMA.outside.items() if name != "ln_final.w"},
    query_norm_bare="model_type",
    query_norm_late=True,
    backwards=True,
    unproved={"embed": "the embedding is normed before the first layer"},
)
BITNET = replace(
    LLAMA,
    name="bitnet",
    model_types=("bitnet",),
    tensors=LLAMA.tensors
    | {"z_norm.w": Slot("self_attn.attn_sub_norm.weight", "query"), "mlp_norm.w": Slot("mlp.ffn_sub_norm.weight")},
)

# Norms without weights.
OLMO = replace(
    LLAMA,
    name="olmo",
    model_types=("olmo",),
    tensors={name: slot for name, slot in LLAMA.tensors.items() if not name.startswith("ln")},
    outside={name: slot for name, slot in LLAMA.outside.items() if name != "ln_final.w"},
    norm="layer",
)
# Norms of what attention and MLP add, none of what they read.
EXAONE4 = replace(
    OLMO,
    name="exaone4",
    model_types=("exaone4",),
    tensors=OLMO.tensors
    | QUERY_NORMS
    | norm("ln1_post", "post_attention_layernorm")
    | norm("ln2_post", "post_feedforward_layernorm"),
    taps=LLAMA.taps
    | {
        "attn_out": Tap("post_attention_layernorm"),
        "resid_mid": Tap("mlp", "in"),
        "mlp_out": Tap("post_feedforward_layernorm"),
    },
    outside=LLAMA.outside,
    norm="rms",
    norm_first=False,
    unrotated="full_attention",
)
QUERY_NORMS_OVER_ALL = {
    "q_norm.w": Slot("self_attn.q_norm.weight", "query"),
    "k_norm.w": Slot("self_attn.k_norm.weight", "key_value"),
}
OLMO2 = replace(
    EXAONE4,
    name="olmo2",
    model_types=("olmo2", "olmo3"),
    tensors=EXAONE4.tensors | QUERY_NORMS_OVER_ALL,
    query_norm="all",
    unrotated="",
)
# One norm before attention and MLP, which read the same stream.
COHERE = replace(
    LLAMA,
    name="cohere",
    model_types=("cohere",),
    tensors={name: slot for name, slot in LLAMA.tensors.items() if name != "ln2.w"} | QUERY_NORMS,
    taps={site: tap for site, tap in LLAMA.taps.items() if site != "resid_mid"},
    optional=(*LLAMA.optional, "q_norm.w", "k_norm.w"),
    norm="layer",
    pairs=True,
    parallel=True,
    multipliers={"logit_scale": ("logit_scale", 1)},
)
COHERE2 = replace(COHERE, name="cohere2", model_types=("cohere2",), unrotated="full_attention")
HUNYUAN = replace(
    LLAMA,
    name="hunyuan_v1_dense",
    model_types=("hunyuan_v1_dense",),
    tensors=LLAMA.tensors
    | {"q_norm.w": Slot("self_attn.query_layernorm.weight"), "k_norm.w": Slot("self_attn.key_layernorm.weight")},
    query_norm_late=True,
)

GLM_MLP = fused_gate("mlp.gate_up_proj", "mlp.down_proj")
GLM_TAPS = LLAMA.taps | {"mlp_pre": Tap("mlp.gate_up_proj", part="0/2")}
GLM = replace(
    LLAMA,
    name="glm",
    model_types=("glm",),
    tensors={name: slot for name, slot in LLAMA.tensors.items() if name not in ("b_in", "b_gate", "b_out")} | GLM_MLP,
    taps=GLM_TAPS,
    pairs=True,
)
GLM4 = replace(
    GLM,
    name="glm4",
    model_types=("glm4",),
    tensors=GLM.tensors | norm("ln1_post", "post_self_attn_layernorm") | norm("ln2_post", "post_mlp_layernorm"),
    taps=GLM_TAPS | {"attn_out": Tap("post_self_attn_layernorm"), "mlp_out": Tap("post_mlp_layernorm")},
)

STABLELM = replace(
    LLAMA,
    name="stablelm",
    model_types=("stablelm",),
    tensors=LLAMA.tensors | LAYER_NORMS,
    outside=LLAMA.outside | norm("ln_final", "norm", bias=True),
    optional=(*LLAMA.optional, "ln2.w", "ln2.b"),
    refused=(
        (
            "qk_layernorm",
            True,
            "is not served: the norms of q and k are tensors of their own for each head; " + BY_BRIDGE,
        ),
    ),
    norm="layer",
    parallel="use_parallel_residual",
)
PHI = replace(
    LLAMA,
    name="phi",
    model_types=("phi",),
    tensors=attention("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.dense")
    | mlp("mlp.fc1", "mlp.fc2")
    | norm("ln1", "input_layernorm", bias=True)
    | norm("q_norm", "self_attn.q_layernorm", bias=True)
    | norm("k_norm", "self_attn.k_layernorm", bias=True),
    taps={site: tap for site, tap in LLAMA.taps.items() if site != "resid_mid"}
    | {"mlp_pre": Tap("mlp.fc1"), "mlp_post": Tap("mlp.fc2", "in")},
    outside=OUTSIDE | norm("ln_final", "final_layernorm", bias=True),
    optional=("q_norm.w", "q_norm.b", "k_norm.w", "k_norm.b", "W_U", "b_U"),
    norm="layer",
    parallel=True,
)
PERSIMMON = replace(
    PHI,
    name="persimmon",
    model_types=("persimmon",),
    tensors=fused("self_attn.query_key_value", "self_attn.dense", interleaved="|")
    | mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    | LAYER_NORMS
    | norm("q_norm", "self_attn.q_layernorm", bias=True)
    | norm("k_norm", "self_attn.k_layernorm", bias=True),
    taps=LLAMA.taps
    | {letter: Tap("self_attn.query_key_value", part=f"{letter}|") for letter in "qkv"}
    | {"mlp_pre": Tap("mlp.dense_h_to_4h"), "mlp_post": Tap("mlp.dense_4h_to_h", "in")},
    parallel=False,
)

BIGCODE = replace(
    GPT2,
    name="gpt_bigcode",
    model_types=("gpt_bigcode",),
    tensors=GPT2.tensors | fused("attn.c_attn", "attn.c_proj", interleaved="*") | mlp("mlp.c_fc", "mlp.c_proj"),
    taps=GPT2.taps | {letter: Tap("attn.c_attn", part=f"{letter}*") for letter in "qkv"},
    optional=("W_U",),
)
BIOGPT = replace(
    OPT,
    name="biogpt",
    model_types=("biogpt",),
    outside=OPT.outside | norm("ln_final", "layer_norm", bias=True),
    multipliers={"embedding_scale": ("hidden_size", 0.5, "scale_embedding")},
    epsilon_of_config=False,  # its norms have torch's own
)
SINUSOIDS = {"embed": "waves of fixed lengths are added to the embedding"}
CTRL = replace(
    GPT2,
    name="ctrl",
    model_types=("ctrl",),
    attention="multi_head_attention",
    tensors=attention(*(f"multi_head_attention.{part}" for part in ("Wq", "Wk", "Wv", "dense")))
    | mlp("ffn.0", "ffn.2")
    | norm("ln1", "layernorm1", bias=True)
    | norm("ln2", "layernorm2", bias=True),
    taps={
        **{letter: Tap(f"multi_head_attention.W{letter}") for letter in "qkv"},
        "attn_out": Tap("multi_head_attention"),
        "resid_mid": Tap("layernorm2", "in"),
        **mlp_taps("ffn.0", "ffn.2", "ffn"),
    },
    outside={"W_E": Slot("w.weight"), "W_U": Slot("lm_head.weight", "in_out"), "b_U": Slot("lm_head.bias")}
    | norm("ln_final", "layernorm", bias=True),
    optional=("W_U", "b_U"),
    position="sinusoidal",
    multipliers={"embedding_scale": ("hidden_size", 0.5)},
    unproved=SINUSOIDS,
)
# Families whose attention cannot be watched by plain transformers: what their modules hand on; more by TransformerLens.
XGLM = replace(
    BIOGPT,
    name="xglm",
    model_types=("xglm",),
    taps=BIOGPT.taps | unwatched("self_attn", "self_attn.out_proj"),
    outside={name: slot for name, slot in BIOGPT.outside.items() if name != "W_pos"},
    watched=False,
    position="sinusoidal",
    unproved=SINUSOIDS,
)
GPT_NEO = replace(
    GPT2,
    name="gpt_neo",
    model_types=("gpt_neo",),
    attention="attn.attention",
    tensors=GPT2.tensors
    | attention(*(f"attn.attention.{part}" for part in ("q_proj", "k_proj", "v_proj", "out_proj")))
    | mlp("mlp.c_fc", "mlp.c_proj"),
    taps=GPT2.taps
    | {letter: Tap(f"attn.attention.{letter}_proj") for letter in "qkv"}
    | unwatched("attn.attention", "attn.attention.out_proj"),
    optional=("W_U", "b_Q", "b_K", "b_V"),
    watched=False,
    scale=1.0,
)
GPTJ = Family(
    name="gptj",
    model_types=("gptj",),
    layers="h",
    attention="attn",
    tensors=attention("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj")
    | mlp("mlp.fc_in", "mlp.fc_out")
    | norm("ln1", "ln_1", bias=True),
    taps={
        **{letter: Tap(f"attn.{letter}_proj") for letter in "qkv"},
        **unwatched("attn", "attn.out_proj"),
        "attn_out": Tap("attn"),
        **mlp_taps("mlp.fc_in", "mlp.fc_out", "mlp"),
    },
    outside={"W_E": Slot("wte.weight"), "W_U": Slot("lm_head.weight", "in_out"), "b_U": Slot("lm_head.bias")}
    | norm("ln_final", "ln_f", bias=True),
    optional=("b_Q", "b_K", "b_V", "b_O", "W_U", "b_U"),
    ignored=("attn.bias", "attn.masked_bias", "attn.embed_positions"),
    watched=False,
    norm="layer",
    pairs=True,
    parallel=True,
)
CODEGEN = replace(
    GPTJ,
    name="codegen",
    model_types=("codegen",),
    tensors=GPTJ.tensors | fused("attn.qkv_proj", "attn.out_proj", interleaved="4"),
    taps=GPTJ.taps | {letter: Tap("attn.qkv_proj", part=f"{letter}4") for letter in "qkv"},
    bridged=True,
)
FALCON = replace(
    GPTJ,
    name="falcon",
    model_types=("falcon",),
    attention="self_attention",
    tensors=fused("self_attention.query_key_value", "self_attention.dense", interleaved="*")
    | mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    | norm("ln1", "input_layernorm|ln_attn", bias=True)
    | norm("ln2", "post_attention_layernorm|ln_mlp", bias=True),
    taps={
        **{letter: Tap("self_attention.query_key_value", part=f"{letter}*") for letter in "qkv"},
        **unwatched("self_attention", "self_attention.dense"),
        "attn_out": Tap("self_attention"),
        "mlp_pre": Tap("mlp.dense_h_to_4h"),
        "mlp_post": Tap("mlp.dense_4h_to_h", "in"),
        "mlp_out": Tap("mlp", copied=True),
    },
    outside={"W_E": Slot("word_embeddings.weight"), "W_U": Slot("lm_head.weight", "in_out")}
    | norm("ln_final", "ln_f", bias=True),
    optional=("b_Q", "b_K", "b_V", "b_O", "b_in", "b_out", "ln2.w", "ln2.b", "W_U"),
    positions=(("alibi", True, "alibi"),),
    weights_alone=(
        ("alibi", True, "does not run: eager attention of transformers adds its slopes twice; use `loader: weights`"),
    ),
    when=(
        ("alibi", True, {}, {"q_rot": NO_ROTATION, "k_rot": NO_ROTATION}),
        ("new_decoder_architecture", True, {}, {"scores": UNWATCHED}),  # TransformerLens does not open this one
    ),
    bridged=True,
    pairs=False,
    parallel="parallel_attn",
)

DECODERS = (
    *LLAMA_LIKE,
    *(SMOLLM3, ERNIE4_5, HELIUM, GEMMA, VAULTGEMMA, GRANITE, HYPERCLOVAX, ARCEE, JAIS2, NEMOTRON),
    *(STARCODER2, APERTUS, NANOCHAT, BITNET, OLMO, EXAONE4, OLMO2, COHERE, COHERE2, HUNYUAN, GLM, GLM4, STABLELM),
    *(PHI, PERSIMMON, BIGCODE, BIOGPT, CTRL, XGLM, GPT_NEO, GPTJ, CODEGEN, FALCON),
)
