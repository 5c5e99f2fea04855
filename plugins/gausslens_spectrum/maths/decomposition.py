"""Matrices [block, reads, writes] as singular values and vectors, and what an edit of them does to a bias. Pure torch.

A block is a head or the whole matrix; x W maps from the side that a matrix reads to the side that it writes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gausslens.maths.laws import MarchenkoPastur


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
    def noise(self) -> MarchenkoPastur:
        """The law of noise of this shape, of variance 1."""
        return MarchenkoPastur(self.U.shape[-2], self.V.shape[-2], 1.0)


def mapped_bias(bias: torch.Tensor, before: Decomposed, after: Decomposed) -> torch.Tensor:
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
