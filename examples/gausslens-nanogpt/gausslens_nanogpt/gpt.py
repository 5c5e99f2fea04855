"""The computation of nanoGPT in plain torch: what it calls its tensors is what these are called.

x = wte[token] + wpe[position]
x = x + attn(ln_1(x)),  x = x + mlp(ln_2(x))   in each block
logits = lm_head(ln_f(x)),  the rows of lm_head being those of wte
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

# Standard deviation of a fresh matrix; of those that write into the stream it is divided by sqrt(2 n_layer).
SPREAD = 0.02


@dataclass(frozen=True)
class Sizes:
    """What a checkpoint calls its model_args."""

    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    vocab_size: int
    bias: bool


class Attention(nn.Module):
    """Causal attention of several heads, whose q, k and v come out of one matrix."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.n_head
        self.c_attn = nn.Linear(sizes.n_embd, 3 * sizes.n_embd, bias=sizes.bias)
        self.c_proj = nn.Linear(sizes.n_embd, sizes.n_embd, bias=sizes.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[prompt, position, n_embd], the same shape."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1))
        z = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        made: torch.Tensor = self.c_proj(z.transpose(1, 2).flatten(2))
        return made


class MLP(nn.Module):
    """Four times as wide within, with GELU."""

    def __init__(self, sizes: Sizes, gelu: str) -> None:
        super().__init__()
        self.c_fc = nn.Linear(sizes.n_embd, 4 * sizes.n_embd, bias=sizes.bias)
        self.c_proj = nn.Linear(4 * sizes.n_embd, sizes.n_embd, bias=sizes.bias)
        self.approximate = gelu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[prompt, position, n_embd], the same shape."""
        made: torch.Tensor = self.c_proj(functional.gelu(self.c_fc(x), approximate=self.approximate))
        return made


class Block(nn.Module):
    """Attention and MLP, each behind its norm."""

    def __init__(self, sizes: Sizes, gelu: str) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(sizes.n_embd, bias=sizes.bias)
        self.attn = Attention(sizes)
        self.ln_2 = nn.LayerNorm(sizes.n_embd, bias=sizes.bias)
        self.mlp = MLP(sizes, gelu)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[prompt, position, n_embd], the same shape."""
        x = x + self.attn(self.ln_1(x))
        made: torch.Tensor = x + self.mlp(self.ln_2(x))
        return made


class GPT(nn.Module):
    """Token numbers [prompt, position] to logits [prompt, position, vocab_size]. ``gelu`` is "none" or "tanh"."""

    def __init__(self, sizes: Sizes, gelu: str = "none") -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(sizes.vocab_size, sizes.n_embd),
                "wpe": nn.Embedding(sizes.block_size, sizes.n_embd),
                "h": nn.ModuleList([Block(sizes, gelu) for _ in range(sizes.n_layer)]),
                "ln_f": nn.LayerNorm(sizes.n_embd, bias=sizes.bias),
            }
        )
        self.lm_head = nn.Linear(sizes.n_embd, sizes.vocab_size, bias=False)
        self.tie()

    def tie(self) -> None:
        """One tensor for the embedding and the head."""
        embedding = self.transformer["wte"]
        assert isinstance(embedding, nn.Embedding)
        self.lm_head.weight = embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The logits."""
        parts = self.transformer
        x: torch.Tensor = parts["wte"](ids) + parts["wpe"](torch.arange(ids.shape[1], device=ids.device))
        for block in parts["h"].children():
            x = block(x)
        logits: torch.Tensor = self.lm_head(parts["ln_f"](x))
        return logits


def fresh(sizes: Sizes, gelu: str = "none") -> GPT:
    """With the initial weights of nanoGPT: N(0, 0.02), biases 0, and N(0, 0.02 / sqrt(2 n_layer)) for each c_proj."""
    made = GPT(sizes, gelu)
    with torch.no_grad():
        for name, tensor in made.named_parameters():  # a tied one comes once
            if name.endswith("c_proj.weight"):
                tensor.normal_(0.0, SPREAD / math.sqrt(2 * sizes.n_layer))
            elif tensor.ndim == 2:
                tensor.normal_(0.0, SPREAD)
            elif name.endswith(".bias"):
                tensor.zero_()
            else:
                tensor.fill_(1.0)
    return made
