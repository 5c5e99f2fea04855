"""Random matrices: lengths, sums, gaps and traces against draws, beside the published formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gausslens.maths.laws import MarchenkoPastur
from gausslens_bilinear.maths import random_matrices as traces


def haar(rng: np.random.Generator, n: int, draws: int) -> np.ndarray:
    Q, R = np.linalg.qr(rng.normal(size=(draws, n, n)))
    return Q * np.sign(np.diagonal(R, axis1=1, axis2=2))[:, None, :]


def test_lengths_under_noise(judge: Any, rng: Any) -> None:
    n = 30
    v = rng.normal(size=n)
    mapped = np.linalg.norm(rng.normal(size=(40_000, n, n)) @ (v / np.linalg.norm(v)), axis=1)
    judge.mean(mapped, traces.mapped_length(n, 1.0), n)
    judge.mean(mapped**2, n)
    assert traces.mapped_length(4000, 1 / 4000) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(("rows", "columns"), [(30, 30), (20, 60)])
def test_sums_of_squared_singular_values(rows: int, columns: int, judge: Any, rng: Any) -> None:
    s2 = 1 / rows
    A = rng.normal(0, np.sqrt(s2), (4000, rows, columns))
    values = np.linalg.svd(A, compute_uv=False) ** 2
    mean, variance = traces.sum_of_squares(rows, columns, s2)
    judge.mean(values.sum(axis=1), mean)
    judge.variance(values.sum(axis=1), variance)
    judge.mean((values**2).sum(axis=1), traces.sum_of_fourth_powers(rows, columns, s2))


def test_xavier_has_the_rectangular_law_and_not_the_square(judge: Any, rng: Any) -> None:
    """1024 x 4096, in quarter size: edges 0.4 and 3.6, mean 1.6; as squared singular values, not divided by n."""
    n, m = 256, 1024
    s2 = traces.xavier(n, m)
    values = np.linalg.svd(rng.normal(0, np.sqrt(s2), (n, m)), compute_uv=False) ** 2
    law = MarchenkoPastur(n, m, s2)
    assert law.edges == pytest.approx((0.4, 3.6))
    assert law.distance(values) < 0.02
    assert values.mean() == pytest.approx(1.6, rel=0.01)
    # Published: [0, 4 s2], or [0, 4/n] where s2 = 1/n; both are the law of A A^T / n.
    for edge in (4 * s2, 4 / n):
        assert (values > edge).mean() > 0.99
    A, B = rng.normal(0, np.sqrt(traces.xavier(16, 64)), (2, 20_000, 16, 64))
    judge.variance((A * B).sum(axis=(1, 2)), 0.64, 1.0)


def test_square_singular_values_are_a_quarter_circle(rng: Any) -> None:
    n, s2 = 400, 1 / 400
    values = np.linalg.svd(rng.normal(0, np.sqrt(s2), (n, n)), compute_uv=False)
    at = np.linspace(0, 2, 2001)
    density = traces.quarter_circle(n, s2, at)
    F = np.cumsum(density) * (at[1] - at[0])
    assert F[-1] == pytest.approx(1, abs=1e-3)
    assert np.abs(np.interp(np.sort(values), at, F) - (np.arange(n) + 0.5) / n).max() < 0.01
    # It is the square of it that has the law of Marchenko and Pastur, exactly.
    law = MarchenkoPastur(n, n, s2)
    np.testing.assert_allclose(density[1:-1], 2 * at[1:-1] * law.density(at[1:-1] ** 2), rtol=1e-6, atol=1e-9)
    # Its mean is 8/(3 pi) sqrt(n) sigma, not sqrt(n) sigma.
    assert values.mean() == pytest.approx(traces.QUARTER_CIRCLE_MEAN, abs=0.003)
    # Eigenvalues of symmetric noise are a semicircle.
    S = rng.normal(0, np.sqrt(s2), (n, n))
    eigenvalues = np.linalg.eigvalsh((S + S.T) / np.sqrt(2))
    assert np.abs(eigenvalues).max() == pytest.approx(2, abs=0.06)
    assert (eigenvalues**2).mean() == pytest.approx(1, abs=0.02)


def test_the_smallest_gap(rng: Any) -> None:
    n = 40
    values = np.linalg.svd(rng.normal(size=(400, n, n)), compute_uv=False)
    gaps = -np.diff(values, axis=1).max(axis=1)
    assert gaps.mean() == pytest.approx(traces.smallest_gap(n, 1.0), rel=0.15)


@pytest.mark.parametrize(("rows", "columns"), [(12, 12), (4, 3)])
def test_traces_of_products(rows: int, columns: int, judge: Any, rng: Any) -> None:
    A, B = rng.normal(0, np.sqrt(0.5), (2, 100_000, rows, columns))
    found = (A * B).sum(axis=(1, 2))
    mean, variance, kurtosis = traces.trace_of_product(rows, columns, 0.5, 0.5)
    judge.mean(found, mean)
    judge.variance(found, variance)
    scaled = found / np.sqrt(variance)
    judge.mean(scaled**3, 0.0, np.sqrt(8 / (rows * columns)))  # a chi-squared would be skewed
    judge.mean(scaled**4, 3 + kurtosis)


def test_the_variance_of_a_trace_needs_sums_alone(judge: Any, rng: Any) -> None:
    n, m, draws = 12, 12, 20_000
    a, b = np.sort(rng.uniform(0.1, 3, (2, n)), axis=1)[:, ::-1]
    published = (a**2 * b**2).sum() / n
    for other in (b, b[::-1]):
        U, V = haar(rng, n, draws), haar(rng, m, draws)
        # Tr(A^T B) with A = D_a and B = U D_b V^T
        found = np.einsum("i,dij,j,dij->d", a, U, other, V)
        judge.mean(found, 0.0)
        judge.variance(found, traces.rotated_trace_variance(a**2, other**2, n, m), published)
    # On sorted spectra of untouched noise the published formula gives 2 n^2 s^4, where it must be n^2 s^4.
    values = np.linalg.svd(rng.normal(size=(200, 60, 60)), compute_uv=False) ** 2
    assert (values**2).sum(axis=1).mean() / 60 == pytest.approx(2 * 60**2, rel=0.05)
    assert traces.rotated_trace_variance(values[0], values[1], 60, 60) == pytest.approx(60**2, rel=0.1)


def test_a_trace_under_rotations_of_one_side(judge: Any, rng: Any) -> None:
    C = rng.normal(size=(10, 10))
    found = np.einsum("ij,dji->d", C, haar(rng, 10, 40_000))
    judge.mean(found, 0.0)
    judge.variance(found, traces.rotated_form_variance(np.linalg.svd(C, compute_uv=False) ** 2, 10))


def test_aligned_traces(judge: Any, rng: Any) -> None:
    n = 60
    spectra = np.linalg.svd(rng.normal(size=(2, 40, n, n)), compute_uv=False)
    a, b = spectra
    assert a.mean() / np.sqrt(n) == pytest.approx(traces.QUARTER_CIRCLE_MEAN, abs=0.01)
    W = haar(rng, n, 40)
    turned = np.einsum("di,dij,dj->d", a, W**2, b)
    judge.mean(turned / traces.half_aligned_trace(a, b), 1.0, n**2 / traces.half_aligned_trace(a, b).mean())
    assert (traces.half_aligned_trace(a, b) / n**2).mean() == pytest.approx(0.7205, abs=0.01)
    # The best of all left vectors is above the turned ones and below n^2 s2, which needs the right ones aligned too.
    best = np.array([traces.best_trace(x, y, w) / n**2 for x, y, w in zip(a, b, W, strict=True)])
    assert (best >= turned / n**2 - 1e-12).all()
    assert best.mean() == pytest.approx(0.75, abs=0.02)
    assert traces.best_trace(a[0], b[0], np.eye(n)) / n**2 == pytest.approx(1, abs=0.05)
    # So the trace depends on the right vectors: the unit matrix gives 1, a random turn 0.72.
    assert (a * b).sum(axis=1).mean() / n**2 == pytest.approx(1, abs=0.03)


def test_degrees_of_freedom_and_scaled_lengths() -> None:
    for n in (3, 8):
        assert n**2 == n + 2 * (n * (n - 1) // 2)
    # A sum of squared singular values of n/20 to n/10 scales lengths by .22 to .32, not by a tenth.
    for share in (1 / 20, 1 / 10):
        n = 100
        s = np.full(n, np.sqrt(share))
        v = np.random.default_rng(0).normal(size=(2000, n))
        scaled = np.sqrt((((v * s) ** 2).sum(axis=1) / (v**2).sum(axis=1)).mean())
        assert scaled == pytest.approx(np.sqrt(share), rel=1e-9)
        assert scaled > 0.2
