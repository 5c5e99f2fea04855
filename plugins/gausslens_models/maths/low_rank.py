"""What an adapter makes of a weight matrix: a change of low rank, and rows of a magnitude of their own."""

from __future__ import annotations

import math

import torch


def scale_of(alpha: float, rank: int, by_root: bool) -> float:
    """What B A is multiplied by: alpha / r (Hu et al. 2021), or alpha / sqrt(r) (Kalajdzievski 2023, rsLoRA)."""
    return alpha / (math.sqrt(rank) if by_root else rank)


def changed(weight: torch.Tensor, A: torch.Tensor, B: torch.Tensor, scale: float) -> torch.Tensor:
    """W + scale B A, for W [out, in], A [rank, in] and B [out, rank] (Hu et al. 2021, section 4.1).

    Computed in the wider of float32 and W's type, as half types would lose most of a small change.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    return weight.to(wide) + scale * (B.to(weight.device, wide) @ A.to(weight.device, wide))


def with_magnitude(weight: torch.Tensor, magnitude: torch.Tensor) -> torch.Tensor:
    """Rows of W [out, in] scaled to these lengths [out]: m W / |W| (Liu et al. 2024, DoRA, equation 5)."""
    lengths: torch.Tensor = torch.linalg.norm(weight, dim=1)
    return weight * (magnitude.to(weight) / lengths).unsqueeze(1)
