"""Means over prompts, and what their errors are of."""

from __future__ import annotations

import numpy as np
import pytest

from gausslens.maths.resampling import mean_and_error, ratio_and_error


def test_the_error_of_a_mean_is_that_over_prompts() -> None:
    values = np.random.default_rng(0).normal(size=(2, 5, 3))
    mean, error = mean_and_error(values, axis=1)
    np.testing.assert_allclose(mean, values.mean(axis=1))
    np.testing.assert_allclose(error, values.std(axis=1, ddof=1) / np.sqrt(5))
    skipped = mean_and_error(values, axis=1, skip_missing=True)
    np.testing.assert_allclose(skipped, (mean, error))


def test_missing_values_are_missing_or_left_out() -> None:
    values = np.array([[1.0, np.nan, np.nan], [3.0, 2.0, np.nan], [8.0, 4.0, np.nan]])
    mean, error = mean_and_error(values)
    np.testing.assert_array_equal(np.isnan(mean), [False, True, True])
    mean, error = mean_and_error(values, skip_missing=True)
    np.testing.assert_allclose(mean, [4, 3, np.nan])
    np.testing.assert_allclose(error, [np.std([1, 3, 8], ddof=1) / 3**0.5, 1, np.nan])


@pytest.mark.parametrize("skip_missing", [False, True])
def test_one_prompt_has_no_error(skip_missing: bool) -> None:
    mean, error = mean_and_error(np.array([[2.0]]), skip_missing=skip_missing)
    assert mean == 2
    assert np.isnan(error)
    ratio, error = ratio_and_error(np.array([[6.0]]), np.array([3.0]))
    assert ratio == 2
    assert np.isnan(error)


def test_a_ratio_of_equal_weights_is_a_mean() -> None:
    values = np.random.default_rng(1).normal(size=(6, 2, 3))
    np.testing.assert_allclose(ratio_and_error(values, np.ones(6)), mean_and_error(values))


def test_the_error_of_a_ratio_covers_its_spread() -> None:
    """Over 2000 repetitions the mean of its square is the ratio's variance; with 30 prompts it is biased by a few %."""
    rng = np.random.default_rng(2)
    weights = rng.integers(5, 20, size=30).astype(float)
    values = weights[:, None] * 0.7 + rng.normal(size=(30, 2000)) * weights[:, None] ** 0.5
    ratio, error = ratio_and_error(values, weights)
    # The standard error of a variance of 2000 values is sqrt(2 / 2000) = 3 % of it.
    assert np.mean(error**2) == pytest.approx(ratio.var(ddof=1), rel=0.05 + 3 * 0.032)
