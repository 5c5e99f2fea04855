"""What a tensor keeps of another: measured, and held against what a scheme claims. Pure torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .matrices import as_matrices

# Odd numbers of 64 bits with bits all over: multiplying by them and folding scatters what is close together.
_SCATTER = (-0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def multiset(tensor: torch.Tensor) -> int:
    """A number that depends on the entries and not on their places: the sum of a hash of each, modulo 2^64.

    Two different multisets agree once in 2^64; sorting both would say the same and takes ten times as long.
    """
    words = tensor.detach().cpu().contiguous().view(_WORDS[tensor.element_size()]).to(torch.int64)
    for odd in _SCATTER:
        words = (words ^ (words >> 29)) * odd
    return int((words ^ (words >> 32)).sum())


def spectra(name: str, tensor: torch.Tensor, by: str) -> torch.Tensor:
    """Singular values [block, value], largest first, through the small Gram matrix in float64.

    Values below 1e-7 of the largest are noise: enough to see whether a spectrum was kept to the precision of weights.
    """
    W = as_matrices(name, tensor, by)
    W = W.mT if W.shape[-2] > W.shape[-1] else W
    found: torch.Tensor = torch.linalg.eigvalsh(W @ W.mT).clamp_min(0).sqrt().flip(-1)
    return found


def broken(name: str, before: torch.Tensor, after: torch.Tensor, claims: Sequence[str], by: str = "head") -> str | None:
    """The first claim that does not hold between two tensors, in words; None where all do.

    What may differ is what rounding the entries to the type of the weights leaves: eps of their root mean square in the
    mean, four eps in variance and energy, and in each singular value eps of the Frobenius norm (Weyl).
    """
    eps = torch.finfo(after.dtype).eps
    x, y = (t.detach().cpu().double().contiguous() for t in (before, after))
    size = float(x.square().mean())
    for claim in claims:
        if claim == "values":
            held = multiset(before) == multiset(after)
        elif claim == "spectrum":
            s, t = spectra(name, before, by), spectra(name, after, by)
            allowed = 2 * eps * s.square().sum(-1).sqrt() + 2e-7 * s[:, 0]
            held = bool(((s - t).abs().amax(-1) <= allowed).all())
        elif claim == "mean":
            held = abs(float(x.mean() - y.mean())) <= eps * size**0.5
        else:
            pair = (
                (x.var(correction=0), y.var(correction=0))
                if claim == "variance"
                else (x.square().mean(), y.square().mean())
            )
            held = abs(float(pair[0] - pair[1])) <= 4 * eps * size
        if not held:
            return claim
    return None
