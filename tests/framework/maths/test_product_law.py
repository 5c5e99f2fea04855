"""The law of a product of two noises: against simulation, against Marchenko and Pastur's, and their misuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens.maths.laws import MarchenkoPastur, Product
from gausslens.maths.spectra import product_squared_singular_values

SHAPES = [(576, 64, 576), (300, 64, 100), (64, 64, 64), (50, 50, 200), (40, 100, 60), (200, 20, 30)]


def noise(rng: np.random.Generator, draws: int, rows: int, inner: int, columns: int, s2: float = 1.0) -> np.ndarray:
    """Squared singular values [draw, p] of products of Gaussian matrices; tall factors by their triangles alone."""
    if inner <= min(rows, columns):
        R, S = (_triangles(rng, draws, size, inner) for size in (rows, columns))
        return product_squared_singular_values(R, S) * s2
    A, B = (rng.normal(size=(draws, size, inner)) for size in (rows, columns))
    return product_squared_singular_values(A, B) * s2


def _triangles(rng: np.random.Generator, draws: int, rows: int, columns: int) -> np.ndarray:
    """R of A = Q R (Bartlett 1933): normal above the diagonal, chi on it."""
    R = np.triu(rng.normal(size=(draws, columns, columns)), 1)
    i = np.arange(columns)
    R[:, i, i] = np.sqrt(rng.chisquare(rows - i, size=(draws, columns)))
    return R


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_of_noise_follow_it(shape: tuple[int, int, int]) -> None:
    draws, s2 = 400, 0.3
    values = noise(np.random.default_rng(0), draws, *shape, s2)
    law = Product(*shape, s2)
    assert values.shape[1] == law.small
    assert law.distance(values.ravel()) < max(0.02, 1.5 / law.small)
    # The sum is exact: n h m s2. Its spread is that of the draws.
    sums = values.sum(axis=1)
    assert abs(sums.mean() - law.mean * law.small) < 4 * sums.std() / np.sqrt(draws)
    centre, sd = law.largest
    assert abs(values[:, 0].mean() - centre) < 4 * sd / np.sqrt(draws) + 0.15 * sd
    assert values[:, 0].std() == pytest.approx(sd, rel=0.25)
    # Noise goes beyond the level once in a hundred: binomial of 400, with room for 4 standard deviations.
    assert (values[:, 0] > law.level()).mean() <= 0.01 + 4 * np.sqrt(0.01 * 0.99 / draws)


def test_by_the_wrong_law_all_of_it_is_signal() -> None:
    """Judged as one matrix of its shape and entry variance, most values of W_Q W_K^T are spikes."""
    rows, inner, columns = 768, 64, 768
    values = noise(np.random.default_rng(1), 1, rows, inner, columns)[0]
    naive = MarchenkoPastur(rows, columns, values.sum() / (rows * columns))
    assert (values > naive.level()).all()
    assert (values > Product(rows, inner, columns, 1.0).level()).sum() <= 1
    # As a matrix of the head's own size it does no better than a few of the 64.
    square = MarchenkoPastur(inner, columns, values.sum() / (inner * columns))
    assert (values > square.level()).sum() >= 3


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_its_density_integrates_to_its_distribution(shape: tuple[int, int, int]) -> None:
    law = Product(*shape, 0.7)
    a, b = law.edges
    # x = a + (b - a) sin^6 t tames the roots at the edges and the pole at 0.
    t = (np.arange(40_000) + 0.5) / 40_000 * np.pi / 2
    x = a + (b - a) * np.sin(t) ** 6
    step = 6 * (b - a) * np.sin(t) ** 5 * np.cos(t) * (np.pi / 2 / len(t))
    F = np.cumsum(law.density(x) * step)
    assert F[-1] == pytest.approx(1, abs=2e-3)
    np.testing.assert_allclose(F, law.distribution(x), atol=2e-3)
    assert (law.density(x) * x * step).sum() == pytest.approx(law.mean, rel=2e-3)


@given(sizes=st.permutations([5, 12, 40]), s2=st.floats(1e-3, 1e3), share=st.floats(0, 1))
def test_the_three_sizes_enter_alike(sizes: list[int], s2: float, share: float) -> None:
    one, other = Product(*sizes, s2), Product(5, 12, 40, s2)
    np.testing.assert_allclose(one.quantiles(share), other.quantiles(share), rtol=1e-12)
    np.testing.assert_allclose(one.largest, other.largest, rtol=1e-9)
    assert one.distribution(one.quantiles(share)) == pytest.approx(share, abs=1e-5)


def test_a_wide_inner_side_leaves_one_matrix() -> None:
    """A B^T / sqrt(h) of inner width h far above both sides is noise of its own: the law of one matrix."""
    law, plain = Product(30, 200_000, 90, 1 / 200_000), MarchenkoPastur(30, 90, 1.0)
    np.testing.assert_allclose(law.edges, plain.edges, rtol=2e-3)
    np.testing.assert_allclose(law.largest, plain.largest, rtol=2e-3)
    x = plain.typical()
    np.testing.assert_allclose(law.distribution(x), plain.distribution(x), atol=2e-3)


@pytest.mark.parametrize(("sizes", "s2", "words"), [((0, 1, 2), 1.0, "0 x 1 x 2"), ((2, 2, 2), -1.0, "positive")])
def test_what_has_no_law_is_refused(sizes: tuple[int, int, int], s2: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Product(*sizes, s2)
