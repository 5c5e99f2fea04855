"""Attention maps made by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp


def softmax_maps(n: int, heads: int = 1, causal: bool = False, sharp: float = 1.0, seed: int = 0) -> np.ndarray:
    """Row-stochastic maps [head, n, n] of Gaussian scores."""
    scores = sharp * np.random.default_rng(seed).normal(size=(heads, n, n))
    scores = np.where(np.tril(np.ones((n, n), dtype=bool)), scores, -np.inf) if causal else scores
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def any_maps(largest: int = 7) -> st.SearchStrategy[np.ndarray]:
    """Square matrices of any values, ties and zeros among them."""
    values = st.one_of(st.sampled_from([0.0, 0.5, 1.0, -1.0]), st.floats(-2, 2, allow_subnormal=False))
    return st.integers(1, largest).flatmap(lambda n: hnp.arrays(np.float64, (n, n), elements=values))
