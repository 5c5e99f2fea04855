"""What becomes of singular values: each function takes s [block, value], largest first, and returns new ones.

The order of the new values is that of the vectors they belong to. Pure torch, float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from gausslens.maths.laws import Law


def energy(s: torch.Tensor) -> torch.Tensor:
    """Sum of squares [block, 1]: the squared Frobenius norm of the matrix."""
    return s.square().sum(-1, keepdim=True)


def at_energy(s: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The values rescaled to a sum of squares [block, 1]; zeros stay zeros."""
    held = energy(s)
    return s * torch.where(held > 0, wanted / held, 0.0).sqrt()


def chosen(s: torch.Tensor, order: torch.Tensor, k: int | None, share: float) -> torch.Tensor:
    """A mask [block, value]: the first k in ``order`` (indices), or the fewest that hold a share of the energy."""
    if k is not None:
        first = torch.arange(s.shape[-1]).expand_as(s) < k
    else:
        squares = s.square().gather(-1, order)
        before = squares.cumsum(-1) - squares
        # A value belongs to them as long as those before it hold too little (by more than rounding).
        first = before < share * (1 - 1e-12) * energy(s)
    return torch.zeros_like(first).scatter(-1, order, first)


def order_from(s: torch.Tensor, end: str) -> torch.Tensor:
    """The order in which values are counted: from the top or from the bottom."""
    order = torch.arange(s.shape[-1])
    return (order if end == "top" else order.flip(0)).expand_as(s)


def random_value_order(s: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A random order, of each block its own."""
    return torch.rand(s.shape, generator=generator, dtype=torch.float64).argsort(-1)


def power(s: torch.Tensor, p: float, hold: str) -> torch.Tensor:
    """sigma^p; what is 0 stays 0, for p = 0 too: a direction that the matrix does not have is not made up."""
    there = s > s[..., :1] * 1e-12
    # Relative to the largest, so that no power overflows.
    largest = s[..., :1].clamp_min(torch.finfo(s.dtype).tiny)
    raised = torch.where(there, (s / largest).clamp_min(1e-12) ** p, 0.0)
    if hold == "energy":
        return at_energy(raised, energy(s))
    return raised * (s[..., :1] if hold == "largest" else torch.where(s[..., :1] > 0, largest**p, 0.0))


def flatten(s: torch.Tensor, amount: float) -> torch.Tensor:
    """Each value goes a share of the way to their root mean square; the energy is held."""
    level = s.square().mean(-1, keepdim=True).sqrt()
    return at_energy(s + amount * (level - s), energy(s))


def quantiles(s: torch.Tensor, law: str, noise: Law) -> torch.Tensor:
    """The quantiles of a law at (i - 1/2)/n in place of the n values, at the same energy.

    ``noise`` is the law of squared singular values that "noise" stands for; its variance does not matter.
    """
    n = s.shape[-1]
    shares = (torch.arange(n, 0, -1, dtype=torch.float64) - 0.5) / n
    make: dict[str, Callable[[], torch.Tensor]] = {
        "noise": lambda: torch.from_numpy(noise.typical()).sqrt(),
        "uniform": lambda: shares,
        "exponential": lambda: -torch.log1p(-shares),
    }
    return at_energy(make[law]().expand_as(s), energy(s))


def grafted(s: torch.Tensor, other: torch.Tensor, hold: str) -> torch.Tensor:
    """Another matrix' values in place of these; with ``hold`` energy at the energy of these."""
    return at_energy(other, energy(s)) if hold == "energy" else other
