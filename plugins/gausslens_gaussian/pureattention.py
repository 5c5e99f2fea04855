"""Tokens carried by attention alone: no residual stream, no MLP. What a model's own patterns would do to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .valuepath import norm_of

if TYPE_CHECKING:
    from gausslens import LayerWeights, Runner


class PureAttention:
    """x_1 = attention of layer 0 on the model's own values; x_{l+1} = sum over heads of A_h norm(x_l) W_V W_O.

    The patterns A_h are those of the running model, so this is the attention-only path through it. The norm keeps the
    length of tokens, so what shrinks is their difference. float64, because they may come to differ by a billionth.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.norm = norm_of(runner.info)
        self.x: torch.Tensor | None = None

    def start(self) -> None:
        """Begin a new shard: the first layer starts from the model's own values."""
        self.x = None

    def step(self, layer: int, pattern: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The tokens [prompt, position, d_model] after this layer; layers come in order."""
        weights = self.runner.weights(layer)
        values = v.detach().double() if self.x is None else self._values(weights, self.x)
        mixed = torch.einsum("phqk,pkhe->pqhe", pattern.detach().double(), values[:, :, list(weights.kv_of_head)])
        out = torch.einsum("pqhe,hed->pqd", mixed, weights["W_O"].detach().double())
        if "b_O" in weights:
            out = out + weights["b_O"].detach().double()
        self.x = out
        return out

    def _values(self, weights: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        """Values of normed tokens. Where the norm stands after attention, it is taken here as well, without a gain."""
        first = bool(weights.info.facts.get("norm_first", True))
        h = x - x.mean(-1, keepdim=True) if self.norm == "layer" else x
        h = h / (h.square().mean(-1, keepdim=True) + 1e-300).sqrt()
        for name, turn in (("ln1.w", torch.mul), ("ln1.b", torch.add)):
            if first and name in weights:
                h = turn(h, weights[name].detach().double())
        values = torch.einsum("pnd,hde->pnhe", h, weights["W_V"].detach().double())
        return values + weights["b_V"].detach().double() if "b_V" in weights else values
