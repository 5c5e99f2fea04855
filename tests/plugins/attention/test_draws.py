"""Random maps: each head, layer and draw has its own, the same in every process; their spread is what theory says."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import torch

from gausslens import Context
from gausslens.testing import TinyModel, TinyParameters
from gausslens_attention.analyses.lowrank import LowRank
from gausslens_attention.analyses.masks import Masks
from gausslens_attention.analyses.patterns import drawn_by_head
from gausslens_attention.maths.kernels import projections
from gausslens_attention.maths.lowrank import gaussian, sketch_error, sketched
from gausslens_attention.maths.masks import longformer, mask_of_keys
from gausslens_attention.maths.prompts import sd_over_draws
from gausslens_attention.parameters import LowRankParameters, MaskParameters

from .maps import softmax_maps
from .test_analyses import found

CONTEXT = Context(TinyModel(TinyParameters()).info, 7)


def _streams() -> list[np.random.Generator]:
    """Those of 3 heads, 2 layers and 4 draws."""
    return [
        rng for layer in range(2) for draw in range(4) for rng in drawn_by_head(CONTEXT, "x", layer, (0, 1, 2), draw)
    ]


def test_heads_layers_and_draws_have_independent_numbers() -> None:
    count = 20_000
    correlations = np.corrcoef([rng.standard_normal(count) for rng in _streams()])
    apart = correlations[np.triu_indices(24, 1)]
    # Of 276 pairs of independent normals each has standard error 1/sqrt(count); the largest of 276 is below 4 of them.
    assert np.abs(apart).max() < 4 / np.sqrt(count)
    assert abs(np.sqrt(np.mean(apart**2)) * np.sqrt(count) - 1) < 4 / np.sqrt(2 * len(apart))


def test_random_graphs_and_directions_differ_between_heads() -> None:
    n, keys = 40, 8
    even = np.ones((3, n, n)) / n
    rngs = drawn_by_head(CONTEXT, f"bigbird {keys} {n}", 0, (0, 1, 2), 0)
    masks, placed = mask_of_keys("bigbird", keys, even, False, 1, 2, rngs)
    fixed = longformer(n, 1, 1)
    drawn = masks & ~fixed
    assert masks.shape == (3, n, n)
    assert (drawn.sum(axis=(1, 2)) == placed).all()
    chance = placed / (~fixed).sum()
    for one, other in pairwise(drawn):
        # Cells that two heads share: hypergeometric by row, its variance below the binomial's.
        shared = (one & other).sum()
        assert abs(shared - placed * chance) < 4 * np.sqrt(placed * chance)
    directions = projections("performer 8", 6, drawn_by_head(CONTEXT, "performer 8", 0, (0, 1, 2), 0))
    assert directions.shape == (3, 8, 6)
    assert not torch.allclose(directions[0], directions[1])


def test_a_head_draws_the_same_whichever_heads_are_in_view() -> None:
    together = [rng.random(4) for rng in drawn_by_head(CONTEXT, "x", 1, (0, 2, 5), 3)]
    (alone,) = drawn_by_head(CONTEXT, "x", 1, (2,), 3)
    np.testing.assert_array_equal(together[1], alone.random(4))


_TELLS = """
import numpy as np
from gausslens import Context
from gausslens.testing import TinyModel, TinyParameters
from gausslens_attention.analyses.patterns import drawn_by_head
from gausslens_attention.maths.kernels import projections
context = Context(TinyModel(TinyParameters()).info, 7)
rngs = drawn_by_head(context, "performer 8", 1, (0, 3), 2)
print(projections("performer 8", 6, rngs).numpy().tobytes().hex())
"""


def test_another_process_draws_the_same() -> None:
    told = [
        subprocess.run([sys.executable, "-c", _TELLS], capture_output=True, text=True, check=True, timeout=120).stdout
        for _ in range(2)
    ]
    rngs = drawn_by_head(CONTEXT, "performer 8", 1, (0, 3), 2)
    here = projections("performer 8", 6, rngs).numpy().tobytes().hex()
    assert told[0].strip() == told[1].strip() == here


def test_the_spread_over_draws_is_that_of_the_method() -> None:
    """Mean and spread of the sketch's errors give E|P R'R V - P V|^2 = (|P|^2 |V|^2 + |P V|^2) / r."""
    n, rank, draws = 12, 3, 400
    P = softmax_maps(n, heads=2, causal=True, sharp=2.0)
    result = found(LowRank, LowRankParameters(rank=[rank], kinds=["svd", "sketch"], draws=draws), P)
    V = np.random.default_rng(7).normal(size=(1, n, 2, 6))[0].swapaxes(0, 1)
    size = ((P @ V) ** 2).sum(axis=(1, 2))
    one = result.sel(kind="sketch", rank=rank)
    squares = one["output_error"] ** 2 + (draws - 1) / draws * one["output_error_draws_sd"] ** 2
    rng = np.random.default_rng(1)
    direct = np.array(
        [
            ((sketched(P, np.stack([gaussian(rank, n, rng) for _ in P])) @ V - P @ V) ** 2).sum(axis=(1, 2)) / size
            for _ in range(2000)
        ]
    )
    assert (np.abs(squares - sketch_error(P, V, rank) / size) < 4 * direct.std(axis=0) / np.sqrt(draws)).all()
    assert (result["output_error_draws_sd"].sel(kind="svd") == 0).all()
    assert result.attrs["draws"] == draws


def test_what_is_not_drawn_has_no_error_over_draws() -> None:
    P = softmax_maps(12, heads=2, causal=True)
    plain = found(Masks, MaskParameters(keys=[4], kinds=["window", "top-k"]), P)
    assert "output_error_draws_sd" not in plain
    assert plain.attrs["draws"] == 1
    # More draws change nothing of what is not drawn.
    drawn = found(Masks, MaskParameters(keys=[4], draws=3), P)
    for name in ("distance", "output_error", "kl", "scalars"):
        np.testing.assert_allclose(drawn[name].sel(kind="window"), plain[name].sel(kind="window"), rtol=1e-14)
    assert (drawn["output_error_draws_sd"].sel(kind="bigbird") > 0).all()
    assert (drawn["output_error_draws_sd"].sel(kind="window") == 0).all()


def test_draws_of_one_cell_agree_with_the_mean_that_is_told() -> None:
    P = softmax_maps(12, heads=2, causal=True)
    parameters = MaskParameters(keys=[6], kinds=["bigbird"], draws=2)
    two = found(Masks, parameters, P)["distance"]
    sd = found(Masks, parameters, P)["distance_draws_sd"]
    first = found(Masks, parameters.model_copy(update={"draws": 1}), P)["distance"]
    np.testing.assert_allclose(np.abs(first.values - two.values), sd.values / np.sqrt(2))


def test_the_standard_deviation_over_draws() -> None:
    values = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_allclose(sd_over_draws(values), values.std(axis=0, ddof=1))
    np.testing.assert_array_equal(sd_over_draws(np.full((3, 2), 0.1)), [0, 0])
    assert np.isnan(sd_over_draws(values[:1])).all()
