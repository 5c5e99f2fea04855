"""Lengths of a stream of vectors: mean and spread, and how much of the energy a few long vectors hold. Pure numpy."""

from __future__ import annotations

import numpy as np

from gausslens.maths.moments import Floats, RunningMoments
from gausslens.maths.on_device import Placed, Vectors

# A vector longer than so many medians is extreme: a Gaussian has none, an attention sink is one.
EXTREME = 8.0
# A few extreme vectors with more than this share of the energy own the covariance.
OWNED = 0.05
# Bins of log2 of the length: eight for each doubling, from 2^-64 to 2^64.
_PER_DOUBLING = 8
_BINS = 128 * _PER_DOUBLING


def lengths(vectors: Placed, centre: Floats | None = None) -> Floats:
    """|x - centre| of vectors [..., sample, d]."""
    if isinstance(vectors, Vectors):
        return vectors.lengths(centre)
    found: Floats = np.linalg.norm(vectors if centre is None else vectors - centre, axis=-1)
    return found


class RunningLengths:
    """Mean and variance of lengths [..., sample], and a histogram of their logarithms with the energy of each bin.

    From the histogram come the median (to a tenth of itself) and the energy, sum of squared lengths, of the extreme:
    exact for any order of merging, in memory that does not grow.
    """

    def __init__(self) -> None:
        self.moments = RunningMoments()
        self.counts: Floats = np.zeros(0)
        self.energy: Floats = np.zeros(0)

    def add(self, lengths: Floats) -> None:
        """Take in lengths [..., sample]."""
        values = np.asarray(lengths, dtype=np.float64)
        if not values.shape[-1]:
            return
        self.moments.add(values[..., None])
        lead = values.shape[:-1]
        rows = np.arange(int(np.prod(lead)))[:, None] * _BINS
        with np.errstate(divide="ignore"):
            place = np.floor(np.log2(values) * _PER_DOUBLING) + _BINS // 2
        bins = (np.clip(place, 0, _BINS - 1).astype(np.int64).reshape(len(rows), -1) + rows).ravel()
        flat = (values**2).ravel()
        counts = np.bincount(bins, minlength=len(rows) * _BINS).astype(np.float64).reshape(*lead, _BINS)
        energy = np.bincount(bins, weights=flat, minlength=len(rows) * _BINS).astype(np.float64).reshape(*lead, _BINS)
        self._plus(counts, energy)

    def merge(self, other: RunningLengths) -> None:
        """Take in what another state has seen; ``other`` is not changed."""
        self.moments.merge(other.moments)
        self._plus(other.counts, other.energy)

    def _plus(self, counts: Floats, energy: Floats) -> None:
        if not counts.size:
            return
        self.counts = counts.copy() if not self.counts.size else self.counts + counts
        self.energy = energy.copy() if not self.energy.size else self.energy + energy

    @property
    def count(self) -> int:
        """How many vectors were seen."""
        return self.moments.count

    @property
    def mean(self) -> Floats:
        """Mean length."""
        found: Floats = self.moments.mean[..., 0]
        return found

    @property
    def sd(self) -> Floats:
        """Spread of the length; 0 of a single vector."""
        if self.count < 2:
            return np.zeros_like(self.mean)
        found: Floats = np.sqrt(self.moments.covariance[..., 0, 0])
        return found

    def extremes(self) -> tuple[Floats, Floats]:
        """How many vectors are longer than 8 medians, and the share of the energy that they hold."""
        median = (np.cumsum(self.counts, axis=-1) >= self.counts.sum(axis=-1, keepdims=True) / 2).argmax(axis=-1)
        beyond = np.arange(_BINS) > median[..., None] + round(np.log2(EXTREME) * _PER_DOUBLING)
        total = self.energy.sum(axis=-1)
        held = np.where(beyond, self.energy, 0.0).sum(axis=-1)
        share = np.where(total > 0, held / np.where(total > 0, total, 1.0), 0.0)
        return np.where(beyond, self.counts, 0.0).sum(axis=-1), share
