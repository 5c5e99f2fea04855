"""Moderated variances, residuals of draws against each other, and fitted tails: brute force and planted laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gausslens.maths.student import FEWEST_DEGREES, Tail, fitted_tail, moderated, residuals


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


def test_residuals_are_those_of_leaving_each_draw_out():
    draws = np.random.default_rng(2).normal(size=(6, 5))
    found = residuals(draws)
    for i in range(6):
        others = np.delete(draws, i, axis=0)
        v = moderated(others.var(axis=0, ddof=1), 4)
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
