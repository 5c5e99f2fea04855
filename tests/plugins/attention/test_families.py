"""The best members of the source's three sets against brute force, and against its random search."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens import ModelSpec, Part, Prompt, Twin
from gausslens.testing import TinyEngine, TinyModel
from gausslens_attention.maths.band_plus_sparse import cells, offsets
from gausslens_attention.maths.map_families import MASK_CELLS, band, diagonal, kept_cells, within
from gausslens_attention.maths.random_search import draw_bands, draw_diagonals, draw_rare_tokens, random_search
from gausslens_attention.maths.rare_tokens import rare_tokens
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.pretrained import open_pretrained
from gausslens_models.parameters import TransformersParameters

from .maps import any_maps, softmax_maps


def held(H: np.ndarray, supports: np.ndarray, budget: int) -> float:
    """The most that any of these supports [support, n, n] holds with so many of the largest other cells beside."""
    size = np.abs(H)
    inside = np.where(supports, size, 0.0).sum(axis=(1, 2))
    rest = -np.sort(-np.where(supports, 0.0, size).reshape(len(supports), -1), axis=1)[:, :budget]
    return float((inside + rest.sum(axis=1)).max())


@cache
def windowed(n: int, windows: int) -> np.ndarray:
    """The supports of all maps in which at most so many windows look at a column each, other rows at themselves."""
    one = [(a, b, c) for a in range(n) for b in range(a + 1, n + 1) for c in range(n)]
    found = [np.eye(n, dtype=bool)]
    for count in range(1, windows + 1):
        for chosen in itertools.combinations(one, count):
            if all(x[1] <= y[0] or y[1] <= x[0] for x, y in itertools.combinations(chosen, 2)):
                column = np.arange(n)
                for first, last, where in chosen:
                    column[first:last] = where
                found.append(np.eye(n, dtype=bool)[column])
    return np.stack(found)


@pytest.mark.parametrize("budget", [0, 1, 4])
@pytest.mark.parametrize(("n", "windows"), [(1, 1), (3, 3), (5, 2), (8, 1), (8, 2)])
def test_rare_token_members_are_the_best_of_all(n: int, windows: int, budget: int) -> None:
    for seed, causal in ((0, True), (1, False), (2, True)):
        H = softmax_maps(n, causal=causal, sharp=2.0, seed=seed)[0]
        found = rare_tokens(H, windows, budget)
        assert found.captured == pytest.approx(held(H, windowed(n, windows), budget), abs=1e-9)


@given(H=any_maps(5), windows=st.integers(0, 3), budget=st.integers(0, 5))
def test_a_rare_token_member_is_what_it_says(H: np.ndarray, windows: int, budget: int) -> None:
    n = len(H)
    found = rare_tokens(H, windows, budget)
    assert found.captured == pytest.approx(held(H, windowed(n, min(windows, n)), budget), abs=1e-9)
    assert found.captured == pytest.approx(np.abs(H)[found.support].sum(), abs=1e-12)
    assert found.support[np.arange(n), found.column].all()
    assert found.support.sum() <= n + budget
    assert found.windows <= windows
    np.testing.assert_array_equal(found.column[found.own], np.flatnonzero(found.own))
    turns = np.flatnonzero(~found.own & np.r_[True, (found.column[1:] != found.column[:-1]) | found.own[:-1]])
    assert len(turns) <= found.windows


def test_planted_windows_are_found() -> None:
    column = np.array([0, 1, 2, 2, 2, 2, 6, 7, 8, 8, 8, 11])
    H = np.full((12, 12), 0.01)
    H[np.arange(12), column] = 0.89
    found = rare_tokens(H, windows=2)
    np.testing.assert_array_equal(found.column, column)
    assert found.windows == 2


@pytest.mark.parametrize("budget", [0, 1, 5, 64])
def test_diagonals_are_the_best_of_all(budget: int) -> None:
    n = 8
    lines = np.stack([np.eye(n, k=-d, dtype=bool) for d in range(1 - n, n)])
    for seed, causal in ((0, True), (1, False), (2, True)):
        H = softmax_maps(n, causal=causal, sharp=2.0, seed=seed)[0]
        found = diagonal(H, budget)
        assert found.captured == pytest.approx(held(H, lines, budget), abs=1e-9)
        assert np.abs(H)[found.support].sum() == pytest.approx(found.captured, abs=1e-12)
    planted = diagonal(np.eye(n, k=-3) + 0.01)
    assert planted.parameter == 3


@pytest.mark.parametrize(("width", "keep", "budget"), [(0, 3, 0), (1, 4, 0), (1, 5, 1), (2, None, 2), (7, 3, 0)])
def test_bands_with_dropout_are_the_best_of_all(width: int, keep: int | None, budget: int) -> None:
    n = 8 if width < 7 else 5
    H = softmax_maps(n, causal=True, sharp=2.0)[0]
    inside = np.flatnonzero(((offsets(n) <= width) & np.tril(np.ones((n, n), dtype=bool))).ravel())
    outside = np.sort(H[offsets(n) > width])[::-1][:budget].sum()
    count = len(inside) if keep is None else keep
    best = max(H.ravel()[list(chosen)].sum() for chosen in itertools.combinations(inside, count)) + outside
    found = band(H, width, keep, budget)
    assert found.captured == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("causal", [False, True])
def test_families_are_compared_at_equal_storage(causal: bool) -> None:
    n, scalars = 10, 15
    for seed in range(4):
        H = softmax_maps(n, causal=causal, sharp=2.0, seed=seed)[0]
        line, near, windows = within(H, scalars, causal)
        assert line.support.sum() <= n + (scalars - 1 - n) // 2
        assert windows.support.sum() + 2 * windows.windows <= scalars
        assert windows.captured == rare_tokens(H, 2).captured
        widths = [w for w in range(n) if kept_cells(n, w, scalars, causal) > 0]
        best = max(float(band(H, w, kept_cells(n, w, scalars, causal)).captured) for w in widths)
        assert near.captured == pytest.approx(best, abs=1e-12)
        kept, inside = int(near.support.sum()), cells(n, int(near.parameter), causal)
        assert 1 + kept + (0 if kept == inside else -(-inside // MASK_CELLS)) <= scalars


def test_several_heads_at_once_are_those_one_by_one() -> None:
    H = softmax_maps(9, heads=6, sharp=2.0).reshape(2, 3, 9, 9)
    both = (diagonal(H, 2), band(H, 1, 6, 2), *within(H, 14, False)[:2])
    for place in np.ndindex(2, 3):
        alone = (diagonal(H[place], 2), band(H[place], 1, 6, 2), *within(H[place], 14, False)[:2])
        for many, one in zip(both, alone, strict=True):
            assert many.captured[place] == one.captured
            assert many.parameter[place] == one.parameter
            np.testing.assert_array_equal(many.support[place], one.support)
        np.testing.assert_array_equal(rare_tokens(H, 2, 1).support[place], rare_tokens(H[place], 2, 1).support)


def test_draws_are_members_of_their_sets() -> None:
    n, rng = 12, np.random.default_rng(0)
    drawn = {
        "diagonal": draw_diagonals(n, 20, 0.5, rng),
        "band": draw_bands(n, 20, 2, 0.5, rng),
        "rare": draw_rare_tokens(n, 20, 3, 2, 1.0, rng),
    }
    for name, made in drawn.items():
        whole = made[~np.isnan(made).any(axis=(1, 2))]
        assert len(whole)
        np.testing.assert_allclose(whole.sum(axis=-1), 1.0)
        for one in whole:
            distance = {
                "diagonal": lambda H: diagonal(H, n),
                "band": lambda H: band(H, 2, budget=n),
                "rare": lambda H: rare_tokens(H, 2, n),
            }[name](one)
            assert distance.captured == pytest.approx(n, abs=1e-9)


def nearest_member(H: np.ndarray, width: int = 3, columns: int = 2) -> np.ndarray:
    """The least distance of a row-stochastic member of any of the three sets with n errors to row-stochastic maps."""
    n = H.shape[-1]
    captured = np.stack([m.captured for m in (diagonal(H, n), band(H, width, budget=n), rare_tokens(H, columns, n))])
    return 2 * (n - captured.max(axis=0))


def test_no_draw_of_the_source_is_nearer_than_the_exact_member() -> None:
    model = TinyModel()
    found = TinyEngine().runner(Twin(model)).forward(np.arange(40, 56)[None], sites=("pattern",))
    patterns = np.concatenate([found[layer, "pattern"][0].double().numpy() for layer in model.info.layers])
    maps = np.concatenate([patterns, softmax_maps(16, heads=3, sharp=3.0), np.eye(16)[None]])
    search = random_search(maps, np.random.default_rng(1), draws=5, steps=4)
    assert (nearest_member(maps) <= search.distance + 1e-6).all()


@pytest.mark.full
def test_no_draw_of_the_whole_search_is_nearer() -> None:
    maps = np.concatenate([softmax_maps(16, heads=4, sharp=s, causal=c) for s in (0.5, 3.0) for c in (True, False)])
    search = random_search(maps, np.random.default_rng(2))
    assert search.draws == 119_790
    assert (nearest_member(maps) <= search.distance + 1e-9).all()


@pytest.mark.full
@pytest.mark.real_model
@pytest.mark.parametrize("name", ["smollm2", "minilm"])
def test_no_draw_of_the_whole_search_is_nearer_to_any_head(name: str, real_models: Path) -> None:
    model = open_pretrained(ModelSpec(str(real_models / name), TransformersParameters()))
    text = "The ferry left the harbour at six, and nobody on deck could see the islands from there, or the sea."
    ids = model.tokenise([Prompt((Part(text),))]).ids[0][:16]
    found = TransformersEngine().runner(Twin(model)).forward(ids[None], sites=("pattern",))
    maps = np.concatenate([found[layer, "pattern"][0].double().numpy() for layer in model.info.layers])
    assert maps.shape == (model.info.n_layers * model.info.n_heads, 16, 16)
    search = random_search(maps, np.random.default_rng(3))
    # Rows of single precision sum to one to their rounding.
    assert (nearest_member(maps) <= search.distance + 1e-5).all()
