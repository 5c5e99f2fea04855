"""The law of noise: closed forms for one matrix, simulation for products."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens_spectrum.law import density, edges, expected

ratios = st.floats(0.01, 1.0)


@given(c=ratios)
def test_one_matrix_is_marchenko_and_pastur(c: float) -> None:
    a, b = edges(c)
    assert a == pytest.approx((1 - np.sqrt(c)) ** 2, abs=1e-12)
    assert b == pytest.approx((1 + np.sqrt(c)) ** 2)
    x = a + (b - a) * np.linspace(0.02, 0.98, 25)
    closed = np.sqrt((b - x) * (x - a)) / (2 * np.pi * c * x)
    np.testing.assert_allclose(density(x, c), closed, rtol=1e-6)


@pytest.mark.parametrize("factors", [1, 2])
@given(c=ratios)
def test_it_is_a_distribution_of_mean_one(factors: int, c: float) -> None:
    squared = expected(2000, c, factors)
    a, b = edges(c, factors)
    assert (np.diff(squared) <= 0).all()
    assert a <= squared[-1]
    assert squared[0] <= b
    # The quantiles' mean falls short of the mean by what lies beyond the outer ones.
    assert squared.mean() == pytest.approx(1.0, abs=4e-3)


def gap(found: np.ndarray, law: np.ndarray) -> float:
    """Kolmogorov's distance between values and the quantiles of a law."""
    at = np.sort(np.concatenate([found, law]))
    shares = (np.searchsorted(np.sort(x), at, side="right") / len(x) for x in (found, law))
    return float(np.abs(np.subtract(*shares)).max())


@pytest.mark.parametrize(("d", "h"), [(400, 100), (300, 200), (256, 16)])
def test_a_product_of_two_gaussian_matrices_has_the_law(d: int, h: int) -> None:
    draw = np.random.default_rng(0)
    found = []
    for _ in range(10):
        A, B = (draw.normal(size=(d, h)) / np.sqrt(d) for _ in range(2))
        found.append(np.linalg.svd(A @ B.T, compute_uv=False)[:h] ** 2)
    # Eigenvalues are rigid: the distance falls as 1/h, not as the root of their number.
    law = expected(2000, h / d, 2)
    assert gap(np.concatenate(found), law) < 0.01 + 1 / h
    assert gap(np.concatenate(found), expected(2000, h / d, 1)) > 0.1 * np.sqrt(h / d)


@pytest.mark.parametrize("shape", [(400, 100), (200, 200), (30, 300)])
def test_one_gaussian_matrix_has_the_law(shape: tuple[int, int]) -> None:
    n, m = shape
    p, q = min(shape), max(shape)
    A = np.random.default_rng(1).normal(size=(n, m)) / np.sqrt(q)
    found = np.linalg.svd(A, compute_uv=False) ** 2
    assert np.abs(found - expected(p, p / q)).mean() < 3 / p + 0.01
