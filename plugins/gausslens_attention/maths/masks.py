"""Sparse attention: which cells are kept before the softmax. Masks in numpy, attention over their cells alone in torch.

    window      |i - j| <= w (causal: 0 <= i - j <= w)                      Longformer (Beltagy et al. 2020, 2004.05150)
    dilated     |i - j| <= w d, i - j a multiple of d                       the same
    longformer  window (or dilated) and the first g tokens as rows and columns
    bigbird     window, g global tokens, and r random keys for each row      BigBird (Zaheer et al. 2020, 2007.14062)
    top_k       the k largest of each row: the oracle, which must see the whole map

Rows of global tokens are full, so BigBird has n g + (n - g) (g + 2w + 1 + r) cells less those in which the windows
leave the map or meet the global columns (``bigbird_cells``). L layers of a window reach L w tokens to each side,
dilated or not L w distinct ones; a dilated window reaches L w d far.

Where keys are other tokens than queries (``m`` of them), i is the query's place among the keys on the stretched
diagonal (``band_plus_sparse.places``), and global are the first g keys, seen by all, and the first g queries, which see
all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .arrays import Bools, Floats
from .band_plus_sparse import apart, places

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike


def window(n: int, width: int, causal: bool = False, dilation: int = 1, m: int | None = None) -> Bools:
    """The cells [query, key] whose distance is at most ``width`` steps of ``dilation``."""
    behind = apart(n, m)
    kept: Bools = (np.abs(behind) <= width * dilation) & (behind % dilation == 0)
    return kept & (behind >= 0) if causal else kept


def with_globals(mask: Bools, count: int, causal: bool = False) -> Bools:
    """The mask with the first ``count`` tokens seen by all and seeing all (causal: all before them)."""
    made = mask.copy()
    made[:, :count] = True
    made[:count] = True
    return np.tril(made) if causal else made


def longformer(n: int, width: int, count: int, causal: bool = False, dilation: int = 1, m: int | None = None) -> Bools:
    """A window and global tokens."""
    return with_globals(window(n, width, causal, dilation, m), count, causal)


def bigbird(
    n: int,
    width: int,
    count: int,
    random: int,
    rng: np.random.Generator,
    causal: bool = False,
    m: int | None = None,
) -> Bools:
    """A window, ``count`` global tokens, and ``random`` other keys for each row that is not global."""
    made = longformer(n, width, count, causal, m=m)
    seen = np.tril(np.ones(made.shape, dtype=bool)) if causal else np.ones(made.shape, dtype=bool)
    for row in range(count, n):
        free = np.flatnonzero(seen[row] & ~made[row])
        made[row, rng.choice(free, min(random, len(free)), replace=False)] = True
    return made


def bigbird_cells(n: int, width: int, count: int, random: int, causal: bool = False, m: int | None = None) -> int:
    """How many cells that mask has, without making it."""
    keys = n if m is None else m
    rows, columns = min(count, n), min(count, keys)
    place = places(n, keys)[count:]
    first = np.maximum(place - width, columns)  # global columns are counted by themselves
    last = place if causal else np.minimum(place + width, keys - 1)
    held = columns + np.maximum(last - first + 1, 0)
    room = (place + 1 if causal else keys) - held
    of_globals = rows * (rows + 1) // 2 if causal else rows * keys
    return int(of_globals + (held + np.minimum(random, room)).sum())


def top_k(P: ArrayLike, k: int) -> Bools:
    """The k largest cells of each row of maps [..., n, m]; cells that hold nothing are not counted."""
    maps = np.asarray(P)
    if k >= maps.shape[-1]:
        return np.asarray(maps > 0)
    place = np.argpartition(maps, -k, axis=-1)[..., -k:]
    made = np.zeros(maps.shape, dtype=bool)
    np.put_along_axis(made, place, True, axis=-1)
    return np.asarray(made & (maps > 0))


def mask_of_keys(
    kind: str,
    keys: int,
    P: Floats,
    causal: bool,
    globals_: int,
    dilation: int,
    rngs: Sequence[np.random.Generator],
) -> tuple[Bools, int]:
    """The mask with so many keys a row of maps [..., n, m], and how many of its cells have places that must be stored.

    The keys of a row are those of its window, the global ones and the random ones together; rows near the ends have
    fewer. ``kind`` is "window", "dilated", "longformer", "bigbird" or "top-k". Each head has a random graph of its own,
    [head, n, m]: ``rngs`` are one generator for each, which BigBird alone draws from.
    """
    n, m = P.shape[-2:]
    if kind == "top-k":
        mask = top_k(P, keys)
        return mask, int(mask.sum(axis=(-1, -2)).mean()) if mask.ndim > 2 else int(mask.sum())
    if kind in ("window", "dilated"):
        return window(n, _width(keys, causal), causal, dilation if kind == "dilated" else 1, m), 0
    if kind == "longformer":
        return longformer(n, _width(keys - globals_, causal), globals_, causal, m=m), 0
    random = (keys - globals_) // 2
    width = _width(keys - globals_ - random, causal)
    mask = np.stack([bigbird(n, width, globals_, random, rng, causal, m) for rng in rngs])
    return mask, int(mask[0].sum() - longformer(n, width, globals_, causal, m=m).sum())


def _width(keys: int, causal: bool) -> int:
    """The width of a window of so many keys; one that looks both ways has an odd number."""
    return max(keys - 1, 0) if causal else max(keys - 1, 0) // 2


def masked(P: ArrayLike, mask: Bools) -> Floats:
    """What the pattern becomes when the softmax sees only the cells of the mask: kept cells, renormalised.

    A row whose kept cells hold nothing (or that has none) is spread evenly over its cells (or is zero).
    """
    kept = np.where(mask, np.asarray(P, dtype=np.float64), 0.0)
    total = kept.sum(axis=-1, keepdims=True)
    count = np.maximum(mask.sum(axis=-1, keepdims=True), 1)
    return np.where(total > 0, kept / np.where(total > 0, total, 1.0), mask / count)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention over the cells (rows, columns) alone, of q [..., n, d] and k, v [..., m, d]: 4 d flops a cell."""
    import torch

    scores = (q[..., rows, :] * k[..., columns, :]).sum(dim=-1) * scale
    place = rows.expand(scores.shape)
    most = torch.full(q.shape[:-1], -torch.inf, dtype=q.dtype, device=q.device)
    most = most.scatter_reduce(-1, place, scores, "amax")
    weights = (scores - most.gather(-1, place)).exp()
    total = torch.zeros(q.shape[:-1], dtype=q.dtype, device=q.device).scatter_add(-1, place, weights)
    out = v.new_zeros(*q.shape[:-1], v.shape[-1]).index_add(-2, rows, weights[..., None] * v[..., columns, :])
    return out / total.clamp_min(torch.finfo(q.dtype).tiny)[..., None]


def flops(cells: float, d: int) -> float:
    """What attention over so many cells takes: 2d for scores and 2d for mixing, and four for the softmax of each."""
    return cells * (4 * d + 4)
