"""The stream analyses as the host runs them, and what they find in patterns that are known."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import gausslens_attention.plugin
from gausslens import Batch, Context, GausslensError, ModelInfo, Parameters, Result
from gausslens.testing import TinyModel, TinyParameters, check_references, check_round_trip, check_stream
from gausslens_attention.analyses.band import Band
from gausslens_attention.analyses.kernels import Kernels
from gausslens_attention.analyses.lowrank import LowRank
from gausslens_attention.analyses.masks import Masks
from gausslens_attention.analyses.pooling import Pooling
from gausslens_attention.analyses.roles import Roles
from gausslens_attention.figures import too_short
from gausslens_attention.maths.map_families import within
from gausslens_attention.maths.measures import Oracles, measured
from gausslens_attention.parameters import (
    BandParameters,
    KernelParameters,
    LowRankParameters,
    MaskParameters,
    MembersParameters,
    PoolingParameters,
    RolesParameters,
)
from gausslens_attention.plugin import BAND, KERNELS, LOWRANK, MASKS, MEMBERS, POOLING, ROLES

from .maps import softmax_maps

# Batches of other shapes change the last bits of what a float32 model computes.
CUT: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
SMALL = {
    "attention.band": BandParameters(w=[0, 2, 40], budget=[0, 5]),
    "attention.lowrank": LowRankParameters(rank=[1, 3, 40]),
    "attention.masks": MaskParameters(keys=[3, 40]),
    "attention.kernels": KernelParameters(features=[8]),
    "attention.roles": RolesParameters(directions=4),
    "attention.pooling": PoolingParameters(directions=1, hidden=1, steps=5),
    "attention.members": MembersParameters(w=[0, 2], windows=[1], draws=2, steps=2, repeats=2),
}


def test_everything_that_the_plugin_names_exists() -> None:
    host = check_references(gausslens_attention.plugin)
    assert set(SMALL) <= set(host.analyses)


@pytest.mark.parametrize("analysis", [BAND, LOWRANK, MASKS, KERNELS, ROLES, POOLING, MEMBERS], ids=lambda a: a.name)
def test_as_the_host_runs_it(analysis: Any) -> None:
    result = check_stream(analysis, SMALL[analysis.name], **CUT)
    check_round_trip(result)
    assert result.sizes["layer"] == 2
    assert result.sizes["head"] == 4


def info_of(heads: int, causal: bool) -> ModelInfo:
    one = tuple(range(heads))
    model = TinyModel(TinyParameters(layers=1, heads=heads, kv_heads=heads)).info
    return replace(model, causal=causal, heads=one, kv_heads=one, kv_of_head=one)


def found(kind: Any, parameters: Parameters, P: np.ndarray, causal: bool = True, **arrays: np.ndarray) -> Any:
    """The result of one prompt with these patterns [head, n, n]."""
    heads, n, _ = P.shape
    V = np.random.default_rng(7).normal(size=(1, n, heads, 6))
    given = {"pattern": P[None], "v": V, **arrays}
    batch = Batch(
        layer=0,
        prompts=np.array([0]),
        tokens=torch.zeros(1, n, dtype=torch.long),
        text=torch.ones(1, n, dtype=torch.bool),
        mask=torch.ones(1, n, dtype=torch.bool),
        arrays={site: torch.from_numpy(array) for site, array in given.items()},
        heads=tuple(range(heads)),
        kv_heads=tuple(range(heads)),
    )
    made = kind(parameters, Context(info_of(heads, causal), 0))
    made.update(batch)
    return made.result().isel(layer=0)


def test_a_banded_head_needs_its_band_and_no_more() -> None:
    n = 24
    P = np.stack([np.eye(n), softmax_maps(n, causal=True, sharp=0.1)[0]])
    P[0, 1:] = 0.3 * np.eye(n)[1:] + 0.7 * np.eye(n)[:-1]
    result = found(Band, BandParameters(w=[0, 1, 4, 23], budget=[0], tolerance=1e-6), P)
    np.testing.assert_allclose(result["distance"].sel(head=0).values.ravel(), [0.7 * 23, 0, 0, 0], atol=1e-9)
    assert float(result["scalars_needed"].sel(head=0)) == n + n - 1
    assert float(result["scalars_needed"].sel(head=1)) == n * (n + 1) / 2
    # With as many entries no cells are better than the oracle's; with their places stored a band may be.
    assert float(result["excess_flops"].min()) >= -1e-9
    assert float(result["excess"].sel(head=0, w=1).squeeze()) < 0
    assert float(result["scalars"].sel(w=1).squeeze()) == n + n - 1


@pytest.mark.parametrize("stochastic", [False, True])
def test_budgets_are_of_a_map_or_of_a_row(stochastic: bool) -> None:
    P = softmax_maps(16, heads=2, causal=True, sharp=2.0)
    given: dict[str, Any] = {"w": [1], "stochastic": stochastic}
    by_row = found(Band, BandParameters(budget=[2], per="row", **given), P)
    by_map = found(Band, BandParameters(budget=[32], per="map", **given), P)
    np.testing.assert_array_equal(by_row["distance"].values, by_map["distance"].values)
    assert float(by_row["scalars"].squeeze()) == 16 + 15 + 2 * 32
    # With as many entries, and rows that sum to one where these do, nothing is nearer than the oracle.
    assert float(by_map["excess_flops"].min()) >= -1e-9
    assert ("rows that sum to one" in by_map.attrs["oracle"]) == stochastic
    if stochastic:
        np.testing.assert_allclose(
            by_map["oracle_flops"], [[[Oracles(p[None]).stochastic(16 + 15 + 32)[0]]] for p in P], atol=1e-12
        )
        free = found(Band, BandParameters(budget=[32], w=[1]), P)
        np.testing.assert_allclose(by_map["distance"], 2 * free["distance"], atol=1e-12)


@pytest.mark.parametrize("count", [3, 4, 5, 6, 9])
def test_the_stochastic_oracle_is_the_best_of_all_choices_of_cells(count: int) -> None:
    """By trying them: on each choice with a cell in every row, the nearest rows leave twice what they do not hold."""
    P = np.random.default_rng(count).dirichlet(np.full(3, 0.5), size=(2, 3))
    cells = list(product(range(3), range(3)))
    best = np.full(2, np.inf)
    for chosen in combinations(cells, count):
        if len({row for row, _ in chosen}) == 3:
            held = sum(P[:, i, j] for i, j in chosen)
            best = np.minimum(best, 2 * (3 - held))
    np.testing.assert_allclose(Oracles(P).stochastic(count), best, atol=1e-12)
    # A row has one cell at least, for it must sum to one: fewer than rows are not asked for.
    np.testing.assert_allclose(Oracles(P).stochastic(1), Oracles(P).stochastic(3), atol=1e-12)
    assert (Oracles(P).stochastic(count) >= Oracles(P).entries(count) - 1e-12).all()


def test_least_squares_on_too_few_tokens_has_no_number_and_is_told() -> None:
    def prompts(*lengths: int) -> Any:
        made = Kernels(KernelParameters(features=[8], draws=2), Context(info_of(2, True), 0))
        for prompt, n in enumerate(lengths):
            rng = np.random.default_rng(n)
            arrays = {site: torch.from_numpy(rng.normal(size=(1, n, 2, 6))) for site in ("q", "k", "v")}
            arrays["pattern"] = torch.from_numpy(softmax_maps(n, heads=2, causal=True)[None])
            ones = torch.ones(1, n, dtype=torch.bool)
            made.update(Batch(0, np.array([prompt]), ones.long(), ones, ones, arrays, (0, 1), (0, 1)))
        return made.result()

    # A key has 6 numbers, and 5 rows do not determine them.
    short, long, both = prompts(5), prompts(6, 20), prompts(6, 20, 5)
    names = ("distance", "output_error", "kl", "excess", "output_error_se")
    for name in names:
        fitted = {one: result[name].sel(kind="least-squares").values for one, result in {0: long, 1: both}.items()}
        np.testing.assert_array_equal(fitted[0], fitted[1])
        assert np.isfinite(fitted[0]).all()
        assert np.isnan(short[name].sel(kind="least-squares")).all()
    assert np.isfinite(short["output_error"].drop_sel(kind="least-squares")).all()
    assert np.isnan(short["scalars_needed"].sel(kind="least-squares")).all()
    assert "1 of 1 prompts" in short.attrs["too_short"]
    assert "1 of 3 prompts have fewer, in each of 2 heads" in both.attrs["too_short"]
    assert "too_short" not in long.attrs
    caption = too_short(Result("trained", "attention.kernels", both))
    assert caption.startswith(" Too short: least-squares takes as many tokens as a key has numbers: 1 of 3")
    assert too_short(Result("trained", "attention.kernels", long)) == ""


def test_a_head_of_low_rank_needs_its_rank() -> None:
    n = 20
    rows = softmax_maps(n)[0][:2]
    weights = np.random.default_rng(0).random((n, 2))
    P = (weights / weights.sum(1, keepdims=True)) @ rows
    parameters = LowRankParameters(rank=[1, 2, 20], kinds=["svd", "sketch", "svd+sparse"], tolerance=1e-6)
    result = found(LowRank, parameters, P[None], causal=False)
    assert float(result["scalars_needed"].sel(kind="svd").squeeze()) == 2 * n * 2
    assert np.isnan(float(result["scalars_needed"].sel(kind="sketch").squeeze()))
    np.testing.assert_allclose(result["excess"].sel(kind="svd").values, 0, atol=1e-9)
    error = result["output_error"].squeeze()
    assert (np.diff(error.sel(kind="svd")) <= 1e-12).all()


def test_linformer_with_as_many_rows_as_tokens_is_exact() -> None:
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=(2, 1, 14, 2, 6))
    scores = np.einsum("pqhe,pkhe->hqk", q, k) / np.sqrt(6)
    P = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    parameters = LowRankParameters(rank=[3, 14], kinds=["linformer", "linformer-fitted"])
    result = found(LowRank, parameters, P, causal=False, q=q, k=k)
    assert float(result["output_error"].sel(kind="linformer", rank=14).max()) < 1e-12
    assert float(result["output_error"].sel(kind="linformer", rank=3).min()) > 1e-2


def test_masks_keep_what_they_say_and_full_ones_everything() -> None:
    n = 16
    P = softmax_maps(n, heads=3, causal=True, sharp=2.0)
    result = found(Masks, MaskParameters(keys=[4, n, 4 * n]), P)
    window = result["scalars"].sel(kind="window")
    np.testing.assert_array_equal(window, [4 * n - 6, n * (n + 1) / 2, n * (n + 1) / 2])
    assert float(result["output_error"].sel(kind=["window", "top-k"], keys=[n, 4 * n]).max()) < 1e-12
    top = result["distance"].sel(kind="top-k", keys=4)
    for kind in ("window", "dilated", "longformer", "bigbird"):
        assert (top <= result["distance"].sel(kind=kind, keys=4) + 1e-12).all()
    # The places of the largest cells and of random ones are not known beforehand.
    assert float(result["scalars"].sel(kind="top-k", keys=4)) == 2 * (4 * n - 6)
    assert float(result["scalars"].sel(kind="bigbird", keys=4)) > float(
        result["scalars"].sel(kind="longformer", keys=4)
    )


def test_kernels_come_near_where_scores_are_small() -> None:
    rng = np.random.default_rng(2)
    q, k = 0.3 * rng.normal(size=(2, 1, 20, 2, 6))
    scores = np.where(np.tril(np.ones((20, 20))) > 0, np.einsum("pqhe,pkhe->hqk", q, k) / np.sqrt(6), -np.inf)
    P = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    result = found(Kernels, KernelParameters(features=[8, 512]), P, q=q, k=k)
    assert list(result["kind"].values) == [
        "elu",
        "taylor-1",
        "taylor-2",
        "performer 8",
        "performer 512",
        "least-squares",
    ]
    error = result["distance_per_row"].squeeze().max("head")
    assert float(error.sel(kind="taylor-2")) < 1e-3
    assert float(error.sel(kind="performer 512")) < float(error.sel(kind="performer 8"))
    assert float(error.sel(kind="least-squares")) > 0.1
    np.testing.assert_array_equal(result["scalars"].sel(kind="performer 8"), 2 * 20 * 8)


def test_what_is_told_is_the_mean_over_prompts() -> None:
    P, more = softmax_maps(8, heads=2, causal=True, seed=1), softmax_maps(8, heads=2, causal=True, seed=2)
    parameters = BandParameters(w=[1], budget=[2])
    context = Context(info_of(2, True), 0)
    V = np.random.default_rng(0).normal(size=(2, 8, 2, 6))
    made = Band(parameters, context)
    ones = torch.ones(2, 8, dtype=torch.bool)
    arrays = {"pattern": torch.from_numpy(np.stack([P, more])), "v": torch.from_numpy(V)}
    made.update(Batch(0, np.array([1, 0]), ones.long(), ones, ones, arrays, (0, 1), (0, 1)))
    result = made.result()
    from gausslens_attention.maths.band_plus_sparse import project

    each = [measured(p, project(p, 1, 2)[0], v.swapaxes(0, 1)) for p, v in zip((P, more), V, strict=True)]
    for name in ("distance", "kl", "output_error"):
        np.testing.assert_allclose(result[name].values.squeeze(), np.mean([e[name] for e in each], axis=0))
    apart = np.std([e["distance"] for e in each], axis=0, ddof=1) / np.sqrt(2)
    np.testing.assert_allclose(result["distance_se"].values.squeeze(), apart)
    assert result.attrs["prompts"] == 2


def test_heads_are_given_the_roles_that_they_play() -> None:
    n = 32
    before = np.eye(n, k=-1)
    before[0, 0] = 1
    near = np.where((np.arange(n)[:, None] - np.arange(n) <= 2) & np.tril(np.ones((n, n), dtype=bool)), 1.0, 0.0)
    near *= np.random.default_rng(0).random((n, n)) < 0.6
    near[np.arange(n), np.arange(n)] += 0.01
    first = np.zeros((n, n))
    first[:, 0] = 1
    even = np.tril(np.ones((n, n)))
    P = np.stack([m / m.sum(axis=1, keepdims=True) for m in (before, near, first, even)])
    result = found(Roles, RolesParameters(), 0.97 * P + 0.03 * P[3])
    roles = [str(result["role"].values[int(i)]) for i in result["family"].squeeze()]
    assert roles == ["diagonal", "band", "rare", "none"]
    assert float(result["offset"].sel(head=0)) == 1
    assert float(result["width"].sel(head=1)) == 2
    assert float(result["column"].sel(head=2)) == 0
    assert float(result["windowed"].sel(head=2)) > 0.9
    np.testing.assert_array_equal(result["heads"].values, [1, 1, 1, 1])
    assert float(result["margin"].sel(head=2)) > 0.2
    shares = [m.captured / n for m in within(0.97 * P + 0.03 * P[3], round(1.25 * n), True)]
    np.testing.assert_allclose(result["share"].squeeze(), np.stack(shares, axis=-1))


def test_the_spectrum_of_a_map_is_told() -> None:
    P = softmax_maps(12, heads=2, causal=True, sharp=2.0)
    result = found(Roles, RolesParameters(directions=20), P)
    values = np.linalg.svd(P, compute_uv=False)
    kept = result["singular"].squeeze().values
    np.testing.assert_allclose(kept[:, :12], values)
    assert np.isnan(kept[:, 12:]).all()
    np.testing.assert_allclose(result["spectral"].squeeze(), values[:, 0])
    np.testing.assert_allclose(result["frobenius"].squeeze(), np.linalg.norm(P, axis=(1, 2)))
    np.testing.assert_allclose(result["nuclear"].squeeze(), values.sum(1))
    np.testing.assert_allclose(result["column_sum"].squeeze(), P.sum(1).max(1))
    rounding = 12 * np.finfo(np.float32).eps * values[:, 0]
    np.testing.assert_allclose(
        result["condition"].squeeze(), np.log10(values[:, 0] / np.maximum(values[:, -1], rounding))
    )
    np.testing.assert_array_equal(result["rank"].squeeze(), (values > rounding[:, None]).sum(axis=1))


def test_the_scoring_function_that_makes_the_scores_is_told() -> None:
    rng = np.random.default_rng(5)
    n = 48
    q, k = rng.normal(size=(2, 1, n, 4, 6))
    Q, K = (x[0].swapaxes(0, 1) for x in (q, k))
    W = rng.normal(size=(6, 6))
    hidden = np.tanh((Q[2] @ W[0])[:, None] + (K[2] @ W[1])[None]) * 3
    place = np.subtract.outer(np.arange(n), np.arange(n))
    scores = np.stack([0.4 * Q[0] @ K[0].T, Q[1] @ W @ K[1].T, hidden, np.cos(2.0 * place)])
    scores = np.where(np.tril(np.ones((n, n))) > 0, scores, -np.inf)
    P = np.exp(scores - scores.max(-1, keepdims=True))
    P /= P.sum(-1, keepdims=True)
    parameters = PoolingParameters(directions=6, hidden=6, steps=300)
    result = found(Pooling, parameters, P, scores=scores[None], q=q, k=k)
    explained = result["explained"].transpose("head", "scoring").values
    np.testing.assert_allclose(explained[0, :2], 1, atol=1e-6)
    assert explained[1, 1] == pytest.approx(1, abs=1e-6)
    assert explained[1, 0] < 0.5
    assert explained[2, 2] > 0.95 > 0.8 > explained[2, :2].max()
    # What position alone makes, no function of q and k explains on cells that it was not fitted to.
    assert explained[3].max() < 0.1
    assert float(result["explained_fitted"].sel(head=3, scoring="additive")) > 0.1
    assert result["numbers"].values.tolist() == [2, 37, 6 * 14 + 1]
    # A prompt with fewer than four cells for each number tells nothing of that function.
    short = PoolingParameters(directions=6, hidden=60)
    result = found(Pooling, short, P, scores=scores[None], q=q, k=k)
    assert np.isnan(result["explained"].sel(scoring="additive")).all()
    assert result["prompts"].values.tolist() == [1, 1, 0]
    told = f"additive: 1 of 1 prompts have fewer than the {8 * (60 * 14 + 1)} scores that it takes, and 4 of 4 heads"
    assert result.attrs["too_short"] == f"{told} no number"
    with pytest.raises(GausslensError, match="longer prompts"):
        found(Pooling, PoolingParameters(functions=["additive"], hidden=60), P, scores=scores[None], q=q, k=k)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (BandParameters, {"w": []}),
        (BandParameters, {"w": [-1]}),
        (BandParameters, {"w": [1, 1]}),
        (BandParameters, {"epsilon": 0.0}),
        (LowRankParameters, {"rank": [0]}),
        (MaskParameters, {"keys": [1], "kinds": ["longformer"]}),
        (KernelParameters, {"kernels": ["elu", "elu"]}),
        (RolesParameters, {"scalars": 0.5}),
        (PoolingParameters, {"functions": []}),
    ],
)
def test_parameters_that_make_no_sense_are_refused(model: type[Parameters], given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model(**given)
