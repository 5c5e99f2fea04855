"""Prompts of an iterator, tokenised some at a time: the same tokens and keys as all at once, and few bytes of each."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_run import host, study

from gausslens import InputError, Part, Prompt, PromptSource, Tokens, hookimpl
from gausslens.contract import prompts as contract
from gausslens.contract.errors import ModelError
from gausslens.contract.prompts import tokenised
from gausslens.maths.resampling import dealt
from gausslens.runs.plan import PlanError
from gausslens.spreading.prepare import prepare
from gausslens.testing.tiny_model import TinyModel

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=9)
NAMED = st.one_of(st.none(), st.sampled_from(["a", "b"]))
PROMPTS = st.lists(st.builds(lambda text, name: Prompt((Part(text),), name=name), TEXT, NAMED), min_size=1, max_size=9)
SAME = ("ids", "text", "word", "segment", "span", "pieces", "rendered", "names")


def in_batches(made: Sequence[Prompt], size: int, model: Any = None) -> Tokens:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contract, "BATCH_PROMPTS", size)
        return tokenised(model or TinyModel(), iter(made), "tiny")


@given(made=PROMPTS, size=st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_batches_make_no_difference(made: list[Prompt], size: int) -> None:
    whole, found = TinyModel().tokenise(made), in_batches(made, size)
    assert [getattr(found, name) for name in SAME] == [getattr(whole, name) for name in SAME]
    assert (found.digest(), found.text_digest()) == (whole.digest(), whole.text_digest())
    assert found.lengths == whole.lengths
    picked = np.arange(len(made))[::-2]
    chosen = found.chosen(picked)
    assert chosen.pieces == tuple(whole.pieces[i] for i in picked)
    for one, other in zip(chosen.padded(range(len(chosen)), 7), whole.padded(picked, 7), strict=True):
        np.testing.assert_array_equal(one, other)


def test_segments_and_pieces_of_batches_are_numbered_together() -> None:
    made = [Prompt((Part("ab", f"part {i % 3}"),)) for i in range(7)]
    found = in_batches(made, 2)
    told = [[found.segments[s] for s in row] for row in found.segment]
    assert told == [["special", f"part {i % 3}", f"part {i % 3}"] for i in range(7)]
    assert found.names == tuple(str(i) for i in range(7))


def test_what_is_handed_out_can_be_changed_and_changes_nothing() -> None:
    tokens = in_batches([Prompt((Part("abc"),))] * 3, 2)
    before = tokens.digest()
    tokens.ids[1][:] = 0
    for row in tokens.ids:
        row += 1
    for array in tokens.padded([0, 1]):
        array[:] = 0
    assert tokens.digest() == before
    with pytest.raises(ValueError, match="read-only"):
        tokens.ids.flat[0] = 1  # type: ignore[attr-defined]


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60), size=st.integers(1, 120))
@settings(max_examples=60, deadline=None)
def test_shards_are_cut_where_the_next_prompt_would_not_fit(lengths: list[int], size: int) -> None:
    tokens = TinyModel().tokenise([Prompt(ids=(1,) * n) for n in lengths])
    shards = [shard.tolist() for shard in tokens.shards(size)]
    assert [i for shard in shards for i in shard] == sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    assert all(len(s) == 1 or len(s) * lengths[s[-1]] <= size for s in shards)
    assert all((len(s) + 1) * lengths[following[0]] > size for s, following in pairwise(shards))


def test_groups_of_prompts_are_those_of_their_hashes() -> None:
    from hashlib import sha256

    rows = [np.array(r, dtype=np.int64) for r in ([1, 2], [3], [1, 2], [], [4, 5, 6], [3], [7])]
    hashes = [sha256(row.astype("<i8").tobytes()).digest() for row in rows]
    place = {one: i for i, one in enumerate(sorted(set(hashes)))}
    assert dealt(rows, 3).tolist() == [place[one] % 3 for one in hashes]


WORDS = ("the", "dog", "runs", "over", "a", "river", "and", "then", "home")


def short_texts(count: int) -> Iterator[Prompt]:
    generator = np.random.default_rng(0)
    for _ in range(count):
        yield Prompt((Part(" ".join(generator.choice(WORDS, 4))),))


def test_twenty_thousand_prompts_are_held_in_few_bytes() -> None:
    """Ids, mask, word, segment, span and piece of a token, and the texts: about 10 bytes a token of these."""
    count = 20_000
    tracemalloc.start()
    try:
        tokens = tokenised(TinyModel(), short_texts(count), "tiny")
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    n = sum(tokens.lengths)
    assert len(tokens) == count
    # Numbers of a byte each but ids (2) and spans (2 times 1), a byte of text; 88 bytes of a prompt for where they are.
    assert held < 12 * n + 200 * count
    assert peak < 2 * held + 20e6


class Whole(TinyModel):
    """A model that knows nothing of chunks: it leaves every prompt whole."""

    def tokenise(self, prompts: Sequence[Prompt]) -> Tokens:
        return super().tokenise([Prompt(p.parts, p.ids, p.name) for p in prompts])


def test_a_loader_that_ignores_chunks_has_them_cut() -> None:
    text = "".join(chr(97 + i % 26) for i in range(56))
    found = in_batches([Prompt((Part("first"),)), Prompt((Part(text),), name="long", chunk=8)], 4, Whole())
    assert found.names == ("0", *(f"long.{i}" for i in range(8)))
    assert found.lengths == (6, *[8] * 8)
    assert all(row[0] == found.ids[0][0] for row in found.ids)  # BOS stands before each
    assert "".join("".join(pieces[1:]) for pieces in found.pieces[1:]) == text
    # What is shorter than the others is left out, and so is what is more than max_tokens in all.
    assert len(in_batches([Prompt((Part(text + "xyz"),), chunk=8)], 4, Whole())) == 8
    assert in_batches([Prompt((Part(text),), chunk=8, max_tokens=30)], 4, Whole()).lengths == (8, 8, 8)
    assert in_batches([Prompt((Part(text),), max_tokens=5), Prompt((Part("a"),))], 4, Whole()).lengths == (5, 2)
    with pytest.raises(ModelError, match="chunk: 1 leaves no room beside 1 special tokens"):
        in_batches([Prompt((Part(text),), chunk=1)], 4, Whole())


class Wrong(TinyModel):
    """A model that cuts prompts otherwise than it is asked to."""

    def tokenise(self, prompts: Sequence[Prompt]) -> Tokens:
        return super().tokenise([Prompt(p.parts) for p in prompts for _ in range(2)])


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (
            Prompt((Part("abcdef"),), chunk=4),
            "'mine' cut a prompt into 2 pieces of up to 7 tokens, 14 in all; asked for",
        ),
        (Prompt((Part("abc"),), chunk=4, max_tokens=6), "are chunks of 4, 6 in all. Its `tokenise` may leave"),
        (Prompt((Part("abcdef"),), max_tokens=3), "'mine' made 2 prompts of 1, none of which asks for chunks"),
    ],
)
def test_a_loader_that_cuts_otherwise_is_named(prompt: Prompt, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        tokenised(Wrong(), [prompt], "mine")
    assert said in str(caught.value)


def generated(parameters: Any, context: Any) -> Iterator[Prompt]:
    yield from short_texts(40)


def listed(parameters: Any, context: Any) -> list[Prompt]:
    return list(short_texts(40))


def nothing(parameters: Any, context: Any) -> Iterator[Prompt]:
    yield from ()


def breaking(parameters: Any, context: Any) -> Iterator[Prompt]:
    """Good for longer than is taken at once, then none."""
    yield from short_texts(1500)
    raise ValueError("the disk is on fire")


def refusing(parameters: Any, context: Any) -> Iterator[Prompt]:
    yield Prompt((Part("one"),))
    raise InputError("row 2 has no text")


def bare(parameters: Any, context: Any) -> Iterator[Any]:
    yield "a text"


def bare_parts(parameters: Any, context: Any) -> Iterator[Any]:
    yield Prompt(("a text",))  # type: ignore[arg-type]


def halved(parameters: Any, context: Any) -> Iterator[Prompt]:
    yield Prompt((Part("cut \ud83d"),))


def below(parameters: Any, context: Any) -> Iterator[Prompt]:
    yield Prompt(ids=(3, -1))


@hookimpl
def prompt_sources() -> list[PromptSource]:
    """Those above, which are found in this module by their names."""
    names = ("generated", "listed", "nothing", *WRONG)
    return [PromptSource(name=n, version=1, summary="texts", prompts=f"test_many_prompts:{n}") for n in names]


WRONG = {
    "breaking": "ValueError: the disk is on fire",
    "refusing": "row 2 has no text",
    "bare": "it gave 'a text': prompts are made as",
    "bare_parts": r"it gave Prompt\(.*: prompts are made as",
    "halved": "a text holds .*, half of a character",
    "below": "it gave the token -1: numbers of tokens begin at 0",
}


def planned(source: str) -> Any:
    whole = study(prompts={"source": source}, variants={"trained": []}, analyses=[{"use": "probe.power"}])
    whole.pop("against")
    return prepare(whole, host=host(sources=sys.modules[__name__]))[-1]


def test_a_source_may_be_an_iterator_and_keys_are_those_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "BATCH_PROMPTS", 7)
    [one], [other] = (planned(source).steps for source in ("generated", "listed"))
    assert one.key == other.key
    assert len(one.tokens) == 40
    with pytest.raises(PlanError, match="the prompt source nothing gave no prompts"):
        planned("nothing")


@pytest.mark.parametrize("source", WRONG)
def test_what_a_source_does_wrong_is_told_with_its_name_and_line(source: str) -> None:
    with pytest.raises(InputError, match=rf"^<dict>: the prompt source {source} of plugin sources .*: {WRONG[source]}"):
        planned(source)
