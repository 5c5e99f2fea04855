"""Masks: how many cells they have, what they leave of a pattern, and attention over their cells alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gausslens_attention.maths.masks import attend, bigbird, bigbird_cells, longformer, masked, top_k, window

from .maps import softmax_maps


@pytest.mark.parametrize(("n", "cells"), [(64, 560), (128, 1136), (256, 2288), (512, 4592)])
def test_bigbird_has_the_cells_that_are_known(n: int, cells: int) -> None:
    """Two global tokens, a window of three, two random keys: 9 n - 16."""
    mask = bigbird(n, 1, 2, 2, np.random.default_rng(0))
    assert mask.sum() == bigbird_cells(n, 1, 2, 2) == cells == 9 * n - 16


@given(
    n=st.integers(1, 20),
    width=st.integers(0, 5),
    count=st.integers(0, 4),
    random=st.integers(0, 6),
    causal=st.booleans(),
)
def test_bigbird_has_the_stated_cells(n: int, width: int, count: int, random: int, causal: bool) -> None:
    count = min(count, n)
    mask = bigbird(n, width, count, random, np.random.default_rng(n), causal)
    assert mask.sum() == bigbird_cells(n, width, count, random, causal)
    assert mask.diagonal().all()
    assert not causal or not np.triu(mask, 1).any()
    assert (mask >= longformer(n, width, count, causal)).all()


@pytest.mark.parametrize("causal", [False, True])
def test_windows_have_the_stated_cells(causal: bool) -> None:
    n, w = 12, 3
    assert window(n, w, causal).sum() == (n * (w + 1) - w * (w + 1) // 2 if causal else n * (2 * w + 1) - w * (w + 1))
    dilated = window(n, w, causal, dilation=2)
    rows, columns = np.nonzero(dilated)
    assert ((rows - columns) % 2 == 0).all()
    assert np.abs(rows - columns).max() == 2 * w
    assert dilated[8].sum() == (4 if causal else 3 + 1 + 1)


def test_layers_of_windows_reach_as_far_as_is_said() -> None:
    """Three layers of a window of 4 reach 12 tokens back; dilated by 3 they span 37, of which they see 13."""
    n, layers, w = 64, 3, 4
    causal = np.linalg.matrix_power(window(n, w, True).astype(int), layers)[-1] > 0
    assert causal.sum() == layers * w + 1
    dilated = np.flatnonzero(np.linalg.matrix_power(window(n, w, True, 3).astype(int), layers)[-1])
    assert len(dilated) == layers * w + 1 == 13
    assert dilated[-1] - dilated[0] + 1 == layers * w * 3 + 1 == 37


def test_the_largest_cells_of_each_row_are_kept() -> None:
    P = softmax_maps(9, heads=3, causal=True, sharp=2.0)
    for k in (1, 4, 9, 30):
        mask = top_k(P, k)
        np.testing.assert_array_equal(mask.sum(axis=-1), np.broadcast_to(np.minimum(np.arange(9) + 1, k), (3, 9)))
        best = -np.sort(-P, axis=-1)[..., :k].sum(axis=-1)
        np.testing.assert_allclose(np.where(mask, P, 0).sum(axis=-1), best, atol=1e-12)


def test_a_mask_before_the_softmax_renormalises_what_it_keeps() -> None:
    scores = np.random.default_rng(0).normal(size=(2, 8, 8))
    P = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    mask = longformer(8, 1, 1)
    before = np.where(mask, np.exp(scores), 0.0)
    np.testing.assert_allclose(masked(P, mask), before / before.sum(axis=-1, keepdims=True), atol=1e-14)
    np.testing.assert_allclose(masked(P, np.ones((8, 8), dtype=bool)), P, atol=1e-15)
    nothing = masked(np.eye(8), ~np.eye(8, dtype=bool))
    np.testing.assert_allclose(nothing, (1 - np.eye(8)) / 7)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_over_the_cells_alone_is_that_of_the_mask(causal: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 20, 5, generator=draw, dtype=torch.float64) for _ in range(3))
    mask = bigbird(20, 2, 1, 2, np.random.default_rng(1), causal)
    rows, columns = map(torch.from_numpy, np.nonzero(mask))
    scores = (q @ k.transpose(-1, -2) * 3.0).masked_fill(~torch.from_numpy(mask), -torch.inf)
    torch.testing.assert_close(attend(q, k, v, rows, columns, 3.0), scores.softmax(-1) @ v, rtol=0, atol=1e-12)
