"""Scores of tiny models by hand: torch and the module's own parameters, none of our tensors, facts or formulas.

A model is built, its stream taken from its own forward pass, and every step to the scores written out. ``checked``
holds them against the patterns of the module's eager attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers

from gausslens_models.families.layout import FAMILIES

VOCABULARY = 61
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 10}
# model type: (config class, arguments, class)
ALL: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("LlamaConfig", GROUPED | {"attention_bias": True}, "LlamaForCausalLM"),
    "qwen2": ("Qwen2Config", GROUPED, "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", GROUPED | {"attention_bias": True}, "Qwen3ForCausalLM"),
    "gemma2": (
        "Gemma2Config",
        GROUPED | {"query_pre_attn_scalar": 7, "attn_logit_softcapping": 20.0, "sliding_window": 64},
        "Gemma2ForCausalLM",
    ),
    "gemma3_text": (
        "Gemma3TextConfig",
        GROUPED | {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]},
        "Gemma3ForCausalLM",
    ),
    "olmo2": ("Olmo2Config", {k: v for k, v in GROUPED.items() if k != "head_dim"}, "Olmo2ForCausalLM"),
    "cohere": ("CohereConfig", {k: v for k, v in GROUPED.items() if k != "head_dim"}, "CohereForCausalLM"),
    "lfm2": (
        "Lfm2Config",
        {k: v for k, v in GROUPED.items() if k != "head_dim"}
        | {"layer_types": ["full_attention", "full_attention"], "block_auto_adjust_ff_dim": False},
        "Lfm2ForCausalLM",
    ),
    "gpt2": ("GPT2Config", SMALL | {"n_inner": 40}, "GPT2LMHeadModel"),
    "gpt_neox": ("GPTNeoXConfig", SMALL | {"rotary_pct": 0.5}, "GPTNeoXForCausalLM"),
    "bert": ("BertConfig", SMALL, "BertForMaskedLM"),
}
# Of families whose tensors are read; a family that is added is tested from then on.
MODELS = [name for name in ALL if any(name in family.model_types for family in FAMILIES)]
QUERY_NORMS = [name for name in MODELS if name in ("qwen3", "gemma3_text", "olmo2", "lfm2")]


@dataclass(frozen=True)
class Layer:
    """One layer by hand, in float64: what is linear of it, and what comes of a stream [prompt, position, d_model].

    ``W_Q``, ``W_K`` [head, d_model, d_head] and biases have every gain in them, each head its key head; ``q``, ``k``
    [prompt, position, head, d_head] are content, before position; ``raw`` those before their norms; ``R`` turns.
    """

    x: torch.Tensor
    h: torch.Tensor
    W_Q: torch.Tensor
    W_K: torch.Tensor
    bias_q: torch.Tensor
    bias_k: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    raw: tuple[torch.Tensor, torch.Tensor]
    R: Any
    scores: torch.Tensor


def build(name: str) -> Any:
    """A model whose every parameter is random."""
    config_class, arguments, model_class = ALL[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(name))
        model = getattr(transformers, model_class)(getattr(transformers, config_class)(**arguments))
        for parameter in model.parameters():
            parameter.data += (0.3 if parameter.ndim > 1 else 0.5) * torch.randn(parameter.shape)
    return model.eval()


def checked(model: Any, ids: np.ndarray) -> list[Layer]:
    """The layers by hand on prompts of one length, their scores held against the module's eager patterns."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        seen = model(input_ids=torch.as_tensor(ids), output_hidden_states=True, output_attentions=True)
    n = ids.shape[1]
    layers = []
    for at in range(model.config.num_hidden_layers):
        one = _layer(model, at, seen.hidden_states[at].double())
        hidden = torch.zeros(n, n) if model.config.model_type == "bert" else torch.full((n, n), -torch.inf).triu(1)
        pattern = (one.scores + hidden).softmax(-1)
        assert float((pattern - seen.attentions[at]).abs().max()) < 2e-6, (model.config.model_type, at)
        layers.append(one)
    return layers


def _layer(model: Any, at: int, x: torch.Tensor) -> Layer:
    config, kind = model.config, model.config.model_type
    p = {name: tensor.detach().double() for name, tensor in model.named_parameters() if f".{at}." in name}
    p = {name.split(f".{at}.", 1)[1]: tensor for name, tensor in p.items()}
    heads, d = config.num_attention_heads, config.hidden_size
    width = getattr(config, "head_dim", None) or d // heads
    W, b = _projections(p, kind, heads, width)
    plus = 1.0 if kind.startswith("gemma") else 0.0
    layer_norm = kind in ("gpt2", "gpt_neox", "cohere")
    eps = next(
        getattr(config, e)
        for e in ("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps", "norm_eps")
        if hasattr(config, e)
    )
    # The norm of the block: its scalar in h, its gain and shift in W and b.
    h = x
    if kind not in ("bert", "olmo2"):
        name = {"gpt2": "ln_1", "lfm2": "operator_norm"}.get(kind, "input_layernorm")
        centred = x - x.mean(-1, keepdim=True) if layer_norm else x
        h = centred / (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt()
        gain, shift = p[f"{name}.weight"] + plus, p.get(f"{name}.bias", torch.zeros(d).double())
        for letter in "qk":
            b[letter] = b[letter] + torch.einsum("d,hde->he", shift, W[letter])
            W[letter] = gain[None, :, None] * W[letter]
            if layer_norm:
                W[letter] = W[letter] - W[letter].mean(1, keepdim=True)
    vectors = {letter: torch.einsum("ptd,hde->pthe", h, W[letter]) + b[letter] for letter in "qk"}
    raw = dict(vectors)
    for letter in "qk":
        name = f"self_attn.{letter}_layernorm.weight" if kind == "lfm2" else f"self_attn.{letter}_norm.weight"
        if name in p:
            gain = (p[name] + plus).reshape(-1, width)
            over = (2, 3) if kind == "olmo2" else (3,)
            length = (raw[letter].pow(2).mean(over, keepdim=True) + eps).sqrt()
            vectors[letter] = raw[letter] / length * gain
            W[letter], b[letter] = W[letter] * gain[:, None], b[letter] * gain
    each = torch.arange(heads) // (heads // len(W["k"]))
    q, k = vectors["q"], vectors["k"][:, :, each]
    R = _rotation(config, kind, at, width)
    turned = [torch.einsum("tef,pthf->pthe", torch.stack([R(t) for t in range(x.shape[1])]), v) for v in (q, k)]
    scale = float(getattr(config, "query_pre_attn_scalar", None) or width) ** -0.5
    scores = torch.einsum("pqhe,pkhe->phqk", *turned) * scale
    cap = getattr(config, "attn_logit_softcapping", None)
    scores = cap * torch.tanh(scores / cap) if cap else scores
    return Layer(x, h, W["q"], W["k"][each], b["q"], b["k"][each], q, k, (raw["q"], raw["k"][:, :, each]), R, scores)


def _projections(
    p: dict[str, torch.Tensor], kind: str, heads: int, width: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """W [head, d_model, d_head] and b [head, d_head] of q and k, as they are."""
    if kind == "gpt2":
        parts = dict(zip("qkv", p["attn.c_attn.weight"].T.chunk(3), strict=True))
        biases = dict(zip("qkv", p["attn.c_attn.bias"].chunk(3), strict=True))
    elif kind == "gpt_neox":
        cut = p["attention.query_key_value.weight"].reshape(heads, 3, width, -1)
        parts = {letter: cut[:, i].flatten(0, 1) for i, letter in enumerate("qkv")}
        cut = p["attention.query_key_value.bias"].reshape(heads, 3, width)
        biases = {letter: cut[:, i].flatten() for i, letter in enumerate("qkv")}
    elif kind == "bert":
        names = {"q": "attention.self.query", "k": "attention.self.key"}
        parts, biases = ({a: p[f"{n}.{end}"] for a, n in names.items()} for end in ("weight", "bias"))
    else:
        parts = {letter: p[f"self_attn.{letter}_proj.weight"] for letter in "qk"}
        none = torch.zeros(1).double()
        biases = {a: p.get(f"self_attn.{a}_proj.bias", none.expand(len(parts[a]))) for a in "qk"}
    W = {letter: parts[letter].reshape(-1, width, parts[letter].shape[1]).transpose(1, 2) for letter in "qk"}
    return W, {letter: biases[letter].reshape(-1, width) for letter in "qk"}


def _rotation(config: Any, kind: str, at: int, width: int) -> Any:
    """t -> R(t) [d_head, d_head]; Cohere turns neighbours, the others halves."""
    if kind in ("gpt2", "bert"):
        return lambda t: torch.eye(width).double()
    told = config.rope_parameters
    told = told[config.layer_types[at]] if "rope_theta" not in told else told
    turned = int(width * told.get("partial_rotary_factor", 1.0))
    frequencies = told["rope_theta"] ** (-torch.arange(0, turned, 2).double() / turned)
    half = len(frequencies)

    def matrix(t: float) -> torch.Tensor:
        found = torch.eye(width).double()
        for i, frequency in enumerate(frequencies):
            one, other = (2 * i, 2 * i + 1) if kind == "cohere" else (i, half + i)
            angle = t * frequency
            found[one, one] = found[other, other] = torch.cos(angle)
            found[other, one] = torch.sin(angle)
            found[one, other] = -torch.sin(angle)
        return found

    return matrix
