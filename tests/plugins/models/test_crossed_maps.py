"""model.attention between two stacks: queries are the targets' tokens or words, keys the sources'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from gausslens import Context, Part, Prompt, Tokens, Twin
from gausslens.testing import check_result
from gausslens_models.analyses.attention import Attention, estimate
from gausslens_models.maths.maps import between_groups
from gausslens_models.parameters import AttentionMapParameters

from ..crossed_model import CrossedEngine, CrossedModel

# Words of the sources and of the targets, of other numbers and lengths.
TEXTS = ("the lazy dog|der Hund", "ja genau so|yes of", "a red cat|x yy z")
MODEL = CrossedModel()


def tokens_of(texts: tuple[str, ...] = TEXTS) -> Tokens:
    return MODEL.tokenise([Prompt((Part(text),)) for text in texts])


def found_of(tokens: Tokens, at_once: int = 100, **chosen: Any) -> tuple[xr.Dataset, dict[Any, np.ndarray]]:
    analysis = Attention(AttentionMapParameters(**chosen), Context(MODEL.info, 0, tokens))
    patterns: dict[Any, np.ndarray] = {}

    def sink(batch: Any) -> None:
        analysis.update(batch)
        for row, prompt in enumerate(batch.prompts):
            n, m = tokens.lengths[prompt], tokens.keys.lengths[prompt]
            patterns[batch.layer, int(prompt)] = batch.numpy("pattern")[row, :, :n, :m].astype(np.float64)

    for start in range(0, len(tokens), at_once):
        shard = np.arange(start, min(start + at_once, len(tokens)))
        CrossedEngine().run(Twin(MODEL), tokens, shard, analysis.request(), sink)
    return check_result(analysis.result()), patterns


@pytest.mark.parametrize("maps", ["mean", "heads", "none"])
def test_numbers_and_maps_by_hand(maps: str) -> None:
    tokens = tokens_of()
    found, patterns = found_of(tokens, maps=maps)
    for layer in range(2):
        rows = [patterns[layer, p][:, tokens.text[p]] for p in range(3)]
        count = sum(r.shape[1] for r in rows)
        entropy = sum(-(r * np.log(r)).sum(axis=(1, 2)) for r in rows) / count
        deficit = sum((r * np.log(r * r.shape[2])).sum(axis=(1, 2)) for r in rows) / count
        first = sum(r[..., 0].sum(axis=1) for r in rows) / count
        # "special" is the token before each source, "source" the rest of it.
        np.testing.assert_allclose(found["entropy"].sel(layer=layer), entropy, rtol=1e-5)
        np.testing.assert_allclose(found["entropy_deficit"].sel(layer=layer), deficit, atol=1e-6)
        np.testing.assert_allclose(found["to_first"].sel(layer=layer), first, rtol=1e-5)
        between = found["between"].sel(layer=layer, query_segment="target")
        np.testing.assert_allclose(between.sel(segment="special"), first, rtol=1e-5)
        np.testing.assert_allclose(between.sel(segment="source"), 1 - first, rtol=1e-5)
    assert "to_previous" not in found
    assert "to_self" not in found
    if maps == "none":
        assert "pattern" not in found
        return
    assert list(found["query_text"].values[1][:4]) == ["<bos>", "y", "e", "s"]
    assert list(found["key_text"].values[1][:4]) == ["<bos>", "j", "a", " "]
    assert set(found["key_segment_of"].values[0]) == {"special", "source"}
    for prompt, (n, m) in enumerate(zip(tokens.lengths, tokens.keys.lengths, strict=True)):
        one = found["pattern"].sel(layer=1).isel(prompt=prompt).values
        wanted = patterns[1, prompt] if maps == "heads" else patterns[1, prompt].mean(axis=0)
        np.testing.assert_allclose(one[..., :n, :m], wanted, rtol=1e-5, atol=1e-7)
        assert np.isnan(one[..., n:, :]).all()
        assert np.isnan(one[..., m:]).all()


def test_words_of_targets_look_at_words_of_sources() -> None:
    tokens = tokens_of()
    found, patterns = found_of(tokens, level="word", maps="heads")
    for prompt in range(3):
        words, of_keys = tokens.word[prompt], tokens.keys.word[prompt]
        pattern = patterns[0, prompt]
        for i, word in enumerate(sorted({int(w) for w in words if w >= 0})):
            for j, other in enumerate(sorted({int(w) for w in of_keys if w >= 0})):
                wanted = pattern[:, words == word][:, :, of_keys == other].sum(axis=2).mean(axis=1)
                query = [t.strip() for t in found["query_text"].values[prompt]].index(word_of(TEXTS[prompt], 1, i))
                key = [t.strip() for t in found["key_text"].values[prompt]].index(word_of(TEXTS[prompt], 0, j))
                np.testing.assert_allclose(found["pattern"].values[0, prompt, :, query, key], wanted, rtol=1e-4)


def word_of(text: str, side: int, place: int) -> str:
    return text.split("|")[side].split()[place]


@pytest.mark.parametrize("level", ["token", "word"])
@pytest.mark.parametrize("texts", [TEXTS, ("the lazy dog|der Hund", "ja|yes of course", "a b|x")])
def test_it_does_not_matter_how_prompts_are_cut(level: str, texts: tuple[str, ...]) -> None:
    """Of maps in one block, and of those one after another, which very different lengths make."""
    whole, _ = found_of(tokens_of(texts), level=level)
    apart, _ = found_of(tokens_of(texts), at_once=1, level=level)
    xr.testing.assert_allclose(whole, apart, rtol=1e-4, atol=1e-6)


def test_rows_and_columns_are_chosen_by_segments_of_their_own() -> None:
    tokens = tokens_of()
    found, patterns = found_of(tokens, queries=["target"], keys=["source"], maps="heads")
    n, m = tokens.lengths[0] - 1, tokens.keys.lengths[0] - 1
    assert (n, m) == (8, 12)
    one = found["pattern"].values[1, 0]
    np.testing.assert_allclose(one[:, :n, :m], patterns[1, 0][:, 1:, 1:], rtol=1e-5)
    assert "<bos>" not in found["key_text"].values[0]


def test_the_estimate_counts_both_sides() -> None:
    tokens = tokens_of()
    told = estimate(AttentionMapParameters(maps="heads"), MODEL.info, tokens)
    found, _ = found_of(tokens, maps="heads")
    assert told.disk == found["pattern"].nbytes


@given(data=st.data(), n=st.integers(1, 6), m=st.integers(1, 6))
@settings(deadline=None)
def test_groups_of_both_sides(data: Any, n: int, m: int) -> None:
    """Of both sides at once what one side after the other gives, and rows keep their total."""
    groups, of_keys = (
        np.unique(data.draw(st.lists(st.integers(0, 3), min_size=k, max_size=k)), return_inverse=True)[1]
        for k in (n, m)
    )
    P = np.random.default_rng(n * 7 + m).random((2, n, m))
    found = between_groups(P, groups, of_keys)
    for i in range(groups.max() + 1):
        for j in range(of_keys.max() + 1):
            wanted = P[:, groups == i][:, :, of_keys == j].sum(axis=2).mean(axis=1)
            np.testing.assert_allclose(found[:, i, j], wanted)
    if n == m:
        np.testing.assert_array_equal(between_groups(P, groups), between_groups(P, groups, groups))
