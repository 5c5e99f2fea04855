"""How far an approximation X of a map P is: entrywise, row by row, and in what the head puts out. Pure numpy.

    distance        |P - X|_1 = sum of |p_ij - x_ij|; by row and by cell besides
    kl              mean over rows of KL(p_i, x_i), x_i mixed with 1e-4 of the uniform row so that it is finite
    output_error    |(P - X) V|_F / |P V|_F; NaN without values

for maps [..., n, m] of n queries and m keys, and values V [..., m, d]. Beside them the trivial approximations, and the
oracles: the best that any method could do with as many entries (the largest cells, best in the 1-norm) or of that rank
(truncated SVD). An X whose rows sum to one, as those of a softmax do, stands beside the best of that kind: the largest
cells, one of each row at least, and the rest of each row in proportion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.maths.spectra import effective_rank

from .arrays import Floats
from .band_plus_sparse import apart, fit_stochastic

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

MEASURES = ("distance", "distance_per_row", "distance_per_cell", "kl", "output_error")
BASELINES = ("zero", "uniform", "identity", "causal mean")
# The share of the uniform row that keeps the divergence finite where an approximation has zeros.
FLOOR = 1e-4


def measured(P: Floats, X: Floats, V: Floats | None = None) -> dict[str, Floats]:
    """All measures of X against P; a head whose output is zero has the error of any other output, infinity."""
    n, m = P.shape[-2:]
    distance: Floats = np.abs(P - X).sum(axis=(-1, -2))
    error = np.full(distance.shape, np.nan)
    if V is not None:
        exact = np.sqrt(((P @ V) ** 2).sum(axis=(-1, -2)))
        apart = np.sqrt((((P - X) @ V) ** 2).sum(axis=(-1, -2)))
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.where(apart > 0, apart / exact, 0.0)
    return {
        "distance": distance,
        "distance_per_row": distance / n,
        "distance_per_cell": distance / (n * m),
        "kl": divergence(P, X),
        "output_error": error,
    }


def divergence(P: ArrayLike, X: ArrayLike) -> Floats:
    """Mean over rows of KL(p, x~) in nats: x~ is x without its negative part, normalised, mixed with ``FLOOR`` / m.

    A row that is zero or negative counts as uniform.
    """
    maps, near = np.asarray(P, dtype=np.float64), np.clip(np.asarray(X, dtype=np.float64), 0.0, None)
    m = maps.shape[-1]
    total = near.sum(axis=-1, keepdims=True)
    near = np.where(total > 0, near / np.where(total > 0, total, 1.0), 1.0 / m)
    near = (1 - FLOOR) * near + FLOOR / m
    terms = maps * (np.log(np.where(maps > 0, maps, 1.0)) - np.log(near))
    found: Floats = np.where(maps > 0, terms, 0.0).sum(axis=-1).mean(axis=-1)
    return found


def entropy(P: ArrayLike) -> Floats:
    """Mean entropy of the rows over that of uniform rows of as many keys as they hold: 0 hard, 1 uniform; no units.

    How soft a map is: the temperature on which sparse and low-rank approximations trade places.
    """
    maps = np.asarray(P, dtype=np.float64)
    held = -np.where(maps > 0, maps * np.log(np.where(maps > 0, maps, 1.0)), 0.0).sum(axis=-1)
    most = np.log(np.maximum((maps > 0).sum(axis=-1), 1))
    total = most.sum(axis=-1)
    found: Floats = np.where(total > 0, held.sum(axis=-1) / np.where(total > 0, total, 1.0), 0.0)
    return found


def baselines(n: int, m: int | None = None) -> Floats:
    """The trivial approximations [baseline, n, m]: nothing, 1/m everywhere, itself alone, the mean of the past.

    Where keys are other tokens, a query's own is the one at its place on the stretched diagonal, and the past is up to
    there (``band_plus_sparse.places``).
    """
    behind = apart(n, m)
    past = (behind >= 0).astype(np.float64)
    uniform = np.full(past.shape, 1.0 / past.shape[1])
    own = (behind == 0).astype(np.float64)
    return np.stack([np.zeros(past.shape), uniform, own, past / past.sum(axis=1, keepdims=True)])


class Oracles:
    """The best possible with a number of entries, or of a rank, for heads of one prompt [head, n, m]."""

    def __init__(self, P: Floats, svd: tuple[Floats, Floats, Floats] | None = None) -> None:
        self.P, self.svd = P, svd
        self.total = P.sum(axis=(-1, -2))
        falling = -np.sort(-P.reshape(*P.shape[:-2], -1), axis=-1)
        self.held = np.concatenate([np.zeros((*P.shape[:-2], 1)), np.cumsum(falling, axis=-1)], axis=-1)
        self.of_rank: dict[int, Floats] = {}
        self.of_rows: dict[int, Floats] = {}

    def entries(self, count: float) -> Floats:
        """|P - X|_1 of the largest ``count`` cells."""
        place = min(max(int(count), 0), self.held.shape[-1] - 1)
        found: Floats = np.clip(self.total - self.held[..., place], 0.0, None)
        return found

    def stochastic(self, count: float) -> Floats:
        """|P - X|_1 of the nearest X of ``count`` cells, but one a row at least, whose rows sum to one.

        A row needs a cell to sum to one, and its largest is the best it can have (``fit_stochastic``).
        """
        n, m = self.P.shape[-2:]
        spare = min(max(int(count), n), n * m) - n
        if spare not in self.of_rows:
            first = np.arange(m) == self.P.argmax(axis=-1)[..., None]
            self.of_rows[spare] = fit_stochastic(self.P, first, spare)[1]
        return self.of_rows[spare]

    def rank(self, rank: float) -> Floats:
        """|P - X|_1 of the truncated singular value decomposition."""
        assert self.svd is not None
        r = min(max(int(rank), 0), *self.P.shape[-2:])
        if r not in self.of_rank:
            u, s, vt = self.svd
            near = (u[..., :r] * s[..., None, :r]) @ vt[..., :r, :]
            self.of_rank[r] = np.abs(self.P - near).sum(axis=(-1, -2))
        return self.of_rank[r]


def cumulative_map_spectrum(P: Floats, directions: int, parts: int = 0) -> dict[str, Floats]:
    """The first singular values of maps [head, n, m], and what all of them say: ranks, condition, norms.

    The effective rank is exp of the entropy of the singular values' own shares, not of their squares' (Roy and
    Vetterli 2007). ``condition`` is log10 of that of the values above rounding. With ``parts`` the curve of all values
    besides, ``cumulative_spectrum`` of them.
    """
    values = np.linalg.svd(P, compute_uv=False)
    n = values.shape[-1]
    least = np.finfo(np.float32).eps * max(P.shape[-2:]) * values[..., :1]  # patterns are of single precision
    kept = np.full((len(P), directions), np.nan)
    kept[:, : min(n, directions)] = values[:, :directions]
    return {
        "singular": kept,
        "rank": (values > least).sum(axis=-1).astype(np.float64),
        "effective_rank": effective_rank(values),
        "condition": np.log10(values[..., 0] / np.maximum(values[..., -1], least[..., 0])),
        "spectral": values[..., 0],
        "frobenius": np.sqrt((values**2).sum(axis=-1)),
        "nuclear": values.sum(axis=-1),
        "column_sum": np.abs(P).sum(axis=-2).max(axis=-1),
    } | ({"cumulative": cumulative_spectrum(values, parts)} if parts else {})


def cumulative_spectrum(values: NDArray[np.floating], parts: int) -> Floats:
    """What the largest t r of r falling singular values [..., r] hold of their sum, at t = 0, 1/parts, ..., 1.

    The curve of Wang et al. (2020, figure 1), on an axis that maps of all sizes share: c(k / r) = (s_1 + ... + s_k) /
    (s_1 + ... + s_r), and straight between.
    """
    total = np.cumsum(values, axis=-1)
    total = np.concatenate([np.zeros_like(total[..., :1]), total], axis=-1)
    at = np.linspace(0.0, values.shape[-1], parts + 1)
    below = np.minimum(at.astype(int), values.shape[-1] - 1)
    held = total[..., below] + (at - below) * (total[..., below + 1] - total[..., below])
    found: Floats = held / np.where(total[..., -1:] > 0, total[..., -1:], 1.0)
    return found
