"""Streaming mean and covariance, and what a spectrum says."""

from __future__ import annotations

import copy
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens.maths.moments import RunningMoments
from gausslens.maths.spectra import anisotropy, effective_rank, rank, spectrum, support_entropy
from gausslens_gaussian.maths.information import entropy


def streamed(batches: list[np.ndarray]) -> RunningMoments:
    state = RunningMoments()
    for batch in batches:
        state.add(batch)
    return state


def one_shot(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In extended precision: what the stream is measured against."""
    exact = values.astype(np.longdouble)
    mean = exact.mean(axis=0)
    centred = exact - mean
    return mean.astype(np.float64), (centred.T @ centred / (len(values) - 1)).astype(np.float64)


def apart(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest error of a covariance, relative to the standard deviations of its row and column."""
    sd = np.sqrt(np.diag(wanted))
    return float((np.abs(found - wanted) / np.outer(sd, sd)).max())


cuts = st.lists(st.integers(0, 200), max_size=12).map(sorted)


@given(cuts=cuts, seed=st.integers(0, 2**32 - 1), offset=st.sampled_from([0.0, 1.0, 1e4]))
def test_any_split_into_batches_equals_one_shot(cuts: list[int], seed: int, offset: float) -> None:
    values = np.random.default_rng(seed).normal(offset, 1.0, (200, 5))
    state = streamed(np.split(values, cuts))
    mean, covariance = one_shot(values)
    assert state.count == 200
    np.testing.assert_allclose(state.mean, mean, rtol=1e-12, atol=1e-12)
    assert apart(state.covariance, covariance) < 1e-12


@given(seed=st.integers(0, 2**32 - 1), order=st.permutations(range(6)), pairs=st.lists(st.integers(0, 4), min_size=5))
def test_merging_is_associative_and_commutative(seed: int, order: list[int], pairs: list[int]) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.normal(1e4, 1.0, (n, 3)) for n in (1, 7, 0, 50, 2, 13)]
    mean, covariance = one_shot(np.concatenate(parts))
    states = [streamed([parts[i]]) for i in order]
    # Merge neighbours in an arbitrary order: every bracketing of the sum.
    for pair in pairs[:5]:
        at = pair % (len(states) - 1)
        left = copy.deepcopy(states[at])
        left.merge(states[at + 1])
        states[at : at + 2] = [left]
    np.testing.assert_allclose(states[0].mean, mean, rtol=1e-12)
    assert apart(states[0].covariance, covariance) < 1e-12


def test_a_mean_of_10000_does_not_swallow_a_variance_of_1() -> None:
    values = np.random.default_rng(0).normal(1e4, 1.0, (20_000, 4)).astype(np.float32)
    state = streamed(np.array_split(values, 37))
    _, covariance = one_shot(values)
    np.testing.assert_allclose(np.diag(state.covariance), np.diag(covariance), rtol=1e-9)
    # The naive formula in the data's own type is what this guards against.
    naive = (values**2).mean(axis=0) - values.mean(axis=0) ** 2
    assert np.abs(naive - np.diag(covariance)).max() > 0.01


def test_merging_leaves_the_other_state_alone_and_shares_no_memory() -> None:
    values = np.random.default_rng(1).normal(size=(10, 2))
    empty, full = RunningMoments(), streamed([values])
    before = full.scatter.copy()
    empty.merge(full)
    empty.add(values)
    np.testing.assert_array_equal(full.scatter, before)
    assert full.count == 10


def test_heads_are_kept_apart() -> None:
    values = np.random.default_rng(2).normal(size=(3, 40, 4))
    together = streamed([values[:, :15], values[:, 15:]])
    for head in range(3):
        alone = streamed([values[head]])
        np.testing.assert_allclose(together.mean[head], alone.mean, atol=1e-14)
        np.testing.assert_allclose(together.covariance[head], alone.covariance, atol=1e-13)


def test_a_planted_covariance_is_found_within_three_standard_errors() -> None:
    rng = np.random.default_rng(3)
    L = rng.normal(size=(6, 6))
    planted = L @ L.T
    n = 50_000
    state = streamed(np.array_split(rng.normal(size=(n, 6)) @ L.T + 5.0, 50))
    # Var of a sample covariance of Gaussians: (S_ij^2 + S_ii S_jj) / (n - 1); 36 entries, so 4 of these.
    error = np.sqrt((planted**2 + np.outer(np.diag(planted), np.diag(planted))) / (n - 1))
    assert (np.abs(state.covariance - planted) / error).max() < 4
    assert (np.abs(state.mean - 5.0) / np.sqrt(np.diag(planted) / n)).max() < 4


def test_one_vector_has_no_covariance() -> None:
    with pytest.raises(ValueError, match="two vectors or more, there were 1"):
        _ = streamed([np.ones((1, 3))]).covariance


def test_the_inputs_are_not_changed() -> None:
    values = np.ones((4, 2)) * 3.0
    streamed([values])
    np.testing.assert_array_equal(values, 3.0)


def test_effective_rank_and_anisotropy_of_spheres_lines_and_points() -> None:
    spectra = np.array([[2.0] * 4, [5.0, 0, 0, 0], [0.0] * 4])
    np.testing.assert_allclose(effective_rank(spectra), [4, 1, 0], atol=1e-12)
    np.testing.assert_allclose(anisotropy(spectra), [0.25, 1, 0])
    np.testing.assert_array_equal(rank(spectra), [4, 1, 0])


def test_effective_rank_of_two_values() -> None:
    p = np.array([0.75, 0.25])
    assert effective_rank([3.0, 1.0]) == pytest.approx(np.exp(-(p * np.log(p)).sum()))


def test_the_support_entropy_is_the_entropy_where_the_rank_is_full() -> None:
    L = np.random.default_rng(4).normal(size=(5, 5))
    assert float(support_entropy(spectrum(L @ L.T))) == pytest.approx(entropy(L @ L.T))


def test_the_support_entropy_of_a_degenerate_gaussian_is_that_of_its_subspace() -> None:
    rng = np.random.default_rng(5)
    inside = np.diag([3.0, 0.5])
    frame = np.linalg.qr(rng.normal(size=(6, 2)))[0]
    embedded = frame @ inside @ frame.T
    assert int(rank(spectrum(embedded))) == 2
    assert float(support_entropy(spectrum(embedded))) == pytest.approx(entropy(inside))


def test_batches_of_nothing_are_nothing() -> None:
    state = reduce(lambda s, _: (s.add(np.zeros((0, 3))), s)[1], range(3), RunningMoments())
    assert state.count == 0
