"""Covariances too wide to hold: the sketch, and its bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gausslens import Context
from gausslens.testing import TinyModel, TinyParameters, check_round_trip, check_stream
from gausslens_gaussian.analyses.moments import Moments, estimate
from gausslens_gaussian.maths.sketch import RunningSketch, Sketched, omega
from gausslens_gaussian.parameters import MomentsParameters
from gausslens_gaussian.plugin import MOMENTS

from .batches import batch


def sketched(values: np.ndarray, width: int, keep: int, batches: int = 1) -> Sketched:
    state = RunningSketch(omega(values.shape[1], width))
    for part in np.array_split(values, batches):
        state.add(part)
    return state.covariance(keep)


def spiked(n: int, d: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    scales = np.concatenate([np.linspace(30, 10, 10), np.linspace(1, 0.1, d - 10)])
    return rng.normal(size=(n, d)) * scales + 3.0


def test_leading_eigenvalues_lie_within_the_bound() -> None:
    values = spiked(2000, 300)
    exact = np.linalg.eigvalsh(np.cov(values.T))[::-1]
    found = sketched(values, 64, 10)
    assert (found.eigenvalues <= exact[:10] + 1e-9).all()
    assert (exact[:10] <= found.eigenvalues + found.error).all()
    # What is left out of reach is no more than a few times the best of that width.
    assert found.error < 3 * exact[64:].sum()
    np.testing.assert_allclose(found.eigenvalues, exact[:10], rtol=0.05)


def test_what_is_left_is_positive_and_its_norm_is_below_the_bound() -> None:
    values = spiked(500, 60, seed=1)
    exact = np.cov(values.T)
    found = sketched(values, 30, 30)
    held = (found.directions.T * found.eigenvalues) @ found.directions
    left = np.linalg.eigvalsh(exact - held)
    assert left.min() > -1e-8
    assert left.max() <= found.error
    assert found.error == pytest.approx(np.trace(exact - held))


def test_directions_and_diagonal_keep_every_variance() -> None:
    values = spiked(500, 60, seed=2)
    found = sketched(values, 32, 8)
    whole = (found.directions.T**2 @ found.eigenvalues) + found.rest
    np.testing.assert_allclose(whole, values.var(axis=0, ddof=1), rtol=1e-9)
    np.testing.assert_allclose(found.directions @ found.directions.T, np.eye(8), atol=1e-10)


def test_a_covariance_of_low_rank_is_exact() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(200, 4)) @ rng.normal(size=(4, 100))
    exact = np.linalg.eigvalsh(np.cov(values.T))[::-1]
    found = sketched(values, 16, 6)
    np.testing.assert_allclose(found.eigenvalues[:4], exact[:4], rtol=1e-8)
    np.testing.assert_allclose(found.eigenvalues[4:], 0, atol=1e-6)
    assert found.error < 1e-6 * exact.sum()


@given(cuts=st.lists(st.integers(0, 80), max_size=8).map(sorted), reverse=st.booleans())
def test_any_split_and_order_give_the_same(cuts: list[int], reverse: bool) -> None:
    values = spiked(80, 20, seed=4) + 1e4
    parts = []
    for piece in np.split(values, cuts):
        parts.append(RunningSketch(omega(20, 8)))
        parts[-1].add(piece)
    state = RunningSketch(omega(20, 8))
    for part in reversed(parts) if reverse else parts:
        state.merge(part)
    whole = RunningSketch(omega(20, 8))
    whole.add(values)
    assert state.count == 80
    np.testing.assert_allclose(state.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(state.variance, whole.variance, rtol=1e-9)
    np.testing.assert_allclose(state.product, whole.product, rtol=1e-9, atol=1e-9 * np.abs(whole.product).max())


def test_moments_hold_a_sketch_where_they_are_told_to() -> None:
    model = TinyModel(TinyParameters(d_model=40), dtype="float64")
    parameters = MomentsParameters(sketch=16, keep=4, principal=2, robust=True)
    result = check_stream(MOMENTS, parameters, model=model, rtol=1e-6)
    check_round_trip(result)
    assert "covariance" not in result
    assert "effective_rank" not in result
    assert "need the whole covariance" in result.attrs["sketch"]
    whole = check_stream(MOMENTS, MomentsParameters(keep=4, robust=True), model=model, rtol=1e-6)
    for prefix in ("", "robust_"):
        np.testing.assert_allclose(result[f"{prefix}trace"], whole[f"{prefix}trace"], rtol=1e-9)
        assert (result[f"{prefix}spectrum"] <= whole[f"{prefix}spectrum"] + 1e-9).all()
        error = result[f"{prefix}sketch_error"]
        assert (whole[f"{prefix}spectrum"] <= result[f"{prefix}spectrum"] + error + 1e-9).all()


def test_a_sketch_wider_than_the_site_is_the_whole_covariance() -> None:
    analysis = Moments(MomentsParameters(sketch=32, tokens="all"), Context(TinyModel().info, 0))
    analysis.update(batch("resid_pre", np.random.default_rng(5).normal(size=(1, 50, 16))))
    assert "covariance" in analysis.result()


def test_what_4096_by_32_layers_would_need_is_told() -> None:
    info = TinyModel(TinyParameters(layers=32, d_model=4096, d_head=128, heads=32, kv_heads=8)).info
    whole = estimate(MomentsParameters(), info, None)
    assert whole.memory == 2 * 32 * 8 * 4096**2  # 8.6 GB
    assert estimate(MomentsParameters(sketch=256), info, None).memory == whole.memory / 16


@pytest.mark.parametrize(
    ("parameters", "words"),
    [({"site": "q", "sketch": 64}, "split into heads"), ({"sketch": 16}, "cannot give 32 directions")],
)
def test_sketches_that_cannot_be_are_refused(parameters: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        MomentsParameters(**parameters)
