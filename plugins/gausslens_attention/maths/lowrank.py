"""Low-rank approximations of attention. Pure numpy on maps [..., query, key]; Linformer's own form in torch.

    truncated   P_r = U_r S_r V_r', the best of rank r in every unitarily invariant norm: the oracle
    sketched    P R'R with R [k, m] Gaussian of variance 1/k: what a Johnson-Lindenstrauss projection of the keys gives
    Linformer   softmax(q (E k)' scale) (F v), E and F [k, m]                            (Wang et al. 2020, 2006.04768)
    split       low rank plus sparse, by turns: the oracle of methods that have both     (GoDec, Zhou and Tao 2011)

That P w is nearly P R'R w for k ~ log n, as the sources say of Linformer, holds only where w has a large mean:
exactly, E|P R'R w - P w|^2 = (|P|^2 |w|^2 + |P w|^2) / k, about sqrt(n / k) relative to |P w| for a centred w and any
P, the identity included. Nor is softmax of full rank n "nearly of rank log n". Linformer mixes positions, so it is
not causal; with E = F = I it is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .arrays import Floats
from .band_plus_sparse import largest

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike

# Directions whose singular value is below this share of the largest are left out of a pseudo-inverse.
_CONDITION = 1e-10


def truncated(P: ArrayLike, ranks: Sequence[int]) -> Floats:
    """The best approximation of each rank: [rank, ..., n, m]."""
    maps = np.asarray(P, dtype=np.float64)
    u, s, vt = np.linalg.svd(maps, full_matrices=False)
    return np.stack([(u[..., :r] * s[..., None, :r]) @ vt[..., :r, :] if r else np.zeros(maps.shape) for r in ranks])


def gaussian(rank: int, m: int, rng: np.random.Generator) -> Floats:
    """R [rank, m] with E R'R = I: entries of variance 1 / rank."""
    return np.asarray(rng.standard_normal((rank, m)) / np.sqrt(rank))


def sketched(P: ArrayLike, R: ArrayLike) -> Floats:
    """P R'R, R [rank, m] or one for each head [head, rank, m]."""
    projection = np.asarray(R, dtype=np.float64)
    found: Floats = (np.asarray(P, dtype=np.float64) @ np.swapaxes(projection, -1, -2)) @ projection
    return found


def sketch_error(P: ArrayLike, values: ArrayLike, rank: int) -> Floats:
    """E|P R'R V - P V|^2 over Gaussian R of this rank, V [..., m, d]: (|P|^2 |V|^2 + |P V|^2) / rank."""
    maps, v = np.asarray(P, dtype=np.float64), np.asarray(values, dtype=np.float64)
    mixed = ((maps @ v) ** 2).sum(axis=(-1, -2))
    found: Floats = ((maps**2).sum(axis=(-1, -2)) * (v**2).sum(axis=(-1, -2)) + mixed) / rank
    return found


def linformer(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, E: torch.Tensor, F: torch.Tensor, scale: float
) -> torch.Tensor:
    """softmax(q (E k)' scale) (F v), q [..., n, d], k, v [..., m, d], E, F [..., rank, m]: 4 (n + m) rank d flops."""
    weights = (q @ (E @ k).transpose(-1, -2) * scale).softmax(dim=-1)
    return weights @ (F @ v)


def linformer_pattern(scores: ArrayLike, E: ArrayLike, F: ArrayLike) -> Floats:
    """The map that Linformer applies, softmax(S E') F, from unmasked scores S [..., n, m]."""
    weights = linformer_weights(scores, E)
    found: Floats = weights @ np.asarray(F, dtype=np.float64)
    return found


def linformer_weights(scores: ArrayLike, E: ArrayLike) -> Floats:
    """softmax(S E') [..., n, rank]."""
    logits = np.asarray(scores, dtype=np.float64) @ np.swapaxes(np.asarray(E, dtype=np.float64), -1, -2)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    found: Floats = weights / weights.sum(axis=-1, keepdims=True)
    return found


def fitted(P: ArrayLike, scores: ArrayLike, rank: int) -> tuple[Floats, Floats]:
    """E and F [..., rank, m] fitted to a map: E its leading right singular vectors, F the least-squares fit to it.

    F = A^+ P with A = softmax(S E'), so that A F is as near to P as A allows; signs are those of a positive sum.
    """
    maps = np.asarray(P, dtype=np.float64)
    vt = np.linalg.svd(maps, full_matrices=False)[2][..., :rank, :]
    signs = np.where(vt.sum(axis=-1, keepdims=True) < 0, -1.0, 1.0)
    E: Floats = vt * signs
    F: Floats = np.linalg.pinv(linformer_weights(scores, E), rcond=_CONDITION) @ maps
    return E, F


def split(P: ArrayLike, rank: int, entries: int, rounds: int = 15) -> tuple[Floats, Floats]:
    """Low rank L and sparse S with P ~ L + S, improved by turns: |P - L - S|_F never grows. L, S [..., n, m].

    S holds the largest cells of P - L; L is P - S on a subspace that a step of subspace iteration has turned towards
    the leading directions of P - S. A local optimum: the problem is not convex.
    """
    maps = np.asarray(P, dtype=np.float64)
    sparse = np.where(largest(np.abs(maps), entries), maps, 0.0)
    basis = np.linalg.svd(maps - sparse, full_matrices=False)[0][..., :rank]
    low: Floats = basis @ (basis.swapaxes(-1, -2) @ (maps - sparse))
    for _ in range(rounds):
        sparse = np.where(largest(np.abs(maps - low), entries), maps - low, 0.0)
        rest = maps - sparse
        basis = np.linalg.qr(rest @ (rest.swapaxes(-1, -2) @ basis))[0]
        low = basis @ (basis.swapaxes(-1, -2) @ rest)
    return low, np.where(largest(np.abs(maps - low), entries), maps - low, 0.0)


def scalars(n: int, rank: int, m: int | None = None) -> int:
    """Stored scalars of a rank: two factors, of as many rows as there are queries, n, and keys (None: as many)."""
    return (n + (n if m is None else m)) * rank


def flops(n: int, d: int, rank: int, m: int | None = None) -> int:
    """What applying a map of this rank to values [m, d] takes."""
    return 2 * scalars(n, rank, m) * d
