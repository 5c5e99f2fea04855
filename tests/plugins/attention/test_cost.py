"""Counted operations: known products, exponents of each method, and the formulas that analyses state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gausslens_attention.maths.costs import counted, exponent
from gausslens_attention.maths.kernels import (
    elu,
    features_and_flops,
    least_squares,
    linear,
    orthogonal,
    performer,
    taylor1,
    taylor2,
)
from gausslens_attention.maths.lowrank import flops as lowrank_flops
from gausslens_attention.maths.lowrank import linformer
from gausslens_attention.maths.masks import attend, flops, longformer

SIZES = (128, 256, 512, 1024)
D = 32


def qkv(n: int) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(0)
    return tuple(torch.randn(n, D, generator=draw, dtype=torch.float64) for _ in range(3))


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.T * D**-0.5).softmax(-1) @ v


def by_features(features: Any, causal: bool) -> Callable[..., torch.Tensor]:
    return lambda q, k, v: linear(features(q, True), features(k, False), v, causal)


def sparse(n: int) -> Callable[..., torch.Tensor]:
    rows, columns = map(torch.from_numpy, np.nonzero(longformer(n, 8, 1, causal=True)))
    return lambda q, k, v: attend(q, k, v, rows, columns, D**-0.5)


def projected(n: int) -> Callable[..., torch.Tensor]:
    E = torch.randn(16, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return lambda q, k, v: linformer(q, k, v, E, E, D**-0.5)


METHODS: dict[str, Callable[[int], Callable[..., torch.Tensor]]] = {
    "elu": lambda _: by_features(elu, True),
    "taylor-1": lambda _: by_features(taylor1, True),
    "taylor-2": lambda _: by_features(taylor2, False),
    "performer 64": lambda _: by_features(performer(orthogonal(64, D, 0)), True),
    "least-squares": lambda _: lambda q, k, v: least_squares(q, k, v, 1.0, True),
    "longformer": sparse,
    "linformer": projected,
}


def costs(make: Callable[[int], Callable[..., torch.Tensor]], sizes: tuple[int, ...] = SIZES) -> list[Any]:
    found = []
    for n in sizes:
        method, tensors = make(n), qkv(n)
        with counted() as cost:
            method(*tensors)
        found.append(cost)
    return found


def test_products_are_counted() -> None:
    a, b = torch.ones(3, 4, 5), torch.ones(3, 5, 6)
    with counted() as cost:
        a @ b
    assert cost.flops == 2 * 3 * 4 * 5 * 6
    assert cost.bytes == 4 * 3 * (20 + 30 + 24)
    with counted() as cost:
        a.transpose(1, 2)[:, 1:].reshape(3, -1).exp()
    assert cost.flops == 3 * 16
    with counted() as cost:
        (torch.ones(7) + 1).sum()
    assert cost.flops == 14


def test_exact_attention_is_quadratic() -> None:
    found = costs(lambda _: exact)
    assert exponent(SIZES, [c.flops for c in found]) == pytest.approx(2, abs=0.05)
    assert found[0].flops == pytest.approx(128**2 * (4 * D + 6), rel=0.01)


@pytest.mark.parametrize("name", METHODS)
def test_the_others_are_linear(name: str) -> None:
    found = costs(METHODS[name])
    assert exponent(SIZES, [c.flops for c in found]) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("name", ["elu", "taylor-1", "performer 64", "least-squares"])
def test_what_the_analysis_states_is_what_is_counted(name: str) -> None:
    [found] = costs(METHODS[name], (512,))
    assert features_and_flops(name, 512, D, D, causal=True)[1] == pytest.approx(found.flops, rel=0.15)


def test_costs_of_masks_and_of_low_rank_are_those_counted() -> None:
    [found] = costs(sparse, (512,))
    cells = int(longformer(512, 8, 1, causal=True).sum())
    assert flops(cells, D) == pytest.approx(found.flops, rel=0.35)
    [found] = costs(projected, (512,))
    assert 2 * lowrank_flops(512, D, 16) + 5 * 512 * 16 == pytest.approx(found.flops, rel=0.05)


def test_an_exponent_is_a_slope() -> None:
    assert exponent([1, 10, 100], [3, 300, 30_000]) == pytest.approx(2)
