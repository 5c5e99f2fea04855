"""What becomes of singular values, as plain functions."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from gausslens.maths.laws import MarchenkoPastur, Product
from gausslens_spectrum.maths import singular_values

sizes = st.tuples(st.integers(1, 4), st.integers(1, 12))
seeds = st.integers(0, 2**31)


def some(size: tuple[int, int], seed: int) -> torch.Tensor:
    """Singular values [block, value], largest first, some of them 0."""
    draw = torch.Generator().manual_seed(seed)
    s = torch.rand(size, generator=draw, dtype=torch.float64) ** 4 * 10
    return torch.where(s > 0.001, s, 0.0).sort(-1, descending=True).values


@given(size=sizes, seed=seeds, k=st.integers(0, 14))
def test_the_top_k_are_the_largest_and_the_bottom_k_the_smallest(size: tuple[int, int], seed: int, k: int) -> None:
    s = some(size, seed)
    top = singular_values.chosen(s, singular_values.order_from(s, "top"), k, 0.5)
    bottom = singular_values.chosen(s, singular_values.order_from(s, "bottom"), k, 0.5)
    n = s.shape[-1]
    assert top.tolist() == [[i < k for i in range(n)]] * len(s)
    assert bottom.tolist() == [[i >= n - k for i in range(n)]] * len(s)


@given(size=sizes, seed=seeds, share=st.floats(0.01, 1.0), end=st.sampled_from(["top", "bottom"]))
def test_a_share_of_the_energy_takes_the_fewest_values(
    size: tuple[int, int], seed: int, share: float, end: str
) -> None:
    s = some(size, seed)
    mask = singular_values.chosen(s, singular_values.order_from(s, end), None, share)
    total = s.square().sum(-1)
    for block in range(len(s)):
        taken = s[block][mask[block]] ** 2
        assert float(taken.sum()) >= share * float(total[block]) * (1 - 1e-9)
        if len(taken) and float(total[block]) > 0:
            # Without the last one taken it is too little.
            last = taken[-1] if end == "top" else taken[0]
            assert float(taken.sum() - last) < share * float(total[block])


def test_random_choices_are_uniform() -> None:
    s = torch.ones(2000, 6, dtype=torch.float64)
    order = singular_values.random_value_order(s, torch.Generator().manual_seed(0))
    mask = singular_values.chosen(s, order, 2, 0.5)
    assert (mask.sum(-1) == 2).all()
    share = mask.double().mean(0).numpy()
    assert np.abs(share - 1 / 3).max() < 4 * np.sqrt(2 / 9 / 2000)


@given(size=sizes, seed=seeds, p=st.floats(0, 4))
def test_powers_hold_what_they_say(size: tuple[int, int], seed: int, p: float) -> None:
    s = some(size, seed)
    held = singular_values.power(s, p, "energy")
    torch.testing.assert_close(held.square().sum(-1), s.square().sum(-1))
    torch.testing.assert_close(singular_values.power(s, p, "largest")[:, 0], s[:, 0])
    plain = singular_values.power(s, p, "nothing")
    torch.testing.assert_close(plain, torch.where(s > 1e-12 * s[:, :1], s**p, 0.0))
    assert (held[s == 0] == 0).all()
    torch.testing.assert_close(singular_values.power(s, 1.0, "energy"), s)


@given(size=sizes, seed=seeds)
def test_flattening_goes_from_nothing_to_equal(size: tuple[int, int], seed: int) -> None:
    s = some(size, seed)
    torch.testing.assert_close(singular_values.flatten(s, 0.0), s)
    flat = singular_values.flatten(s, 1.0)
    torch.testing.assert_close(flat, flat[:, :1].expand_as(flat))
    for amount in (0.3, 1.0):
        torch.testing.assert_close(singular_values.flatten(s, amount).square().sum(-1), s.square().sum(-1))


@given(size=sizes, seed=seeds, law=st.sampled_from(["noise", "uniform", "exponential"]), factors=st.integers(1, 2))
def test_a_law_takes_the_energy_over_and_is_sorted(size: tuple[int, int], seed: int, law: str, factors: int) -> None:
    s = some(size, seed)
    n = s.shape[-1]
    noise = MarchenkoPastur(2 * n, n, 1.0) if factors == 1 else Product(2 * n, n, 2 * n, 1.0)
    made = singular_values.quantiles(s, law, noise)
    torch.testing.assert_close(made.square().sum(-1), s.square().sum(-1))
    assert (made.diff(dim=-1) <= 1e-12).all()


def test_the_noise_law_leaves_noise_as_it_is() -> None:
    W = torch.randn(1, 400, 100, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    s = torch.linalg.svdvals(W)
    # Rigid: each value within a few hundredths of its quantile.
    assert (
        float(((singular_values.quantiles(s, "noise", MarchenkoPastur(400, 100, 1.0)) - s).abs() / s[:, :1]).max())
        < 0.03
    )
