"""Moderated variances, residuals of draws against each other, and fitted tails: brute force and planted laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gausslens.maths.student import FEWEST_DEGREES, Tail, fitted_tail, main_effects, moderated, predicted, residuals


def test_moderated_variances_have_the_planted_prior():
    """sigma^2 = d0 s0^2 / chi^2(d0), s^2 = sigma^2 chi^2(d) / d: the shrunken variance is known in closed form."""
    rng = np.random.default_rng(0)
    d0, s0, d, cells = 6.0, 2.0, 7, 20_000
    sigma2 = d0 * s0**2 / rng.chisquare(d0, cells)
    s2 = sigma2 * rng.chisquare(d, cells) / d
    known = (d0 * s0**2 + d * s2) / (d0 + d)
    # The prior is fitted to 20,000 logarithms: d0 to a few per cent.
    np.testing.assert_allclose(moderated(s2, d), known, rtol=0.05)


def test_equal_true_variances_are_shrunken_to_one():
    rng = np.random.default_rng(1)
    s2 = rng.chisquare(7, size=5000) / 7
    found = moderated(s2, 7)
    assert np.ptp(found) < 0.1 * np.ptp(s2)
    # The mean of log chi^2(7) / 7 over 5,000 cells is known to 0.008.
    assert found.mean() == pytest.approx(1.0, abs=0.05)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31), st.integers(2, 30), st.integers(3, 20))
def test_moderated_variances_lie_between_their_own_and_one_common_value(seed, cells, degrees):
    s2 = np.random.default_rng(seed).lognormal(sigma=2, size=cells)
    found = moderated(s2, degrees)
    order = np.argsort(s2)
    assert (np.diff(found[order]) >= -1e-12 * found.max()).all()
    assert (found > 0).all()
    np.testing.assert_allclose(moderated(s2 * 9, degrees), found * 9, rtol=1e-9)


def test_one_cell_is_not_moderated_and_zeros_do_no_harm():
    assert moderated(np.array([3.0]), 7) == 3.0
    found = moderated(np.array([0.0, 1.0, 2.0, 1.5]), 7)
    assert np.isfinite(found).all()
    assert (found > 0).all()


def test_places_have_the_planted_priors_of_their_own():
    """s0^2 grows by 100 with each layer and by 5 with each kind: shrunken towards that, not towards what all share."""
    rng = np.random.default_rng(5)
    d0, d, each = 6.0, 7, 4000
    layer, kind = np.repeat([0, 1, 2], 2 * each), np.tile([0, 1], 3 * each)
    s0 = 100.0**layer * 5.0**kind
    s2 = s0 * d0 / rng.chisquare(d0, s0.size) * rng.chisquare(d, s0.size) / d
    known = (d0 * s0 + d * s2) / (d0 + d)
    # As above: 24,000 logarithms, six priors.
    np.testing.assert_allclose(moderated(s2, d, main_effects([layer, kind], s0.size)), known, rtol=0.07)
    assert np.abs(moderated(s2, d) / known - 1).mean() > 0.3


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31), st.integers(2, 60), st.integers(1, 30), st.integers(1, 4))
def test_main_effects_are_orthonormal_and_hold_each_place_that_has_cells_enough(seed, cells, levels, axes):
    rng = np.random.default_rng(seed)
    places = [rng.integers(0, levels, size=cells) for _ in range(axes)]
    found = main_effects([*places, places[0]], cells)
    np.testing.assert_allclose(found.T @ found, np.eye(found.shape[1]), atol=1e-8)
    assert found.shape[1] <= max(cells / 3, 1)
    held = [np.ones(cells)]
    if len(np.unique(places[0])) <= cells // 3:
        held += [(places[0] == place) * 1.0 for place in np.unique(places[0])]
    for column in held:
        np.testing.assert_allclose(found @ (found.T @ column), column, atol=1e-8)


def test_a_basis_of_one_number_is_none():
    s2 = np.random.default_rng(6).lognormal(size=(3, 12))
    np.testing.assert_allclose(moderated(s2, 7, main_effects([np.zeros(12, int)], 12)), moderated(s2, 7), rtol=1e-9)
    assert np.isfinite(moderated(s2[:, :2], 7, main_effects([np.arange(2)], 2))).all()


@pytest.mark.parametrize("places", [[], [np.repeat([0, 1], 4)]])
def test_residuals_are_those_of_leaving_each_draw_out(places):
    draws = np.random.default_rng(2).normal(size=(6, 8))
    alike = main_effects(places, 8)
    found = residuals(draws, alike)
    for i in range(6):
        others = np.delete(draws, i, axis=0)
        v = moderated(others.var(axis=0, ddof=1), 4, alike)
        np.testing.assert_allclose(found[i], (draws[i] - others.mean(axis=0)) / np.sqrt(v * 1.2), rtol=1e-10)


@pytest.mark.parametrize(("degrees", "scale"), [(4.0, 1.5), (10.0, 1.0), (3.0, 2.0)])
def test_a_planted_tail_is_found(degrees, scale):
    sample = stats.t.rvs(degrees, scale=scale, size=4000, random_state=3)
    found = fitted_tail(sample)
    peer = stats.t.fit(sample, floc=0)
    assert found.degrees == pytest.approx(peer[0], rel=0.02)
    assert found.scale == pytest.approx(peer[2], rel=0.01)
    assert found.scale == pytest.approx(scale, rel=0.08)


def test_a_scale_below_one_is_one_and_degrees_have_a_least():
    assert fitted_tail(np.random.default_rng(0).normal(scale=0.3, size=500)).scale == 1.0
    assert fitted_tail(stats.cauchy.rvs(size=2000, random_state=0)).degrees == pytest.approx(FEWEST_DEGREES)
    assert fitted_tail(np.array([])) == Tail(FEWEST_DEGREES, 1.0)


def test_a_tail_gives_its_own_p():
    tail = Tail(5.0, 2.0)
    np.testing.assert_allclose(tail.p(np.array([0.0, 3.0, -3.0])), [1, *[2 * stats.t.sf(1.5, 5)] * 2])
    assert tail.p(np.array([tail.half_width(0.95)]))[0] == pytest.approx(0.05)


@pytest.mark.parametrize("mean", [1.0, 2.0])
def test_a_predicted_p_is_at_most_its_share(mean):
    """-log p of twins and draws exponential of one mean, that cells in common stretch: p' is seldom small.

    20,000 trials: 3 standard errors.
    """
    rng = np.random.default_rng(4)
    logs = rng.exponential(mean, size=(20_000, 9))
    found = np.array([predicted(np.exp(-one[0]), np.exp(-one[1:])) for one in logs])
    for level in (0.05, 0.01):
        assert (found <= level).mean() <= level + 3 * np.sqrt(level * (1 - level) / len(found))
    plain = (np.exp(-logs[:, 0]) <= 0.01).mean()
    assert plain == pytest.approx(0.01 ** (1 / mean), rel=0.2)


def test_a_predicted_p_is_as_in_its_formula_and_grows_with_p():
    alike = np.array([0.5, 0.2, 0.04, 0.9])
    total = max(4.0, -np.log(alike).sum())
    assert predicted(1e-6, alike) == pytest.approx((1 + np.log(1e6) / total) ** -4)
    assert predicted(1.0, alike) == 1.0
    assert predicted(0.0, alike) == 0.0
    assert np.isnan(predicted(np.nan, alike))
    found = [predicted(p, alike) for p in (1e-9, 1e-5, 0.01, 0.5)]
    assert found == sorted(found)
    assert predicted(0.3, np.array([])) == 0.3


@pytest.mark.parametrize("seed", range(8))
def test_no_other_tail_is_more_likely(seed):
    """The slopes of the log likelihood vanish, or point out of bounds; steps to all sides make it less."""
    rng = np.random.default_rng(seed)
    sample = rng.standard_t(rng.uniform(2, 30), size=60) * rng.uniform(1.2, 4)
    found = fitted_tail(sample)

    def likely(degrees, scale):
        return stats.t.logpdf(sample, degrees, scale=scale).sum()

    for by_degrees, by_scale in [(1.01, 1), (1 / 1.01, 1), (1, 1.01), (1, 1 / 1.01), (1.5, 1.1), (0.7, 0.9)]:
        degrees = min(max(found.degrees * by_degrees, FEWEST_DEGREES), 400.0)
        assert likely(degrees, found.scale * by_scale) <= likely(found.degrees, found.scale) + 1e-6


def test_residuals_stand_a_draw_that_is_all_of_the_spread():
    draws = np.random.default_rng(0).normal(size=(8, 3))
    draws[2, 1] = 1e9
    found = residuals(draws)
    assert np.isfinite(found).all()
    assert abs(found[2, 1]) > 1e3
