"""Frames by Haar's measure."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gausslens.maths.frames import haar


@pytest.mark.parametrize("shape", [(3, 7, 7), (2, 9, 4), (1, 5, 1)])
def test_haar_frames_are_orthonormal(shape: tuple[int, int, int]) -> None:
    Q = haar(shape, torch.Generator().manual_seed(0))
    torch.testing.assert_close(Q.mT @ Q, torch.eye(shape[2], dtype=torch.float64).expand(shape[0], -1, -1))


def test_haar_frames_have_haars_law_and_no_sign_of_their_own() -> None:
    n, draws = 4, 4000
    Q = haar((draws, n, n), torch.Generator().manual_seed(1))
    entries = Q[:, 0, 0].numpy()
    # Mean 0 and variance 1/n; a library's own Q has entries that are mostly negative here.
    assert abs(entries.mean()) < 4 * np.sqrt(1 / n / draws)
    assert entries.var() == pytest.approx(1 / n, abs=4 * np.sqrt(2 / draws) / n)
    # E x^4 = 3 / (n (n + 2)) on the sphere.
    assert (entries**4).mean() == pytest.approx(3 / (n * (n + 2)), abs=4 * (entries**4).std() / np.sqrt(draws))
    # Half of them are reflections.
    assert abs(float((torch.linalg.det(Q) > 0).double().mean()) - 0.5) < 4 * 0.5 / np.sqrt(draws)


def test_frames_have_no_sign_of_their_own() -> None:
    drawn = haar((4000, 3, 3), torch.Generator().manual_seed(0))
    assert abs(float(drawn[:, 0, 0].mean())) < 4 / np.sqrt(3 * 4000)


@pytest.mark.parametrize("shape", [(3, 7, 7), (2, 9, 4)])
def test_draws_are_those_that_stored_nulls_were_made_of(shape: tuple[int, int, int]) -> None:
    """Gaussian entries of the generator in order, in float64, and nothing else of it."""
    one, other = (torch.Generator().manual_seed(5) for _ in range(2))
    Q, R = torch.linalg.qr(torch.randn(shape, generator=other, dtype=torch.float64))
    assert torch.equal(haar(shape, one), Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2))
    assert torch.equal(one.get_state(), other.get_state())
