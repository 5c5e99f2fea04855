"""Linear attention: phi(q) . phi(k) in place of exp(q . k), so that (phi(q) phi(k)') v = phi(q) (phi(k)' v). Torch.

    elu        elu(x) + 1: another attention, not an approximation      (Katharopoulos et al. 2020, 2006.16236)
    taylor-1   (1, x^): 1 + q^ . k^ of unit vectors, that of Conti (2024)            (Li et al. 2020, 2007.14902)
    taylor-2   (1, x, x (x) x / sqrt 2): 1 + q.k + (q.k)^2 / 2, at least 1/2
    performer  exp(w . x - |x|^2 / 2) / sqrt m, w orthogonal Gaussian: unbiased  (Choromanski et al. 2021, 2009.14794)

The rewriting is exact, O(n m d) in place of O(n^2 d): what approximates softmax is phi. Unit vectors change the
temperature: |e^x - 1 - x| <= e - 2 on [-1, 1] bounds the error to another softmax. Causal forms carry the sums over
the past along, in chunks of rows; nothing of them depends on later keys, rescaling included. Feature maps take q and
k with the scale shared, x sqrt(scale) each, and work in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np

# Rows of a chunk: within it the map is made, between chunks only the sums are carried.
CHUNK = 64

Features = Callable[[torch.Tensor, bool], torch.Tensor]


def elu(x: torch.Tensor, query: bool) -> torch.Tensor:  # noqa: ARG001
    """elu(x) + 1 [..., n, d]."""
    return torch.nn.functional.elu(x.double()) + 1


def taylor1(x: torch.Tensor, query: bool) -> torch.Tensor:  # noqa: ARG001
    """(1, x / |x|) [..., n, 1 + d]."""
    unit = torch.nn.functional.normalize(x.double(), dim=-1)
    return torch.cat([torch.ones_like(unit[..., :1]), unit], dim=-1)


def taylor2(x: torch.Tensor, query: bool) -> torch.Tensor:  # noqa: ARG001
    """(1, x, all products of two / sqrt 2) [..., n, 1 + d + d^2]."""
    wide: torch.Tensor = x.double()
    squares = (wide[..., :, None] * wide[..., None, :]).flatten(-2) / math.sqrt(2)
    return torch.cat([torch.ones_like(wide[..., :1]), wide, squares], dim=-1)


def performer(projection: torch.Tensor) -> Features:
    """exp(w . x - |x|^2 / 2) / sqrt m for the rows w of ``projection`` [m, d], or of one for each head [head, m, d]."""
    wide = projection.double()

    def features(x: torch.Tensor, query: bool) -> torch.Tensor:
        logits = x.double() @ wide.transpose(-1, -2) - x.double().square().sum(dim=-1, keepdim=True) / 2
        if query:  # a factor of a row's own cancels when it is normalised
            logits = logits - logits.amax(dim=-1, keepdim=True)
        return logits.exp() / math.sqrt(wide.shape[-2])

    return features


def orthogonal(m: int, d: int, seed: int) -> torch.Tensor:
    """m Gaussian vectors [m, d] that are orthogonal in groups of d, with the lengths of independent ones."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    groups = [_turned(draw(d, d)) for _ in range(-(-m // d))]
    lengths: torch.Tensor = draw(m, d).norm(dim=1, keepdim=True)
    return torch.cat(groups)[:m] * lengths


def _turned(drawn: torch.Tensor) -> torch.Tensor:
    """An orthogonal matrix, uniformly: the signs that QR chooses by itself are not even."""
    q, r = torch.linalg.qr(drawn)
    found: torch.Tensor = (q * r.diagonal().sign()).T
    return found


def quadratic(phi_q: torch.Tensor, phi_k: torch.Tensor, causal: bool) -> torch.Tensor:
    """The map [..., query, key] that the features make: rows of phi(q) . phi(k) that sum to one."""
    weights: torch.Tensor = phi_q @ phi_k.transpose(-1, -2)
    weights = weights.tril() if causal else weights
    return weights / _safe(weights.sum(dim=-1, keepdim=True))


def linear(phi_q: torch.Tensor, phi_k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """The same map applied to v [..., key, d], which is never made: O(n m d)."""
    ones = torch.ones_like(v[..., :1])
    both = torch.cat([v, ones], dim=-1).to(phi_q.dtype)
    mixed = _prefixes(phi_q, phi_k, both) if causal else phi_q @ (phi_k.transpose(-1, -2) @ both)
    return mixed[..., :-1] / _safe(mixed[..., -1:])


def _prefixes(phi_q: torch.Tensor, phi_k: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Row i: phi(q_i) . sum over j <= i of phi(k_j) v_j'."""
    held = torch.zeros(*phi_k.shape[:-2], phi_k.shape[-1], values.shape[-1], dtype=phi_q.dtype, device=phi_q.device)
    found = []
    for start in range(0, phi_q.shape[-2], CHUNK):
        rows = slice(start, start + CHUNK)
        q, k, v = phi_q[..., rows, :], phi_k[..., rows, :], values[..., rows, :]
        found.append(q @ held + (q @ k.transpose(-1, -2)).tril() @ v)
        held = held + k.transpose(-1, -2) @ v
    return torch.cat(found, dim=-2)


def _safe(total: torch.Tensor) -> torch.Tensor:
    """A row that weighs nothing stays zero."""
    return torch.where(total.abs() > torch.finfo(total.dtype).tiny, total, torch.ones_like(total))


def least_squares(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, alpha: float, causal: bool) -> torch.Tensor:
    """Q [K'K + alpha I]^-1 K'V, the ridge regression of values on keys ("intention"): O(n d^2), causal O(n d^3).

    Least-squares attention in Bukatin (2023), after Garnelo and Czarnecki (2023, 2305.10203). Causal: row i regresses
    on the keys up to i.
    """
    q, k, v = q.double(), k.double(), v.double()
    if not causal:
        ridged: torch.Tensor = torch.linalg.solve(_ridge(k.transpose(-1, -2) @ k, alpha), k.transpose(-1, -2) @ v)
        return q @ ridged
    gram = torch.zeros(*k.shape[:-2], k.shape[-1], k.shape[-1], dtype=k.dtype, device=k.device)
    held = torch.zeros(*k.shape[:-2], k.shape[-1], v.shape[-1], dtype=k.dtype, device=k.device)
    found = []
    for start in range(0, k.shape[-2], CHUNK):
        rows = slice(start, start + CHUNK)
        some, values = k[..., rows, :], v[..., rows, :]
        grams = gram[..., None, :, :] + (some[..., :, None] * some[..., None, :]).cumsum(dim=-3)
        weights = torch.linalg.solve(_ridge(grams, alpha), q[..., rows, :, None])[..., 0]
        found.append(weights @ held + (weights @ some.transpose(-1, -2)).tril() @ values)
        gram, held = grams[..., -1, :, :], held + some.transpose(-1, -2) @ values
    return torch.cat(found, dim=-2)


def least_squares_pattern(q: torch.Tensor, k: torch.Tensor, alpha: float, causal: bool) -> torch.Tensor:
    """The map [..., query, key] that least-squares attention applies; its rows need not sum to one."""
    eye = torch.eye(k.shape[-2], dtype=torch.float64, device=k.device).expand(*k.shape[:-1], k.shape[-2])
    return least_squares(q, k, eye, alpha, causal)


def _ridge(gram: torch.Tensor, alpha: float) -> torch.Tensor:
    return gram + alpha * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)


_FIXED: dict[str, Features] = {"elu": elu, "taylor-1": taylor1, "taylor-2": taylor2}


def kernel_names(kernels: Sequence[str], features: Sequence[int]) -> list[str]:
    """One name for each kernel: "elu", "taylor-1", "taylor-2", "least-squares"; "performer 64" for each number."""
    found = []
    for kernel in kernels:
        found += [f"performer {m}" for m in features] if kernel == "performer" else [kernel]
    return found


def kernel_map(
    label: str,
    q: torch.Tensor,
    k: torch.Tensor,
    scale: float,
    causal: bool,
    alpha: float,
    directions: torch.Tensor | None = None,
) -> torch.Tensor:
    """The map [..., query, key] that a kernel makes of queries [..., n, d] and keys [..., m, d].

    Their products are multiplied by ``scale``. ``alpha`` is the ridge of least squares; ``directions`` are those of
    performer's features (``projections``).
    """
    root = scale**0.5
    q, k = q.double() * root, k.double() * root
    if label == "least-squares":
        return least_squares_pattern(q, k, alpha, causal)
    if label in _FIXED:
        features = _FIXED[label]
    else:
        assert directions is not None
        features = performer(directions)
    return quadratic(features(q, True), features(k, False), causal)


def projections(label: str, d: int, rngs: Sequence[np.random.Generator]) -> torch.Tensor:
    """Directions [head, m, d] of "performer m": each head's drawn with its own generator."""
    m = int(label.split()[1])
    return torch.stack([orthogonal(m, d, int(rng.integers(2**62))) for rng in rngs])


def least_tokens(label: str, d: int) -> int:
    """How many tokens a kernel's map takes: least squares fits d numbers to the keys, and needs as many rows."""
    return d if label == "least-squares" else 1


def flops(n: int, m: int, d: int, of_features: int, keys: int | None = None) -> int:
    """What linear attention takes: features of q and k, the sums over keys with their normaliser, and their use."""
    both = n + (n if keys is None else keys)
    return both * of_features + 2 * both * m * (d + 1) + n * d


def features_and_flops(kernel: str, n: int, d: int, d_v: int, causal: bool, keys: int | None = None) -> tuple[int, int]:
    """How many features a kernel has, and what its linear form takes for q [n, d], k [keys, d] and v [keys, d_v].

    ``kernel`` is one of ``kernel_names``; without ``keys`` there are n. Causal forms make the map within chunks
    besides.
    """
    both = n + (n if keys is None else keys)
    in_chunks = 2 * n * min(CHUNK, n) if causal else 0
    if kernel == "least-squares":
        once = 2 * d**3 // 3 + 2 * d**2 * d_v + 2 * (both - n) * d**2
        solves = n * (2 * d**3 // 3 + 4 * d**2) if causal else once
        return d, solves + 2 * both * d * d_v + in_chunks * (d + d_v)
    fixed = {"elu": (d, 2 * d), "taylor-1": (d + 1, 4 * d), "taylor-2": (1 + d + d**2, 2 * d**2)}
    if kernel in fixed:
        m, of_features = fixed[kernel]
    else:
        m = int(kernel.split()[1])
        of_features = 2 * d * m + 4 * m + 3 * d
    return m, flops(n, m, d_v, of_features, keys) + in_chunks * (m + d_v + 1)
