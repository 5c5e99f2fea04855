"""Decoders whose MLPs are mixtures of experts, in all layers or in some, as what they change in another row.

The layers of experts are those that have their tensors. Experts are tensors with their axis first: W_in is [expert,
d_model, d_mlp]; W_router [d_model, expert] chooses among them; W_shared_in and its kind are of the experts of every
token.
"""

from __future__ import annotations

from dataclasses import replace

from .decoders import COHERE2, ERNIE4_5, EXAONE4, GRANITE, HUNYUAN, JAIS2, LAYER_NORMS, OLMO2, QUERY_NORMS_OVER_ALL
from .slots import MLP_TENSORS, Mixture, Slot, Tap, experts, mlp_taps, norm
from .table import LLAMA, QUERY_NORMS, QWEN2, QWEN3

SINKS = {"sinks": Slot("self_attn.sinks")}
# What corrects the choice of experts: a buffer, which is no tensor of ours.
IGNORED = (*LLAMA.ignored, "e_score_correction_bias")
MIXTRAL = replace(LLAMA, name="mixtral", model_types=("mixtral",), mixture=experts("mlp.gate"))
QWEN2_MOE = replace(
    QWEN2,
    name="qwen2_moe",
    model_types=("qwen2_moe",),
    mixture=experts("mlp.gate", shared="mlp.shared_expert", shared_router="mlp.shared_expert_gate"),
)
QWEN3_MOE = replace(QWEN3, name="qwen3_moe", model_types=("qwen3_moe", "mellum"), mixture=experts("mlp.gate"))
OLMOE = replace(
    LLAMA,
    name="olmoe",
    model_types=("olmoe", "minimax_m2"),
    tensors=LLAMA.tensors | QUERY_NORMS_OVER_ALL,
    ignored=IGNORED,
    mixture=experts("mlp.gate"),
    query_norm="all",
)
FLEX_OLMO = replace(OLMO2, name="flex_olmo", model_types=("flex_olmo",), mixture=experts("mlp.gate"))
PHIMOE = replace(
    LLAMA,
    name="phimoe",
    model_types=("phimoe",),
    tensors=LLAMA.tensors | LAYER_NORMS,
    outside=JAIS2.outside | {"b_U": Slot("lm_head.bias")},
    optional=(*LLAMA.optional, "b_U"),
    mixture=experts("mlp.router"),
    norm="layer",
)
GLM4_MOE = replace(
    LLAMA,
    name="glm4_moe",
    model_types=("glm4_moe", "dots1", "hy_v3", "solar_open"),
    tensors=LLAMA.tensors | QUERY_NORMS,
    optional=(*LLAMA.optional, "q_norm.w", "k_norm.w"),
    ignored=IGNORED,
    mixture=experts("mlp.gate", shared="mlp.shared_experts"),
)
EXAONE_MOE = replace(GLM4_MOE, name="exaone_moe", model_types=("exaone_moe",), unrotated=EXAONE4.unrotated)
KOLIBRI1 = replace(
    GLM4_MOE,
    name="kolibri1",
    model_types=("kolibri1",),
    tensors=GLM4_MOE.tensors | norm("ln1_post", "post_self_attn_layernorm") | norm("ln2_post", "post_mlp_layernorm"),
    taps=LLAMA.taps | {"attn_out": Tap("post_self_attn_layernorm"), "mlp_out": Tap("post_mlp_layernorm")},
)
FLINT = replace(
    GLM4_MOE,
    name="flint",
    model_types=("flint",),
    tensors=GLM4_MOE.tensors | SINKS,
    mixture=experts("mlp.gate", shared="mlp.shared_expert"),
    unrotated="full_attention",
)
ERNIE4_5_MOE = replace(
    ERNIE4_5,
    name="ernie4_5_moe",
    model_types=("ernie4_5_moe",),
    outside=ERNIE4_5.outside | {"b_U": Slot("lm_head.bias")},
    optional=(*ERNIE4_5.optional, "b_U"),
    mixture=experts("mlp.gate", shared="mlp.shared_experts", bias="mlp.gate.moe_statics.e_score_correction_bias"),
)
COHERE2_MOE = replace(
    COHERE2,
    name="cohere2_moe",
    model_types=("cohere2_moe",),
    mixture=experts("mlp.gate", shared="mlp.shared_experts"),
)
HUNYUAN_MOE = replace(
    HUNYUAN,
    name="hunyuan_v1_moe",
    model_types=("hunyuan_v1_moe",),
    mixture=experts("mlp.gate.wg", shared="mlp.shared_mlp"),
)
LLAMA4 = replace(
    LLAMA,
    name="llama4",
    model_types=("llama4_text",),
    tensors={name: replace(s, tensor=s.tensor.replace("mlp.", "feed_forward.")) for name, s in LLAMA.tensors.items()},
    taps=LLAMA.taps | mlp_taps("feed_forward.gate_proj", "feed_forward.down_proj", "feed_forward"),
    mixture=experts("feed_forward.router", at="feed_forward.experts", shared="feed_forward.shared_expert", turned=True),
    pairs=True,
    unrotated="no_rope_layers",
    query_norm_bare="use_qk_norm",
    query_norm_late=True,
)
_GPT_OSS = experts("mlp.router", turned=True).tensors
GPT_OSS = replace(
    LLAMA,
    name="gpt_oss",
    model_types=("gpt_oss",),
    tensors=LLAMA.tensors | SINKS,
    mixture=Mixture(
        _GPT_OSS
        | {
            "W_gate": replace(_GPT_OSS["W_gate"], part="0::2"),
            "W_in": replace(_GPT_OSS["W_in"], part="1::2"),
            "b_router": Slot("mlp.router.bias"),
            "b_gate": Slot("mlp.experts.gate_up_proj_bias", part="0::2"),
            "b_in": Slot("mlp.experts.gate_up_proj_bias", part="1::2"),
            "b_out": Slot("mlp.experts.down_proj_bias"),
        }
    ),
)
# These call the place of their MLP otherwise, in layers that have nothing but experts.
_GRANITE_TENSORS = {name: slot for name, slot in GRANITE.tensors.items() if name not in MLP_TENSORS}
GRANITE_MOE = replace(
    GRANITE,
    name="granitemoe",
    model_types=("granitemoe",),
    tensors=_GRANITE_TENSORS,
    taps={site: tap for site, tap in GRANITE.taps.items() if not site.startswith("mlp_")}
    | {"mlp_out": Tap("block_sparse_moe")},
    mixture=experts("block_sparse_moe.router", at="block_sparse_moe.experts"),
)
GRANITE_MOE_SHARED = replace(
    GRANITE_MOE,
    name="granitemoeshared",
    model_types=("granitemoeshared",),
    taps={site: tap for site, tap in GRANITE_MOE.taps.items() if site != "mlp_out"},
    lacking={"mlp_out": "what the MLP adds is the sum of two modules, experts and a shared MLP, and seen nowhere"},
    mixture=Mixture(
        experts("block_sparse_moe.router", at="block_sparse_moe.experts").tensors
        | {
            "W_shared_gate": Slot("shared_mlp.input_linear.weight", "in_out", "0/2"),
            "W_shared_in": Slot("shared_mlp.input_linear.weight", "in_out", "1/2"),
            "W_shared_out": Slot("shared_mlp.output_linear.weight", "in_out"),
        },
        optional=("W_shared_gate", "W_shared_in", "W_shared_out"),
    ),
)
ARIA = replace(
    LLAMA,
    name="aria_text",
    model_types=("aria_text",),
    mixture=experts("mlp.router", shared="mlp.shared_experts", turned=True),
)

MIXTURES = (
    *(MIXTRAL, QWEN2_MOE, QWEN3_MOE, OLMOE, FLEX_OLMO, PHIMOE, GLM4_MOE, EXAONE_MOE, KOLIBRI1, FLINT, ERNIE4_5_MOE),
    *(COHERE2_MOE, HUNYUAN_MOE, LLAMA4, GPT_OSS, GRANITE_MOE, GRANITE_MOE_SHARED, ARIA),
)
