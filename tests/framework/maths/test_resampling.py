"""Errors over prompts: by groups, by the jackknife, and of plain means and ratios; and prompts in two parts."""

from __future__ import annotations

import numpy as np
import pytest

from gausslens.maths.resampling import (
    GROUPS,
    PowerSums,
    mean_and_error,
    ratio_and_error,
    split_prompts,
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(12345)


def test_power_sums_tell_moments_and_their_errors(rng: np.random.Generator) -> None:
    x = rng.gamma(2.0, size=(200, 320, 3))
    found, errors = [], []
    for draw in x:
        sums = PowerSums.empty(3)
        other = PowerSums.empty(3)
        groups = np.arange(320) % GROUPS
        sums.add(draw[:100], groups[:100])
        other.add(draw[100:], groups[100:])
        sums.merge(other)
        one, error = sums.moments()
        found.append(one)
        errors.append(error)
    means, spread = np.mean(found, axis=0), np.std(found, axis=0)
    np.testing.assert_allclose(means[:, 0], 2, atol=4 * 0.08 / np.sqrt(200))
    np.testing.assert_allclose(means[:, 1], 2, rtol=0.03)
    np.testing.assert_allclose(means[:, 2], np.sqrt(2), rtol=0.08)
    # Errors by the jackknife are the spread of the estimates, to its own error: 200 draws, 16 groups.
    np.testing.assert_allclose(np.mean(errors, axis=0)[:, :2], spread[:, :2], rtol=0.15)
    empty, nothing = PowerSums.empty(2).moments()
    assert np.isnan(empty).all()
    assert np.isnan(nothing).all()


def test_the_error_of_a_mean_is_its_spread(rng: np.random.Generator) -> None:
    draws = rng.gamma(2.0, size=(4000, 3, 20))
    means, errors = mean_and_error(draws, axis=2)
    np.testing.assert_allclose(means, draws.mean(axis=2))
    # s^2 is unbiased; 4000 draws of 20 know it to 3 %.
    np.testing.assert_allclose(np.sqrt((errors**2).mean(axis=0)), means.std(axis=0), rtol=0.06)
    one, unknown = mean_and_error(draws[0, :, :1], axis=1)
    np.testing.assert_array_equal(one, draws[0, :, 0])
    assert np.isnan(unknown).all()


def test_the_error_of_a_ratio_is_its_spread(rng: np.random.Generator) -> None:
    tokens = rng.integers(5, 30, size=(3000, 40))
    # Sums of tokens that share what their prompt is: 40 prompts of 5 to 29 tokens.
    sums = tokens * (1 + rng.normal(size=(3000, 40))) + np.sqrt(tokens) * rng.normal(size=(3000, 40))
    found = [ratio_and_error(s, n) for s, n in zip(sums, tokens, strict=True)]
    ratios, errors = (np.array([float(one[i]) for one in found]) for i in (0, 1))
    np.testing.assert_allclose(ratios, sums.sum(axis=1) / tokens.sum(axis=1))
    # Linear in 1/40: the bias of the variance is a few per cent.
    assert np.sqrt((errors**2).mean()) == pytest.approx(ratios.std(), rel=0.08)
    # Prompts of equal length: the plain error of a mean.
    even, count = rng.normal(size=(12, 5)), np.full(12, 4.0)
    for one, other in zip(ratio_and_error(even, count), mean_and_error(even / 4), strict=True):
        np.testing.assert_allclose(one, other)
    assert np.isnan(ratio_and_error(even[:1], count[:1])[1]).all()


def test_prompts_are_split_by_what_they_are() -> None:
    prompts = [np.array([i]) for i in (7, 8, 9, 7, 10, 11)]
    measured, group = split_prompts(prompts, 0.4)
    assert measured[0] == measured[3]
    assert measured.sum() >= 2
    assert ((group >= 0) == measured).all()
    assert group.max() < GROUPS
    again, _ = split_prompts([prompts[i] for i in (5, 4, 0, 2, 1)], 0.4)
    assert [again[2], again[4], again[3]] == [measured[0], measured[1], measured[2]]
    assert not split_prompts(prompts[:1] * 3, 0.5)[0].any()
