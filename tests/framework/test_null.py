"""The comparison with a null: exact cases, brute force, and its error rates by simulation."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from gausslens.maths.nulls import benjamini_hochberg, compare, varies_by_rounding_alone
from gausslens.runs.compare import against


def test_z_and_p_are_those_of_a_new_draw():
    draws = np.array([[1.0], [2.0], [4.0], [5.0], [3.0], [2.5]])
    found = compare(np.array([9.0]), draws)
    m, sd = len(draws), np.std(draws, ddof=1)
    t = (9 - draws.mean()) / (sd * np.sqrt(1 + 1 / m))
    assert found.mean[0] == draws.mean()
    assert found.sd[0] == pytest.approx(sd)
    assert found.scale == "identity"
    assert found.z[0] == pytest.approx(t / found.tail.scale)
    expected = 2 * stats.t.sf(t / found.tail.scale, df=found.tail.degrees)
    assert found.p[0] == pytest.approx(max(expected, 1 / (10 * m)))
    assert found.p_variable == found.p[0] == found.q[0]
    assert found.p_empirical[0] == pytest.approx(2 * 1 / (m + 1))
    # 95 % of the null about its mean: the width at which p would be 0.05.
    width = found.tail.scale * stats.t.ppf(0.975, df=found.tail.degrees) * sd * np.sqrt(1 + 1 / m)
    assert (found.low[0], found.high[0]) == pytest.approx((draws.mean() - width, draws.mean() + width))
    assert found.effect[0] == pytest.approx(9 / draws.mean() - 1)


@pytest.mark.parametrize("m", [2, 4])
def test_few_draws_tell_mean_and_spread_and_no_probability(m):
    rng = np.random.default_rng(m)
    found = compare(rng.normal(size=(3, 4)) + 50, rng.normal(size=(m, 3, 4)))
    assert np.isfinite(found.mean).all()
    assert (found.sd > 0).all()
    assert np.isfinite(found.effect).all()
    assert np.isfinite(found.p_empirical).all()
    for column in (found.z, found.p, found.q, found.low, found.high):
        assert np.isnan(column).all()
    assert "tell no probability" in found.notes[0]


def test_a_null_without_spread_gives_nan_never_infinity():
    # 0.1 is not exact in binary: the mean of equal draws must not differ from them by rounding.
    draws = np.full((7, 3), 0.1)
    draws[0, 2] = 0.2
    found = compare(np.array([0.1, 5.0, 0.1]), draws)
    assert np.isnan(found.z[:2]).all()
    assert np.isnan(found.p_empirical[:2]).all()
    assert (found.sd[:2] == 0).all()
    assert (found.mean[:2] == 0.1).all()
    assert np.isfinite(found.z[2])
    assert np.isfinite(found.q[2])


def test_one_draw_is_refused():
    with pytest.raises(ValueError, match="at least 2 draws"):
        compare(np.zeros(2), np.zeros((1, 2)))


def test_nan_stays_where_it_is():
    draws = np.random.default_rng(0).normal(size=(6, 4))
    draws[2, 1] = np.nan
    found = compare(np.array([np.nan, 0.0, 0.0, 9.0]), draws)
    assert np.isnan(found.p[:2]).all()
    assert np.isnan(found.p_empirical[:2]).all()
    assert np.isfinite(found.q[2:]).all()


@settings(deadline=None)
@given(hnp.arrays(np.float64, st.integers(0, 40), elements=st.floats(0, 1)))
def test_q_is_benjamini_hochberg(p):
    if p.size:
        np.testing.assert_allclose(benjamini_hochberg(p), stats.false_discovery_control(p), atol=1e-15)
    with_gap = np.concatenate([p, [np.nan]])
    np.testing.assert_array_equal(benjamini_hochberg(with_gap)[:-1], benjamini_hochberg(p))
    assert np.isnan(benjamini_hochberg(with_gap)[-1])


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31), st.sampled_from([(), (0,), (1,), (0, 1)]))
def test_empirical_p_is_that_of_counting(seed, pooled):
    rng = np.random.default_rng(seed)
    x, draws = rng.integers(0, 6, size=(2, 3)), rng.integers(0, 6, size=(4, 2, 3))
    found = compare(x, draws, pooled).p_empirical
    for cell in np.ndindex(x.shape):
        null = [
            draws[m, a, b]
            for m in range(4)
            for a in range(2)
            for b in range(3)
            if (0 in pooled or a == cell[0]) and (1 in pooled or b == cell[1])
        ]
        above = 1 + sum(v >= x[cell] for v in null)
        below = 1 + sum(v <= x[cell] for v in null)
        expected = min(1.0, 2 * min(above, below) / (len(null) + 1))
        if np.ptp(draws[:, cell[0], cell[1]]) == 0:
            assert np.isnan(found[cell])
        else:
            assert found[cell] == pytest.approx(expected)


@pytest.mark.parametrize("m", [5, 8, 20])
def test_null_against_null_is_uniform(m):
    """p of a Gaussian statistic under its own null: 5 % of 4,000 independent cells, and 4 standard errors."""
    rng = np.random.default_rng(m)
    everything = rng.normal(3.0, 2.0, size=(m + 1, 4000))
    p = compare(everything[0], everything[1:]).p
    assert abs((p < 0.05).mean() - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 4000)
    assert stats.kstest(p, "uniform").pvalue > 0.001


def test_false_positives_over_200_studies():
    """At q < 0.05 a study of 270 heads with no effect calls anything in 5 % of cases, within 3 s.e."""
    rng = np.random.default_rng(1)
    called = [(compare(rng.normal(size=270), rng.normal(size=(8, 270))).q < 0.05).any() for _ in range(200)]
    assert np.mean(called) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


def test_false_positives_of_single_tests():
    rng = np.random.default_rng(2)
    p = np.array([compare(rng.normal(size=1), rng.normal(size=(8, 1))).p[0] for _ in range(200)])
    assert (p < 0.05).mean() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


def test_a_planted_effect_is_found_among_270_heads_with_8_draws():
    """One head 15 null deviations off; with 7 degrees of freedom it must pass p < 0.05 / 270."""
    found = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(30, 9))
        x[17, 4] = 15.0
        q = compare(x, rng.normal(size=(8, 30, 9))).q
        found.append(q[17, 4] < 0.05)
    assert np.mean(found) > 0.9


def dataset(seed: int, shift: float = 0.0) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    return xr.Dataset(
        {
            "deficit": (("layer", "head"), rng.normal(size=(2, 3)) + shift, {"units": "nat", "long_name": "deficit"}),
            "count": (("layer",), rng.integers(0, 100, 2)),
            "spectrum": (("layer", "feature"), rng.normal(size=(2, 5))),
            "chosen": (("layer", "feature"), rng.normal(size=(2, 5)), {"against": 1}),
            "left": (("layer",), rng.normal(size=2), {"against": 0}),
            "lawful": (("layer",), rng.normal(size=2), {"null": "law"}),
            "text": (("layer",), ["a", "b"]),
        },
        coords={"layer": [0, 5]},
    )


def test_variables_are_chosen_by_rule_and_by_attribute():
    found = against(dataset(0, 50), [dataset(s) for s in range(1, 9)], exchangeable=("head",))
    compared = {str(n) for n in found.data_vars if not str(n).startswith(tuple(f"{v}_" for v in found.data_vars))}
    assert compared == {"deficit", "count", "chosen"}
    assert found.deficit_z.dims == ("layer", "head")
    assert found.layer.values.tolist() == [0, 5]
    assert (found.deficit_q < 0.05).all()
    # Pooled over 3 heads, 8 draws: the smallest p there is.
    assert found.deficit_p_empirical.values == pytest.approx(np.full((2, 3), 2 / 25))
    assert found.deficit_null_mean.attrs["units"] == "nat"
    assert found.attrs["draws"] == 8


def test_what_differs_in_shape_is_said():
    null = [dataset(1), dataset(2).isel(head=[0, 1]), dataset(3).drop_vars("count")]
    found = against(dataset(0), null)
    assert "deficit" not in found
    assert "'head': 3" in found.attrs["not_compared"]
    assert "draw 2 of the null does not have it" in found.attrs["not_compared"]
    assert "chosen_z" in found


def test_constant_under_the_null_is_said():
    null = [dataset(1).assign(deficit=dataset(1).deficit) for _ in range(5)]
    found = against(dataset(0), null)
    assert found.deficit_z.attrs["note"] == "constant under the null"
    assert np.isnan(found.deficit_z).all()


def test_a_spread_of_rounding_is_none() -> None:
    """What is 0 but for rounding, or equal but for single precision, has no z; a small spread of its own has one."""
    values = np.array([1.0, 2.5e-3, 1.4e-7, 3.0, 2e-9])
    draws = np.array(
        [
            [0.9, 1.2, 1.0, 1.1, 0.8],
            [1.6e-17, -3e-18, 2e-17, 0, 1e-17],  # 0
            [1e-14, 5e-15, 3e-15, 1e-15, 2e-15],
            [2.0, 2.0 + 1e-7, 2.0, 2.0, 2.0],  # equal in single precision
            [1e-9, 1.2e-9, 0.9e-9, 1.1e-9, 1e-9],
        ]
    ).T
    found = compare(values, draws)
    assert np.isnan(found.z).tolist() == [False, True, True, True, False]
    assert np.isnan(found.q).tolist() == np.isnan(found.p_empirical).tolist() == np.isnan(found.z).tolist()


@pytest.mark.parametrize("draws", [[np.inf, np.inf, np.inf], [1.0, np.inf, 2.0], [-np.inf, np.inf, 0.0]])
def test_infinite_draws_have_no_z_and_raise_no_warning(draws: list[float]) -> None:
    found = compare(np.array([1.0]), np.array(draws)[:, None])
    assert np.isnan(found.z).all()
    assert np.isnan(found.q).all()


def test_a_spread_of_a_few_roundings_is_none() -> None:
    rounding = float(np.finfo(np.float32).eps)
    spread = np.array([0.5, 1.5, 9.0]) * rounding * 100
    np.testing.assert_array_equal(varies_by_rounding_alone(spread, -100.0), [True, False, False])
    np.testing.assert_array_equal(varies_by_rounding_alone(spread, 100.0, roundings=8), [True, True, False])
    assert varies_by_rounding_alone(1e-15, 0.0, largest=1.0)
