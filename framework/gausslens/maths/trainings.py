"""Several trainings of one recipe, and one over its steps: matched heads, variances, onsets, order. Pure numpy.

``matched_by_rank`` sets what is exchangeable only as a set beside one another, ``variance_components`` and
``crossed_components`` say what seeds give, ``onsets`` from which step on a number is beyond its null, and
``out_of_line`` which checkpoints lie where they should not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri, stdtrit

from .nulls import INTERVAL, benjamini_hochberg, compare

Floats: TypeAlias = NDArray[np.float64]
Places: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Told: TypeAlias = Callable[[Floats], Floats]

# So many errors over prompts either way: the value may be there.
_REACH = 1.96
# Weights nearer than this to each other, of what they have moved in all, are the same.
_SAME = 1e-6
# A pair is in the wrong order where anchors find so much of its squared distance: 1 is a random walk, 3 a line, 0 noise
# about one place. The first pair has anchors on one side alone; the last too, and there a training that settles, as the
# step size falls, looks like a swap: 2.6 is met.
_REVERSED, _FIRST_REVERSED, _LAST_REVERSED = 0.5, 0.8, 4.0
# A step goes out and comes back where this is the cosine of the turn: noise about one place has -0.5.
_TURNS_BACK = -0.85
# Of two steps that may have changed places so many pairs are tried, those that leave the shortest way first.
_TRIED = 60


@dataclass(frozen=True)
class Matched:
    """Draws [m, cells...] in the order of a model; ``axes`` count from the end.

    ``places`` [m, cells...] say where each value was: the index into the matched axes of that draw, flattened together.
    """

    draws: Floats
    places: Places
    axes: tuple[int, ...]

    def companion(self, values: ArrayLike, draw: int) -> Floats:
        """What goes with one draw, [..., cells...], in the same order: its values without each group of prompts, say.

        Ranks are those of the draw itself, so that a group that is left out leaves the match as it is.
        """
        found, where = np.asarray(values, dtype=np.float64), self.places[draw]
        if found.shape[found.ndim - where.ndim :] != where.shape:
            raise ValueError(f"values of shape {found.shape} are not [..., *{where.shape}]")
        return _taken(found, where, self.axes)


def matched_by_rank(x: ArrayLike, draws: ArrayLike, axes: Sequence[int]) -> Matched:
    """Draws [m, cells...] set beside x [cells...] by rank along axes: the k-th smallest where x has its k-th smallest.

    Heads of trainings from other seeds have no names in common: head 3 of one is not head 3 of another, and only the
    set of a layer's heads (or of all layers', with both axes) is comparable. What is then compared in a cell is an
    order statistic: the largest with the largest of each draw. Every place of the other axes is matched by itself;
    ties stay in their order, NaN is last. ``axes`` are those of x.
    """
    values, others = np.asarray(x, dtype=np.float64), np.asarray(draws, dtype=np.float64)
    if others.shape[1:] != values.shape or others.ndim != values.ndim + 1:
        raise ValueError(f"draws of shape {others.shape} are not [m, *{values.shape}]")
    behind = tuple(sorted(axis % values.ndim - values.ndim for axis in axes))
    if not behind or len(set(behind)) != len(behind):
        raise ValueError(f"axes {tuple(axes)} are none, or named twice")
    ranks = np.argsort(np.argsort(_flat(values, behind), axis=-1, kind="stable"), axis=-1, kind="stable")
    order = np.argsort(_flat(others, behind), axis=-1, kind="stable")
    places = np.take_along_axis(order, np.broadcast_to(ranks, order.shape), axis=-1)
    where = np.ascontiguousarray(_unflat(places, others.shape, behind), dtype=np.int64)
    return Matched(_taken(others, where, behind), where, behind)


def _flat(array: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """These axes (from the end) as one, the last."""
    moved = np.moveaxis(array, axes, range(-len(axes), 0))
    return moved.reshape(*moved.shape[: moved.ndim - len(axes)], -1)


def _unflat(flat: NDArray[Any], shape: tuple[int, ...], axes: tuple[int, ...]) -> NDArray[Any]:
    """The other way."""
    sizes = [shape[axis] for axis in axes]
    return np.moveaxis(flat.reshape(*flat.shape[:-1], *sizes), range(-len(axes), 0), axes)


def _taken(values: Floats, places: Places, axes: tuple[int, ...]) -> Floats:
    at = _flat(np.broadcast_to(places, values.shape), axes)
    return np.ascontiguousarray(_unflat(np.take_along_axis(_flat(values, axes), at, axis=-1), values.shape, axes))


@dataclass(frozen=True)
class Component:
    """A variance, or a sum and difference of variances, which may be negative by chance: it is told, and kept.

    ``error`` is by leaving out trainings, ``error_if_independent`` what theory gives where the cells of a training
    know nothing of each other. ``low`` and ``high`` enclose it in 95 %, about.
    """

    value: float
    error: float
    error_if_independent: float
    low: float
    high: float

    @property
    def negative(self) -> bool:
        """Whether the estimate is below zero, where no variance can be: it is not to be told from none."""
        return self.value < 0


def variance_components(
    data: ArrayLike,
    init: ArrayLike,
    both: ArrayLike,
    trainings: Mapping[str, Sequence[Hashable]] | None = None,
) -> dict[str, Component]:
    """What seeds give, from trainings that differ in the seed of the data, of the initialisation, or of both.

    Each is [k, cells...], of k trainings, 2 or more. With y = mean + D + N + DN (Searle, Casella and McCulloch 1992,
    ch. 4) a group of other data has variance V_D + V_DN, one of other initialisations V_N + V_DN, one of both V_D +
    V_N + V_DN. So V_DN = data + init - both, V_D = both - init, V_N = both - data; what a repeated training varies by
    is in V_DN. Given are ``data``, ``init``, ``both`` as they are, and ``data_alone``, ``init_alone``, ``interaction``.

    s^2 is pooled over cells, the mean of each one's: of normal numbers (k - 1) s^2 / sigma^2 is chi^2 with k - 1
    degrees in each, and its variance 2 sigma^4 / (k - 1). But cells of one training are not independent, so the error
    is by leaving out a training with all its cells (of k >= 3; groups add up), and the interval has as many degrees as
    that error says, no fewer than k - 1 and no more than all cells have; of differences it is Student's with k - 1. Of
    3 to 10 trainings, whose cells are alike or not, it holds the planted variance in 88 to 100 %. ``trainings`` names
    them, where one is in several groups. Cells that are not finite in every training are left out.
    """
    given = {"data": data, "init": init, "both": both}
    draws = {name: np.asarray(values, dtype=np.float64) for name, values in given.items()}
    if any(values.shape[0] < 2 for values in draws.values()):
        raise ValueError("a variance needs 2 trainings or more in each group")
    if len({values.shape[1:] for values in draws.values()}) > 1:
        raise ValueError(f"groups have other cells: {', '.join(str(v.shape[1:]) for v in draws.values())}")
    whole = np.all([np.isfinite(values).all(axis=0) for values in draws.values()], axis=0)
    cells = {name: values[:, whole] for name, values in draws.items()}
    names = {name: (trainings or {}).get(name, [(name, i) for i in range(len(v))]) for name, v in cells.items()}
    for name, values in cells.items():
        if len(names[name]) != len(values):
            raise ValueError(f"{name}: {len(names[name])} names of {len(values)} trainings")
    sums = {
        **{name: {name: 1.0} for name in cells},
        "data_alone": {"both": 1.0, "init": -1.0},
        "init_alone": {"both": 1.0, "data": -1.0},
        "interaction": {"data": 1.0, "init": 1.0, "both": -1.0},
    }
    moves = {name: _moves(values, names[name]) for name, values in cells.items()}
    return {name: _component(weights, cells, moves) for name, weights in sums.items()}


def _pooled(values: Floats) -> float:
    """The mean over cells of the variance over draws [k, cell]."""
    return float(values.var(axis=0, ddof=1).mean()) if values.size else np.nan


def _moves(values: Floats, names: Sequence[Hashable]) -> dict[Hashable, float]:
    """How far leaving out each training moves the pooled variance, so that the squares add up to its error squared."""
    k = len(values)
    if k < 3:
        return dict.fromkeys(names, np.nan)
    without = np.array([_pooled(np.delete(values, i, axis=0)) for i in range(k)])
    moved = np.sqrt((k - 1) / k) * (without - without.mean())
    return {name: float(sum(moved[i] for i in range(k) if names[i] == name)) for name in dict.fromkeys(names)}


def _component(
    weights: Mapping[str, float], cells: Mapping[str, Floats], moves: Mapping[str, Mapping[Hashable, float]]
) -> Component:
    value = sum(w * _pooled(cells[name]) for name, w in weights.items())
    everyone = dict.fromkeys(training for name in weights for training in moves[name])  # in one order, for equal bits
    moved = [sum(w * moves[name].get(t, 0.0) for name, w in weights.items()) for t in everyone]
    error = float(np.sqrt(np.sum(np.square(moved))))
    theory = float(np.sqrt(sum(w * w * _error_if_independent(cells[name]) ** 2 for name, w in weights.items())))
    degrees = min(len(cells[name]) - 1 for name in weights)
    if len(weights) == 1:
        most = degrees * next(cells[name].shape[1] for name in weights)
        return Component(value, error, theory, *_interval_of_variance(value, error, degrees, most))
    reach = float(stdtrit(degrees, (1 + INTERVAL) / 2)) * float(np.fmax(error, theory))
    return Component(value, error, theory, value - reach, value + reach)


def _error_if_independent(values: Floats) -> float:
    """sqrt(sum over cells of 2 s^4 / (k + 1)) / cells, for E s^4 = sigma^4 (k + 1) / (k - 1)."""
    k, n = values.shape
    return float(np.sqrt(2 * np.sum(values.var(axis=0, ddof=1) ** 2) / (k + 1)) / n) if n else np.nan


def _interval_of_variance(value: float, error: float, least: float, most: float) -> tuple[float, float]:
    """nu s^2 / chi^2 with the nu = 2 s^4 / error^2 degrees that the error says (Satterthwaite 1946), within bounds."""
    if not value > 0:
        return value, value
    nu = least if not error > 0 else float(np.clip(2 * value**2 / error**2, least, max(most, least)))
    tail = (1 - INTERVAL) / 2
    return nu * value / float(chdtri(nu, tail)), nu * value / float(chdtri(nu, 1 - tail))


def crossed_components(y: ArrayLike) -> dict[str, Component]:
    """What seeds give, from every seed of the data with every one of the initialisation: y [data, init, cells...].

    Two-way random effects without replication, by the method of moments (Searle, Casella and McCulloch 1992, ch. 4):
    V_DN = MS_DN, V_D = (MS_D - MS_DN) / b, V_N = (MS_N - MS_DN) / a, of a seeds of the data and b of the
    initialisation; E MS_D = V_DN + b V_D. What a repeated training varies by is in ``interaction``. Mean squares are
    pooled over cells. The theoretical error has 2 MS^2 / (degrees + 2) for the variance of each; the other is by
    leaving out a seed of the data, and of the initialisation, with all their trainings: both are added, which counts
    the interaction twice and errs on the safe side (Owen 2007). Intervals hold the planted variance in 91 to 100 %, of
    3 by 3 trainings and more. ``data``, ``init``, ``interaction``; ``total`` is their sum.
    """
    values = np.asarray(y, dtype=np.float64)
    a, b = values.shape[:2]
    if min(a, b) < 2:
        raise ValueError(f"{a} by {b} trainings: 2 seeds or more of each")
    cells = values.reshape(a, b, -1)
    cells = cells[..., np.isfinite(cells).all(axis=(0, 1))]
    theory = _crossed_theory(cells)
    left_out = [
        [_crossed(np.delete(cells, i, axis=axis)) for i in range(n)] if n > 2 else None for axis, n in enumerate((a, b))
    ]
    found = {}
    for name, value in _crossed(cells).items():
        squares = np.nan if None in left_out else 0.0
        for without in left_out:
            if without is not None:
                each = np.array([one[name] for one in without])
                squares += (len(each) - 1) / len(each) * float(((each - each.mean()) ** 2).sum())
        degrees = (a - 1) * (b - 1) if name == "interaction" else min(a, b) - 1
        error = float(np.sqrt(squares))
        reach = float(stdtrit(degrees, (1 + INTERVAL) / 2)) * float(np.fmax(error, theory[name]))
        interval = (value - reach, value + reach)
        if name == "interaction":
            interval = _interval_of_variance(value, error, degrees, degrees * cells.shape[2])
        found[name] = Component(value, error, theory[name], *interval)
    return found


def _mean_squares(cells: Floats) -> dict[str, Floats]:
    """Mean squares of [data, init, cell] in each cell."""
    a, b = cells.shape[:2]
    rows, columns, mean = cells.mean(axis=1), cells.mean(axis=0), cells.mean(axis=(0, 1))
    left = cells - rows[:, None] - columns[None] + mean
    return {
        "data": b * ((rows - mean) ** 2).sum(axis=0) / (a - 1),
        "init": a * ((columns - mean) ** 2).sum(axis=0) / (b - 1),
        "interaction": (left**2).sum(axis=(0, 1)) / ((a - 1) * (b - 1)),
    }


def _crossed(cells: Floats) -> dict[str, float]:
    squares = {name: float(found.mean()) for name, found in _mean_squares(cells).items()}
    interaction = squares["interaction"]
    data, init = (
        (squares[name] - interaction) / n for name, n in zip(("data", "init"), cells.shape[1::-1], strict=True)
    )
    return {"data": data, "init": init, "interaction": interaction, "total": data + init + interaction}


def _crossed_theory(cells: Floats) -> dict[str, float]:
    """Errors where mean squares are independent (they are, of normal numbers), and cells too."""
    a, b = cells.shape[:2]
    found = _mean_squares(cells)
    degrees = {"data": a - 1, "init": b - 1, "interaction": (a - 1) * (b - 1)}
    variance = {
        name: float((2 * found[name] ** 2 / (df + 2)).sum()) / cells.shape[2] ** 2 for name, df in degrees.items()
    }
    sums = {
        "data": {"data": 1 / b, "interaction": -1 / b},
        "init": {"init": 1 / a, "interaction": -1 / a},
        "interaction": {"interaction": 1.0},
        "total": {"data": 1 / b, "init": 1 / a, "interaction": 1 - 1 / a - 1 / b},
    }
    return {
        name: float(np.sqrt(sum(w * w * variance[of] for of, w in weights.items()))) for name, weights in sums.items()
    }


@dataclass(frozen=True)
class Onsets:
    """From which step on each cell is beyond its null; arrays [cells...], ``p`` and ``q`` [step, cells...].

    ``step`` is the first step that is called with all that follow, NaN where ``never``; the onset lies after ``low``
    (-inf: before the first step) and at ``high`` at the latest (inf: the errors are too large to say). ``direction`` is
    1 above the null, -1 below. ``p`` and ``q`` are those of "beyond from this step on".
    """

    step: Floats
    low: Floats
    high: Floats
    direction: NDArray[np.int8]
    never: Bools
    p: Floats
    q: Floats


def onsets(
    steps: ArrayLike,
    x: ArrayLike,
    draws: ArrayLike,
    se: ArrayLike | None = None,
    lapses: int = 0,
    level: float = 0.05,
    unlike: tuple[int, ...] = (),
) -> Onsets:
    """The first step beyond the null after which a trajectory stays beyond, over all steps and cells together.

    x is [step, cells...], ``draws`` the null's, [m, cells...] for all steps or [m, step, cells...], ``se`` the errors
    of x over prompts (``resampling.delete_group_error`` of values without each group: which step is first is no smooth
    number, and leaving groups out says nothing of it). Each step has p by ``nulls.compare``, with its ``unlike``.
    "Beyond from s on" says that every later step is, on one side: p is then the largest of them, and 1 where the side
    changes (intersection-union, Berger 1982). These p fall with s, so that Benjamini-Hochberg over all steps and cells
    calls ends of trajectories alone, and what passes through on its way adds no call. Where no cell departs, one is
    called in 5 % of studies at most; else 5 % of the calls are false, and of the cells too, about: for a false cell is
    called at the last step, at a p that at most as many calls allow as there are steps in each called cell.

    ``lapses`` steps behind the onset, not the last, may lie within: the p are then partial conjunctions (Benjamini and
    Heller 2008), (lapses + 1) times the (lapses + 1)-th largest. None unless it is said: what comes and goes has not
    stayed.

    The interval is that of the grid, from the step before, widened by the errors of the values: down to the last step
    at which the value lies, even 1.96 se outward, within 95 % of the null; up to the first from which all are called
    even 1.96 se nearer to it. A rise so slow that it cannot be seen at once begins earlier than that.
    """
    values, null, grid = (np.asarray(array, dtype=np.float64) for array in (x, draws, steps))
    if grid.shape != values.shape[:1] or (np.diff(grid) <= 0).any():
        raise ValueError("steps must rise, and be as many as x has rows")
    if null.shape[1:] not in (values.shape, values.shape[1:]):
        raise ValueError(f"draws of {null.shape} are neither [m, cells...] nor [m, step, cells...] of {values.shape}")
    each = [null[:, i] if null.ndim > values.ndim else null for i in range(grid.size)]
    error = np.zeros_like(values) if se is None else _REACH * np.nan_to_num(np.asarray(se, dtype=np.float64))
    judged = [compare(v, d, unlike=unlike) for v, d in zip(values, each, strict=True)]
    p, *held = (np.stack([getattr(j, n) for j in judged]) for n in ("p", "mean", "low", "high"))

    def p_of(moved: Floats) -> Floats:
        return np.stack([compare(v, d, unlike=unlike).p for v, d in zip(moved, each, strict=True)])

    return onsets_judged(grid, values, p, held, error, p_of, lapses, level)


def onsets_judged(
    grid: Floats, x: Floats, p: Floats, null: Sequence[Floats], error: Floats, p_of: Told, lapses: int, level: float
) -> Onsets:
    """``onsets`` of p and the null's mean, low, high [step, cells...]; ``p_of`` gives that of values nearer to it."""
    mean, bottom, top = null
    side = np.nan_to_num(np.sign(x[-1] - mean[-1]))
    from_here = _from_here_on(np.where(np.sign(x - mean) == side, p, 1.0), lapses)
    q = benjamini_hochberg(from_here)
    called = q <= level
    never = ~called.any(axis=0)
    first = np.where(never, grid.size - 1, called.argmax(axis=0))
    # The least that is called: what all other values are held against.
    limit = float(from_here[called].max()) if called.any() else 0.0
    nearer = x - side * error
    moved = p_of(nearer) if error.any() else p
    sure = _from_here_on(np.where(np.sign(nearer - mean) == side, moved, 1.0), lapses) <= limit
    before = np.arange(grid.size).reshape([-1] + [1] * (x.ndim - 1)) < first
    inside = before & ~np.where(side > 0, x + error > top, x - error < bottom)
    last_inside = grid.size - 1 - inside[::-1].argmax(axis=0)
    begins = np.where(inside.any(axis=0), grid[last_inside], -np.inf)
    ends = np.where(sure.any(axis=0), grid[sure.argmax(axis=0)], np.inf)
    step, low, high = (np.where(never, np.nan, found) for found in (grid[first], begins, ends))
    return Onsets(step, low, high, np.where(never, 0, side).astype(np.int8), np.asarray(never), from_here, q)


def _from_here_on(p: Floats, lapses: int) -> Floats:
    """The p [step, cell] of "from this step on, but for so many lapses", at least those of this step and the last."""
    untold = np.isnan(p)
    filled = np.where(untold, 1.0, p)
    found = np.empty_like(filled)
    for s in range(len(p)):
        spared = min(lapses, len(p) - s - 1)
        joint = (spared + 1) * -np.sort(-filled[s:], axis=0)[spared]
        found[s] = np.clip(joint, np.maximum(filled[s], filled[-1]), 1.0)
    found[np.broadcast_to(untold.all(axis=0), p.shape)] = np.nan
    return found


@dataclass(frozen=True)
class Order:
    """What of a trajectory is not where it should be: places of steps, and pairs of places that hold the same weights.

    ``steps`` break the order. Where two changed places, ``swapped`` says so; of neighbours one alone may be wrong.
    """

    steps: tuple[int, ...]
    swapped: tuple[int, int] | None
    equal: tuple[tuple[int, int], ...]


def out_of_line(distances: ArrayLike) -> Order:
    """Which checkpoints of a training break its order, by the distances [n, n] between their weights.

    Nothing is asked of the steps' spacing. In a training, with anything from a random walk to a straight line, an
    earlier checkpoint i finds j nearer than a later k: D_ij^2 - D_ik^2 is -D_jk^2 or less. A pair (j, k) is reversed
    where it is above D_jk^2 / 2 by the median over the anchors before it, and the same by those behind. Noise about one
    place gives 0, and noise that dies away is found by one side alone. The first pair has one side, and must have 0.8;
    the last 4, for a training that settles as the step size falls looks like a swap of its last two, up to 2.6.
    A step is a detour where it goes out and comes back at an angle of cosine below -0.85 (noise: -0.5), and the last
    where it lies at one before the last but one. What explains all is told: two steps changed places, or one is astray,
    or else those with most reversed pairs. Distances have no direction: four steps whose ends changed places are those
    whose inner two did.

    NaN is a distance that is not known: of neighbours and next neighbours alone, neighbours that changed places are
    found, and detours. Pairs at a distance below 1e-6 of the largest are equal.
    """
    d = np.asarray(distances, dtype=np.float64)
    if d.ndim != 2 or d.shape[0] != d.shape[1] or (d < 0).any():
        raise ValueError("distances are a square matrix of numbers that are not negative")
    d = np.fmax(d, d.T)
    n = len(d)
    near = d <= _SAME * (float(np.nanmax(d)) if np.isfinite(d).any() else 0.0)
    equal = tuple((i, j) for i in range(n) for j in range(i + 1, n) if near[i, j])
    squared = d**2
    np.fill_diagonal(squared, 0.0)
    pairs, detours = _broken(squared)
    if not pairs and not detours:
        return Order((), None, equal)
    if equal:
        # Of two that are the same the one that breaks the order is told; where neither does, they are neighbours.
        first, second = ({pair[k] for pair in equal} for k in (0, 1))
        whole = [not any(_broken(_without(squared, gone))) for gone in (first, second)]
        if any(whole):
            return Order(() if all(whole) else tuple(sorted(first if whole[0] else second)), None, equal)
    suspects = sorted({i for pair in pairs for i in pair} | detours)
    for i, j in sorted(combinations(suspects, 2), key=lambda pair: _way(d, pair))[:_TRIED]:
        order = _exchanged(n, i, j)
        if np.isfinite(_way(d, (i, j))) and not any(_broken(squared[np.ix_(order, order)])):
            return Order((i, j), (i, j), equal)
    for i in suspects:
        if not any(_broken(_without(squared, {i}))):
            return Order((i,), None, equal)
    return Order(tuple(sorted(_most_often(pairs) | detours)), None, equal)


def _exchanged(n: int, i: int, j: int) -> Places:
    return np.array([{i: j, j: i}.get(place, place) for place in range(n)])


def _without(squared: Floats, gone: set[int]) -> Floats:
    rest = [i for i in range(len(squared)) if i not in gone]
    return squared[np.ix_(rest, rest)]


def _way(distances: Floats, pair: tuple[int, int]) -> float:
    """How long the way from step to step is where two have changed places; infinite where it is not known."""
    order = _exchanged(len(distances), *pair)
    length = float(distances[order[:-1], order[1:]].sum())
    return np.inf if np.isnan(length) else length


def _broken(squared: Floats) -> tuple[set[tuple[int, int]], set[int]]:
    """Reversed pairs, and steps that are detours."""
    n = len(squared)
    pairs = set()
    for j in range(n):
        for k in range(j + 1, n):
            between = squared[j, k]
            if not between > 0:
                continue
            told = [squared[:j, j] - squared[:j, k], squared[k + 1 :, k] - squared[k + 1 :, j]]
            before, behind = (np.nan if np.isnan(t).all() else float(np.nanmedian(t)) / between for t in told)
            sides = [(behind, _FIRST_REVERSED), (before, _LAST_REVERSED)]
            if not np.isnan([before, behind]).any():
                sides = [(before, _REVERSED), (behind, _REVERSED)]
            known = [t > asked for t, asked in sides if not np.isnan(t)]
            if known and all(known):
                pairs.add((j, k))
    detours = set()
    if n > 3:
        with np.errstate(invalid="ignore", divide="ignore"):
            back = (squared[-1, -2] - squared[-1, :-2]) / squared[-2, :-2]
        if (back[np.isfinite(back)] > _REVERSED).any():
            detours.add(n - 1)
    for i in range(1, n - 1):
        into, out, across = squared[i - 1, i], squared[i, i + 1], squared[i - 1, i + 1]
        if into > 0 and out > 0 and across - into - out < 2 * _TURNS_BACK * np.sqrt(into * out):
            detours.add(i)
    return pairs, detours


def _most_often(pairs: Iterable[tuple[int, int]]) -> set[int]:
    """Members of as few as explain all pairs: again and again those that are in most of what is left."""
    left, found = set(pairs), set()
    while left:
        counts: dict[int, int] = {}
        for pair in left:
            for i in pair:
                counts[i] = counts.get(i, 0) + 1
        most = {i for i, count in counts.items() if count == max(counts.values())}
        found |= most
        left = {pair for pair in left if not most & set(pair)}
    return found
