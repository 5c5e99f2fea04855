"""Tensors drawn at random that keep something of a given one. Pure torch."""

from __future__ import annotations

import torch


def matched(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Gaussian noise with exactly the mean and variance of ``tensor``: a draw in float64, standardised, then scaled.

    Exactly means up to rounding to the tensor's type. A tensor of one value has no spread: it is returned equal.
    """
    given = tensor.double()
    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    centred = drawn - drawn.mean()
    spread = centred.square().mean().sqrt()
    scale = given.std(correction=0) / spread if spread > 0 else 0.0
    return (given.mean() + centred * scale).to(tensor.dtype)


def shuffled(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The entries of ``tensor`` in random order: every permutation is equally likely."""
    order = torch.randperm(tensor.numel(), generator=generator)
    return tensor.flatten()[order].reshape(tensor.shape)


def is_constant(tensor: torch.Tensor) -> bool:
    """Whether all entries are equal, as in a bias that was never trained."""
    return bool((tensor == tensor.flatten()[0]).all())
