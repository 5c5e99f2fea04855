"""Products of the low-rank factors of latent attention. Torch, without the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


def product(factors: Sequence[torch.Tensor]) -> torch.Tensor:
    """W_down diag(gain) W_up [head, d_model, width] (or of a bias [head, width]), and what all heads share behind it.

    W_down [d_model, rank] or a bias [rank], gain [rank], W_up [head, rank, width], shared [d_model, width] or [width].
    """
    down, gain, up, *shared = factors
    found = torch.einsum("...r,hre->h...e", down * gain, up)
    return torch.cat([found, *(one.expand(len(up), *one.shape) for one in shared)], dim=-1)


def root_mean_square(latent: torch.Tensor, epsilon: float) -> torch.Tensor:
    """sqrt(mean(latent^2) + epsilon) over the last axis, kept: what a norm divides a latent by."""
    return (latent.float().pow(2).mean(-1, keepdim=True) + epsilon).sqrt()
