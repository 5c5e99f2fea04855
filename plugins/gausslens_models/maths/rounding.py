"""How far rounding moves a number: what a comparison of two computations of the same thing must allow.

A sum of n products, each rounded by a relative eps, is off by about eps times the root of the sum of their squares (the
roundings of single products are independent), and by about sqrt(n) times that where the running sum is as large as its
end (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019). So what is allowed is

    FACTOR (eps + eps' sqrt(n)) (size + |value|),   size = sqrt(sum of squares of what is summed),

with eps of the type that numbers are kept in, and eps' of the type that sums run in. Softmax, norms and rotary angles
are in float32 whatever the type, and half types are summed in float32: eps is never below that of float32, eps' is it.
"""

from __future__ import annotations

import torch

# One is what rounding does; kernels order their sums in other ways, and the largest of many entries is compared.
FACTOR = 8.0


def working_type(dtype: torch.dtype) -> torch.dtype:
    """The type to compute in where numbers of this type are judged: no half type."""
    return torch.promote_types(dtype, torch.float32)


def epsilons(dtype: torch.dtype) -> tuple[float, float]:
    """eps of what is kept, and of what is summed in."""
    single = torch.finfo(torch.float32).eps
    return max(torch.finfo(dtype).eps, single), single


def allowed(value: torch.Tensor, size: torch.Tensor | float, width: int, dtype: torch.dtype) -> torch.Tensor:
    """What two computations of ``value`` in this type may differ by, entry by entry."""
    kept, summed = epsilons(dtype)
    largest = torch.where(value.isfinite(), value.abs(), torch.zeros_like(value))
    least = torch.finfo(dtype).smallest_normal  # below it numbers have fewer digits: half types get there
    bound: torch.Tensor = FACTOR * ((kept + summed * width**0.5) * (largest + size) + kept * least)
    return bound


def size_of_product(x: torch.Tensor, weight: torch.Tensor, equation: str) -> torch.Tensor:
    """The root of the sum of squares of the products that ``einsum(equation, x, weight)`` sums."""
    squares: torch.Tensor = torch.einsum(equation, x.square(), weight.square())
    return squares.sqrt()


def size_of_norm(x: torch.Tensor, normed: torch.Tensor) -> torch.Tensor:
    """The size of what a norm makes of x: what it gives, and what taking the mean off loses where that is large."""
    wide = x.float()
    spread = wide.std(-1, unbiased=False, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    level = (wide.mean(-1, keepdim=True).abs() / spread).clamp_max(1e6).to(normed.dtype)
    return normed.abs() + level * normed.square().mean(-1, keepdim=True).sqrt()


def softmax_moved(pattern: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """What entries of a softmax may move by where each score of a row moves by no more than ``moved`` [..., 1].

    The odds p / (1 - p) change by a factor between exp(-2 moved) and exp(2 moved). It amplifies: with scores of 1,500
    one part in 10^7 of a score is one in 10^4 of a probability.
    """
    wide = pattern.double()
    top = wide.argmax(-1, keepdim=True)
    # 1 - p has lost its digits where p is nearly one: the sum of the others has not.
    others = wide.scatter(-1, top, 0.0).sum(-1, keepdim=True)
    rest = (1 - wide).clamp_min(0).scatter(-1, top, others)
    factor = torch.exp((2 * moved.double()).clamp_max(300.0))
    up = wide * factor / (wide * factor + rest).clamp_min(1e-300)
    down = wide / (wide + rest * factor).clamp_min(1e-300)
    return torch.maximum(up - wide, wide - down)
