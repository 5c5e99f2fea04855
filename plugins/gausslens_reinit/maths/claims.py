"""What a tensor keeps of another: measured, and held against what a scheme claims. Pure torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch

from gausslens.maths.heads import as_matrices

from .noise import chunks, moments

# Odd numbers with bits all over: multiplying by them and folding scatters what is close together.
_SCATTER = (-0x61C88647, -0x7A143595)
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def multiset(tensor: torch.Tensor) -> int:
    """A number that depends on the entries and not on their places: the sum of a hash of 32 bits of each.

    Two different multisets agree once in billions; sorting both would say the same and takes thirty times as long.
    """
    total = 0
    for chunk in chunks(tensor.detach().cpu()):
        words = chunk.view(_WORDS[tensor.element_size()])
        if words.dtype == torch.int64:
            words = words ^ (words >> 32) * _SCATTER[0]
        words = words.to(torch.int32, copy=True)
        for odd in _SCATTER:
            words.bitwise_xor_(words >> 15).mul_(odd)
        total += int(words.bitwise_xor_(words >> 16).sum(dtype=torch.int64))
    return total


def spectra(name: str, tensor: torch.Tensor, by: str) -> torch.Tensor:
    """Singular values [block, value], largest first, through the small Gram matrix in float64.

    Values below 1e-7 of the largest are noise: enough to see whether a spectrum was kept to the precision of weights.
    """
    W = as_matrices(name, tensor, by)
    W = W.mT if W.shape[-2] > W.shape[-1] else W
    found: torch.Tensor = torch.linalg.eigvalsh(W @ W.mT).clamp_min(0).sqrt().flip(-1)
    return found


def broken_claim(
    name: str, before: torch.Tensor, after: torch.Tensor, claims: Sequence[str], by: str = "head"
) -> str | None:
    """The first claim that does not hold between two tensors, in words; None where all do.

    What may differ is what rounding the entries to the type of the weights leaves: eps of their root mean square in the
    mean, four eps in variance and energy, and in each singular value eps of the Frobenius norm (Weyl).
    """
    eps = torch.finfo(after.dtype).eps
    of_both = cache(lambda: (moments(before), moments(after)))  # mean and variance are claimed together
    for claim in claims:
        if claim == "values":
            held = multiset(before) == multiset(after)
        elif claim == "spectrum":
            s, t = spectra(name, before, by), spectra(name, after, by)
            allowed = 2 * eps * s.square().sum(-1).sqrt() + 2e-7 * s[:, 0]
            held = bool(((s - t).abs().amax(-1) <= allowed).all())
        else:
            held = _moments_kept(claim, *of_both(), eps)
        if not held:
            return claim
    return None


def _moments_kept(claim: str, before: tuple[float, float], after: tuple[float, float], eps: float) -> bool:
    (mean, spread), (other_mean, other_spread) = before, after
    size = mean**2 + spread**2
    if claim == "mean":
        return abs(mean - other_mean) <= eps * math.sqrt(size)
    if claim == "variance":
        return abs(spread**2 - other_spread**2) <= 4 * eps * size
    return abs(size - other_mean**2 - other_spread**2) <= 4 * eps * size
