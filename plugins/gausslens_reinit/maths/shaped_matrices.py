"""Matrices of a given shape, in the sense of where they are not zero or how many directions they have. Pure torch.

Each function gives [block, n, m]; ``at_energy`` then brings each block to the sum of squares of the matrix replaced, so
that what is compared is the shape and not the size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def identity(shape: Sequence[int]) -> torch.Tensor:
    """Ones where row = column."""
    blocks, n, m = shape
    return torch.eye(n, m, dtype=torch.float64).expand(blocks, n, m)


def random_band(shape: Sequence[int], width: int, generator: torch.Generator) -> torch.Tensor:
    """Gaussian entries where abs(row - column) <= width; a diagonal for width 0."""
    rows, columns = torch.arange(shape[1]), torch.arange(shape[2])
    inside = (rows[:, None] - columns[None, :]).abs() <= width
    return torch.where(inside, _gaussian(shape, generator), 0.0)


def random_sparse(shape: Sequence[int], density: float, generator: torch.Generator) -> torch.Tensor:
    """Gaussian entries in exactly round(density n m) random places of each block (at least one)."""
    blocks, n, m = shape
    count = max(1, round(density * n * m))
    places = torch.rand((blocks, n * m), generator=generator, dtype=torch.float64).argsort(-1)[:, :count]
    drawn = _gaussian((blocks, count), generator)
    return torch.zeros((blocks, n * m), dtype=torch.float64).scatter(-1, places, drawn).reshape(blocks, n, m)


def random_low_rank(shape: Sequence[int], rank: int, generator: torch.Generator) -> torch.Tensor:
    """A B^T with Gaussian A [n, rank], B [m, rank]."""
    blocks, n, m = shape
    r = min(rank, n, m)
    return _gaussian((blocks, n, r), generator) @ _gaussian((blocks, m, r), generator).mT


def at_energy(matrices: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Each block rescaled to the sum of squares of the block of ``like``."""
    energy = [x.square().sum((-2, -1), keepdim=True) for x in (like, matrices)]
    return matrices * torch.where(energy[1] > 0, energy[0] / energy[1], 0.0).sqrt()


def _gaussian(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
