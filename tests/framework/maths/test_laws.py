"""Marchenko and Pastur's law: against its own integral, and against random matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from gausslens.maths.laws import TRACY_WIDOM_MEAN, MarchenkoPastur
from gausslens.maths.spectra import squared_singular_values

SHAPES = [(60, 60), (40, 160), (160, 40), (10, 200), (1, 5), (1, 1), (2, 3)]


def noise(rng: np.random.Generator, draws: int, rows: int, columns: int, s2: float) -> np.ndarray:
    """Squared singular values of ``draws`` Gaussian matrices: [draw, value]."""
    return squared_singular_values(rng.normal(0, np.sqrt(s2), (draws, rows, columns)))


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_the_density_integrates_to_the_distribution(rows: int, columns: int) -> None:
    law = MarchenkoPastur(rows, columns, 0.3)
    a, b = law.edges
    for share in (0.1, 0.5, 0.9, 1.0):
        x = a + share * (b - a)
        # x = a + (b - a) sin^2 t takes the roots at the edges, and a square matrix's pole at 0, out of the integral.
        top = np.arcsin(np.sqrt(share))
        swept, _ = quad(
            lambda t: float(law.density(a + (b - a) * np.sin(t) ** 2)) * (b - a) * np.sin(2 * t), 0, top, limit=200
        )
        assert float(law.distribution(x)) == pytest.approx(swept, abs=1e-7)
    assert float(law.distribution(b)) == pytest.approx(1, abs=1e-12)
    assert float(law.distribution(a)) == pytest.approx(0, abs=1e-12)
    assert float(law.density(b * 1.01)) == 0


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_the_mean_of_the_law_is_that_of_its_density(rows: int, columns: int) -> None:
    law = MarchenkoPastur(rows, columns, 2.0)
    shares = (np.arange(200_000) + 0.5) / 200_000
    assert float(law.quantiles(shares).mean()) == pytest.approx(law.mean, rel=1e-4)


@given(rows=st.integers(1, 500), columns=st.integers(1, 500), s2=st.floats(1e-6, 1e6), share=st.floats(0, 1))
def test_quantiles_undo_the_distribution(rows: int, columns: int, s2: float, share: float) -> None:
    law = MarchenkoPastur(rows, columns, s2)
    x = float(law.quantiles(share))
    assert law.edges[0] <= x <= law.edges[1]
    assert float(law.distribution(x)) == pytest.approx(share, abs=1e-6)


@given(rows=st.integers(1, 500), columns=st.integers(1, 500), s2=st.floats(1e-6, 1e6))
def test_a_transposed_matrix_has_the_same_law(rows: int, columns: int, s2: float) -> None:
    one, other = MarchenkoPastur(rows, columns, s2), MarchenkoPastur(columns, rows, s2)
    assert one.edges == other.edges
    assert one.largest == other.largest


def test_edges_follow_the_shape_and_not_the_square_baseline() -> None:
    law = MarchenkoPastur(1024, 4096, 2 / (1024 + 4096))
    assert law.edges == pytest.approx((0.4, 3.6))
    assert law.mean == pytest.approx(1.6)
    assert law.mean * law.small == pytest.approx(1638.4)
    # The square formulas 4 n s2 and n s2, as published, are elsewhere.
    assert abs(4 * 1024 * law.variance - law.edges[1]) > 1


@pytest.mark.parametrize(("rows", "columns"), [(200, 200), (80, 320), (320, 80)])
def test_noise_follows_the_law(rows: int, columns: int) -> None:
    s2, draws = 0.01, 8
    values = noise(np.random.default_rng(0), draws, rows, columns, s2)
    law = MarchenkoPastur(rows, columns, s2)
    # Singular values repel: their distribution is off by O(1 / p), far below the 1.36 / sqrt(p) of independent values.
    assert law.distance(values.ravel()) < 1.5 / law.small
    # Sum of squares: mean n m s2, variance 2 n m s2^2 (exact).
    sums = values.sum(axis=1)
    assert abs(sums.mean() - rows * columns * s2) < 3 * np.sqrt(2 * rows * columns / draws) * s2
    # Other laws are refused: another shape, another variance.
    assert MarchenkoPastur(rows, 2 * columns, s2).distance(values.ravel()) > 0.1
    assert MarchenkoPastur(rows, columns, 1.5 * s2).distance(values.ravel()) > 0.1


@pytest.mark.parametrize(("rows", "columns"), [(60, 60), (40, 160), (100, 150)])
def test_the_largest_value_of_noise_is_tracy_widoms(rows: int, columns: int) -> None:
    s2, draws = 0.5, 1000
    largest = noise(np.random.default_rng(1), draws, rows, columns, s2)[:, 0]
    law = MarchenkoPastur(rows, columns, s2)
    centre, sd = law.largest
    # Convergence to the limit is O(p^(-2/3)) of its own spread; 0.15 sd covers it at these sizes, 3 errors the draws.
    assert abs(largest.mean() - centre) < 3 * sd / np.sqrt(draws) + 0.15 * sd
    assert largest.std() == pytest.approx(sd, rel=0.12)
    # The bare edge, 4 n s2 in the square case, is too high by more than a standard deviation less noise.
    assert law.edges[1] - largest.mean() > 0.6 * sd
    # Noise goes beyond the level once in a hundred: binomial, sd 0.31 %.
    beyond = (largest > law.level()).mean()
    assert 0 < beyond < 0.01 + 3 * np.sqrt(0.01 * 0.99 / draws)


@pytest.mark.parametrize(("n", "wanted"), [(30, 3.620), (100, 3.839), (300, 3.926)])
def test_the_edge_correction_of_square_matrices(n: int, wanted: float) -> None:
    """Relative to the edge 4 n s2 it is -.76 n^(-2/3) to first order."""
    found = MarchenkoPastur(n, n, 1 / n).largest[0]
    assert found == pytest.approx(wanted, abs=1e-3)
    assert abs(found / 4 - (1 - 0.76 * n ** (-2 / 3))) < 0.6 / n
    assert pytest.approx(0.76, abs=0.001) == -TRACY_WIDOM_MEAN * 2 ** (4 / 3) / 4


def test_typical_values_are_as_many_as_there_are_and_sorted() -> None:
    law = MarchenkoPastur(7, 30, 1.0)
    values = law.typical()
    assert len(values) == 7
    assert np.all(np.diff(values) < 0)
    assert law.distance(values) == pytest.approx(0.5 / 7, abs=1e-9)


def test_planted_values_stand_beyond_the_level() -> None:
    rng = np.random.default_rng(2)
    A = rng.normal(size=(100, 300))
    u, v = (np.linalg.qr(rng.normal(size=(n, 3)))[0] for n in (100, 300))
    law = MarchenkoPastur(100, 300, 1.0)
    planted = A + 2.0 * np.sqrt(law.edges[1]) * u @ v.T
    assert (squared_singular_values(planted) > law.level()).sum() == 3
    assert (squared_singular_values(A) > law.level()).sum() == 0


@pytest.mark.parametrize(
    ("rows", "columns", "s2", "words"),
    [(0, 3, 1.0, "0 x 3"), (3, 3, 0.0, "positive"), (3, 3, -1.0, "positive"), (3, 3, float("nan"), "positive")],
)
def test_what_has_no_law_is_refused(rows: int, columns: int, s2: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MarchenkoPastur(rows, columns, s2)


def test_a_share_is_between_0_and_1() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        MarchenkoPastur(3, 3, 1.0).quantiles([0.5, 1.1])
