"""Tensors drawn at random that keep something of a given one. Pure torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from gausslens.maths.frames import haar

# Entries that a processor's cache holds.
CHUNK = 2**15


def matched(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Gaussian noise with exactly the mean and variance of ``tensor``: drawn, standardised, then scaled.

    Exactly means up to rounding to the tensor's type. A tensor of one value has no spread: it is returned equal.
    """
    # In one order in memory, so that views of the same numbers have the same sums.
    given = tensor.detach().cpu().contiguous()
    wide = torch.float64 if given.dtype == torch.float64 else torch.float32
    drawn = torch.randn(given.shape, generator=generator, dtype=wide)
    mean, spread = moments(given)
    own_mean, own_spread = moments(drawn)
    scale = spread / own_spread if own_spread > 0 else 0.0
    return drawn.sub_(own_mean).mul_(scale).add_(mean).to(tensor)


def moments(tensor: torch.Tensor) -> tuple[float, float]:
    """Mean and standard deviation of all entries, in float64 and one pass, around the mean of the first of them.

    With a shift p near the mean nothing cancels: the variance is E (x - p)^2 - (E x - p)^2.
    """
    n, total, squares, shift = tensor.numel(), 0.0, 0.0, 0.0
    for place, chunk in enumerate(chunks(tensor)):
        wide = chunk.double()
        if place == 0:
            shift = float(wide.mean())
        wide = wide - shift if wide is chunk else wide.sub_(shift)
        total += float(wide.sum())
        squares += float(wide.dot(wide))
    off = total / n
    return shift + off, math.sqrt(max(0.0, squares / n - off**2))


def chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The entries in order, as many at a time as a processor's cache holds."""
    flat = tensor.flatten()
    for start in range(0, len(flat), CHUNK):
        yield flat[start : start + CHUNK]


def shuffled(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The entries of ``tensor`` in random order: every permutation is equally likely."""
    order = torch.randperm(tensor.numel(), generator=generator, dtype=torch.int32 if tensor.numel() < 2**31 else None)
    return tensor.flatten().index_select(0, order.to(tensor.device)).reshape(tensor.shape)


def independent(shape: Sequence[int], variance: float, distribution: str, generator: torch.Generator) -> torch.Tensor:
    """Independent entries of mean 0 and this variance, ``normal`` or ``uniform`` on +- sqrt(3 variance)."""
    if distribution == "normal":
        return math.sqrt(variance) * torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
    drawn = torch.rand(tuple(shape), generator=generator, dtype=torch.float64)
    return math.sqrt(3 * variance) * (2 * drawn - 1)


def rotated(matrices: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Matrices [block, n, m] between two independent Haar-random rotations: O W P.

    Both sides' singular vectors are random then, the singular values stay. With W = Q R (n >= m) and Q' a random frame
    of the size of Q it is Q' R P: no rotation of the long side is made whole.
    """
    blocks, n, m = matrices.shape
    if n < m:
        return rotated(matrices.mT, generator).mT
    R = torch.linalg.qr(matrices, mode="r")[1]
    found: torch.Tensor = haar((blocks, n, m), generator) @ R @ haar((blocks, m, m), generator)
    return found


def is_constant(tensor: torch.Tensor) -> bool:
    """Whether all entries are equal, as in a bias that was never trained."""
    flat = tensor.flatten()
    # The last entry settles it for all but constants, without a look at the others.
    return bool(flat[0] == flat[-1]) and bool((flat == flat[0]).all())
