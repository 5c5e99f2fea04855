"""Plain torch models, as somebody writes them in a notebook, with their mappings; and their Hugging Face twins."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gausslens import ModelSpec
from gausslens_models.loading.plain_module import PlainModule
from gausslens_models.parameters import TorchParameters

VOCABULARY, POSITIONS, WIDTH, HEADS, LAYERS = 61, 64, 32, 4, 3


class Attention(nn.Module):
    """Causal attention with q, k and v in one linear layer."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.c_attn, self.c_proj = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH)
        self.n_head, self.dropout = HEADS, 0.1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        prompts, length, width = x.shape
        heads = [t.view(prompts, length, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(width, dim=2)]
        dropout = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(*heads, is_causal=True, dropout_p=dropout)
        return self.c_proj(y.transpose(1, 2).reshape(prompts, length, width))


class Block(nn.Module):
    """Attention and MLP, each behind its norm."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), Attention(linear), nn.LayerNorm(WIDTH)
        self.mlp = nn.ModuleDict({"c_fc": linear(WIDTH, 4 * WIDTH), "c_proj": linear(4 * WIDTH, WIDTH)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        hidden = functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](hidden)


class Turned(nn.Module):
    """A linear layer that stores [in, out]."""

    def __init__(self, wide: int, out: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(wide, out)), nn.Parameter(torch.zeros(out))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class GPT(nn.Module):
    """A GPT with a head tied to its embedding; gives logits and, with targets, a loss."""

    def __init__(self, linear: Any = nn.Linear) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "wpe": nn.Embedding(POSITIONS, WIDTH),
                "h": nn.ModuleList([Block(linear) for _ in range(LAYERS)]),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, idx: torch.Tensor, targets: torch.Tensor | None = None) -> tuple[torch.Tensor, Any]:
        x = self.transformer["wte"](idx) + self.transformer["wpe"](torch.arange(idx.shape[1], device=idx.device))
        for block in self.transformer["h"]:
            x = block(x)
        logits = self.lm_head(self.transformer["ln_f"](x))
        flat = None if targets is None else functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, flat


GPT_MAPPING: dict[str, Any] = {
    "n_heads": HEADS,
    "layers": "transformer.h",
    "tensors": {
        "W_Q": "attn.c_attn.weight[q]",
        "W_K": "attn.c_attn.weight[k]",
        "W_V": "attn.c_attn.weight[v]",
        "b_Q": "attn.c_attn.bias[q]",
        "b_K": "attn.c_attn.bias[k]",
        "b_V": "attn.c_attn.bias[v]",
        "W_O": "attn.c_proj.weight",
        "b_O": "attn.c_proj.bias",
        "W_in": "mlp.c_fc.weight",
        "b_in": "mlp.c_fc.bias",
        "W_out": "mlp.c_proj.weight",
        "b_out": "mlp.c_proj.bias",
        "ln1.w": "ln_1.weight",
        "ln1.b": "ln_1.bias",
        "ln2.w": "ln_2.weight",
        "ln2.b": "ln_2.bias",
    },
    "outside": {
        "W_E": "transformer.wte.weight",
        "W_pos": "transformer.wpe.weight",
        "W_U": "lm_head.weight",
        "ln_final.w": "transformer.ln_f.weight",
        "ln_final.b": "transformer.ln_f.bias",
    },
    "facts": {"norm": "layer", "position": "learned", "activation": "gelu_new"},
}


def gpt_twins(linear: Any = nn.Linear) -> tuple[GPT, Any]:
    """A plain GPT and the GPT-2 of transformers with the same weights, all of them random."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS
    )
    config.bos_token_id = config.eos_token_id = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = transformers.GPT2LMHeadModel(config).eval()
        for parameter in theirs.parameters():
            parameter.data += (0.3 if parameter.ndim > 1 else 0.2) * torch.randn(parameter.shape)
    ours = GPT(linear)
    held = dict(ours.named_parameters())
    for name, parameter in theirs.named_parameters():
        stored = parameter.data
        turned = linear is nn.Linear and stored.ndim == 2 and ".h." in name
        held[name].data = (stored.mT if turned else stored).clone()
    return ours, theirs  # in training mode, as it is after training


class Norm(nn.Module):
    """x / rms(x) times a gain."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Layer(nn.Module):
    """Rotary attention of grouped heads, written with a softmax; a gated MLP; no biases."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.qkv = nn.Linear(WIDTH, WIDTH + WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * 40, bias=False)
        self.down = nn.Linear(40, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        prompts, length, _ = x.shape
        d, groups = WIDTH // HEADS, HEADS // 2
        fused = self.qkv(self.norm1(x)).view(prompts, length, -1, d).transpose(1, 2)
        q, k, v = fused.split([HEADS, groups, groups], dim=1)
        angles = torch.outer(torch.arange(length).float(), 1000.0 ** (-torch.arange(0, d, 2) / d))
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        q, k = (t * cos + torch.cat([-t[..., d // 2 :], t[..., : d // 2]], -1) * sin for t in (q, k))
        k, v = (t.repeat_interleave(HEADS // groups, dim=1) for t in (k, v))
        seen = torch.ones(length, length, dtype=torch.bool).tril() & mask[:, None, None, :].bool()
        pattern = (q @ k.mT / math.sqrt(d)).masked_fill(~seen, -1e9).softmax(-1)
        x = x + self.out((pattern @ v).transpose(1, 2).reshape(prompts, length, WIDTH))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Rotary(nn.Module):
    """What is like Llama, by other names, and takes a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm, self.head = Norm(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, mask=keep)
        return self.head(self.norm(x))


ROTARY_MAPPING: dict[str, Any] = {
    "n_heads": HEADS,
    "n_kv_heads": HEADS // 2,
    "d_mlp": 40,
    "max_positions": 64,
    "layers": "blocks",
    "tensors": {
        "W_Q": "qkv.weight[q]",
        "W_K": "qkv.weight[k]",
        "W_V": "qkv.weight[v]",
        "W_O": "out.weight",
        "W_gate": "gate_up.weight[0/2]",
        "W_in": "gate_up.weight[1/2]",
        "W_out": "down.weight",
        "ln1.w": "norm1.weight",
        "ln2.w": "norm2.weight",
    },
    "outside": {"W_E": "embedding.weight", "W_U": "head.weight", "ln_final.w": "norm.weight"},
    "facts": {"norm": "rms", "norm_epsilon": 1e-6, "position": "rotary", "rotary_theta": 1000.0, "activation": "silu"},
    "arguments": {"keep": "mask"},
}


def rotary_twins() -> tuple[Rotary, Any]:
    """The rotary one and the Llama of transformers with the same weights."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=40,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        max_position_embeddings=64,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        theirs = transformers.LlamaForCausalLM(config).eval()
        for parameter in theirs.parameters():
            parameter.data += (0.3 if parameter.ndim > 1 else 0.2) * torch.randn(parameter.shape)
    ours, w = Rotary().eval(), theirs.model
    pairs = [(ours.embedding, w.embed_tokens), (ours.norm, w.norm), (ours.head, theirs.lm_head)]
    for block, layer in zip(ours.blocks, w.layers, strict=True):
        pairs += [(block.norm1, layer.input_layernorm), (block.norm2, layer.post_attention_layernorm)]
        pairs += [(block.out, layer.self_attn.o_proj), (block.down, layer.mlp.down_proj)]
        own = layer.self_attn
        block.qkv.weight.data = torch.cat([own.q_proj.weight, own.k_proj.weight, own.v_proj.weight]).detach()
        block.gate_up.weight.data = torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]).detach()
    for one, other in pairs:
        one.weight.data = other.weight.data.clone()
    return ours, theirs


def changed(mapping: dict[str, Any], **blocks: dict[str, Any]) -> dict[str, Any]:
    """A mapping with some entries of its blocks changed; None takes one out."""
    found = copy.deepcopy(mapping)
    for name, entries in blocks.items():
        merged = found.get(name, {}) | entries
        found[name] = {key: value for key, value in merged.items() if value is not None}
    return found


def unproved(module: nn.Module, mapping: dict[str, Any]) -> PlainModule:
    """As the loader has it before its proof."""
    return PlainModule(ModelSpec("live:unproved", TorchParameters.model_validate(mapping), None, "cpu", module, None))
