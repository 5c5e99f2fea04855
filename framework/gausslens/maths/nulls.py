"""A number beside its null: the same number on m randomly re-initialised twins. Pure mathematics on arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .student import Tail, fitted_tail, main_effects, moderated, predicted, residuals

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Scale = Literal["identity", "log"]

# A spread below the rounding of the numbers it was computed from is none: of a cell's own value in single precision, in
# which models run, and of the largest value of the array in double, in which differences are taken.
_OWN = float(np.finfo(np.float32).eps)
_ARRAY = 64 * float(np.finfo(np.float64).eps)
# Fewer draws tell mean and spread, and no probability.
FEWEST_DRAWS = 5
# With so many draws the rank of the model among them can be 0.05.
FAMILY_DRAWS = 19
# Cells of a layer, a matrix, a rank, ... that have so many residuals have a tail of their own.
ENOUGH_RESIDUALS = 80
# Nothing is said of probabilities below one in so many times the residuals that they are judged by.
BEYOND = 10
# Residuals count up to here when their skewness is judged.
_CLIPPED = 8.0
# Comparisons of one row of cells with one of draws that are made whole.
_FEW = 256
# The share of the null between null_low and null_high.
INTERVAL = 0.95


@dataclass(frozen=True)
class Comparison:
    """Where values stand in their null; arrays of the shape of the values, and what holds of all cells together.

    z, p and q are NaN where the null has no spread, or none but that of rounding, and where draws are too few. ``low``
    and ``high`` enclose 95 % of draws of the null. ``scale`` is that on which p is computed; ``p_variable`` is one p
    for all cells (Simes, held against that of each draw beside the others, with the floor of p), ``p_family`` that of
    the largest departure by rank, NaN below 19 draws.
    """

    mean: Floats
    sd: Floats
    low: Floats
    high: Floats
    z: Floats
    p: Floats
    p_empirical: Floats
    q: Floats
    effect: Floats
    scale: Scale
    tail: Tail | None
    tests: int
    p_variable: float
    p_family: float
    notes: tuple[str, ...] = ()


def compare(
    values: NDArray[Any], draws: NDArray[Any], pooled: tuple[int, ...] = (), unlike: tuple[int, ...] = ()
) -> Comparison:
    """Compare values with m draws of their null; ``draws`` is [m, *values.shape], m >= 2.

    On the values or, where all draws are positive and it leaves less skew, on their logarithms: t = (x - mean) /
    sqrt(v (1 + 1/m)), v the variance of the draws moderated over cells, towards the level of each layer, matrix, rank,
    ...: ``unlike`` are the axes along which cells are not taken for alike. The law of t is not taken for granted: a t
    is fitted to the residuals of each draw against the others, over all cells and in each of these places. p is the
    largest of these tails, z is t over the scale of the first. p is never below the share of residuals as large,
    counted in each place of each pair of unlike axes (a rank of a kind), nor below 1 / (10 residuals). q is
    Benjamini-Hochberg on p over all cells; cells that hold the same numbers count once. p_variable is Simes over them,
    before any floor, held against that of each draw beside the others (``student.predicted``), for the cells of one
    draw depart together.

    p_empirical is twice the smaller share of draws at or beyond x, x counted among them; axes of ``values`` named in
    ``pooled`` are those over which the null makes the cells exchangeable, and are pooled for it. docs/nulls.md says why
    all this, and how often it errs.
    """
    x = np.asarray(values, dtype=np.float64)
    null = np.asarray(draws, dtype=np.float64)
    m = null.shape[0]
    if m < 2:
        raise ValueError(f"a null needs at least 2 draws, there are {m}")
    mean, sd = _mean_and_sd(null)
    constant = (sd == 0) | _rounding(x, null)
    p_empirical = np.where(constant, np.nan, _empirical(x, null, pooled))
    arrays = {name: np.full(x.shape, np.nan) for name in _ARRAYS}
    for end in ("low", "high"):
        arrays[end] = np.where(constant, mean, np.nan)
    judged = _NOTHING if m >= FEWEST_DRAWS else _TOO_FEW
    usable = ~constant & np.isfinite(null).all(axis=0) & np.isfinite(x)
    if m >= FEWEST_DRAWS and usable.any():
        places = [np.broadcast_to(_along(axis, x.shape), x.shape)[usable] for axis in unlike]
        judged = _judged(x[usable], null[:, usable], places)
        for name, array in arrays.items():
            array[usable] = getattr(judged, name)
    return _comparison(x, null, judged, arrays | {"mean": mean, "sd": sd, "p_empirical": p_empirical})


def _comparison(x: Floats, null: Floats, judged: _Judged, arrays: Mapping[str, Floats]) -> Comparison:
    """Everything together; cells that hold the same numbers count once."""
    first, which = _distinct(_beside(x, null))
    once = arrays["p"].ravel()[first]
    p = np.maximum(arrays["p"], judged.floor)
    return Comparison(
        mean=arrays["mean"],
        sd=arrays["sd"],
        low=arrays["low"],
        high=arrays["high"],
        z=arrays["z"],
        p=p,
        p_empirical=arrays["p_empirical"],
        q=benjamini_hochberg(p.ravel()[first])[which].reshape(x.shape),
        effect=effect(x, null),
        scale=judged.scale,
        tail=judged.tail,
        tests=int((~np.isnan(once)).sum()),
        p_variable=float(np.maximum(predicted(simes(once), judged.alike), judged.floor)),
        p_family=judged.p_family,
        notes=judged.notes,
    )


def effect(values: NDArray[Any], draws: NDArray[Any]) -> Floats:
    """How big a departure is, whatever its p: (x - mean) / the spread of cells. Of one cell: x / mean - 1.

    The spread is sqrt((s_x^2 + s_0^2) / 2), of the cells of the values and of those of the null, draws and cells alike
    (Cohen 1988, d of two groups). The spread of draws in a cell does not enter, nor the null's cells alone: a null that
    hardly varies makes no finding large.
    """
    x, null = np.asarray(values, dtype=np.float64), np.asarray(draws, dtype=np.float64)
    mean, _ = _mean_and_sd(null)
    with np.errstate(invalid="ignore", divide="ignore"):
        if x.size == 1:
            return np.asarray(np.where(mean == 0, np.nan, (x - mean) / np.abs(mean)))
        finite = [a[np.isfinite(a)] for a in (x, null)]
        if not all(a.size for a in finite):
            return np.full(x.shape, np.nan)
        spread = float(np.sqrt(np.mean([a.var() for a in finite])))
        return np.asarray((x - mean) / spread if spread > 0 else np.full(x.shape, np.nan))


@dataclass(frozen=True)
class _Judged:
    """Cells with spread [cell]: see ``Comparison``; p is not yet held above its floor.

    ``alike`` [draw] is the p over all cells that each draw has beside the others.
    """

    scale: Scale
    tail: Tail | None
    low: Floats
    high: Floats
    z: Floats
    p: Floats
    floor: float
    alike: Floats
    p_family: float = np.nan
    notes: tuple[str, ...] = ()


_ARRAYS = ("low", "high", "z", "p")
_NONE: Floats = np.empty(0)
_NOTHING = _Judged("identity", None, _NONE, _NONE, _NONE, _NONE, 0.0, _NONE)
_TOO_FEW = replace(_NOTHING, notes=(f"fewer than {FEWEST_DRAWS} draws tell no probability",))


@dataclass(frozen=True)
class _Cells:
    """Draws [m, cell]; where the distinct cells are, and which of these each is; its place along each unlike axis.

    ``alike`` is the basis on which variances of the distinct ones are alike.
    """

    null: Floats
    first: NDArray[np.int64]
    which: NDArray[np.int64]
    places: Sequence[NDArray[np.int64]]
    alike: Floats


def _judged(x: Floats, null: Floats, places: Sequence[NDArray[np.int64]]) -> _Judged:
    """Cells [cell] beside draws [m, cell] that all have spread; ``places`` are theirs along each unlike axis."""
    first, which = _distinct(null)
    cells = _Cells(null, first, which, places, _alike(places, first))
    scale, found = _scale(null[:, first], cells.alike)
    made = _tested(x, cells, scale, found)
    notes: tuple[str, ...] = ()
    if scale == "log" and (x <= 0).any():
        # Where there is no logarithm of the model's own value, its cell is judged as it is.
        without = x <= 0
        plain = _tested(x, cells, "identity", residuals(null[:, cells.first], cells.alike))
        made = replace(made, **{n: np.where(without, getattr(plain, n), getattr(made, n)) for n in _ARRAYS})
        notes = (f"{int(without.sum())} cells are not positive and not on the logarithmic scale of the others",)
    family = _family_p(x, null, places) if null.shape[0] >= FAMILY_DRAWS else np.nan
    return replace(made, p_family=family, notes=notes)


def _alike(places: Sequence[NDArray[np.int64]], cells: NDArray[np.int64]) -> Floats:
    """The basis on which variances of these cells are alike: each place along each unlike axis may have its own."""
    return main_effects([along[cells] for along in places], cells.size)


def _scale(null: Floats, alike: Floats) -> tuple[Scale, Floats]:
    """The scale on which the residuals of the null are less skewed, and these residuals."""
    plain = residuals(null, alike)
    if not (null > 0).all():
        return "identity", plain
    logs = residuals(np.log(null), alike)
    return ("log", logs) if _skewness(logs) < _skewness(plain) else ("identity", plain)


def _skewness(found: Floats) -> float:
    """The size of the skewness of residuals, none of which counts beyond 8."""
    clipped = np.clip(found[np.isfinite(found)], -_CLIPPED, _CLIPPED)
    spread = clipped.std()
    return float(abs(np.mean((clipped - clipped.mean()) ** 3)) / spread**3) if spread > 0 else 0.0


def _tested(x: Floats, cells: _Cells, scale: Scale, found: Floats) -> _Judged:
    """Each cell on a scale, beside the residuals that were found there."""
    m = cells.null.shape[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        here, there = (np.log(x), np.log(cells.null)) if scale == "log" else (x, cells.null)
        variance = moderated(there[:, cells.first].var(axis=0, ddof=1), m - 1, cells.alike)[cells.which]
        mean, spread = there.mean(axis=0), np.sqrt(variance * (1 + 1 / m))
        t = (here - mean) / spread
    tail = fitted_tail(found)
    p, width = tail.p(t), np.full(x.shape, tail.half_width(INTERVAL))
    of_draws = tail.p(found)
    for of_group, mine in _groups_of(cells, found, 1):
        own, distinct = fitted_tail(of_group), mine[cells.first]
        p[mine] = np.maximum(p[mine], own.p(t[mine]))
        of_draws[:, distinct] = np.maximum(of_draws[:, distinct], own.p(found[:, distinct]))
        width[mine] = np.maximum(width[mine], own.half_width(INTERVAL))
    for of_group, mine in _groups_of(cells, found, 2):
        sizes, distinct = np.sort(np.abs(of_group), axis=None), mine[cells.first]
        p[mine] = np.maximum(p[mine], _share_beyond(sizes, t[mine]))
        # A draw is not held against itself.
        of_draws[:, distinct] = np.maximum(of_draws[:, distinct], _share_beyond(sizes, of_group) - 1 / sizes.size)
    low, high = mean - width * spread, mean + width * spread
    if scale == "log":
        with np.errstate(over="ignore"):
            low, high = np.exp(low), np.exp(high)
    alike = np.array([simes(row) for row in of_draws])
    return _Judged(scale, tail, low, high, t / tail.scale, p, 1 / (BEYOND * found.size), alike)


def _groups_of(cells: _Cells, found: Floats, axes: int) -> Iterator[tuple[Floats, Bools]]:
    """The residuals of each place along so many unlike axes that has enough of them, and its cells."""
    for chosen in combinations(cells.places, axes):
        places = np.zeros_like(chosen[0])
        for along in chosen:
            places = places * (along.max(initial=0) + 1) + along
        of_distinct = places[cells.first]
        for place in np.unique(of_distinct):
            of_group = found[:, of_distinct == place]
            if ENOUGH_RESIDUALS <= of_group.size < found.size:
                yield of_group, places == place


def _share_beyond(sizes: Floats, t: Floats) -> Floats:
    """The share of residuals, sorted by size, that are as large as t."""
    return np.asarray(1 - np.searchsorted(sizes, np.abs(t), side="left") / sizes.size)


def _family_p(x: Floats, null: Floats, places: Sequence[NDArray[np.int64]]) -> float:
    """p of the largest departure among m + 1 alike: the model's maximum over cells by its rank among the draws' own.

    Each of the m + 1, the model among them, is held against the other m, on a scale chosen on all m + 1: where the
    model is one more draw, every rank is equally likely, so that p is exact (a permutation test of the maximum).
    """
    everyone = np.vstack([x[None], null])
    first, _ = _distinct(everyone)
    _, found = _scale(everyone[:, first], _alike(places, first))
    largest = np.nanmax(np.abs(found), axis=1)
    return float(np.mean(largest >= largest[0]))


def varies_by_rounding_alone(
    spread: NDArray[Any] | float, size: NDArray[Any] | float, roundings: int = 1, largest: float = 0.0
) -> Bools:
    """Whether numbers of a size spread by no more than so many roundings of it in single precision.

    ``largest`` is the largest number of the array that they are cells of, whose rounding in double precision they have.
    """
    return np.asarray(spread <= np.maximum(roundings * _OWN * np.abs(size), _ARRAY * largest))


def benjamini_hochberg(p: NDArray[Any]) -> Floats:
    """q-values: the smallest false discovery rate at which a test would be called (Benjamini and Hochberg 1995).

    q_(i) = min over j >= i of p_(j) n / j, over the p that are not NaN; NaN stays NaN.
    """
    q = np.array(p, dtype=np.float64)
    tested = ~np.isnan(q)
    of_tested = q[tested]
    falling = np.argsort(-of_tested)
    n = of_tested.size
    least = np.minimum.accumulate(of_tested[falling] * n / np.arange(n, 0, -1))
    of_tested[falling] = np.minimum(least, 1.0)
    q[tested] = of_tested
    return q


def simes(p: NDArray[Any]) -> float:
    """One p for many tests, that none of them departs: the smallest p_(k) n / k (Simes 1986). NaN of none."""
    tested = np.sort(np.asarray(p, dtype=np.float64)[~np.isnan(p)])
    n = tested.size
    return float((tested * n / np.arange(1, n + 1)).min()) if n else np.nan


def _mean_and_sd(null: Floats) -> tuple[Floats, Floats]:
    # Where a draw is infinite (a divergence, an entropy) there is no spread to speak of: NaN.
    with np.errstate(invalid="ignore"):
        mean, sd = null.mean(axis=0), null.std(axis=0, ddof=1)
        # Equal draws differ by rounding when averaged: that is no spread.
        equal = np.ptp(null, axis=0) == 0
    return np.asarray(np.where(equal, null[0], mean)), np.asarray(np.where(equal, 0.0, sd))


def _along(axis: int, shape: Sequence[int]) -> NDArray[np.int64]:
    """The index along an axis, to broadcast."""
    return np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])


def _distinct(cells: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of columns [..., cell] that are equal the place of one, and for each column which of these it equals."""
    n = cells.shape[1]
    # Most often one row tells: sorting whole columns takes ten times as long.
    if np.unique(cells[0]).size == n:
        return np.arange(n), np.arange(n)
    _, first, which = np.unique(cells, axis=1, return_index=True, return_inverse=True)
    return first, which.ravel()


def _beside(x: Floats, null: Floats) -> Floats:
    """Value and draws of each cell as a column."""
    return np.vstack([x.ravel()[None], null.reshape(null.shape[0], -1)])


def _rounding(x: Floats, null: Floats) -> Bools:
    """Where the draws differ by no more than rounding."""
    finite = [np.abs(a[np.isfinite(a)]) for a in (x, null)]
    largest = max((float(a.max()) for a in finite if a.size), default=0.0)
    with np.errstate(invalid="ignore"):
        return varies_by_rounding_alone(np.ptp(null, axis=0), np.abs(null).max(axis=0), largest=largest)


def _empirical(x: Floats, null: Floats, pooled: tuple[int, ...]) -> Floats:
    """Twice the smaller share of null values at or beyond x, of all pooled null values and x itself."""
    kept = [a for a in range(x.ndim) if a not in pooled]
    # [kept..., cells] and [kept..., draws * cells]
    cells = np.transpose(x, [*kept, *pooled]).reshape([x.shape[a] for a in kept] + [-1])
    values = np.transpose(null, [a + 1 for a in kept] + [0] + [a + 1 for a in pooled])
    values = np.sort(values.reshape(*cells.shape[:-1], -1), axis=-1)
    # Rows of a few numbers are compared whole; in longer ones places are searched for.
    if values.shape[-1] * cells.shape[-1] <= _FEW:
        counts_at_most = (values[..., None, :] <= cells[..., None]).sum(axis=-1)
        counts_at_least = (values[..., None, :] >= cells[..., None]).sum(axis=-1)
    else:
        counts_at_most, counts_at_least = np.empty(cells.shape), np.empty(cells.shape)
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
