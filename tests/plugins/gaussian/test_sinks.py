"""Attention sinks: seen, told, and kept out of the robust summary."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from gausslens import Context, Estimate
from gausslens.testing import TinyModel, check_stream
from gausslens_gaussian.analyses.moments import Moments, estimate
from gausslens_gaussian.maths.lengths import RunningLengths
from gausslens_gaussian.maths.robust import SAMPLE, Sample, ball, place_numbers
from gausslens_gaussian.parameters import MomentsParameters
from gausslens_gaussian.plugin import MOMENTS

from .batches import batch

ROBUST = ("robust_trace", "robust_effective_rank", "robust_anisotropy", "robust_entropy")


def stream(seed: int = 0, prompts: int = 8, length: int = 129, width: int = 16) -> np.ndarray:
    """1,024 tokens that count, of an uneven Gaussian with a mean."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(prompts, length, width)) * np.linspace(3, 1, width) + 2.0


def moments(values: np.ndarray, **parameters: object) -> xr.Dataset:
    """Both passes, as the host makes them."""
    analysis = Moments(MomentsParameters(robust=True, **parameters), Context(TinyModel().info, 0))
    analysis.update(batch("resid_pre", values))
    analysis.end_pass(0)
    analysis.update(batch("resid_pre", values))
    return analysis.result().isel(layer=0)


def test_a_sink_a_hundred_times_as_long_moves_the_robust_summary_by_less_than_5_per_cent_and_warns() -> None:
    clean = stream()
    sunk = clean.copy()
    sunk[3, 50] *= 100
    before, after = moments(clean), moments(sunk)
    assert float(after["anisotropy"]) > 0.85  # it owns the plain covariance
    for name in ROBUST:
        assert float(after[name]) == pytest.approx(float(before[name]), rel=0.05), name
    for name in ("robust_mean", "robust_covariance", "robust_spectrum"):
        change = np.linalg.norm(after[name] - before[name]) / np.linalg.norm(before[name])
        assert change < 0.05, name
    assert bool(after["owned"])
    assert float(after["extremes"]) == 1
    assert float(after["extreme_share"]) > 0.85
    assert "hold up to" in after.attrs["warning"]
    assert "layers 0" in after.attrs["warning"]
    assert not bool(before["owned"])
    assert "warning" not in before.attrs


def test_a_tenth_of_all_tokens_may_be_sinks() -> None:
    clean = stream()
    sunk = clean.copy()
    sunk[:, 10:23] *= 100
    before, after = moments(clean), moments(sunk)
    for name in ROBUST:
        assert float(after[name]) == pytest.approx(float(before[name]), rel=0.05), name
    assert float(after["outlier_share"]) == pytest.approx(13 / 128, abs=0.01)


def test_sinks_at_the_first_position_are_told_apart_and_disturb_nothing() -> None:
    clean = stream()
    sunk = clean.copy()
    sunk[:, 0] *= 100
    before, after = moments(clean), moments(sunk)
    xr.testing.assert_equal(before["covariance"], after["covariance"])
    assert float(after["apart_length_mean"]) == pytest.approx(100 * float(before["apart_length_mean"]))
    assert "warning" in moments(sunk, tokens="all-text").attrs


def test_of_a_clean_gaussian_nearly_all_is_bulk() -> None:
    found = moments(stream(1, prompts=40))
    # Beyond three standard deviations above the median lies 1 in 740; the sample's own spread adds a little.
    assert float(found["outlier_share"]) < 0.006
    assert float(found["robust_trace"]) == pytest.approx(float(found["trace"]), rel=0.02)


def test_each_head_has_a_bulk_of_its_own() -> None:
    model = TinyModel(dtype="float64")
    result = check_stream(MOMENTS, MomentsParameters(site="q", robust=True), model=model, rtol=1e-8)
    assert result["robust_covariance"].dims == ("layer", "head", "feature", "feature_other")
    assert result["outlier_share"].dims == ("layer", "head")


def test_principal_directions_and_bulk_take_a_second_pass() -> None:
    for parameters, passes in (({}, 1), ({"robust": True}, 2), ({"principal": 4}, 2)):
        analysis = Moments(MomentsParameters(**parameters), Context(TinyModel().info, 0))
        assert analysis.request().passes == passes


@given(order=st.permutations(range(7)), size=st.integers(1, 400))
def test_the_sample_is_the_same_however_a_stream_is_cut(order: list[int], size: int) -> None:
    places = place_numbers(np.repeat(np.arange(7), size), np.tile(np.arange(size), 7))
    values = np.arange(len(places), dtype=np.float32)[:, None]
    parts = []
    for piece in np.split(np.arange(len(places)), 7):
        parts.append(Sample())
        parts[-1].add(places[piece], values[piece])

    def merged(a: Sample, b: Sample) -> Sample:
        a.merge(b)
        return a

    together = reduce(merged, [parts[i] for i in order])
    whole = Sample()
    whole.add(places, values)
    np.testing.assert_array_equal(together.values, whole.values)
    assert len(whole.values) == min(SAMPLE, len(places))


def test_a_sample_is_spread_over_all_places() -> None:
    places = place_numbers(np.repeat(np.arange(200), 50), np.tile(np.arange(50), 200))
    state = Sample()
    state.add(places, places.astype(np.float64)[:, None])
    prompts = state.values[:, 0].astype(np.uint64) >> np.uint64(32)
    # 1,024 of 10,000 in two halves: binomial, sd 16 (a little less without replacement).
    assert abs(int((prompts < 100).sum()) - 512) < 4 * 16


def test_half_of_a_sample_may_be_anything() -> None:
    rng = np.random.default_rng(2)
    good = rng.normal(size=(600, 8))
    bad = np.full((400, 8), 1e6) + rng.normal(size=(400, 8))
    found = ball(np.concatenate([good, bad]))
    assert found.holds(good).mean() > 0.95
    assert not found.holds(bad).any()


def test_vectors_of_one_length_are_all_bulk() -> None:
    values = np.random.default_rng(3).normal(size=(500, 32))
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    assert ball(values).holds(values).mean() > 0.98
    assert ball(np.ones((20, 3))).holds(np.ones((20, 3))).all()


def test_lengths_of_any_split_are_the_same() -> None:
    values = np.abs(np.random.default_rng(4).standard_cauchy(size=(2, 1000)))
    whole, parts = RunningLengths(), RunningLengths()
    whole.add(values)
    for piece in np.array_split(values, 9, axis=1):
        one = RunningLengths()
        one.add(piece)
        parts.merge(one)
    for a, b in zip(whole.extremes(), parts.extremes(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    median = np.median(values, axis=1)
    for head in range(2):
        # The median is known to one bin, of a tenth.
        least, most = ((values[head] > 8 * median[head] * f).sum() for f in (1.1, 0.9))
        assert least <= whole.extremes()[0][head] <= most


def test_zeros_have_no_extremes() -> None:
    state = RunningLengths()
    state.add(np.zeros(10))
    many, share = state.extremes()
    assert (many, share) == (0, 0)


def test_estimate_grows_with_what_is_asked_for() -> None:
    info = TinyModel().info
    plain = estimate(MomentsParameters(), info, None)
    assert isinstance(plain, Estimate)
    assert estimate(MomentsParameters(robust=True), info, None).memory > plain.memory
    assert estimate(MomentsParameters(principal=2), info, None).memory > plain.memory
