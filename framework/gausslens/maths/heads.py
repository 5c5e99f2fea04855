"""A model's tensors as matrices [block, reads, writes], float64, and back.

Values are copied into one order in memory: equal numbers then give equal sums, whatever a loader's views look like.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

HEADED = ("W_Q", "W_K", "W_V", "W_O")
# Those that have the axis of experts first, where the MLP is a mixture of them.
OF_EXPERTS = ("W_in", "W_gate", "W_out")
# The bias that is added to what a matrix writes.
BIAS_OF = {
    "W_Q": "b_Q",
    "W_K": "b_K",
    "W_V": "b_V",
    "W_O": "b_O",
    "W_in": "b_in",
    "W_gate": "b_gate",
    "W_out": "b_out",
    "W_conv": "b_conv",
    "W_conv_in": "b_conv_in",
    "W_conv_out": "b_conv_out",
}


def as_matrices(name: str, tensor: torch.Tensor, by: str) -> torch.Tensor:
    """Each head's block of an attention matrix (``by`` head), or all heads side by side; other matrices whole.

    A bias is a matrix of one row, or one for each head. Each expert of a mixture has a matrix of its own.
    """
    wide = tensor.detach().cpu().double()
    if name in OF_EXPERTS and wide.ndim == 3:
        return wide.contiguous()
    if name.startswith("b_"):
        return wide.reshape(-1, 1, wide.shape[-1] if by == "head" else wide.numel()).contiguous()
    if name not in HEADED:
        return wide.reshape(1, wide.shape[0], -1).contiguous()
    if by == "head":
        return wide.contiguous()
    heads, first, second = wide.shape
    if name == "W_O":
        return wide.reshape(1, heads * first, second).contiguous()
    return wide.transpose(0, 1).reshape(1, first, heads * second).contiguous()


def as_tensor(name: str, matrices: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The matrices as a tensor of the shape and type that they came from."""
    if name in HEADED and name != "W_O" and len(matrices) != len(like):
        heads, first, second = like.shape
        matrices = matrices.reshape(first, heads, second).transpose(0, 1)
    return matrices.reshape(like.shape).to(like)
