"""The laws of noise, one matrix or a product of two: against their S-transforms, closed forms and simulation.

Let A be p x q Gaussian with p <= q, c = p/q, mean squared singular value 1. The squared singular values of a product of
m such matrices that share the side p (A_1 A_2^T, written as cores) have the S-transform (1 + c z)^-m: free
multiplication multiplies S-transforms (Voiculescu 1987; m = 1 is Marchenko and Pastur 1967). With w(t) the moment
generating function at t = 1/x that is

    t (1 + w) (1 + c w)^m = w,    density f(x) = |Im w| / (pi x)

between x(w-) and x(w+), where x(w) = (1 + w)(1 + c w)^m / w has its extrema, m c w^2 + (m - 1) c w - 1 = 0.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens.maths.laws import Law, MarchenkoPastur, Product

LONG = 1000
short_sides = st.integers(10, LONG)


def law_of(p: int, q: int, factors: int) -> Law:
    """Of p x q noise, or of a product of two that share the side p; mean squared singular value 1."""
    return MarchenkoPastur(p, q, 1 / q) if factors == 1 else Product(q, p, q, 1 / q**2)


def edges(c: float, factors: int) -> tuple[float, float]:
    m = factors
    root = np.sqrt(((m - 1) * c) ** 2 + 4 * m * c)
    ends = (-(m - 1) * c - root) / (2 * m * c), (-(m - 1) * c + root) / (2 * m * c)
    low, high = (float((1 + w) * (1 + c * w) ** m / w) for w in ends)
    return max(low, 0.0), high


def density(x: np.ndarray, c: float, factors: int) -> np.ndarray:
    product = np.array([1.0, 1.0])
    for _ in range(factors):
        product = np.convolve(product, [1.0, c])
    found = []
    for t in 1 / x:
        coefficients = t * product
        coefficients[1] -= 1
        found.append(np.abs(np.roots(coefficients[::-1]).imag).max() * t / np.pi)
    return np.array(found)


def expected(law: Law, count: int) -> np.ndarray:
    """So many squared singular values as the law expects, largest first."""
    return law.quantiles((np.arange(count, 0, -1) - 0.5) / count)


@given(p=short_sides)
def test_one_matrix_is_marchenko_and_pastur(p: int) -> None:
    c = p / LONG
    law = law_of(p, LONG, 1)
    a, b = law.edges
    assert a == pytest.approx((1 - np.sqrt(c)) ** 2, abs=1e-12)
    assert b == pytest.approx((1 + np.sqrt(c)) ** 2)
    x = a + (b - a) * np.linspace(0.02, 0.98, 25)
    closed = np.sqrt((b - x) * (x - a)) / (2 * np.pi * c * x)
    np.testing.assert_allclose(law.density(x), closed, rtol=1e-6)
    np.testing.assert_allclose(density(x, c, 1), closed, rtol=1e-6)


@pytest.mark.parametrize("factors", [1, 2])
@given(p=short_sides)
def test_the_transforms_give_the_same_edges_and_densities(factors: int, p: int) -> None:
    c = p / LONG
    law = law_of(p, LONG, factors)
    a, b = edges(c, factors)
    np.testing.assert_allclose(law.edges, (a, b), rtol=1e-6, atol=1e-9)
    x = a + (b - a) * np.linspace(0.05, 0.95, 19)
    # Of a product the law is tabulated, in 4096 steps.
    np.testing.assert_allclose(law.density(x), density(x, c, factors), rtol=1e-6 if factors == 1 else 1e-4)


@pytest.mark.parametrize("factors", [1, 2])
@given(p=short_sides)
def test_it_is_a_distribution_of_mean_one(factors: int, p: int) -> None:
    law = law_of(p, LONG, factors)
    squared = expected(law, 2000)
    a, b = law.edges
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
    assert gap(np.concatenate(found), expected(law_of(h, d, 2), 2000)) < 0.01 + 1 / h
    assert gap(np.concatenate(found), expected(law_of(h, d, 1), 2000)) > 0.1 * np.sqrt(h / d)


@pytest.mark.parametrize("shape", [(400, 100), (200, 200), (30, 300)])
def test_one_gaussian_matrix_has_the_law(shape: tuple[int, int]) -> None:
    n, m = shape
    p, q = min(shape), max(shape)
    A = np.random.default_rng(1).normal(size=(n, m)) / np.sqrt(q)
    found = np.linalg.svd(A, compute_uv=False) ** 2
    assert np.abs(found - MarchenkoPastur(n, m, 1 / q).typical()).mean() < 3 / p + 0.01
