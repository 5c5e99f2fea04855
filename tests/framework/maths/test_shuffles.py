"""Permutations within pools, derangements and draws by frequency: exact where they are, else within standard errors."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens.maths.shuffles import derangement, drawn_within, permuted_within

POOLS = st.lists(st.integers(0, 5), min_size=1, max_size=40).map(np.array)
REPEATS = 6000
ERRORS = 5  # how many standard errors a share may be off: 6e-7 by chance


def _uniform(counts: Counter[tuple[int, ...]], kinds: int) -> None:
    """Every kind is there, and its share is 1 / kinds within its standard error."""
    n = counts.total()
    assert len(counts) == kinds
    error = np.sqrt((1 / kinds) * (1 - 1 / kinds) / n)
    assert max(abs(count / n - 1 / kinds) for count in counts.values()) < ERRORS * error


@given(POOLS, st.integers(0, 2**63 - 1))
def test_items_change_places_within_their_pool_alone(pools: np.ndarray, seed: int) -> None:
    order = permuted_within(pools, np.random.default_rng(seed))
    assert sorted(order) == list(range(len(pools)))
    np.testing.assert_array_equal(pools[order], pools)


def test_all_permutations_of_a_pool_are_as_likely() -> None:
    generator = np.random.default_rng(0)
    pools = np.array([7, 1, 7, 1, 7])
    found = Counter(tuple(permuted_within(pools, generator)) for _ in range(REPEATS))
    _uniform(found, 6 * 2)


@given(POOLS, st.integers(0, 2**63 - 1))
def test_draws_are_of_their_pool(pools: np.ndarray, seed: int) -> None:
    drawn = drawn_within(pools, np.random.default_rng(seed))
    np.testing.assert_array_equal(pools[drawn], pools)


def test_items_are_drawn_by_their_frequency() -> None:
    generator = np.random.default_rng(1)
    pools = np.array([0, 0, 3, 0, 0, 3, 3, 3, 3])
    items = np.array([1, 1, 9, 1, 2, 9, 9, 8, 8])
    drawn = np.concatenate([items[drawn_within(pools, generator)][pools == 0] for _ in range(REPEATS)])
    share, error = float(np.mean(drawn == 1)), float(np.sqrt(0.75 * 0.25 / len(drawn)))
    assert abs(share - 0.75) < ERRORS * error
    assert set(drawn) == {1, 2}


@given(st.integers(2, 30), st.integers(0, 2**63 - 1))
def test_a_derangement_leaves_none_in_its_place(n: int, seed: int) -> None:
    found = derangement(n, np.random.default_rng(seed))
    assert sorted(found) == list(range(n))
    assert not (found == np.arange(n)).any()


def test_all_derangements_are_as_likely() -> None:
    generator = np.random.default_rng(2)
    _uniform(Counter(tuple(derangement(4, generator)) for _ in range(REPEATS)), 9)


def test_one_thing_has_no_derangement() -> None:
    with pytest.raises(ValueError, match="no derangement of 1"):
        derangement(1, np.random.default_rng(0))
