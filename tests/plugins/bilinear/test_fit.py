"""Fitting noise: no spikes where there is none, all that were planted, the right variance, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from gausslens.maths.laws import MarchenkoPastur, tracy_widom_level
from gausslens.maths.spectra import product_squared_singular_values, squared_singular_values
from gausslens_bilinear.maths.noise_fit import NoSpectrum, bulk, bulk_if_any
from gausslens_bilinear.maths.tail import power_law

SHAPES = [(50, 1000), (1000, 50), (100, 500), (200, 400), (300, 300), (64, 576)]
PRODUCTS = [(576, 64, 576), (576, 64, 192), (200, 100, 150), (64, 64, 64)]
# Planted values, as multiples of the upper edge of the noise: 1.2 is where they are seen, not what was put in.
PLANTED = [[1.2], [1.2, 1.5, 2, 10, 100, 1000], [1000, 1000, 1000], list(np.geomspace(1.2, 1000, 12))]


def spiked(rng: np.random.Generator, rows: int, columns: int, multiples: list[float]) -> np.ndarray:
    """Unit noise with singular directions planted so that their squared values come out at these multiples of b.

    A planted theta^2 comes out at (theta^2 + n)(theta^2 + m)/theta^2 (Benaych-Georges and Nadakuditi 2012).
    """
    seen = np.array(multiples) * MarchenkoPastur(rows, columns, 1.0).edges[1]
    half = (seen - rows - columns) / 2
    theta = np.sqrt(half + np.sqrt(half**2 - rows * columns))
    u, v = (np.linalg.qr(rng.normal(size=(n, len(seen))))[0] for n in (rows, columns))
    return rng.normal(size=(rows, columns)) + (u * theta) @ v.T


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_noise_has_no_spikes(rows: int, columns: int) -> None:
    rng, draws, s2 = np.random.default_rng(rows), 20, 0.04
    found = [bulk(squared_singular_values(rng.normal(0, 0.2, (rows, columns))), rows, columns) for _ in range(draws)]
    counts = np.array([len(f.spikes) for f in found])
    assert counts.max() <= 1
    # One matrix in a hundred may have one: 3 of 20 would be 6 standard deviations.
    assert counts.sum() <= 2
    assert all(f.accepted for f in found)
    # The sum of n m squares has a relative spread of sqrt(2/(n m)).
    errors = np.array([f.variance / s2 - 1 for f in found])
    assert np.abs(errors).max() < 4 * np.sqrt(2 / (rows * columns))


@pytest.mark.parametrize(("rows", "inner", "columns"), PRODUCTS)
def test_products_of_noise_have_no_spikes(rows: int, inner: int, columns: int) -> None:
    rng, draws = np.random.default_rng(inner), 20
    counts, accepted, errors = [], [], []
    for _ in range(draws):
        A, B = rng.normal(0, 0.5, (rows, inner)), rng.normal(0, 2, (columns, inner))
        found = bulk(product_squared_singular_values(A, B), rows, columns, inner=inner)
        counts.append(len(found.spikes))
        accepted.append(found.accepted)
        errors.append(found.variance - 1)
    assert max(counts) <= 1
    assert sum(counts) <= 2
    assert all(accepted)
    assert abs(np.mean(errors)) < 4 * np.std(errors) / np.sqrt(draws) + 1e-3


@pytest.mark.parametrize("multiples", PLANTED, ids=len)
@pytest.mark.parametrize(("rows", "columns"), [(100, 2000), (400, 800), (500, 500)])
def test_planted_spikes_are_found_and_change_nothing_else(rows: int, columns: int, multiples: list[float]) -> None:
    rng = np.random.default_rng(len(multiples))
    found = bulk(squared_singular_values(spiked(rng, rows, columns, multiples)), rows, columns)
    assert abs(len(found.spikes) - len(multiples)) <= 1
    seen = np.sort(multiples)[::-1] * MarchenkoPastur(rows, columns, 1.0).edges[1]
    np.testing.assert_allclose(found.spikes[: len(seen)], seen[: len(found.spikes)], rtol=0.15)
    assert abs(found.variance - 1) < 0.01
    assert found.accepted
    assert found.spikes.min() > found.level > found.edges[1]


def test_planted_spikes_of_a_product() -> None:
    rng, (rows, inner, columns) = np.random.default_rng(0), (576, 64, 576)
    A, B = rng.normal(size=(rows, inner)), rng.normal(size=(columns, inner))
    A[:, :3] *= 6
    found = bulk(product_squared_singular_values(A, B), rows, columns, inner=inner)
    assert len(found.spikes) == 3
    assert found.accepted
    assert found.variance == pytest.approx(1, rel=0.05)


def test_repeated_and_fused_noise_is_signal_only_to_those_who_take_it_for_one_matrix() -> None:
    """The true tensors of grouped and of fused attention have no spikes; repeated or fused together, they seem to."""
    rng = np.random.default_rng(3)
    d, d_head, kv_heads, repeats = 448, 32, 2, 7
    keys = rng.normal(size=(d, kv_heads * d_head))
    assert len(bulk(squared_singular_values(keys), *keys.shape).spikes) <= 1
    repeated = np.repeat(keys.reshape(d, kv_heads, d_head), repeats, axis=1).reshape(d, -1)
    naive = MarchenkoPastur(*repeated.shape, repeated.var())
    assert (squared_singular_values(repeated) > naive.level()).sum() > 50
    with pytest.raises(NoSpectrum, match="half of the singular values"):
        bulk(np.where(np.arange(d) < 64, squared_singular_values(repeated), 0.0), *repeated.shape)
    q, k, v = 2 * rng.normal(size=(d, d)), 2 * rng.normal(size=(d, d)), rng.normal(size=(d, d))
    assert all(len(bulk(squared_singular_values(X), d, d).spikes) <= 1 for X in (q, k, v))
    fused = np.concatenate([q, k, v], axis=1)
    assert (squared_singular_values(fused) > MarchenkoPastur(d, 3 * d, fused.var()).level()).sum() > 4


def test_a_spectrum_without_a_bulk_is_refused() -> None:
    rng = np.random.default_rng(0)
    heavy = squared_singular_values(rng.standard_cauchy(size=(200, 300)))
    assert not bulk(heavy, 200, 300).accepted
    flat = np.ones(200)
    assert not bulk(flat, 200, 300).accepted
    correlated = squared_singular_values(rng.normal(size=(200, 300)) * np.linspace(0.1, 2, 300))
    assert not bulk(correlated, 200, 300).accepted
    # The scale of a spectrum changes nothing; the shape it is said to be of does.
    noise = squared_singular_values(rng.normal(size=(200, 300)))
    assert bulk(noise * 1e-12, 200, 300).accepted
    assert not bulk(noise, 200, 3000).accepted


@pytest.mark.parametrize(("rows", "columns"), [(10, 10), (16, 192), (40, 120), (20, 400)])
def test_the_rate_of_false_spikes_is_at_most_what_is_said(rows: int, columns: int) -> None:
    """At rate 0.1, binomial, 4 standard deviations; small matrices have fewer, for their largest is in the sum too."""
    rng, draws, rate = np.random.default_rng(0), 400, 0.1
    values = squared_singular_values(rng.normal(size=(draws, rows, columns)))
    spikes = np.array([len(bulk(one, rows, columns, rate=rate).spikes) > 0 for one in values])
    assert spikes.mean() < rate + 4 * np.sqrt(rate * (1 - rate) / draws)
    # With the variance known, the level itself has the rate: the law of Tracy and Widom, whatever the size.
    known = values[:, 0] > MarchenkoPastur(rows, columns, 1.0).level(rate)
    assert abs(known.mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / draws)


def test_many_equal_spikes_do_not_hide_each_other() -> None:
    rng, (rows, columns) = np.random.default_rng(0), (200, 300)
    found = bulk(squared_singular_values(spiked(rng, rows, columns, [6.0] * 60)), rows, columns)
    assert len(found.spikes) == 60
    assert found.accepted


@pytest.mark.parametrize(
    ("values", "rows", "columns", "words"),
    [(np.ones(3), 4, 5, "has 4 singular values"), (np.zeros(4), 4, 5, "no bulk"), ([1, np.nan, 1, 1], 4, 5, "no bulk")],
)
def test_what_cannot_be_fitted_is_refused(values: np.ndarray, rows: int, columns: int, words: str) -> None:
    with pytest.raises(NoSpectrum, match=words):
        bulk(values, rows, columns)


@pytest.mark.parametrize(("rate", "quantile"), [(0.1, 0.4501), (0.05, 0.9793), (0.01, 2.0234), (0.001, 3.2724)])
def test_tracy_widom(rate: float, quantile: float) -> None:
    assert float(tracy_widom_level(rate)) == pytest.approx(quantile, abs=0.03)
    with pytest.raises(ValueError, match="between 0 and 1"):
        tracy_widom_level(rate + 1)


@pytest.mark.parametrize("alpha", [1.5, 2.5, 4.0])
def test_a_power_law_is_recovered(alpha: float) -> None:
    n = 4000
    x = (1 - np.random.default_rng(0).random(n)) ** (-1 / (alpha - 1))
    mixed = np.concatenate([x[x > 2], np.random.default_rng(1).uniform(0.5, 2, n)])
    for values, least in ((x, 1.0), (mixed, 2.0)):
        found = power_law(values)
        assert found.alpha == pytest.approx(alpha, abs=4 * (alpha - 1) / np.sqrt(found.count))
        assert found.distance < 0.05
        assert found.least >= least * 0.9


def test_a_power_law_fit_is_the_best_of_all_starts() -> None:
    x = np.sort(np.random.default_rng(2).lognormal(size=60))
    fits = []
    for i in range(len(x) - 1):
        tail = x[i:]
        alpha = 1 + len(tail) / np.log(tail / tail[0]).sum()
        gap = np.abs(1 - (tail / tail[0]) ** (1 - alpha) - np.arange(len(tail)) / len(tail)).max()
        fits.append((gap, alpha, tail[0], len(tail)))
    found = power_law(x)
    np.testing.assert_allclose((found.distance, found.alpha, found.least, found.count), min(fits), rtol=1e-9)


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0, 2.0], [0.0, -1.0]])
def test_no_tail(values: list[float]) -> None:
    assert np.isnan(power_law(values).alpha)


@pytest.mark.parametrize("size", [2, 3, 8, 16, 17])
def test_matrices_that_hold_zeros_are_fitted_or_refused(size: int) -> None:
    """As a permuted diagonal: where more than half of the values are 0 there is no bulk, where few are there is one."""
    rng = np.random.default_rng(0)
    for zeros in range(size + 1):
        values = np.r_[rng.random(size - zeros) + 0.1, np.zeros(zeros)]
        for columns in (size, 3 * size):
            if 4 * zeros <= size:
                assert bulk(values, size, columns).variance > 0
            elif 2 * zeros > size:
                with pytest.raises(NoSpectrum):
                    bulk(values, size, columns)
            else:
                fitted = bulk_if_any(values, size, columns)
                assert fitted is None or fitted.variance > 0
