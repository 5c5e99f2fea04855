"""A covariance that a few extreme vectors do not own: a centre and a radius from a fixed sample, then the rest inside.

Attention sinks and massive activations are a population of their own: one token in a thousand, a hundred times as long
as the others, holds nine tenths of the trace of a plain covariance. Pure numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens.maths.moments import Floats
from gausslens.maths.on_device import Placed, in_numpy, samples

from .lengths import lengths

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Vectors in the sample that centre and radius come from.
SAMPLE = 1024
# Beyond the median distance by so many standard deviations (by the median absolute deviation) a vector is left out.
_SPREADS = 3.0


class Sample:
    """A fixed random sample of a stream: the ``SAMPLE`` vectors whose places hash lowest, however the stream is cut."""

    def __init__(self) -> None:
        self.ranks: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        self.values: NDArray[Any] = np.zeros(0)

    def add(self, places: NDArray[np.uint64], vectors: Placed) -> None:
        """Take in vectors [..., sample, d], each sample with a number of its own (``place_numbers``)."""
        batch = Sample()
        batch.ranks = _hashed(places)
        lowest = np.argsort(batch.ranks)[:SAMPLE]
        some = np.moveaxis(in_numpy(samples(vectors, lowest)), -2, 0)
        batch.ranks, batch.values = batch.ranks[lowest], some.astype(np.float32, order="C")
        self.merge(batch)

    def merge(self, other: Sample) -> None:
        """Take in what another state has seen; ``other`` is not changed, and arrays are never written to."""
        if not len(other.ranks):
            return
        if not len(self.ranks):
            self.ranks, self.values = other.ranks, other.values
            return
        ranks = np.concatenate([self.ranks, other.ranks])
        lowest = np.argsort(ranks)[:SAMPLE]
        self.ranks, self.values = ranks[lowest], np.concatenate([self.values, other.values])[lowest]


def place_numbers(prompts: NDArray[Any], positions: NDArray[Any]) -> NDArray[np.uint64]:
    """One number for each token: its prompt and its position."""
    numbers: NDArray[np.uint64] = prompts.astype(np.uint64) << np.uint64(32) | positions.astype(np.uint64)
    return numbers


@dataclass(frozen=True)
class Ball:
    """Where the bulk of a distribution is."""

    centre: Floats
    radius: float

    def holds(self, vectors: Placed) -> NDArray[np.bool_]:
        """Which vectors [sample, d] are inside."""
        inside: NDArray[np.bool_] = lengths(vectors, self.centre) <= self.radius
        return inside


def ball(sample: Floats) -> Ball:
    """The ball that holds the bulk of a sample [n, d]: about the median of each coordinate, up to an outlying distance.

    Distances r to the power 2/3 are near normal for Gaussian vectors (Wilson and Hilferty); beyond their median by
    three standard deviations, found from the median absolute deviation, lies 1 in 740 of a Gaussian. Up to half of the
    sample may be anything (breakdown point 1/2; Raymaekers and Rousseeuw 2019 weigh by the same distances).
    """
    values = np.asarray(sample, dtype=np.float64)
    centre = np.median(values, axis=0)
    scaled = np.linalg.norm(values - centre, axis=-1) ** (2 / 3)
    middle = np.median(scaled)
    deviation = 1.4826 * np.median(np.abs(scaled - middle))
    # The slack keeps vectors of one length, which differ by rounding.
    return Ball(centre, float((middle + _SPREADS * deviation) ** 1.5 * (1 + 1e-9)))


def _hashed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers that looks random (splitmix64): so no two places tie."""
    with np.errstate(over="ignore"):
        z = numbers + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed
