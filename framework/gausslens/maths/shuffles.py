"""Uniform permutations within pools, derangements, and draws by frequency: what nulls of the text are made of."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Places: TypeAlias = NDArray[np.int64]


def permuted_within(pools: NDArray[np.integer], generator: np.random.Generator) -> Places:
    """For each place [n] the place whose item it gets: a uniform permutation of the places of each pool.

    ``pools`` [n] says which pool a place is of. Items change places only within their pool.
    """
    order: Places = np.empty(len(pools), dtype=np.int64)
    order[np.argsort(pools, kind="stable")] = np.lexsort((generator.random(len(pools)), pools))
    return order


def drawn_within(pools: NDArray[np.integer], generator: np.random.Generator) -> Places:
    """For each place [n] a place of its pool, drawn uniformly with replacement.

    An item that stands at k of the N places of a pool is drawn with probability k / N: the empirical frequencies.
    """
    sorted_places = np.argsort(pools, kind="stable")
    _, pool, counts = np.unique(pools, return_inverse=True, return_counts=True)
    starts = np.cumsum(counts) - counts
    within = np.floor(generator.random(len(pools)) * counts[pool]).astype(np.int64)
    drawn: Places = sorted_places[starts[pool] + within]
    return drawn


def derangement(n: int, generator: np.random.Generator) -> Places:
    """A uniform permutation of 0 to n-1 that leaves none in its place: permutations are drawn until one does.

    A share of 1/e of all permutations are derangements, so some three are drawn (de Montmort 1708).
    """
    if n < 2:
        raise ValueError(f"there is no derangement of {n}")
    while True:
        drawn: Places = generator.permutation(n)
        if not np.any(drawn == np.arange(n)):
            return drawn
