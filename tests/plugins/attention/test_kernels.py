"""Linear attention: both forms agree, causal ones leak nothing, and features are what they are said to be."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from gausslens_attention.maths.kernels import (
    Features,
    elu,
    least_squares,
    least_squares_pattern,
    linear,
    orthogonal,
    performer,
    quadratic,
    taylor1,
    taylor2,
)

KERNELS: dict[str, Features] = {
    "elu": elu,
    "taylor-1": taylor1,
    "taylor-2": taylor2,
    "performer": performer(orthogonal(40, 6, seed=0)),
}
# More than a chunk, and no multiple of it.
N = 150


def drawn(n: int = N, d: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, n, d, generator=draw, dtype=torch.float64) for _ in range(3))
    return q, k, v


def attention(name: str, causal: bool) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    if name == "least-squares":
        return lambda q, k, v: least_squares(q, k, v, 0.5, causal)
    features = KERNELS[name]
    return lambda q, k, v: linear(features(q, True), features(k, False), v, causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_the_linear_and_the_quadratic_form_agree(name: str, causal: bool) -> None:
    q, k, v = drawn()
    features = KERNELS[name]
    pattern = quadratic(features(q, True), features(k, False), causal)
    made = attention(name, causal)(q, k, v)
    torch.testing.assert_close(pattern @ v, made, rtol=0, atol=1e-6)
    assert float((pattern @ v - made).abs().max()) < 1e-9
    torch.testing.assert_close(pattern.sum(-1), torch.ones(2, N, dtype=torch.float64))


@pytest.mark.parametrize("causal", [False, True])
def test_least_squares_attention_is_the_ridge_regression_of_values_on_keys(causal: bool) -> None:
    q, k, v = drawn(70)
    made = least_squares(q, k, v, 0.5, causal)
    torch.testing.assert_close(least_squares_pattern(q, k, 0.5, causal) @ v, made, rtol=0, atol=1e-9)
    for row in (0, 3, 40, 69):
        keys, values = (k[:, : row + 1], v[:, : row + 1]) if causal else (k, v)
        gram = keys.transpose(-1, -2) @ keys + 0.5 * torch.eye(6, dtype=torch.float64)
        weights = torch.linalg.inv(gram) @ keys.transpose(-1, -2) @ values
        torch.testing.assert_close(made[:, row], (q[:, row, None] @ weights)[:, 0], rtol=0, atol=1e-9)
    # Values that are linear in the keys are found again, whatever is asked.
    B = torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(least_squares(q, k, k @ B, 1e-12, False), q @ B, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", [*KERNELS, "least-squares"])
@pytest.mark.parametrize("row", [1, 63, 64, 100, 149])
def test_causal_forms_see_nothing_of_the_future(name: str, row: int) -> None:
    form = attention(name, causal=True)
    q, k, v = drawn()
    before = form(q, k, v)
    for which in range(3):
        changed = [x.clone() for x in (q, k, v)]
        changed[which][:, row:] = 3 * torch.randn(2, N - row, 6, generator=torch.Generator().manual_seed(9)).double()
        after = form(*changed)
        torch.testing.assert_close(after[:, :row], before[:, :row], rtol=0, atol=1e-13)
        assert float((after[:, row:] - before[:, row:]).abs().max()) > 1e-3


def test_forms_that_are_not_causal_do_see_it() -> None:
    q, k, v = drawn()
    changed = k.clone()
    changed[:, -1] += 3
    for name in (*KERNELS, "least-squares"):
        form = attention(name, causal=False)
        assert float((form(q, changed, v) - form(q, k, v))[:, 0].abs().max()) > 1e-6


def test_taylor_features_are_the_series() -> None:
    q, k, _ = drawn(5)
    unit_q, unit_k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    first = taylor1(q, True) @ taylor1(k, False).transpose(-1, -2)
    angle = unit_q @ unit_k.transpose(-1, -2)
    torch.testing.assert_close(first, 1 + angle)
    assert float((angle.exp() - first).abs().max()) <= math.e - 2
    second = taylor2(q, True) @ taylor2(k, False).transpose(-1, -2)
    dot = q @ k.transpose(-1, -2)
    torch.testing.assert_close(second, 1 + dot + dot**2 / 2)
    assert float(second.min()) >= 0.5 - 1e-12


def test_random_features_are_unbiased() -> None:
    """E phi(q) . phi(k) = exp(q . k), orthogonal or not; the tolerance is four standard errors of the draws."""
    draws, m = 3000, 4
    q, k = (0.3 * x[0, :3] for x in drawn(3)[:2])
    expected = (q @ k.T).exp()
    made = []
    for seed in range(draws):
        features = performer(orthogonal(m, 6, seed))
        # A query's features are known up to a factor of its own: here it is put back.
        whole = features(q, False)
        made.append(whole @ features(k, False).T)
    stacked = torch.stack(made)
    error = stacked.std(dim=0) / math.sqrt(draws)
    assert bool(((stacked.mean(dim=0) - expected).abs() < 4 * error).all())


def test_random_directions_are_orthogonal_and_as_long_as_independent_ones() -> None:
    W = orthogonal(12, 6, seed=3)
    for group in (W[:6], W[6:]):
        gram = group @ group.T
        torch.testing.assert_close(gram, gram.diagonal().diag_embed(), rtol=0, atol=1e-12)
    squares = torch.cat([orthogonal(6, 6, seed).square().sum(1) for seed in range(400)])
    # chi squared with 6 degrees: mean 6, variance 12
    assert abs(float(squares.mean()) - 6) < 4 * math.sqrt(12 / len(squares))
    torch.testing.assert_close(orthogonal(5, 6, seed=3), orthogonal(5, 6, seed=3))


def test_more_features_come_nearer_to_softmax() -> None:
    q, k, _ = drawn(40)
    exact = (q @ k.transpose(-1, -2)).softmax(-1)
    errors = []
    for m in (6, 60, 3000):
        features = performer(orthogonal(m, 6, seed=1))
        errors.append(float((quadratic(features(q, True), features(k, False), False) - exact).abs().sum()))
    assert errors[0] > errors[1] > errors[2]
