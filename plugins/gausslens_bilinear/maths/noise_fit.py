"""Fitting the law of noise to a spectrum that holds signal too: its variance, its edges, and the spikes beyond.

The variance comes from the bulk and never from the largest value, so a spike of any size changes nothing; what counts
as a spike follows from a stated rate of false alarms; and a spectrum that has no bulk of noise is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gausslens.maths.laws import RATE, Floats, Law, MarchenkoPastur, Product

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# How far a bulk may be from its law (Kolmogorov). The values of noise repel each other, so that of p values the
# distribution is off by about 1/p, not 1/sqrt(p).
TOLERANCE = 0.02
_RIGIDITY = 3.0


@dataclass(frozen=True)
class NoiseBulk:
    """A bulk of noise, and what stands out of it.

    ``law`` is that of the bulk, without the dimensions of the spikes; ``variance`` that of the entries (of a product,
    the product of its factors' variances); ``edges`` its edges; ``level`` what noise exceeds at the rate asked for;
    ``spikes`` the squared singular values above it, largest first; ``distance`` the bulk's distance from the law.
    Where ``accepted`` is False the bulk does not follow the law: then nothing here says anything about noise.
    """

    law: Law
    level: float
    spikes: Floats
    distance: float
    accepted: bool

    @property
    def variance(self) -> float:
        """The variance of the noise."""
        return self.law.variance

    @property
    def edges(self) -> tuple[float, float]:
        """Between which the noise lies."""
        return self.law.edges


class NoSpectrum(ValueError):
    """There is nothing to fit."""


def bulk(
    squared: ArrayLike,
    rows: int,
    columns: int,
    inner: int | None = None,
    rate: float = RATE,
    tolerance: float = TOLERANCE,
) -> NoiseBulk:
    """Fit the law of noise to the squared singular values of a [rows, columns] matrix.

    With ``inner``, to those of a product A B^T of A [rows, inner] and B [columns, inner]. In turn: noise of sizes
    reduced by k, the number of spikes, has the sum of the other values; k values lie above the level that the largest
    value of such noise exceeds at ``rate``. From k = 0 this finds the fewest spikes that explain themselves. Where many
    large ones hide each other, it starts from the variance that puts the median where the law has it. A fit is
    accepted where its distance is at most ``tolerance`` + 3/p and the spikes are fewer than half.
    """
    values = np.sort(np.asarray(squared, dtype=np.float64))[::-1]
    sizes = (rows, columns) if inner is None else (rows, inner, columns)
    p = min(sizes)
    if values.shape != (p,):
        raise NoSpectrum(f"a matrix of {' x '.join(map(str, sizes))} has {p} singular values, not {values.shape}")
    middle = float(np.median(values))
    if not (np.isfinite(values).all() and middle > 0):
        raise NoSpectrum("half of the singular values, or more, are 0: there is no bulk to fit")
    plain = _settled(values, sizes, 0, rate, tolerance)
    if plain.accepted:
        return plain
    first = _law(sizes, 0, middle / float(_law(sizes, 0, 1.0).quantiles(0.5)))
    other = _settled(values, sizes, _beyond(values, first, rate), rate, tolerance)
    return other if other.accepted or other.distance < plain.distance else plain


def bulk_if_any(squared: ArrayLike, rows: int, columns: int, inner: int | None = None) -> NoiseBulk | None:
    """``bulk``, or None where there is nothing to fit."""
    try:
        return bulk(squared, rows, columns, inner)
    except NoSpectrum:
        return None


def bulk_numbers(fitted: NoiseBulk | None) -> dict[str, float]:
    """A bulk in numbers; no spikes are told where it is none."""
    if fitted is None:
        return {"bulk_accepted": 0.0}
    return {
        "spikes": float(len(fitted.spikes)) if fitted.accepted else np.nan,
        "bulk_variance": fitted.variance,
        "bulk_lower": fitted.edges[0],
        "bulk_upper": fitted.edges[1],
        "bulk_distance": fitted.distance,
        "bulk_accepted": float(fitted.accepted),
    }


def _settled(values: Floats, sizes: tuple[int, ...], count: int, rate: float, tolerance: float) -> NoiseBulk:
    """The fit whose number of spikes explains itself, from this one on; of some that explain each other, the last."""
    seen: set[int] = set()
    law = _law(sizes, count, 1.0)
    while count not in seen:
        seen.add(count)
        if values[count] <= 0:
            raise NoSpectrum("all singular values but the spikes are 0: there is no bulk to fit")
        law = _law(sizes, count, float(values[count:].mean()) / _law(sizes, count, 1.0).mean)
        count = _beyond(values, law, rate)
    spikes = min(sizes) - law.small
    distance = law.distance(values[spikes:])
    accepted = distance <= tolerance + _RIGIDITY / law.small and 2 * spikes < min(sizes)
    return NoiseBulk(law, law.level(rate), values[:spikes], distance, bool(accepted))


def _beyond(values: Floats, law: Law, rate: float) -> int:
    """How many values are above the level; one at least is left."""
    return min(int((values > law.level(rate)).sum()), len(values) - 1)


def _law(sizes: tuple[int, ...], spikes: int, variance: float) -> Law:
    """Noise without so many of its dimensions."""
    rows, *inner, columns = (max(1, size - spikes) for size in sizes)
    return Product(rows, inner[0], columns, variance) if inner else MarchenkoPastur(rows, columns, variance)
