"""Judging a formula by what was measured, within its standard error; and a published one beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest


@dataclass(frozen=True)
class Judge:
    """Holds a right value, and a published one that is wrong, against measurement."""

    def __call__(self, measured: Any, error: Any, right: Any, published: Any = None) -> None:
        """The right value is within 4 standard errors, the published one beyond 8: in one component at least."""
        off = np.abs(np.asarray(measured) - right)
        assert np.all(off <= 4 * np.asarray(error) + 1e-12 * np.abs(right)), (measured, error, right)
        if published is not None:
            assert np.any(np.abs(np.asarray(measured) - published) > 8 * np.asarray(error)), (
                measured,
                error,
                published,
            )

    def mean(self, samples: np.ndarray, right: Any, published: Any = None) -> None:
        """Of the mean of independent samples [sample, ...]."""
        self(samples.mean(axis=0), samples.std(axis=0) / np.sqrt(len(samples)), right, published)

    def variance(self, samples: np.ndarray, right: Any, published: Any = None) -> None:
        """Of their variance, whose own is (m4 - m2^2)/N."""
        centred = samples - samples.mean(axis=0)
        square = centred**2
        found = square.mean(axis=0)
        error = np.sqrt(np.maximum((square**2).mean(axis=0) - found**2, 0) / len(samples))
        self(found, error, right, published)

    def exactly(self, measured: Any, right: Any, published: Any = None, off: float = 1e-9) -> None:
        """Of an identity: equal to rounding, and the published one further off than a thousandth."""
        np.testing.assert_allclose(measured, right, rtol=off, atol=off)
        if published is not None:
            assert np.any(np.abs(np.asarray(measured) - published) > 1e-3 * np.abs(measured)), (measured, published)


@pytest.fixture
def judge() -> Judge:
    return Judge()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(12345)
