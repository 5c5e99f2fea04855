"""How Conti (2024) finds an approximation, kept as a baseline: draw members at random, keep the nearest.

Its notebook walks a grid of 11 x 11 x 11 coefficients and draws 30 matrices of each of its three sets at every point:
119,790 draws for one map of 16 tokens. One of the three coefficients does nothing; diagonals have offset 0, bands
drop 40 % of their cells, windows reach down from their own column; n sparse errors are added, and rows are divided by
their sums. What the exact members (map_families.py) are compared with; no result rests on it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .arrays import Floats
from .band_plus_sparse import offsets

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

DROPOUT = 0.4
# The sparse error of the third set does not follow its coefficient.
RARE_ERROR = 0.5


@dataclass(frozen=True)
class Found:
    """The nearest draw to each map [..., n, n], its distance, and how many were drawn."""

    nearest: Floats
    distance: Floats
    draws: int


def random_search(
    H: ArrayLike, rng: np.random.Generator, width: int = 3, columns: int = 2, draws: int = 30, steps: int = 11
) -> Found:
    """The nearest of ``draws`` matrices of each set at each of steps^3 coefficients; all maps see the same draws.

    Windows that do not fit into the map, ``columns`` of ``width`` rows, leave the third set out.
    """
    maps = np.asarray(H, dtype=np.float64)
    n = maps.shape[-1]
    nearest, distance = np.zeros(maps.shape), np.full(maps.shape[:-2], np.inf)
    grid = np.linspace(0.0, 1.0, steps)
    count = 0
    for on_windows, _unused, on_errors in itertools.product(grid, grid, grid):
        sets = [draw_diagonals(n, draws, on_errors, rng), draw_bands(n, draws, width, on_errors, rng)]
        if columns * width <= n:
            sets.append(draw_rare_tokens(n, draws, width, columns, on_windows, rng))
        for drawn in sets:
            count += len(drawn)
            apart = np.abs(maps[..., None, :, :] - drawn).sum(axis=(-1, -2))
            # A row that lost all its cells cannot be normalised.
            apart = np.where(np.isnan(apart), np.inf, apart)
            place = apart.argmin(axis=-1)
            best = np.take_along_axis(apart, place[..., None], axis=-1)[..., 0]
            better = best < distance
            distance = np.where(better, best, distance)
            nearest = np.where(better[..., None, None], drawn[place], nearest)
    return Found(nearest, distance, count)


def draw_diagonals(n: int, draws: int, on_errors: float, rng: np.random.Generator) -> Floats:
    """A diagonal of values in [0.9, 1], with errors."""
    made = np.zeros((draws, n, n))
    made[:, np.arange(n), np.arange(n)] = 1.0 - 0.1 * rng.random((draws, n))
    return _finished(made, on_errors, rng)


def draw_bands(n: int, draws: int, width: int, on_errors: float, rng: np.random.Generator) -> Floats:
    """A band of values in [0.7, 1], each cell dropped with probability 0.4, with errors."""
    shape = (draws, n, n)
    kept = (offsets(n) <= width) & (rng.random(shape) > DROPOUT)
    return _finished(np.where(kept, rng.uniform(0.7, 1.0, shape), 0.0), on_errors, rng)


def draw_rare_tokens(
    n: int, draws: int, width: int, columns: int, on_values: float, rng: np.random.Generator
) -> Floats:
    """A diagonal in which ``columns`` stretches of ``width`` rows look at their first row's column, with errors."""
    if columns * width > n:
        raise ValueError(f"{columns} windows of {width} rows do not fit into {n}")
    column = np.tile(np.arange(n), (draws, 1))
    # Starts that are at least a width apart, uniformly: draw among the rows left over, then make room for the windows.
    left = n - columns * (width - 1)
    starts = np.sort(np.array([rng.choice(left, columns, replace=False) for _ in range(draws)]), axis=1)
    starts = starts + np.arange(columns) * (width - 1)
    rows = starts[:, :, None] + np.arange(width)
    column[np.arange(draws)[:, None, None], rows] = starts[:, :, None]
    made = np.zeros((draws, n, n))
    values = on_values * rng.uniform(0.7, 1.0, (draws, n))
    made[np.arange(draws)[:, None], np.arange(n), column] = values
    return _finished(made, RARE_ERROR, rng)


def _finished(made: Floats, on_errors: float, rng: np.random.Generator) -> Floats:
    """With n errors in random cells off the diagonal, and rows that sum to one."""
    draws, n, _ = made.shape
    place = rng.permuted(np.tile(np.arange(n * n), (draws, 1)), axis=1)[:, :n]
    errors = np.zeros((draws, n * n))
    np.put_along_axis(errors, place, on_errors * rng.random((draws, n)), axis=1)
    errors = errors.reshape(draws, n, n)
    errors[:, np.arange(n), np.arange(n)] = 0.0
    whole = made + errors
    with np.errstate(invalid="ignore"):
        found: Floats = whole / whole.sum(axis=-1, keepdims=True)
    return found
