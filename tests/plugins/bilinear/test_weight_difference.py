"""What a difference of weights has in common with its base: planted answers, chance by its exact law, brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens_bilinear.maths.weight_difference import (
    directions,
    nearest,
    of_difference,
    overlap,
    overlap_sd,
    rounding_noise,
    rounding_step,
)

RANKS = (1, 2, 4, 8)


def haar(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    Q, R = np.linalg.qr(rng.normal(size=(n, k)))
    return np.asarray(Q * np.sign(np.diag(R)))


@given(n=st.integers(1, 9), m=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_every_number_by_brute_force(n: int, m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    W, D = rng.normal(size=(n, m)), 0.3 * rng.normal(size=(n, m))
    ranks = (1, 2, 5)
    found = of_difference(W, D, ranks, 0.9)
    (U, s, Vt), (P, _, Qt), (A, _, Bt) = (np.linalg.svd(X, full_matrices=False) for X in (D, W, W + D))
    shares = s**2 / (s**2).sum()
    close = {"rtol": 1e-6, "atol": 1e-9}
    np.testing.assert_allclose(found["relative_norm"], np.linalg.norm(D) / np.linalg.norm(W), **close)
    np.testing.assert_allclose(found["cosine"], np.trace(D.T @ W) / np.linalg.norm(D) / np.linalg.norm(W), **close)
    np.testing.assert_allclose(found["effective_rank"], np.exp(-(shares * np.log(shares)).sum()), **close)
    np.testing.assert_allclose(found["stable_rank"], (s**2).sum() / s[0] ** 2, **close)
    for i, k in enumerate(ranks):
        if k > min(n, m):
            for name in ("leading_share", "overlap", "captured", "captured_both", "base_share", "amplification"):
                assert np.isnan(found[name][i]).all(), name
            continue
        u, v, p, q = U[:, :k], Vt[:k].T, P[:, :k], Qt[:k].T
        within = np.linalg.norm(u.T @ W @ v)
        np.testing.assert_allclose(found["leading_share"][i], shares[:k].sum(), **close)
        sides = [np.mean([(u.T @ p) ** 2]) * k, np.mean([(v.T @ q) ** 2]) * k]
        np.testing.assert_allclose(found["overlap"][i], sides, **close)
        energies = [np.linalg.norm(p @ p.T @ D) ** 2, np.linalg.norm(D @ q @ q.T) ** 2]
        np.testing.assert_allclose(found["captured"][i], np.array(energies) / np.linalg.norm(D) ** 2, **close)
        both = np.linalg.norm(p @ p.T @ D @ q @ q.T) ** 2 / np.linalg.norm(D) ** 2
        np.testing.assert_allclose(found["captured_both"][i], both, **close)
        np.testing.assert_allclose(found["base_share"][i], within**2 / np.linalg.norm(W) ** 2, **close)
        np.testing.assert_allclose(found["amplification"][i] * within, np.linalg.norm(s[:k]), **close)
        np.testing.assert_allclose(found["chance"][i], [k / n, k / m])
    largest = np.stack([np.abs(P.T @ A).max(axis=0), np.abs(Qt @ Bt.T).max(axis=0)], axis=-1)
    count = min(5, n, m)
    np.testing.assert_allclose(found["nearest"][:count], largest[:count], **close)
    assert np.isnan(found["nearest"][count:]).all()
    np.testing.assert_allclose(found["nearest_mean"][0], largest[0], **close)
    np.testing.assert_array_equal(found["intruders"][0], (largest[0] < 0.9).astype(float))


@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("shape", [(40, 60), (60, 40)])
def test_a_planted_rank_is_found_and_directions_beyond_it_say_nothing(rank: int, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(rank)
    n, m = shape
    W = rng.normal(size=shape)
    D = 0.1 * rng.normal(size=(n, rank)) @ rng.normal(size=(rank, m))
    found = of_difference(W, D, (1, 2, 5, 8), 0.5)
    assert found["matrix_rank"] == rank
    assert found["effective_rank"] <= rank + 1e-9
    assert found["stable_rank"] <= rank + 1e-9
    for i, k in enumerate((1, 2, 5, 8)):
        assert bool(np.isfinite(found["overlap"][i]).all()) == (k <= rank)
        assert bool(np.isfinite(found["base_share"][i])) == (k <= rank)
        np.testing.assert_allclose(found["leading_share"][i], 1.0 if k >= rank else found["leading_share"][i])
        assert np.isfinite(found["captured"][i]).all()


@pytest.mark.parametrize("factor", [0.25, -0.5, 3.0])
def test_more_of_the_same(factor: float) -> None:
    """D = a W: every direction is the base's, and no vector is new."""
    W = np.random.default_rng(0).normal(size=(30, 20))
    found = of_difference(W, factor * W, RANKS, 0.5)
    assert found["relative_norm"] == pytest.approx(abs(factor))
    assert found["cosine"] == pytest.approx(np.sign(factor))
    np.testing.assert_allclose(found["overlap"], 1)
    squared = np.linalg.svd(W, compute_uv=False) ** 2
    for name in ("leading_share", "captured_both", "base_share"):
        np.testing.assert_allclose(found[name], [squared[:k].sum() / squared.sum() for k in RANKS])
    np.testing.assert_allclose(found["amplification"], abs(factor))
    np.testing.assert_allclose(found["nearest"], 1)
    assert found["intruders"].max() == 0


def test_a_difference_outside_the_base_shares_nothing_and_intrudes() -> None:
    rng = np.random.default_rng(1)
    left, right = haar(rng, 40, 12), haar(rng, 50, 12)
    W = left[:, :8] * np.linspace(2, 1, 8) @ right[:, :8].T
    D = left[:, 8:] * np.linspace(5, 4, 4) @ right[:, 8:].T
    found = of_difference(W, D, (1, 4, 8), 0.5)
    assert abs(found["cosine"]) < 1e-14
    for name in ("overlap", "captured", "captured_both", "base_share"):
        assert np.nanmax(found[name]) < 1e-20, name
    assert found["matrix_rank"] == 4
    # The four largest vectors of W + D are those of D: near none of the base's.
    np.testing.assert_allclose(found["nearest"][:4], 0, atol=1e-10)
    np.testing.assert_allclose(found["nearest"][4:8], 1, atol=1e-10)
    np.testing.assert_array_equal(found["intruders"], [[1, 1], [4, 4], [4, 4]])
    assert (found["amplification"][:2] > 1e10).all()


def test_hu_and_others_amplification_is_the_norm_of_d_over_what_base_has_there() -> None:
    rng = np.random.default_rng(2)
    u, v = haar(rng, 30, 2), haar(rng, 30, 2)
    W = rng.normal(size=(30, 30))
    D = 4.0 * u @ v.T + 1.0 * np.outer(u[:, 0], v[:, 0])
    found = of_difference(W, D, (2,), 0.5)
    assert found["amplification"][0] == pytest.approx(np.linalg.norm(D) / np.linalg.norm(u.T @ W @ v))


def test_random_directions_overlap_by_k_of_n_with_the_spread_that_the_law_says() -> None:
    """Means of 600 draws within 4 of their standard errors, and the variance within 4 of its own."""
    rng, draws = np.random.default_rng(3), 600
    for n, k in ((12, 1), (12, 3), (30, 8), (9, 8)):
        fixed = np.eye(n)[:, :k]
        values = np.array([overlap(haar(rng, n, k), fixed) for _ in range(draws)])
        sd = overlap_sd(n, k)
        assert abs(values.mean() - k / n) < 4 * sd / np.sqrt(draws)
        fourth = np.mean((values - values.mean()) ** 4)
        assert abs(values.var() - sd**2) < 4 * np.sqrt((fourth - values.var() ** 2) / draws)
    assert overlap_sd(5, 5) == 0


def test_a_random_difference_has_what_chance_says() -> None:
    """Over draws of Gaussian D: overlap and captured k/n and k/m, their product, cosine 0, within 4 standard errors."""
    rng, draws = np.random.default_rng(4), 300
    n, m = 24, 36
    W = rng.normal(size=(n, m)) + 3 * np.outer(rng.normal(size=n), rng.normal(size=m)) / np.sqrt(m)
    found = [of_difference(W, rng.normal(size=(n, m)), (1, 4, 8), 0.5) for _ in range(draws)]
    chance = found[0]["chance"]
    wanted = {
        "overlap": chance,
        "captured": chance,
        "captured_both": chance.prod(axis=-1),
        "base_share": chance.prod(axis=-1),
        "cosine": np.array(0.0),
    }
    for name, right in wanted.items():
        values = np.stack([one[name] for one in found])
        error = values.std(axis=0) / np.sqrt(draws)
        assert (np.abs(values.mean(axis=0) - right) < 4 * error).all(), name
    cosines = np.array([one["cosine"] for one in found])
    # The cosine of a Gaussian with anything has the variance 1/(n m); that of a variance is 2/(n m)^2 over draws.
    assert cosines.var() == pytest.approx(1 / (n * m), rel=4 * np.sqrt(2 / draws))


def test_directions_that_are_none_of_their_own_are_not_told() -> None:
    rng = np.random.default_rng(5)
    D = 0.1 * rng.normal(size=(16, 16))
    of_identity = of_difference(np.eye(16), D, (1, 4, 16), 0.5)
    assert np.isnan(of_identity["overlap"][:2]).all()
    np.testing.assert_allclose(of_identity["overlap"][2], 1)
    # Every vector lies in the one subspace of the identity: none is new.
    np.testing.assert_allclose(of_identity["nearest"], 1)
    assert np.isfinite(of_identity["base_share"]).all()
    block = np.diag([3.0, 2.0, 2.0, 1.0, 0, 0])
    two = nearest(directions(block + 0), directions(block), "left", 6)
    np.testing.assert_allclose(two[:4], 1)
    assert np.isnan(two[4:]).all()


def test_nothing_added_and_nothing_there_are_numbers_or_nan() -> None:
    W, zero = np.random.default_rng(6).normal(size=(6, 8)), np.zeros((6, 8))
    same = of_difference(W, zero, RANKS, 0.5)
    assert same["relative_norm"] == same["matrix_rank"] == same["effective_rank"] == same["norm"] == 0
    assert np.isnan(same["cosine"])
    assert np.isnan(same["overlap"]).all()
    assert np.isnan(same["captured"]).all()
    np.testing.assert_allclose(same["nearest"][:6], 1)
    fresh = of_difference(zero, W, RANKS, 0.5)
    assert np.isnan(fresh["relative_norm"])
    assert fresh["matrix_rank"] == 6
    assert np.isnan(fresh["nearest"]).all()
    both = of_difference(zero, zero, RANKS, 0.5)
    assert not any(np.isinf(values).any() for values in (*same.values(), *fresh.values(), *both.values()))


def bfloat16(values: np.ndarray) -> np.ndarray:
    import torch

    return torch.from_numpy(values).bfloat16().double().numpy()


STORED = {
    "bfloat16": bfloat16,
    "float16": lambda x: x.astype(np.float16).astype(float),
    "float32": lambda x: x.astype(np.float32).astype(float),
    "float64": lambda x: x,
}
STEPS = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("shape", [(64, 64), (48, 200), (300, 20)])
def test_rounding_to_a_stored_type_is_no_rank(dtype: str, shape: tuple[int, int]) -> None:
    """The rank of what was added before weights were stored, whatever the type; with unequal rows too."""
    rng = np.random.default_rng(7)
    stored = STORED[dtype]
    W = stored(rng.normal(size=shape) * np.geomspace(0.1, 1, shape[0])[:, None])
    assert rounding_step(W) == STEPS[dtype]
    assert rounding_step(np.zeros(shape)) == 0
    added = rng.normal(size=(shape[0], 3)) @ rng.normal(size=(3, shape[1]))
    tuned = stored(W + added)
    assert of_difference(W, tuned - W, (1,), 0.5)["matrix_rank"] == 3
    again = stored(tuned * (1 + STEPS[dtype] * rng.uniform(-0.3, 0.3, size=shape)))
    off = np.linalg.norm(again - tuned, 2)
    assert off <= rounding_noise((tuned, STEPS[dtype]), (again, STEPS[dtype]))
