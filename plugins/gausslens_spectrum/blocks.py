"""A model's tensors as matrices [block, reads, writes] whose spectra are edited, and back.

A block is a head or the whole matrix; x W maps from the side that a matrix reads to the side that it writes. Values
are copied into one order in memory, so that equal numbers give equal results, whatever a loader's views look like.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gausslens import LayerWeights

HEADED = ("W_Q", "W_K", "W_V", "W_O")
BIAS_OF = {
    "W_Q": "b_Q",
    "W_K": "b_K",
    "W_V": "b_V",
    "W_O": "b_O",
    "W_in": "b_in",
    "W_gate": "b_gate",
    "W_out": "b_out",
}


@dataclass(frozen=True)
class Decomposed:
    """W = U diag(s) V^T for each block: U [block, reads, value], s [block, value], V [block, writes, value]."""

    U: torch.Tensor
    s: torch.Tensor
    V: torch.Tensor

    @classmethod
    def of(cls, matrices: torch.Tensor) -> Decomposed:
        """The singular value decomposition, float64."""
        U, s, Vt = torch.linalg.svd(matrices, full_matrices=False)
        return cls(U, s, Vt.mT)

    def matrices(self) -> torch.Tensor:
        """The matrices again."""
        return (self.U * self.s.unsqueeze(-2)) @ self.V.mT

    @property
    def ratio(self) -> float:
        """The short side over the long side."""
        sides = self.U.shape[-2], self.V.shape[-2]
        return min(sides) / max(sides)


def matrices_of(name: str, tensor: torch.Tensor, by: str) -> torch.Tensor:
    """A tensor as matrices [block, reads, writes], float64, in memory of its own."""
    wide = tensor.detach().cpu().double()
    if name not in HEADED:
        return wide.unsqueeze(0).contiguous()
    if by == "head":
        return wide.contiguous()
    heads, first, second = wide.shape
    if name == "W_O":
        return wide.reshape(1, heads * first, second).contiguous()
    return wide.transpose(0, 1).reshape(1, first, heads * second).contiguous()


def tensor_of(name: str, matrices: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The matrices as the tensor that they came from."""
    if name in HEADED and name != "W_O" and len(matrices) != len(like):
        heads, first, second = like.shape
        matrices = matrices.reshape(first, heads, second).transpose(0, 1)
    return matrices.reshape(like.shape).to(like)


def bias_of(name: str, weights: LayerWeights, by: str, blocks: int) -> torch.Tensor | None:
    """The bias of a matrix as rows [block, 1, writes]; None where there is none, or it belongs to no block."""
    bias = BIAS_OF[name]
    if bias not in weights or (name == "W_O" and by == "head"):
        return None
    return weights[bias].detach().cpu().double().reshape(blocks, 1, -1)


def carried(bias: torch.Tensor, before: Decomposed, after: Decomposed) -> torch.Tensor:
    """A bias [block, 1, writes] through the map that turned the old output x U s V^T into the new one.

    b' = b + sum_i (b . v_i) ((s'_i / s_i) v'_i - v_i): along each direction that the matrix writes, the bias changes
    as the matrix does; the part that lies in none of them stays.
    """
    s = before.s
    there = s > s[..., :1] * 1e-12
    factor = torch.where(there, after.s / torch.where(there, s, 1.0), 1.0).unsqueeze(-2)
    along = bias @ before.V
    kept = (along * factor) @ torch.where(there.unsqueeze(-2), after.V, before.V).mT
    return bias - along @ before.V.mT + kept
