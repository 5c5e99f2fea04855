"""Every token knows its characters, word and segment, whatever the tokenizer does to the text."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gausslens import ModelError, Part, Prompt, Tokens
from gausslens_models.prompts.spans import offsets_by_text
from gausslens_models.prompts.tokenise import tokenise

EMOJI = ["🐜", "👩‍🚀", "🇦🇹", "👍🏽", "é", "ﬁ", "½", "ẞ", "한국", "عربي", "\u200b", "\t", "\r\n", "\n\n", "  "]
TEXT = st.lists(
    st.one_of(
        st.sampled_from([*EMOJI, "ant", " bee", "naïve", " The", "<s>", "▁", "Ġ", "[UNK]"]),
        st.text(st.characters(exclude_categories=("Cs",)), max_size=6),
    ),
    max_size=8,
).map("".join)
STYLED = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def vanishes(character: str) -> bool:
    """What some normaliser drops: space, controls, and accents or marks that BERT strips or NFKC merges."""
    return character.isspace() or unicodedata.category(character)[0] in "CZM"


def check(found: Tokens, tokenizer: Any, prompt: int = 0) -> None:
    rendered, spans = found.rendered[prompt], found.span[prompt]
    assert [len(x[prompt]) for x in (found.ids, found.text, found.word, found.segment, found.pieces)] == [
        len(spans)
    ] * 5
    assert (spans[:, 0] <= spans[:, 1]).all()
    assert ((spans >= 0) & (spans <= len(rendered))).all()
    real = spans[found.text[prompt]]
    assert (real[1:] >= real[:-1]).all(), "tokens are not in the order of the text"
    held = {i for start, end in spans for i in range(start, end)}
    lost = [c for i, c in enumerate(rendered) if i not in held and not vanishes(c)]
    assert not lost, f"no token stands for {lost}"
    for (start, end), text, piece, number in zip(
        spans, found.text[prompt], found.pieces[prompt], found.ids[prompt], strict=True
    ):
        if text:
            assert piece == rendered[start:end]
            # What the token says is what it stands for, as far as it can be told: unknown tokens and parts of
            # characters cannot.
            said = tokenizer.convert_ids_to_tokens(int(number))
            if said.isascii() and said.isalnum():
                normal = unicodedata.normalize("NFKD", piece).casefold()
                assert said.casefold() in normal or not piece.isascii()


@given(text=TEXT)
@STYLED
def test_tokens_map_back_to_characters(text: str, style: str, tokenizers: Callable[..., Any]) -> None:
    tokenizer = tokenizers(style)
    found = tokenise(tokenizer, [Prompt((Part(text),))], "tiny")
    assert found.rendered == (text,)
    assert found.ids[0].tolist() == tokenizer(text)["input_ids"]
    check(found, tokenizer)


@given(texts=st.lists(TEXT, min_size=1, max_size=4))
@STYLED
def test_tokens_belong_to_the_part_of_their_first_letter(
    texts: list[str], style: str, tokenizers: Callable[..., Any]
) -> None:
    tokenizer = tokenizers(style)
    parts = tuple(Part(text, segment=f"part {i}") for i, text in enumerate(texts))
    found = tokenise(tokenizer, [Prompt(parts)], "tiny")
    check(found, tokenizer)
    owner = [i for i, text in enumerate(texts) for _ in text]
    for (start, end), text, segment in zip(found.span[0], found.text[0], found.segment[0], strict=True):
        if text and end > start:
            inside = [i for i in range(start, end) if not found.rendered[0][i].isspace()] or [start]
            assert found.segments[segment] == f"part {owner[inside[0]]}"


def test_byte_level_tokens_are_the_bytes_of_their_characters(tokenizers: Callable[..., Any]) -> None:
    text = "a 🐜\n\nb  naïve"
    for style in ("byte-level", "byte-level, prefixed and trimmed"):
        found = tokenise(tokenizers(style), [Prompt((Part(text),))], "tiny")
        real = found.span[0][found.text[0]].tolist()
        covered = [i for start, end in real for i in range(start, end)]
        assert sorted(set(covered)) == list(range(len(text))), style
        # All characters of one byte are in one token alone; the ant's four bytes are four tokens, each of them it.
        assert [real.count([2, 3]), covered.count(0), covered.count(1)] == [4, 1, 1], style


def test_a_space_that_the_tokenizer_made_up_is_no_character(tokenizers: Callable[..., Any]) -> None:
    for style, text in (("sentencepiece", "\nant"), ("sentencepiece", " ant"), ("unigram", "Zzz")):
        tokenizer = tokenizers(style)
        found = tokenise(tokenizer, [Prompt((Part(text),))], "tiny")
        at = tokenizer.convert_ids_to_tokens(found.ids[0].tolist()).index("▁")
        assert found.span[0][at].tolist() == [0, 0]
        assert found.text[0][at], "it is still a token of the text, and costs what it costs"


def test_an_unknown_token_is_text(tokenizers: Callable[..., Any]) -> None:
    tokenizer = tokenizers("wordpiece")
    found = tokenise(tokenizer, [Prompt((Part("ant 🐜 bee"),))], "tiny")
    assert tokenizer.convert_ids_to_tokens(found.ids[0].tolist()).count("[UNK]") == 1
    assert found.text[0].tolist() == [False, True, True, True, False]
    assert found.pieces[0][2] == "🐜"
    assert found.word[0].tolist() == [-1, 0, 1, 2, -1]


def test_accents_stay_with_their_letter(tokenizers: Callable[..., Any]) -> None:
    for style in ("wordpiece", "unigram"):
        found = tokenise(tokenizers(style), [Prompt((Part("cafe\u0301 a"),))], "tiny")
        assert any(piece.endswith("e\u0301") for piece in found.pieces[0]), style


def test_bos_is_each_tokenizers_own(tokenizers: Callable[..., Any]) -> None:
    first = {
        "byte-level": "<s>",
        "byte-level, prefixed and trimmed": None,
        "sentencepiece": "<s>",
        "unigram": None,
        "wordpiece": "[CLS]",
    }
    for style, expected in first.items():
        found = tokenise(tokenizers(style), [Prompt((Part("ant bee"),))], "tiny")
        assert (None if found.text[0][0] else found.pieces[0][0]) == expected


MESSAGES = st.lists(TEXT.filter(lambda text: text.strip()), min_size=1, max_size=4)


@given(texts=MESSAGES, chat=st.sampled_from(["chatml", "stripping"]))
@STYLED
def test_chat_templates_are_traced_exactly(
    texts: list[str], chat: str, style: str, tokenizers: Callable[..., Any]
) -> None:
    tokenizer = tokenizers(style, chat)
    roles = ["user", "assistant"]
    parts = tuple(Part(text, segment=f"turn {i}", role=roles[i % 2]) for i, text in enumerate(texts))
    found = tokenise(tokenizer, [Prompt(parts)], "tiny")
    rendered = found.rendered[0]
    said = [{"role": p.role, "content": p.text} for p in parts]
    assert rendered == tokenizer.apply_chat_template(
        said, tokenize=False, add_generation_prompt=parts[-1].role == "user"
    )
    check(found, tokenizer)
    for i, text in enumerate(texts):
        name = f"turn {i}"
        if name not in found.segments:
            assert all(vanishes(c) for c in text) or any(s in text for s in ("<s>", "[UNK]"))
            continue
        own = found.span[0][found.segment[0] == found.segments.index(name)]
        whole = rendered[own[:, 0].min() : own[:, 1].max()].strip()
        assert whole in text or text.strip() in whole


def test_a_word_that_is_also_in_the_template_is_found_in_its_message(tokenizers: Callable[..., Any]) -> None:
    tokenizer = tokenizers("byte-level", "chatml")
    parts = (Part("user", "a", "user", role="user"), Part("im_end", "b", "im_end", role="assistant"))
    found = tokenise(tokenizer, [Prompt(parts)], "tiny")
    rendered = found.rendered[0]
    for segment, text in (("a", "user"), ("b", "im_end")):
        own = found.span[0][found.segment[0] == found.segments.index(segment)]
        start = rendered.index(f"\n{text}<|im_end|>") + 1
        assert [own[:, 0].min(), own[:, 1].max()] == [start, start + len(text)]


def test_a_template_that_changes_what_is_said_is_refused(tokenizers: Callable[..., Any]) -> None:
    with pytest.raises(ModelError, match="changes the text of message 1"):
        tokenise(tokenizers("byte-level", "shouting"), [Prompt((Part("ant", role="user"),))], "tiny")


def test_roles_without_a_template_and_mixed_roles_are_refused(tokenizers: Callable[..., Any]) -> None:
    with pytest.raises(ModelError, match="no chat template"):
        tokenise(tokenizers("wordpiece"), [Prompt((Part("ant", role="user"),))], "tiny")
    with pytest.raises(ModelError, match="mixes"):
        tokenise(tokenizers("wordpiece"), [Prompt((Part("ant", role="user"), Part("bee")))], "tiny")


@given(words=st.lists(st.text("abcä中.", min_size=1, max_size=6), min_size=1, max_size=6), cuts=st.data())
def test_tokens_without_offsets_are_found_in_the_text(words: list[str], cuts: Any) -> None:
    """SentencePiece's way: a mark for a space before each word, words cut anywhere, special tokens around them."""
    gaps = [cuts.draw(st.sampled_from([" ", "  ", "\n"])) for _ in words[1:]]
    text = words[0] + "".join(gap + word for gap, word in zip(gaps, words[1:], strict=True))
    strings = ["</s>"]
    for word in words:
        places = sorted(cuts.draw(st.sets(st.integers(1, max(len(word) - 1, 1)), max_size=2)) - {len(word)})
        pieces = [word[a:b] for a, b in zip([0, *places], [*places, len(word)], strict=True)]
        strings += [f"▁{pieces[0]}", *pieces[1:]]
    strings.append("</s>")
    added = [True, *[False] * (len(strings) - 2), True]
    spans = offsets_by_text(text, strings, added, "<unk>")
    assert spans is not None
    assert [text[a:b].strip() for a, b in spans[1:-1]] == [s.removeprefix("▁") for s in strings[1:-1]]
    assert [a for a, _ in spans[1:]] == [b for _, b in spans[:-1]]


def test_an_unknown_token_without_offsets_is_what_lies_between() -> None:
    found = offsets_by_text("a zzz b z", ["▁a", "▁", "<unk>", "▁b", "<unk>"], [False] * 5, "<unk>")
    assert found == [(0, 1), (1, 1), (1, 5), (5, 7), (7, 9)]


@pytest.mark.parametrize("strings", [["▁b"], ["▁a"], ["▁a", "▁x"], ["▁a", "▁b", "▁b"]])
def test_tokens_that_are_not_the_text_have_no_offsets(strings: list[str]) -> None:
    assert offsets_by_text("a b", strings, [False] * len(strings), "<unk>") is None
