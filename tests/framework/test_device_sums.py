"""Sums of what lies on a device, with float64 and without: on data whose mean is large beside its spread, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from other_device import COPIES, OnDevice

from gausslens.maths.moments import RunningMoments
from gausslens.maths.on_device import Vectors, entropy_and_deficit
from gausslens.maths.on_device.two_floats import on_host, squared, summed, two_product, two_sum

# Mean and spread of what is summed: an activation that is large everywhere, and one that is not.
SPREADS = [(0.0, 1.0), (1e3, 1e-2), (1e6, 0.5), (-300.0, 40.0)]


@pytest.fixture(params=[True, False], ids=["float64", "no float64"])
def float64(request: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    COPIES.of.clear()
    monkeypatch.setattr(COPIES, "float64", request.param)
    return bool(request.param)


def drawn(mean: float, sd: float, shape: tuple[int, ...] = (3, 1000, 24)) -> np.ndarray:
    made = np.random.default_rng([7, int(abs(mean))]).standard_normal(shape)
    return (mean + sd * made * np.linspace(0.1, 1, shape[-1])).astype(np.float32)


def vectors(x: np.ndarray) -> Vectors:
    return Vectors(OnDevice.of(torch.from_numpy(x), "site"))


@pytest.mark.parametrize(("mean", "sd"), SPREADS)
def test_moments_are_those_of_double_precision_however_large_the_mean(float64: bool, mean: float, sd: float) -> None:
    x = drawn(mean, sd)
    here, there = RunningMoments(), RunningMoments()
    for part in np.split(x, [100, 101, 700], axis=1):
        here.add(part)
        there.add(vectors(part))
    spread = np.sqrt(np.einsum("hii->hi", here.scatter))
    apart = np.abs(there.scatter - here.scatter) / (spread[:, :, None] * spread[:, None, :])
    # Without float64 the bound is 1.5e-5, and roundings cancel.
    assert apart.max() < (1e-12 if float64 else 3e-6)
    assert (np.abs(there.mean - here.mean) / sd).max() < (1e-12 * max(1, abs(mean) / sd) if float64 else 1e-7)
    assert there.count == here.count == 1000
    assert "site" not in COPIES.of


def test_plain_float32_would_not_do() -> None:
    """The test above can fail: sums of squares in float32, as one would write them, are wrong there."""
    x = drawn(1e6, 0.5)[0]
    wanted = np.cov(x.T.astype(np.float64))
    tensor = torch.from_numpy(x)
    centred = tensor - tensor.mean(0)
    naive = (centred.T @ centred / (len(x) - 1)).numpy()
    assert np.abs(naive - wanted).max() / np.abs(wanted).max() > 1e-3


@pytest.mark.parametrize(("mean", "sd"), SPREADS)
def test_lengths_and_powers_are_those_of_double_precision(float64: bool, mean: float, sd: float) -> None:
    x = drawn(mean, sd)
    exact, there = x.astype(np.float64), vectors(x)
    np.testing.assert_allclose(there.lengths(), np.linalg.norm(exact, axis=-1), rtol=1e-12)
    centre = exact.mean(axis=-2)
    about = np.linalg.norm(exact - centre[:, None], axis=-1)
    np.testing.assert_allclose(there.lengths(centre[:, None]), about, rtol=1e-12 if float64 else 1e-8)
    directions = np.random.default_rng(3).standard_normal((5, 24))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    along = (exact - centre[:, None]) @ directions.T
    along -= along.mean(axis=-2, keepdims=True)
    found, powers = there.powers(directions)
    assert np.abs(found - (exact @ directions.T).mean(axis=-2)).max() < sd * (1e-7 if not float64 else 1e-12 + 1e-7)
    for power in (2, 3, 4):
        sums, sizes = (along**power).sum(axis=-2), (np.abs(along) ** power).sum(axis=-2)
        assert (np.abs(powers[power - 2] - sums) / sizes).max() < (1e-7 if float64 else 1e-6)
    assert np.abs(there.along(directions) - exact @ directions.T).max() < 3e-6 * sd
    assert "site" not in COPIES.of


def test_rows_of_attention_keep_their_entropy(float64: bool) -> None:
    scores = np.random.default_rng(5).standard_normal((4, 60, 60)).astype(np.float32) * 3
    behind = np.tril(np.ones((60, 60), dtype=bool))
    rows = torch.softmax(torch.from_numpy(np.where(behind, scores, -np.inf).astype(np.float32)), dim=-1)
    even = (behind / behind.sum(axis=1, keepdims=True)).astype(np.float32)
    p, u = rows.double().numpy(), even.astype(np.float64)
    kept = p > 0
    logs = np.log(np.where(kept, p, 1.0))
    entropy = -(p * logs).sum(-1)
    deficit = (p * np.where(kept, logs - np.log(np.where(behind, u, 1.0)), 0.0)).sum(-1)
    there = OnDevice.of(rows, "pattern")
    wide = there.double() if float64 else there
    found = entropy_and_deficit(wide, wide.new_tensor(even))
    tolerance = 1e-13 if float64 else 5e-7
    np.testing.assert_allclose(found[0], entropy, atol=tolerance, rtol=0)
    np.testing.assert_allclose(found[1], deficit, atol=tolerance, rtol=0)
    assert "pattern" not in COPIES.of


NUMBERS = st.floats(-1e6, 1e6, width=32).filter(lambda x: x == 0 or abs(x) > 1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=40))
def test_pairs_lose_nothing(pairs: list[tuple[float, float]]) -> None:
    a, b = torch.tensor(pairs, dtype=torch.float32).T
    exact = a.double().numpy(), b.double().numpy()
    np.testing.assert_array_equal(on_host(two_sum(a, b)), exact[0] + exact[1])
    np.testing.assert_array_equal(on_host(two_product(a, b)), exact[0] * exact[1])
    total, size = on_host(summed(two_sum(a, b), 0)), np.abs(exact).sum()
    assert abs(total - (exact[0] + exact[1]).sum()) <= 1e-13 * size
    both = two_sum(a, b)
    square = on_host(both).astype(np.float64) ** 2
    np.testing.assert_allclose(on_host(squared(both)), square, rtol=1e-12, atol=1e-25)
