"""Rotary position as a bilinear form of the lag."""

from __future__ import annotations

import numpy as np
import pytest

from gausslens.maths.rotary import Rotation


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("frequencies", [(1.0, 0.3), (1.0, 0.3, 0.1), (-1.0, 0.3)])
def test_rotation_is_a_form_of_the_lag(frequencies: tuple[float, ...], pairs: bool) -> None:
    rng = np.random.default_rng(12345)
    rotation = Rotation(6, frequencies, 1.1, pairs)
    q, k = rng.normal(size=(2, 1, 9, 1, 6))
    turned = [np.stack([rotation.scales * (rotation.matrix(t) @ x[0, t, 0]) for t in range(9)]) for x in (q, k)]
    assert turned[0][7] @ turned[1][4] == pytest.approx(q[0, 7, 0] @ rotation.between(3) @ k[0, 4, 0])
    np.testing.assert_allclose(rotation.undone(turned[0][None, :, None]), q, atol=1e-12)
    P, angles = rotation.diagonal
    np.testing.assert_allclose(P @ np.diag(np.exp(5j * angles)) @ P.conj().T, rotation.matrix(5), atol=1e-12)
    np.testing.assert_allclose(rotation.matrix(2) @ rotation.matrix(3), rotation.matrix(5), atol=1e-12)


def test_pairs_turn_neighbours() -> None:
    """(x0, x1) and (x2, x3) by their own angles; what is beyond them stays."""
    x = np.arange(6.0)
    found = Rotation(6, (1.0, 0.5), pairs=True).matrix(2) @ x
    for i, angle in ((0, 2.0), (2, 1.0)):
        turned = (x[i] + 1j * x[i + 1]) * np.exp(1j * angle)
        np.testing.assert_allclose(found[i : i + 2], [turned.real, turned.imag], atol=1e-12)
    np.testing.assert_array_equal(found[4:], x[4:])
