"""Skewness and kurtosis of streams, and the law they have where the stream is Gaussian."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gausslens_gaussian.maths.normality import RunningShape, directions, kurtosis_law, normality_p, skewness_sd


def shape(*batches: np.ndarray) -> RunningShape:
    state = RunningShape()
    for batch in batches:
        state.add(batch)
    return state


@given(
    cuts=st.lists(st.integers(0, 150), max_size=8).map(sorted),
    seed=st.integers(0, 2**32 - 1),
    offset=st.sampled_from([0.0, 1e4]),
)
def test_any_split_equals_one_shot(cuts: list[int], seed: int, offset: float) -> None:
    values = np.random.default_rng(seed).exponential(size=(150, 3)) + offset
    parts = [shape(part) for part in np.split(values, cuts)]
    state = RunningShape()
    for part in reversed(parts):
        state.merge(part)
    centred = (values - values.mean(axis=0)).astype(np.float64)
    tolerance = 1e-11 if offset == 0 else 1e-8  # values at 1e4 are themselves rounded to 1e-12
    np.testing.assert_allclose(state.skewness, stats.skew(centred), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(state.kurtosis, stats.kurtosis(centred), rtol=tolerance, atol=tolerance)


def test_an_exponential_has_skewness_2_and_kurtosis_6_however_it_is_standardised() -> None:
    """Standardising never changes a shape: a layer norm makes nothing Gaussian."""
    values = np.random.default_rng(0).exponential(size=(400_000, 1))
    plain, standardised = shape(values), shape((values - values.mean()) / values.std())
    np.testing.assert_allclose(plain.kurtosis, standardised.kurtosis, rtol=1e-9)
    # Standard errors of skewness and kurtosis of an exponential at this size are about 0.03 and 0.5.
    assert plain.skewness[0] == pytest.approx(2, abs=0.1)
    assert plain.kurtosis[0] == pytest.approx(6, abs=1.5)


@pytest.mark.parametrize("n", [30, 200])
def test_the_null_distribution_of_both(n: int) -> None:
    values = np.random.default_rng(1).standard_normal((n, 20_000))
    state = shape(values)
    mean, sd = kurtosis_law(n)
    assert abs(state.skewness.mean()) < 3 * skewness_sd(n) / np.sqrt(20_000)
    assert abs(state.kurtosis.mean() - mean) < 3 * sd / np.sqrt(20_000)
    assert state.skewness.std() == pytest.approx(skewness_sd(n), rel=0.03)
    assert state.kurtosis.std() == pytest.approx(sd, rel=0.06)


@pytest.mark.parametrize("n", [50, 1000])
def test_p_is_that_of_scipy_and_uniform_for_gaussians(n: int) -> None:
    values = np.random.default_rng(2).standard_normal((n, 2000))
    state = shape(values)
    p = normality_p(state.skewness, state.kurtosis, n)
    np.testing.assert_allclose(p, stats.normaltest(values).pvalue, rtol=1e-9)
    # The chi-squared law is itself an approximation, good to a per cent or so in the tail.
    assert abs((p < 0.05).mean() - 0.05) < 3 * np.sqrt(0.05 * 0.95 / 2000) + 0.01


def test_uniform_numbers_are_not_gaussian() -> None:
    state = shape(np.random.default_rng(3).random((2000, 10)))
    assert (normality_p(state.skewness, state.kurtosis, 2000) < 1e-6).all()


def test_few_samples_have_no_p_and_constants_no_shape() -> None:
    state = shape(np.full((5, 2), 1e6))
    np.testing.assert_array_equal(state.skewness, 0)
    np.testing.assert_array_equal(state.kurtosis, 0)
    assert np.isnan(normality_p(state.skewness, state.kurtosis, 5)).all()


def test_the_directions_are_fixed_unit_vectors() -> None:
    first = directions(10)
    assert first.shape == (64, 10)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1)
    directions.cache_clear()
    np.testing.assert_array_equal(directions(10), first)
