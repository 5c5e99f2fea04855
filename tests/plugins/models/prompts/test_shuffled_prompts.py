"""Shuffled prompts of every style of tokenizer: pieces are the text under their tokens, special tokens stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gausslens import Part, Prompt, Tokens
from gausslens.contract.errors import Mark
from gausslens.runs.shuffled_prompts import shuffled
from gausslens.runs.study import Shuffle
from gausslens_models.prompts.tokenise import tokenise

TEXT = st.text(st.sampled_from("ab cdé \n中é\u0301🦊.:  fox"), min_size=1, max_size=30)
NULLS = {
    "tokens": Shuffle("tokens", "prompt", (), Mark("run.yaml", 1, 1)),
    "words": Shuffle("words", "all", (), Mark("run.yaml", 1, 1)),
    "frequency": Shuffle("frequency", "all", (), Mark("run.yaml", 1, 1)),
}


def check(tokens: Tokens, found: Tokens) -> None:
    for i in range(len(tokens)):
        for (start, end), piece, text in zip(found.span[i], found.pieces[i], found.text[i], strict=True):
            assert 0 <= start <= end <= len(found.rendered[i])
            assert not text or found.rendered[i][start:end] == piece
        specials = [t.ids[i][~t.text[i]].tolist() for t in (tokens, found)]
        assert specials[0] == specials[1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(texts=st.lists(TEXT, min_size=1, max_size=3), seed=st.integers(0, 2**62), how=st.sampled_from(sorted(NULLS)))
def test_pieces_are_the_text_under_their_tokens(
    texts: list[str], seed: int, how: str, style: str, tokenizers: Callable[..., Any]
) -> None:
    tokens = tokenise(tokenizers(style), [Prompt((Part(f"fox {text}"),)) for text in texts], "tiny")
    found = shuffled(tokens, NULLS[how], seed)
    check(tokens, found)
    counted = [Counter(np.concatenate(t.ids).tolist()) for t in (tokens, found)]
    assert how == "frequency" or counted[0] == counted[1]
    assert [int(t.text[0].argmax()) for t in (tokens, found)] == [int(tokens.text[0].argmax())] * 2


def test_answers_are_swapped_within_a_chat(tokenizers: Callable[..., Any]) -> None:
    said = [("Ant", "works all summer"), ("Fox", "jumps"), ("Dog", "is lazy, quick and brown")]
    prompts = [
        Prompt((Part(word, "target", word, "user"), Part(clue, "answer", role="assistant"))) for word, clue in said
    ]
    tokens = tokenise(tokenizers("byte-level", chat="chatml"), prompts, "tiny")
    found = shuffled(tokens, Shuffle("documents", None, ("answer",), Mark("run.yaml", 1, 1)), 4)
    check(tokens, found)
    for i, (word, clue) in enumerate(said):
        (other,) = [c for _, c in said if c in found.rendered[i]]
        assert other != clue
        assert found.rendered[i] == tokens.rendered[i].replace(clue, other)
        assert word in found.rendered[i]


def test_a_chunk_holds_its_own_text_alone(tokenizers: Callable[..., Any]) -> None:
    text = " ".join(f"w{number}" for number in range(200))
    tokens = tokenise(tokenizers("byte-level"), [Prompt((Part(text),), chunk=32)], "tiny")
    found = shuffled(tokens, NULLS["tokens"], 0)
    check(tokens, found)
    for i in range(len(tokens)):
        own = "".join(tokens.pieces[i][1:])
        assert sorted(found.rendered[i]) == sorted(own)
        assert own in tokens.rendered[i]
