"""Information from samples: the bias that is subtracted, the interval, the permutation null, and the refusal."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest

from gausslens_gaussian.maths.information import entropy, mutual_information
from gausslens_gaussian.maths.information_from_samples import (
    TooFewSamples,
    entropy_bias,
    information_bias,
    information_of_samples,
    log_det_bias,
    log_det_variance,
    needed,
)


def pairs(
    rng: np.random.Generator, n: int, dx: int, dy: int, correlations: list[float]
) -> tuple[np.ndarray, np.ndarray, float]:
    """Samples with these canonical correlations, seen through random maps, and their true mutual information."""
    rho = np.zeros(min(dx, dy))
    rho[: len(correlations)] = correlations
    x, y = rng.standard_normal((n, dx)), rng.standard_normal((n, dy))
    y[:, : len(rho)] = rho * x[:, : len(rho)] + np.sqrt(1 - rho**2) * y[:, : len(rho)]
    Lx, Ly = (rng.standard_normal((d, d)) + 3 * np.eye(d) for d in (dx, dy))
    return x @ Lx + 5.0, y @ Ly - 2.0, float(-0.5 * np.log1p(-(rho**2)).sum())


@pytest.mark.parametrize(("n", "d"), [(10, 4), (100, 8), (40, 30)])
def test_the_bias_and_spread_of_a_log_determinant_are_exact(n: int, d: int) -> None:
    rng = np.random.default_rng(0)
    found = [np.linalg.slogdet(np.cov(rng.standard_normal((n, d)).T))[1] for _ in range(4000)]
    sd = np.sqrt(log_det_variance(n, d))
    assert abs(np.mean(found) - log_det_bias(n, d)) < 3 * sd / np.sqrt(4000)
    # The variance of a variance of near-normal numbers: 2 / n; three standard errors, and a little for the tails.
    assert np.var(found) == pytest.approx(sd**2, rel=4 * np.sqrt(2 / 4000))


def test_the_bias_does_not_depend_on_the_covariance() -> None:
    rng = np.random.default_rng(1)
    L = rng.normal(size=(5, 5))
    true = entropy(L @ L.T)
    found = [entropy(np.cov((rng.standard_normal((12, 5)) @ L.T).T)) for _ in range(4000)]
    assert abs(np.mean(found) - entropy_bias(12, 5) - true) < 3 * np.std(found) / np.sqrt(4000)
    assert abs(np.mean(found) - true) > 30 * np.std(found) / np.sqrt(4000)


def test_with_no_more_samples_than_dimensions_there_is_no_correction() -> None:
    assert log_det_bias(5, 5) == -np.inf
    assert log_det_variance(5, 5) == np.inf
    assert information_bias(5, 2, 3) == np.inf
    assert np.isfinite(information_bias(6, 2, 3))


def test_independent_64_and_64_dimensions_at_1024_samples_have_none() -> None:
    """Plugged in, they have 2.1 nats of each other."""
    rng = np.random.default_rng(2)
    x, y, _ = pairs(rng, 1024, 64, 64, [])
    found = information_of_samples(x, y)
    assert abs(found.value) < 2 * found.standard_error
    assert found.low < 0 < found.high
    assert found.plugin == pytest.approx(information_bias(1024, 64, 64), abs=2 * found.standard_error)
    assert 2.0 < found.plugin < 2.3


def test_the_plug_in_value_is_that_of_the_sample_covariance() -> None:
    x, y, _ = pairs(np.random.default_rng(3), 60, 3, 2, [0.8])
    assert information_of_samples(x, y).plugin == pytest.approx(
        mutual_information(np.cov(np.hstack([x, y]).T), 3), rel=1e-9
    )


@pytest.mark.parametrize(
    ("n", "dx", "dy", "correlations"),
    [
        (256, 8, 8, []),
        (64, 8, 8, []),
        (512, 4, 4, []),
        (256, 8, 8, [0.2] * 8),
        (256, 8, 8, [0.5] * 8),
        (100, 2, 2, [0.5, 0.3]),
        (256, 8, 8, [0.9]),
        (64, 8, 8, [0.5] * 8),
        (40, 3, 5, [0.8, 0.2]),
    ],
)
def test_the_interval_covers_what_it_says(n: int, dx: int, dy: int, correlations: list[float]) -> None:
    """93 to 97 % over 2,000 repetitions, of which the standard error is 0.5 %."""
    rng = np.random.default_rng(4)
    inside, off = 0, []
    for _ in range(2000):
        x, y, true = pairs(rng, n, dx, dy, correlations)
        found = information_of_samples(x, y)
        inside += found.low <= true <= found.high
        off.append((found.value - true) / found.standard_error)
    assert 0.93 <= inside / 2000 <= 0.97
    # Unbiased: near independence the standard error follows the estimate, so z is a little skewed; a fifth is ample.
    assert abs(np.mean(off)) < 0.2


@pytest.mark.full
def test_the_interval_covers_at_64_and_64_dimensions() -> None:
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(1000):
        x, y, true = pairs(rng, 1024, 64, 64, [])
        found = information_of_samples(x, y)
        inside += found.low <= true <= found.high
    assert 0.93 <= inside / 1000 <= 0.97


def test_under_independence_p_is_uniform() -> None:
    rng = np.random.default_rng(6)
    p = []
    for _ in range(300):
        x, y, _ = pairs(rng, 40, 2, 3, [])
        p.append(information_of_samples(x**3, y, permutations=19, rng=rng).p)
    # p takes the values 1/20 ... 20/20; smoothed within its steps it is uniform.
    smooth = np.array(p) - rng.random(300) / 20
    assert kstest(smooth, "uniform").pvalue > 0.01


def test_dependence_is_found_by_permutation() -> None:
    x, y, _ = pairs(np.random.default_rng(7), 60, 3, 3, [0.9])
    assert information_of_samples(x, y, permutations=99, rng=np.random.default_rng(8)).p == 1 / 100


def test_too_few_samples_are_refused_with_how_many_are_needed() -> None:
    rng = np.random.default_rng(9)
    assert needed(8, 8) == 33
    with pytest.raises(TooFewSamples, match="8 and 8 dimensions needs 33 samples, not 32"):
        information_of_samples(rng.normal(size=(32, 8)), rng.normal(size=(32, 8)))
    information_of_samples(rng.normal(size=(33, 8)), rng.normal(size=(33, 8)))


def test_a_copy_has_infinite_information() -> None:
    x = np.random.default_rng(10).normal(size=(50, 3))
    found = information_of_samples(x, 2 * x[:, :1] + 1, permutations=9)
    assert found.value == found.low == found.high == np.inf
    assert found.p == 0.1


def test_what_is_constant_says_nothing() -> None:
    x = np.random.default_rng(11).normal(size=(50, 3))
    assert information_of_samples(x, np.ones((50, 2))).value == 0
    padded = np.hstack([x, np.ones((50, 1)), x[:, :1]])
    y = np.random.default_rng(12).normal(size=(50, 2))
    assert information_of_samples(padded, y).value == pytest.approx(information_of_samples(x, y).value, abs=1e-10)
