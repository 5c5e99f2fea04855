"""A number beside its null: the same number on m randomly re-initialised twins. Pure mathematics on arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

Floats = NDArray[np.float64]

# A spread below the rounding of the numbers it was computed from is none: of a cell's own value in single precision, in
# which models run, and of the largest value of the array in double, in which differences are taken.
_OWN = float(np.finfo(np.float32).eps)
_ARRAY = 64 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Comparison:
    """Where values stand in their null; arrays of the shape of the values.

    NaN where the null has no spread, or none but that of rounding.
    """

    mean: Floats
    sd: Floats
    z: Floats
    p: Floats
    p_empirical: Floats
    q: Floats


def compare(values: NDArray[Any], draws: NDArray[Any], pooled: tuple[int, ...] = ()) -> Comparison:
    """Compare values with m draws of their null; ``draws`` is [m, *values.shape], m >= 2.

    z = (x - mean) / (sd sqrt(1 + 1/m)), where mean and sd (with m - 1) are those of the draws, is Student t with m - 1
    degrees of freedom if x is one more draw of a Gaussian null: the factor is the spread of a new draw about a mean of
    m. p is its two-sided tail. p_empirical is twice the smaller share of draws at or beyond x, x counted among them;
    axes of ``values`` named in ``pooled`` are those over which the null makes the cells exchangeable, and are pooled
    for it. q is Benjamini-Hochberg on p over all cells.
    """
    x = np.asarray(values, dtype=np.float64)
    null = np.asarray(draws, dtype=np.float64)
    m = null.shape[0]
    if m < 2:
        raise ValueError(f"a null needs at least 2 draws, there are {m}")
    # Where a draw is infinite (a divergence, an entropy) there is no spread to speak of: NaN.
    with np.errstate(invalid="ignore"):
        mean, sd = null.mean(axis=0), null.std(axis=0, ddof=1)
        # Equal draws differ by rounding when averaged: that is no spread.
        constant = np.ptp(null, axis=0) == 0
    mean = np.where(constant, null[0], mean)
    sd = np.where(constant, 0.0, sd)
    constant = constant | _rounding(x, null)
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.where(constant, np.nan, (x - mean) / (sd * np.sqrt(1 + 1 / m)))
    p = 2 * stdtr(m - 1, -np.abs(z))
    empirical = np.where(constant, np.nan, _empirical(x, null, pooled))
    return Comparison(mean, sd, z, p, empirical, benjamini_hochberg(p))


def varies_by_rounding_alone(
    spread: NDArray[Any] | float, size: NDArray[Any] | float, roundings: int = 1, largest: float = 0.0
) -> NDArray[np.bool_]:
    """Whether numbers of a size spread by no more than so many roundings of it in single precision.

    ``largest`` is the largest number of the array that they are cells of, whose rounding in double precision they have.
    """
    return np.asarray(spread <= np.maximum(roundings * _OWN * np.abs(size), _ARRAY * largest))


def _rounding(x: Floats, null: Floats) -> NDArray[np.bool_]:
    """Where the draws differ by no more than rounding."""
    finite = [np.abs(a[np.isfinite(a)]) for a in (x, null)]
    largest = max((float(a.max()) for a in finite if a.size), default=0.0)
    with np.errstate(invalid="ignore"):
        return varies_by_rounding_alone(np.ptp(null, axis=0), np.abs(null).max(axis=0), largest=largest)


def benjamini_hochberg(p: NDArray[Any]) -> Floats:
    """q-values: the smallest false discovery rate at which a test would be called (Benjamini and Hochberg 1995).

    q_(i) = min over j >= i of p_(j) n / j, over the p that are not NaN; NaN stays NaN.
    """
    from scipy.stats import false_discovery_control  # half a second, which reading a store does not need

    q = np.array(p, dtype=np.float64)
    tested = ~np.isnan(q)
    if tested.any():
        q[tested] = false_discovery_control(q[tested])
    return q


def _empirical(x: Floats, null: Floats, pooled: tuple[int, ...]) -> Floats:
    """Twice the smaller share of null values at or beyond x, of all pooled null values and x itself."""
    kept = [a for a in range(x.ndim) if a not in pooled]
    # [kept..., cells] and [kept..., draws * cells]
    cells = np.transpose(x, [*kept, *pooled]).reshape([x.shape[a] for a in kept] + [-1])
    values = np.transpose(null, [a + 1 for a in kept] + [0] + [a + 1 for a in pooled])
    values = np.sort(values.reshape(*cells.shape[:-1], -1), axis=-1)
    counts_at_most = np.empty(cells.shape)
    counts_at_least = np.empty(cells.shape)
    for place in np.ndindex(cells.shape[:-1]):
        counts_at_most[place] = np.searchsorted(values[place], cells[place], side="right")
        counts_at_least[place] = values.shape[-1] - np.searchsorted(values[place], cells[place], side="left")
    n = values.shape[-1]
    p = np.minimum(1.0, 2 * (1 + np.minimum(counts_at_most, counts_at_least)) / (n + 1))
    shaped = p.reshape([x.shape[a] for a in [*kept, *pooled]])
    back = [int(a) for a in np.argsort([*kept, *pooled])]
    # A value or null that is not a number has no place among the draws.
    unknown = np.isnan(x) | np.isnan(null).any(axis=0)
    return np.where(unknown, np.nan, np.transpose(shaped, back))
