"""Rows of attention: how much the logits of a row vary, and how flat that leaves the row. Numpy.

Rows are over the keys that count and can be seen, probabilities among these scaled to sum to 1; what went to the others
(the first token, which attention sinks into, among them) is told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gausslens.maths.resampling import GROUPS, jackknife

from .softmax import softmax_row_moments

if TYPE_CHECKING:
    from gausslens.maths.rotary import Rotation

Floats: TypeAlias = NDArray[np.float64]

# Rows with fewer keys say little of a distribution.
LEAST = 8
MEASURES = ("entropy", "concentration", "variance", "outside")
# Where a key may not be looked at, scores are -inf, or near the lowest number.
HIDDEN = -1e30


def bins(longest: int) -> list[int]:
    """The fewest keys of each bin: 8, 16, 32, ... up to the longest row."""
    return [LEAST << i for i in range(int(np.log2(max(longest, LEAST) / LEAST)) + 1)]


@dataclass
class Rows:
    """Sums over rows, [group, head, bin, measure], and how many rows had so many keys: counts [group, keys]."""

    sums: Floats
    counts: Floats

    @classmethod
    def empty(cls, heads: int, longest: int) -> Rows:
        """Nothing seen yet; no row is longer than this."""
        return cls(np.zeros((GROUPS, heads, len(bins(longest)), len(MEASURES))), np.zeros((GROUPS, longest + 1)))

    @property
    def lows(self) -> list[int]:
        """The fewest keys of each bin."""
        return bins(self.counts.shape[1] - 1)

    def add(self, scores: NDArray[Any], pattern: NDArray[Any], keys: NDArray[np.bool_], group: int) -> None:
        """Take in rows [head, query, key] of one prompt; ``keys`` says which count."""
        for head, (x, p) in enumerate(zip(scores, pattern, strict=True)):
            visible = (x > HIDDEN) & keys
            width = visible.sum(axis=-1)
            taken = width >= LEAST
            if not taken.any():
                return
            found = _measured(x[taken], p[taken], visible[taken], width[taken])
            place = np.log2(width[taken] / LEAST).astype(int)
            np.add.at(self.sums, (group, head, place), found)
            if head == 0:
                np.add.at(self.counts, (group, width[taken]), 1)

    def merge(self, other: Rows) -> None:
        """Take in other rows."""
        self.sums += other.sums
        self.counts += other.counts

    def measured(self) -> tuple[Floats, Floats]:
        """Means over rows [head, bin, measure], and errors by leaving out groups; NaN where there are no rows."""
        rows = np.stack([self.counts[:, low : 2 * low].sum(axis=1) for low in self.lows], axis=1)[:, None, :, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = self.sums.sum(axis=0) / rows.sum(axis=0)
            left_out = (self.sums.sum(axis=0) - self.sums) / (rows.sum(axis=0) - rows)
        return mean, jackknife(left_out, np.broadcast_to(rows[..., 0] > 0, self.sums.shape[:3]))

    def predicted(self, mean: Floats, cov: Floats, rotation: Rotation, scale: float) -> Floats:
        """Entropy, concentration and variance [head, bin, 3] from the Gaussian of z = (query, key) of each head.

        Of the mean number of keys of the rows that were seen. Entropy and concentration are those of that many Gaussian
        logits of the variance s2 that a query meets on the average; queries differ in it, which this does not know.
        NaN where the scale is.
        """
        counts = self.counts.sum(axis=0)
        n = np.arange(len(counts))
        half = mean.shape[-1] // 2
        found = np.full((len(mean), len(self.lows), 3), np.nan)
        if np.isnan(scale):
            return found
        for head, (m, S) in enumerate(zip(mean, cov, strict=True)):
            seen = S[:half, :half] + np.outer(m[:half], m[:half])
            s2, inside = row_variances(seen, m[half:], S[half:, half:], rotation, scale, len(counts) - 1)
            for place, low in enumerate(self.lows):
                here = (n >= low) & (n < 2 * low) & (counts > 0)
                if here.any():
                    rows, keys = counts[here], n[here]
                    typical = float(np.average(s2[keys - 1], weights=rows))
                    found[head, place, :2] = np.stack(softmax_row_moments(np.average(keys, weights=rows), typical))
                    found[head, place, 2] = np.average(inside[keys - 1], weights=rows)
        return found


def row_variances(
    queries: Floats, mean: Floats, cov: Floats, rotation: Rotation, scale: float, longest: int
) -> tuple[Floats, Floats]:
    """Variance of a query's logits over n keys at lags 0 to n - 1, for n = 1 to ``longest``: two ways, [n].

    ``queries`` is E q q^T, ``mean`` and ``cov`` those of keys, independent of the query. The first is the variance of
    the mixture of the logits' distributions at these lags; the second the expected variance within a row of n draws,
    which is less by 1/n of what is random.
    """
    P, angles = rotation.diagonal
    s = rotation.scales
    S = P.conj().T @ (scale**2 * s[:, None] * queries * s[None, :]) @ P
    K = P.conj().T @ (s[:, None] * cov * s[None, :]) @ P
    m = P.conj().T @ (s * mean)
    # R(-D) = P diag(v_D) P^H; Tr(S R K R^T) = sum over a, b of v_a K_ab conj(v_b) S_ba.
    v = np.exp(-1j * np.arange(longest)[:, None] * angles[None, :])
    n = np.arange(1, longest + 1)

    def traced(X: NDArray[np.complex128]) -> Floats:
        return np.asarray(((v @ (X * S.T)) * v.conj()).sum(axis=1).real)

    random = np.cumsum(traced(K)) / n
    fixed = np.cumsum(traced(np.outer(m, m.conj()))) / n
    centre = np.cumsum(v * m, axis=0) / n[:, None]
    fixed = fixed - ((centre.conj() @ S) * centre).sum(axis=1).real
    return random + fixed, random * (1 - 1 / n) + fixed


def _measured(x: NDArray[Any], p: NDArray[Any], visible: NDArray[np.bool_], width: NDArray[np.int64]) -> Floats:
    """Measures [row, measure] of rows [row, key]."""
    p = np.where(visible, p, 0).astype(np.float64)
    mass = p.sum(axis=-1)
    p /= np.maximum(mass, np.finfo(np.float64).tiny)[:, None]
    entropy = -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1)
    logits = np.where(visible, x, 0).astype(np.float64)
    centred = np.where(visible, logits - (logits.sum(axis=-1) / width)[:, None], 0.0)
    return np.stack([entropy, (p**2).sum(axis=-1), (centred**2).sum(axis=-1) / width, 1 - mass], axis=-1)
