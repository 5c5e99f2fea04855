"""Errors over prompts: by groups, by the jackknife, and of plain means and ratios; and prompts in two parts."""

from __future__ import annotations

import numpy as np
import pytest

from gausslens.maths.resampling import (
    GROUPS,
    PowerSums,
    dealt,
    delete_group_error,
    difference_error,
    mean_and_error,
    owned_by_one,
    ratio_and_error,
    split_prompts,
    standard,
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


def test_prompts_are_dealt_round_by_their_tokens_alone(rng: np.random.Generator) -> None:
    prompts = [rng.integers(0, 99, size=n) for n in rng.integers(3, 9, size=43)]
    groups = dealt(prompts, 10)
    assert sorted(np.bincount(groups)) == [4] * 7 + [5] * 3
    order = rng.permutation(43)
    np.testing.assert_array_equal(dealt([prompts[i] for i in order], 10), groups[order])
    twice = dealt([*prompts, prompts[7]], 10)
    np.testing.assert_array_equal(twice, [*groups, groups[7]])
    with pytest.raises(ValueError, match="10 groups need as many different prompts, there are 2"):
        dealt([prompts[0], prompts[1]] * 8, 10)


def test_the_error_of_a_difference_forgets_what_is_shared_and_only_that(rng: np.random.Generator) -> None:
    shared, own = rng.normal(size=(10, 5)), rng.normal(size=(3, 10, 5))
    of, twins = shared + own[0], [shared + own[1], shared + own[2]]
    found = difference_error(of, twins)
    np.testing.assert_allclose(found, delete_group_error(own[0] - (own[1] + own[2]) / 2))
    apart = difference_error(of, twins, ["a", "b", "b"])
    each = delete_group_error(of), delete_group_error((twins[0] + twins[1]) / 2)
    np.testing.assert_allclose(apart, np.hypot(*each))
    # Other prompts for each twin: three independent errors. And 12 groups share nothing with 10.
    np.testing.assert_allclose(
        difference_error(of, twins, ["a", "b", "c"]) ** 2,
        each[0] ** 2 + (delete_group_error(twins[0]) ** 2 + delete_group_error(twins[1]) ** 2) / 4,
    )
    other = rng.normal(size=(12, 5))
    np.testing.assert_allclose(difference_error(of, [other]), np.hypot(each[0], delete_group_error(other)))


def test_one_group_that_owns_an_error_is_seen(rng: np.random.Generator) -> None:
    cells = 20_000
    assert not owned_by_one(np.ones((10, 3))).any()
    planted = rng.normal(size=(10, cells))
    # As the docstring says, and to four standard errors of a share of so many cells.
    assert abs(owned_by_one(planted).mean() - 0.1337) < 4 * np.sqrt(0.13 / cells)
    planted[3] += 20
    assert owned_by_one(planted).all()


@pytest.mark.parametrize(("prompts", "repetitions"), [(40, 1500)])
def test_intervals_cover_where_tails_are_light(prompts: int, repetitions: int, rng: np.random.Generator) -> None:
    """Vectors with an effect of their prompt, fresh each time: the trace of their covariance, whose truth is known."""
    width, tokens, spread = 6, 20, 0.7
    truth = width * (1 + spread**2)
    held = 0
    group = np.arange(prompts) % 10
    for _ in range(repetitions):
        effect = spread * rng.normal(size=(prompts, 1, width))
        x = effect + rng.normal(size=(prompts, tokens, width))
        ones = np.full(prompts, float(tokens))
        sums, squares = x.sum(1), np.square(x).sum((1, 2))

        def trace(kept: np.ndarray, sums=sums, squares=squares, ones=ones) -> float:
            n = ones[kept].sum()
            return float((squares[kept].sum() - np.square(sums[kept].sum(0)).sum() / n) / (n - 1))

        error = delete_group_error([trace(group != g) for g in range(10)])
        held += abs(trace(group >= 0) - truth * (1 - 1 / prompts * spread**2 / (1 + spread**2))) < 2.262 * error
    # 95 %, to four standard errors of a share of so many: 2.3 %.
    assert abs(held / repetitions - 0.95) < 4 * np.sqrt(0.95 * 0.05 / repetitions)


def test_where_tails_are_heavy_the_shortfall_is_flagged(rng: np.random.Generator) -> None:
    """Kurtosis of values whose prompts differ in scale: intervals are too short, and one group owns most errors."""
    group = np.arange(40) % 10
    found = {}
    for name, scale in (("light", 0.0), ("heavy", 0.6)):
        x = np.exp(scale * rng.normal(size=(400, 40, 1))) * rng.normal(size=(400, 40, 20))
        sums = np.stack([(x**order).sum(axis=-1) for order in range(5)], axis=-1)  # repetition, prompt, power
        whole = standard(sums.sum(axis=1))[:, 3]
        without = np.stack([standard(sums[:, group != g].sum(axis=1))[:, 3] for g in range(10)])
        held = np.abs(whole - whole.mean()) < 2.262 * delete_group_error(without)
        found[name] = held.mean(), owned_by_one(without).mean()
    # A share of 400 is known to 0.025 at most: four of those part what is from what must not be.
    assert found["light"][0] > 0.95 - 0.06
    assert found["heavy"][0] < 0.9
    assert found["heavy"][1] > 2 * found["light"][1]
