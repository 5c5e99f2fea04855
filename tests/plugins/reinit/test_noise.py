"""Random tensors that keep something of a given one, and matrices of given shape: plain functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from gausslens.maths.heads import as_tensor
from gausslens_reinit.maths import shaped_matrices as shaped
from gausslens_reinit.maths.claims import broken_claim, multiset, spectra
from gausslens_reinit.maths.noise import independent, is_constant, matched, rotated, shuffled

shapes = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)
blocks = st.tuples(st.integers(1, 3), st.integers(1, 8), st.integers(1, 8))
seeds = st.integers(0, 2**31)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


@given(shape=shapes, seed=seeds, offset=st.sampled_from([0.0, 0.3, 50.0]))
def test_matched_noise_has_exactly_the_mean_and_variance(shape: tuple[int, ...], seed: int, offset: float) -> None:
    given_tensor = torch.randn(shape, generator=generator(seed), dtype=torch.float64) * 0.02 + offset
    drawn = matched(given_tensor, generator(seed + 1))
    assert drawn.shape == given_tensor.shape
    torch.testing.assert_close(drawn.mean(), given_tensor.mean(), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(
        drawn.var(correction=0), given_tensor.var(correction=0), rtol=1e-9, atol=1e-13 * (1 + offset) ** 2
    )


def test_matched_noise_is_gaussian_whatever_it_replaces() -> None:
    heavy = torch.randn(20_000, generator=generator()) ** 3
    drawn = matched(heavy, generator(1)).double()
    standard = ((drawn - drawn.mean()) / drawn.std()).numpy()
    assert kstest(standard, "norm").pvalue > 0.001
    assert kstest(((heavy - heavy.mean()) / heavy.std()).numpy(), "norm").pvalue < 1e-6


@given(shape=shapes, seed=seeds)
def test_shuffling_keeps_the_values(shape: tuple[int, ...], seed: int) -> None:
    given_tensor = torch.randn(shape, generator=generator(seed))
    drawn = shuffled(given_tensor, generator(seed + 1))
    assert drawn.shape == given_tensor.shape
    assert torch.equal(drawn.flatten().sort().values, given_tensor.flatten().sort().values)


def test_shuffling_reaches_every_order_equally_often() -> None:
    one = generator()
    seen = [tuple(shuffled(torch.arange(3), one).tolist()) for _ in range(6000)]
    counts = np.array([seen.count(order) for order in set(seen)])
    assert len(counts) == 6
    # chi square with 5 degrees of freedom is below 20.5 in 999 of 1000 cases.
    assert ((counts - 1000) ** 2 / 1000).sum() < 20.5


@given(shape=blocks, seed=seeds)
def test_rotations_keep_the_singular_values_and_nothing_else(shape: tuple[int, int, int], seed: int) -> None:
    W = some(shape, seed)
    turned = rotated(W, generator(seed + 1))
    assert turned.shape == W.shape
    torch.testing.assert_close(torch.linalg.svdvals(turned), torch.linalg.svdvals(W), atol=1e-12, rtol=1e-10)
    assert not torch.allclose(turned, W) or W.shape[1] == W.shape[2] == 1


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4)])
def test_rotations_turn_both_sides_by_haars_law(shape: tuple[int, int]) -> None:
    """Of a matrix of rank one, u v^T: both come out uniform on their spheres."""
    W = torch.zeros(1, *shape, dtype=torch.float64)
    W[0, 0, 0] = 1.0
    one, draws = generator(), 2000
    found = torch.cat([rotated(W, one) for _ in range(draws)])
    squares = found.square().mean(0).numpy()
    # E (u_i v_j)^2 = 1 / (n m); its square has mean 9 / (n (n + 2) m (m + 2)).
    n, m = shape
    spread = np.sqrt(9 / (n * (n + 2) * m * (m + 2)) - 1 / (n * m) ** 2)
    assert np.abs(squares - 1 / (n * m)).max() < 4.5 * spread / np.sqrt(draws)
    assert np.abs(found.mean(0).numpy()).max() < 4.5 / np.sqrt(n * m * draws)


@pytest.mark.parametrize("distribution", ["normal", "uniform"])
def test_independent_entries_have_the_variance_asked_for(distribution: str) -> None:
    drawn = independent((50, 400), 0.09, distribution, generator()).flatten().numpy()
    law = ("norm", (0, 0.3)) if distribution == "normal" else ("uniform", (-np.sqrt(0.27), 2 * np.sqrt(0.27)))
    assert kstest(drawn, *law).pvalue > 0.001


@given(shape=blocks, width=st.integers(0, 9), seed=seeds)
def test_bands_are_zero_outside(shape: tuple[int, int, int], width: int, seed: int) -> None:
    made = shaped.random_band(shape, width, generator(seed))
    rows, columns = np.indices(shape[1:])
    inside = np.abs(rows - columns) <= width
    assert ((made != 0).numpy() == inside).all()


@given(shape=blocks, density=st.floats(0.01, 1.0), seed=seeds)
def test_sparse_matrices_have_exactly_their_density(shape: tuple[int, int, int], density: float, seed: int) -> None:
    made = shaped.random_sparse(shape, density, generator(seed))
    wanted = max(1, round(density * shape[1] * shape[2]))
    assert (made != 0).sum((1, 2)).tolist() == [wanted] * shape[0]


def test_the_places_of_sparse_entries_are_uniform() -> None:
    made = shaped.random_sparse((3000, 2, 3), 1 / 3, generator())
    share = (made != 0).double().mean(0).numpy()
    assert np.abs(share - 1 / 3).max() < 4.5 * np.sqrt(2 / 9 / 3000)


@given(shape=blocks, rank=st.integers(1, 9), seed=seeds)
def test_low_rank_matrices_have_their_rank(shape: tuple[int, int, int], rank: int, seed: int) -> None:
    made = shaped.random_low_rank(shape, rank, generator(seed))
    assert torch.linalg.matrix_rank(made, rtol=1e-9).tolist() == [min(rank, *shape[1:])] * shape[0]


@given(shape=blocks, seed=seeds)
def test_shapes_take_over_the_energy_of_each_block(shape: tuple[int, int, int], seed: int) -> None:
    like = some(shape, seed) * torch.arange(1, shape[0] + 1)[:, None, None]
    for made in (shaped.identity(shape), shaped.random_band(shape, 1, generator(seed))):
        scaled = shaped.at_energy(made, like)
        torch.testing.assert_close(scaled.square().sum((1, 2)), like.square().sum((1, 2)))
        torch.testing.assert_close((scaled != 0), (made != 0))


@given(shape=shapes, seed=seeds)
def test_the_multiset_is_told_from_the_entries_alone(shape: tuple[int, ...], seed: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        tensor = some(shape, seed).to(dtype)
        assert multiset(shuffled(tensor, generator(seed))) == multiset(tensor)
        other = tensor.clone()
        other.view(-1)[0] += 1.0
        assert multiset(other) != multiset(tensor)
        if tensor.numel() > 1:  # the same values, one of them twice in place of another
            double = tensor.clone()
            double.view(-1)[0] = double.view(-1)[1]
            assert (multiset(double) == multiset(tensor)) == bool(tensor.view(-1)[0] == tensor.view(-1)[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_broken_is_told(dtype: torch.dtype) -> None:
    W = (some((3, 40, 10)) * 0.02 + 0.001).to(dtype)
    cases = {
        "mean": W + 0.01,
        "variance": W * 1.05,
        "energy": W * 1.05,
        "values": matched(W, generator(1)),
        "spectrum": shuffled(W, generator(2)),
    }
    for claim, changed in cases.items():
        assert broken_claim("W_Q", W, changed, (claim,)) == claim
    kept = {
        "mean": matched(W, generator(3)),
        "variance": matched(W, generator(3)),
        "energy": as_tensor("W_Q", shaped.at_energy(some((3, 40, 10), 1), W.double()), W),
        "values": shuffled(W, generator(4)),
        "spectrum": as_tensor("W_Q", rotated(W.double(), generator(5)), W),
    }
    for claim, changed in kept.items():
        assert broken_claim("W_Q", W, changed, (claim,)) is None, claim


@given(shape=blocks, seed=seeds)
def test_spectra_are_the_singular_values(shape: tuple[int, int, int], seed: int) -> None:
    W = some(shape, seed)
    s = torch.linalg.svdvals(W)
    assert float((spectra("W_Q", W, "head") - s).abs().max()) < 1e-6 * float(s.max())


def test_constants_are_told_from_what_only_begins_and_ends_alike() -> None:
    assert is_constant(torch.full((3, 2), 0.5))
    assert not is_constant(torch.tensor([1.0, 2.0, 1.0]))
    assert not is_constant(torch.tensor([1.0, 2.0]))
