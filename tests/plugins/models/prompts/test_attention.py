"""model.attention: words keep the attention of their tokens, and the numbers by head are what they say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from gausslens import Context, GausslensError, InputError, Part, Prompt, Tokens, Twin
from gausslens.testing import TinyEngine, TinyModel, TinyParameters, check_stream
from gausslens_models import plugin
from gausslens_models.analyses.attention import Attention
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.maths.maps import between_groups, groups_of, row_numbers
from gausslens_models.parameters import AttentionMapParameters
from gausslens_models.prompts.tokenise import tokenise

ATTENTION = next(a for a in plugin.analyses() if a.name == "model.attention")
PARTS = (
    Part("Clues:\n", segment="instruction"),
    Part("Polar bear", "example.0.word", "Polar bear"),
    Part(": ", "example.0.word"),
    Part("white giant\n", "example.0.clue"),
    Part("Ant", "target", "Ant"),
    Part(":", "target"),
)
PROMPTS = [Prompt(PARTS, name="Ant"), Prompt(PARTS[-2:], name="alone")]


def measured(model: Any, tokens: Tokens, engine: Any = None, **given: Any) -> xr.Dataset:
    analysis = Attention(AttentionMapParameters(**given), Context(model.info, 0, tokens))
    running = engine or TinyEngine()
    for shard in tokens.shards():
        running.run(Twin(model), tokens, shard, analysis.request(), analysis.update)
    return analysis.result()


@pytest.mark.parametrize("level", ["token", "word"])
@pytest.mark.parametrize("maps", ["mean", "heads", "none"])
def test_it_does_not_matter_how_prompts_are_cut(level: str, maps: str) -> None:
    found = check_stream(ATTENTION, AttentionMapParameters(level=level, maps=maps), rtol=1e-4, atol=1e-6)
    assert ("pattern" in found) == (maps != "none")


@st.composite
def patterns(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A causal stochastic [head, query, key], and words of its tokens, some of none."""
    n = draw(st.integers(1, 12))
    words, current = [], 0
    for _ in range(n):
        words.append(draw(st.sampled_from([-1, current, current + 1])))
        current = max(current, words[-1])
    raw = np.random.default_rng(draw(st.integers(0, 99))).random((2, n, n)) * np.tril(np.ones((n, n)))
    return raw / raw.sum(axis=-1, keepdims=True), np.array(words, dtype=np.int32)


@given(patterns())
def test_words_keep_the_total_attention_of_tokens(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    pattern, word = drawn
    groups = groups_of(word)
    size = np.bincount(groups)
    found = between_groups(pattern, groups)
    assert np.allclose(found.sum(axis=-1), 1), "each word gives all its attention"
    assert np.isclose((found * size[:, None]).sum(), pattern.sum()), "tokens and words give as much in all"
    for group in range(len(size)):
        received = pattern[:, :, groups == group].sum(axis=(1, 2))
        assert np.allclose((found[:, :, group] * size).sum(axis=-1), received), "each word receives what its tokens do"


@given(patterns())
def test_tokens_of_a_word_are_one_group_and_others_are_alone(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    _, word = drawn
    groups = groups_of(word)
    assert sorted(set(groups.tolist())) == list(range(groups.max() + 1))
    for i in range(len(word)):
        for j in range(i):
            assert (groups[i] == groups[j]) == (word[i] == word[j] and word[i] >= 0)


def test_a_map_of_words_is_the_map_of_tokens_gathered() -> None:
    model = TinyModel()
    tokens = model.tokenise(PROMPTS)
    by_token = measured(model, tokens, maps="heads")
    by_word = measured(model, tokens, maps="heads", level="word")
    n = len(tokens.ids[0])
    groups = groups_of(tokens.word[0])
    for layer in (0, 1):
        plain = by_token.pattern.sel(layer=layer, prompt="Ant").values[:, :n, :n].astype(float)
        gathered = by_word.pattern.sel(layer=layer, prompt="Ant").values
        assert np.allclose(gathered, between_groups(plain, groups), atol=1e-6)
        assert np.isclose((gathered * np.bincount(groups)[:, None]).sum(), plain.sum())
    assert by_word.key_text.sel(prompt="Ant").values.tolist() == [
        *("<bos>", "Clues:", "<0x0A>", "Polar", " ", "bear:", " ", "white", " ", "giant", "<0x0A>", "Ant:")
    ]
    assert by_token.query_text.sel(prompt="alone").values.tolist()[:6] == ["<bos>", *"Ant:", ""]


def test_a_part_that_names_a_word_is_one_word(tokenizers: Callable[..., Any]) -> None:
    for style in ("byte-level", "sentencepiece", "wordpiece"):
        tokens = tokenise(tokenizers(style), PROMPTS, "tiny")
        groups = groups_of(tokens.word[0])
        rendered = tokens.rendered[0]
        held = {}
        for group in range(groups.max() + 1):
            own = tokens.span[0][groups == group]
            held[rendered[own[:, 0].min() : own[:, 1].max()].strip()] = int((groups == group).sum())
        assert held["Polar bear"] > 1, style
        assert held["Ant"] >= 1, style


def test_numbers_by_head_are_means_over_rows_of_text() -> None:
    model = TinyModel()
    tokens = model.tokenise(PROMPTS)
    found = measured(model, tokens, maps="heads")
    for layer, head in ((0, 0), (1, 3)):
        rows = []
        for prompt in range(2):
            n = len(tokens.ids[prompt])
            pattern = found.pattern.values[layer, prompt, head, :n, :n].astype(float)
            rows += [(place, pattern[place, : place + 1]) for place in range(1, n)]
        entropy = [-sum(p * math.log(p) for p in row) for _, row in rows]
        expected = {
            "entropy": np.mean(entropy),
            "entropy_deficit": np.mean([math.log(place + 1) - h for (place, _), h in zip(rows, entropy, strict=True)]),
            "to_first": np.mean([row[0] for _, row in rows]),
            "to_previous": np.mean([row[place - 1] for place, row in rows]),
            "to_self": np.mean([row[place] for place, row in rows]),
        }
        for name, value in expected.items():
            assert float(found[name][layer, head]) == pytest.approx(float(value), abs=1e-6), name


def test_a_head_that_spreads_evenly_has_no_deficit() -> None:
    rows = np.tril(np.ones((5, 5)))[None] / np.arange(1, 6)[:, None]
    entropy, deficit, first, previous, own = row_numbers(rows, np.arange(5), rows[0])[:, 0]
    assert np.allclose(entropy, np.log(np.arange(1, 6)))
    assert np.allclose(deficit, 0)
    assert np.allclose(first, 1 / np.arange(1, 6))
    assert np.allclose(previous[1:], 1 / np.arange(2, 6))
    assert previous[0] == 0
    assert np.allclose(own, 1 / np.arange(1, 6))


def test_a_flat_model_has_no_deficit_between_words_either() -> None:
    """Words of many tokens get more of an even spread: that is not structure."""
    model = TinyModel(TinyParameters(planted=[(layer, head, 0.0) for layer in (0, 1) for head in range(4)]))
    tokens = model.tokenise(PROMPTS)
    for level in ("token", "word"):
        found = measured(model, tokens, level=level)
        assert np.allclose(found.entropy_deficit, 0, atol=1e-5)
    assert (measured(TinyModel(), tokens, level="word").entropy_deficit > 0.01).all()


def test_attention_between_segments_adds_up() -> None:
    model = TinyModel()
    tokens = model.tokenise(PROMPTS)
    found = measured(model, tokens)
    assert "special" not in found.query_segment
    assert "special" in found.segment
    assert np.allclose(found.between.sum("segment"), 1)
    whole = measured(model, tokens, maps="heads")
    target = []
    for prompt in range(2):
        at = np.flatnonzero(tokens.segment[prompt] == tokens.segments.index("target"))
        target += [whole.pattern.values[:, prompt, :, q][:, :, at].sum(axis=-1) for q in at]
    assert np.allclose(found.between.sel(query_segment="target", segment="target"), np.mean(target, axis=0), atol=1e-6)


def test_rows_and_columns_of_some_segments() -> None:
    model = TinyModel()
    tokens = model.tokenise(PROMPTS)
    whole = measured(model, tokens)
    some = measured(model, tokens, queries=["target"], keys=["example.*"])
    rows = np.flatnonzero(tokens.segment[0] == tokens.segments.index("target"))
    columns = np.flatnonzero([tokens.segments[s].startswith("example") for s in tokens.segment[0]])
    expected = whole.pattern.sel(prompt="Ant").values[:, rows][:, :, columns]
    assert np.array_equal(some.pattern.sel(prompt="Ant").values, expected)
    assert some.query_segment.values.tolist() == ["target"]
    assert set(some.key_segment_of.sel(prompt="Ant").values) == {"example.0.word", "example.0.clue"}
    target = whole.between.sel(query_segment="target")
    assert np.allclose(some.between.sel(query_segment="target"), target)
    with pytest.raises(InputError, match="did you mean target"):
        measured(model, tokens, queries=["tagret"])
    with pytest.raises(GausslensError, match="no text in the chosen segments"):
        measured(model, tokens, queries=["special"])


def test_rows_of_real_models_sum_to_one(which: str, opened: Callable[[str], Any], prompts: Tokens) -> None:
    model = opened(which)
    found = measured(model, prompts, TransformersEngine(), maps="heads")
    for number, row in enumerate(prompts.ids):
        rows = found.pattern.values[:, number, :, : len(row)]
        sums = np.nansum(rows, axis=-1)
        # Where sinks stand beside the scores, rows give a part of theirs to nothing.
        assert (sums < 1).all() if model.info.facts.sinks else np.allclose(sums, 1, atol=1e-5)
    if not model.info.facts.sinks:
        assert (found.entropy_deficit > -1e-6).all(), "no row is flatter than flat: the number of keys in view is right"
    if model.info.causal:
        assert (found.entropy_deficit.values < np.log(11)).all()


def test_rows_of_words_may_be_sums_in_place_of_means() -> None:
    model = TinyModel()
    tokens = model.tokenise(PROMPTS)
    means, sums = (measured(model, tokens, maps="heads", level="word", rows=rows) for rows in ("mean", "sum"))
    by_token = measured(model, tokens, maps="heads")
    groups = groups_of(tokens.word[0])
    size = np.bincount(groups)
    assert size.max() > 1
    found = sums["pattern"].isel(prompt=0).values[..., : len(size), : len(size)]
    assert np.allclose(found, means["pattern"].isel(prompt=0).values[..., : len(size), : len(size)] * size[:, None])
    n = len(groups)
    of_tokens = by_token["pattern"].isel(prompt=0).values[..., :n, :n]
    member = groups == np.arange(len(size))[:, None]
    assert np.allclose(found, np.einsum("gq,...qk,hk->...gh", member, of_tokens, member), atol=1e-6), (
        "summed on both sides"
    )
    for name in means.data_vars:
        if name != "pattern":
            assert means[name].identical(sums[name]), f"{name} is of means either way"


def test_heads_may_count_by_the_size_of_what_they_write() -> None:
    model = TinyModel()
    tokens = model.tokenise(PROMPTS)
    heads = measured(model, tokens, maps="heads")["pattern"]
    analysis = Attention(
        AttentionMapParameters(maps="weighted"), Context(model.info, 0, tokens).at(None, twin=(twin := Twin(model)))
    )
    for shard in tokens.shards():
        TinyEngine().run(twin, tokens, shard, analysis.request(), analysis.update)
    found = analysis.result()["pattern"]
    for place, layer in enumerate(found.layer.values):
        sizes = np.linalg.norm(np.asarray(twin.weights(int(layer)).W_O), axis=(1, 2))
        expected = np.tensordot(sizes / sizes.sum(), heads.values[place], axes=(0, heads.dims.index("head") - 1))
        assert np.allclose(found.values[place], expected, atol=1e-6, equal_nan=True)
    assert "weighted" in found.attrs["long_name"]


THREE = tuple(
    part
    for n, (word, clue) in enumerate((("Cat", "purrs"), ("Owl", "hoots at night"), ("Bee", "hums")))
    for part in (Part(f"{word}:", f"example.{n}.word", word), Part(f" {clue}\n", f"example.{n}.clue"))
)


def test_attention_to_the_own_part_and_to_those_before_is_what_the_maps_say() -> None:
    model = TinyModel()
    prompts = [Prompt((Part("Clues\n", "instruction"), *THREE, *PARTS[-2:])), Prompt((*THREE, *PARTS[-2:]))]
    tokens = model.tokenise(prompts)
    found = measured(model, tokens, maps="heads", parts=["example.*", "target"])
    assert found.to_parts.dims == ("layer", "head", "behind")
    given, rows = np.zeros((4, *found.to_parts.shape[:2])), np.zeros(4)
    for prompt in range(2):
        n = len(tokens.ids[prompt])
        names = [tokens.segments[s].split(".")[:2] for s in tokens.segment[prompt]]
        part = np.array([int(name[1]) if name[0] == "example" else 3 if name[0] == "target" else -9 for name in names])
        pattern = found.pattern.isel(prompt=prompt).transpose("layer", "head", "query", "key").values[..., :n, :n]
        for query in np.flatnonzero(part >= 0):
            for behind in range(part[query] + 1):
                given[behind] += pattern[:, :, query, part == part[query] - behind].sum(-1)
                rows[behind] += 1
    assert np.allclose(found.to_parts.transpose("behind", ...).values, given / rows[:, None, None], atol=1e-6)
    check = check_stream(ATTENTION, AttentionMapParameters(), rtol=1e-4, atol=1e-6)
    assert "to_parts" not in check


def test_parts_that_are_not_there_or_there_twice_are_told() -> None:
    model = TinyModel()
    tokens = model.tokenise(PROMPTS)
    for parts, said in (
        (["exampel.*"], "no segment of these prompts is 'exampel.*'"),
        (["example.*", "example.0.word"], "segment 'example.0.word' is of two of them"),
        (["*.*"], "more than one"),
    ):
        with pytest.raises(InputError, match=said.replace("*", r"\*").replace(".", r"\.")):
            measured(model, tokens, parts=parts)
    with pytest.raises(ValueError, match="say level: word"):
        AttentionMapParameters(rows="sum")


def test_keys_of_before_there_was_a_choice_are_keys_of_now() -> None:
    before = {"level": "word", "maps": "mean", "queries": [], "keys": []}
    assert AttentionMapParameters(level="word", maps="mean").canonical() == before
    assert AttentionMapParameters(level="word", maps="mean", rows="sum").canonical() == before | {"rows": "sum"}
