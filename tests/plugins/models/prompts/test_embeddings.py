"""model.embeddings: lengths, cosines and entropies against plain formulas, neighbours by brute force."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens import Context, GausslensError, Prompt, Tokens, Twin
from gausslens.testing import check_forward
from gausslens_models import plugin
from gausslens_models.analyses.embeddings import Embeddings
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.maths.embeddings import mean_cosine, nearest, random_entropy, softmax_entropy
from gausslens_models.parameters import EmbeddingsParameters
from gausslens_models.prompts.tokenise import tokenise

EMBEDDINGS = next(a for a in plugin.analyses() if a.name == "model.embeddings")


def vectors_of(seed: int, n: int, d: int, scale: float = 1.0) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal((n, d))


def test_on_the_tiny_model() -> None:
    found = check_forward(EMBEDDINGS, EmbeddingsParameters(nearest=3, draws=4))
    assert found.nearest.shape == (found.sizes["token"], 3)
    assert len(set(found.token.values.tolist())) == found.sizes["token"], "each token once"
    assert (np.diff(found.nearest_cosine.values, axis=1) <= 0).all()


@given(seed=st.integers(0, 99), n=st.integers(1, 6), d=st.integers(1, 40), scale=st.floats(0, 50))
def test_the_entropy_of_a_softmax(seed: int, n: int, d: int, scale: float) -> None:
    vectors = vectors_of(seed, n, d, scale)
    for row, found in zip(vectors, softmax_entropy(vectors), strict=True):
        p = np.exp(row - row.max())
        p /= p.sum()
        assert found == pytest.approx(-sum(x * math.log(x) for x in p if x > 0), abs=1e-9)


def test_random_vectors_follow_the_law_of_small_logits() -> None:
    """H = log d - s2/2 for s2 = norm^2/d well below 2 log d; within 4 standard errors and a bias of s2^2/d."""
    d, draws = 2048, 200
    for s2 in (0.1, 0.5, 1.0):
        norm = np.array([math.sqrt(s2 * d)])
        mean, sd = random_entropy(norm, d, draws, np.random.default_rng(0))
        assert abs(mean[0] - (math.log(d) - s2 / 2)) < 4 * sd[0] / math.sqrt(draws) + 8 * s2**2 / d


@given(seed=st.integers(0, 99), n=st.integers(2, 12), d=st.integers(1, 8))
def test_the_mean_cosine_is_that_of_all_pairs(seed: int, n: int, d: int) -> None:
    vectors = vectors_of(seed, n, d)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = [unit[i] @ unit[j] for i in range(n) for j in range(n) if i != j]
    assert mean_cosine(vectors, np.linalg.norm(vectors, axis=1)) == pytest.approx(np.mean(pairs), abs=1e-9)


def test_the_nearest_by_brute_force() -> None:
    vectors = vectors_of(1, 30, 5)
    vectors[7] = 2 * vectors[3]
    vectors[9] = 0
    norms = np.linalg.norm(vectors, axis=1)
    near, cosine = nearest(vectors, norms, np.array([3, 7, 12]), 4)
    assert near[0, 0] == 7
    assert near[1, 0] == 3
    assert cosine[0, 0] == pytest.approx(1)
    for place, number in enumerate((3, 7, 12)):
        unit = vectors / np.where(norms > 0, norms, 1)[:, None]
        own = sorted((i for i in range(30) if i != number), key=lambda i: -(unit[i] @ unit[number]))
        assert near[place].tolist() == own[:4]


def test_it_reads_the_models_own_embedding(opened: Callable[[str], Any], tokenizers: Callable[..., Any]) -> None:
    model = opened("gemma2")
    model.__dict__["tokenizer"] = tokenizers("byte-level")
    tokens = tokenise(model.tokenizer, [Prompt(ids=(9, 5, 9))], "tiny")
    analysis = Embeddings(EmbeddingsParameters(nearest=2, draws=2), Context(model.info, 0, tokens))
    found = analysis.run(TransformersEngine().runner(Twin(model)), tokens)
    weight = model.module.get_input_embeddings().weight.double().numpy()
    assert found.token.values.tolist() == [9, 5]
    assert np.allclose(found.norm, np.linalg.norm(weight[[9, 5]], axis=1))
    assert float(found.norm_mean) == pytest.approx(np.linalg.norm(weight, axis=1).mean())
    assert np.allclose(found.softmax_entropy, softmax_entropy(weight[[9, 5]]), atol=1e-6)


def test_prompts_without_text_are_refused(gausslens_model: Any) -> None:
    tokens: Tokens = gausslens_model.tokenise([Prompt(ids=(256,))])
    runner = TransformersEngine().runner(Twin(gausslens_model))
    with pytest.raises(GausslensError, match="no text tokens"):
        Embeddings(EmbeddingsParameters(), Context(gausslens_model.info, 0, tokens)).run(runner, tokens)
