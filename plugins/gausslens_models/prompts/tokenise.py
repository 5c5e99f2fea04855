"""Prompts into tokens: rendered once, tokenised once with offsets, every token traced to its part, word and segment."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens import ModelError, Tokens

from .rendering import render
from .spans import exact_spans, offsets_by_text
from .together import SPECIAL, in_order, tokenised_together

if TYPE_CHECKING:
    from gausslens import Prompt

    from .rendering import Stretch

# The token that a decoder reads before the token numbers of a target.
Start = Callable[[Sequence[int]], int]
_WORD = re.compile(r"\S+")


@dataclass
class _Row:
    """One prompt as tokens."""

    name: str
    rendered: str
    ids: list[int] = field(default_factory=list)
    text: list[bool] = field(default_factory=list)
    word: list[int] = field(default_factory=list)
    segment: list[str] = field(default_factory=list)
    span: list[tuple[int, int]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    def add(self, number: int, text: bool, word: int, segment: str, span: tuple[int, int], piece: str) -> None:
        self.ids.append(number)
        self.text.append(text)
        self.word.append(word)
        self.segment.append(segment)
        self.span.append(span)
        self.pieces.append(piece)


def tokenise(
    tokenizer: Any, prompts: Sequence[Prompt], model: str, target: bool = False, start: Start | None = None
) -> Tokens:
    """All prompts as tokens. BOS and other special tokens follow the tokenizer's own convention.

    ``target``: as that writes what a decoder is to give; ``start`` then says what the decoder reads before a text.
    """
    done, together = np.zeros(len(prompts), dtype=bool), None
    if tokenizer is not None and not target and start is None:
        done, together = tokenised_together(tokenizer, prompts)
    rows: list[_Row] = []
    for number, prompt in enumerate(prompts):
        if done[number]:
            continue
        name = prompt.name or str(number)
        if prompt.ids is not None:
            rows.append(_from_ids(tokenizer, prompt.ids, name))
        elif tokenizer is None:
            raise ModelError(
                f"{model} has no tokenizer: give token numbers with `prompts: {{source: tokens, ids: ...}}`"
            )
        else:
            row = _from_text(tokenizer, prompt, name, model, target)
            rows.append(row if start is None else _begun(tokenizer, row, start))
    if together is None:
        return _packed(rows).cut_as_asked(prompts)
    return in_order([together, _packed(rows)] if rows else [together], done).cut_as_asked(prompts)


def _begun(tokenizer: Any, row: _Row, start: Start) -> _Row:
    """A target as a decoder reads it: behind the token that it begins with."""
    number = start(row.ids)
    begun = _Row(row.name, row.rendered)
    begun.add(number, False, -1, SPECIAL, (0, 0), tokenizer.decode([number]))
    for one in zip(row.ids, row.text, row.word, row.segment, row.span, row.pieces, strict=True):
        begun.add(*one)
    return begun


def _from_text(tokenizer: Any, prompt: Prompt, name: str, model: str, target: bool = False) -> _Row:
    rendered, stretches, chat = render(tokenizer, prompt.parts, model)
    fast = bool(getattr(tokenizer, "is_fast", False))
    found = tokenizer(
        **{"text_target" if target else "text": rendered},
        add_special_tokens=not chat,
        **({"return_offsets_mapping": True} if fast else {}),
        return_special_tokens_mask=True,
        truncation=False,
        verbose=False,
    )
    stretches = [s for s in stretches if s.end > s.start]
    parts = [(s.start, s.end) for s in stretches]
    words = _words(rendered, stretches)
    numbers = found["input_ids"]
    offsets = found["offset_mapping"] if fast else _offsets(tokenizer, rendered, found, model)
    unknown = tokenizer.unk_token_id
    special = set(tokenizer.all_special_ids)
    # The unknown token stands for text that the vocabulary does not have, unless it is what was written.
    made_up = [
        bool(added) or (number in special and (number != unknown or rendered[a:b] == tokenizer.unk_token))
        for number, (a, b), added in zip(numbers, offsets, found["special_tokens_mask"], strict=True)
    ]
    spans = exact_spans(rendered, tokenizer.convert_ids_to_tokens(numbers), offsets, made_up)
    row = _Row(name, rendered)
    for number, (start, end), special_one in zip(numbers, spans, made_up, strict=True):
        anchor = _anchor(rendered, start, end)
        part = -1 if special_one else _holding(anchor, parts)
        if part >= 0:
            word = _holding(anchor, words)
            row.add(number, True, word, stretches[part].segment, (start, end), rendered[start:end])
        else:
            piece = rendered[start:end] or tokenizer.decode([number])
            row.add(number, False, -1, SPECIAL, (start, end), piece)
    return row


def _offsets(tokenizer: Any, rendered: str, found: Any, model: str) -> list[tuple[int, int]]:
    """Where tokens lie, of a tokenizer that does not say (Marian, M2M): they are looked up in the text."""
    numbers, unknown = found["input_ids"], tokenizer.unk_token_id
    special = set(tokenizer.all_special_ids) - {unknown}
    added = [bool(a) or n in special for n, a in zip(numbers, found["special_tokens_mask"], strict=True)]
    strings = tokenizer.convert_ids_to_tokens(numbers)
    offsets = offsets_by_text(rendered, strings, added, str(tokenizer.unk_token))
    if offsets is None:
        raise ModelError(
            f"{model}: its tokenizer gives no offsets, and its tokens are not the text letter by letter; convert it to "
            "a tokenizer.json with transformers"
        )
    return offsets


def _holding(place: int, spans: Sequence[tuple[int, int]]) -> int:
    """Which of the spans, in order and apart, holds this character; -1 where none does."""
    found = bisect_right(spans, place, key=lambda span: span[0]) - 1
    return found if found >= 0 and place < spans[found][1] else -1


def _anchor(rendered: str, start: int, end: int) -> int:
    """The character that decides where a token belongs: its first that is not space (" Ant" belongs to Ant)."""
    inside = rendered[start:end]
    return start + len(inside) - len(inside.lstrip()) if inside.strip() else start


def _words(rendered: str, stretches: Sequence[Stretch]) -> list[tuple[int, int]]:
    """The words of a prompt: a part that names a word is one; other parts are cut at white space."""
    words: list[tuple[int, int]] = []
    open_end = -1
    for stretch in stretches:
        if stretch.word is not None:
            words.append((stretch.start, stretch.end))
            open_end = -1
            continue
        for match in _WORD.finditer(rendered, stretch.start, stretch.end):
            if match.start() == open_end:
                words[-1] = (words[-1][0], match.end())
            else:
                words.append(match.span())
            open_end = match.end()
    return words


def _from_ids(tokenizer: Any, ids: Sequence[int], name: str) -> _Row:
    row = _Row(name, "")
    special = set(tokenizer.all_special_ids) if tokenizer is not None else set()
    for number in ids:
        piece = tokenizer.decode([number]) if tokenizer is not None else f"<{number}>"
        start = len(row.rendered)
        row.rendered += piece
        plain = number not in special
        row.add(int(number), plain, -1, "text" if plain else SPECIAL, (start, len(row.rendered)), piece)
    return row


def _packed(rows: Sequence[_Row]) -> Tokens:
    segments = tuple(dict.fromkeys(s for row in rows for s in row.segment))
    number = {s: i for i, s in enumerate(segments)}
    return Tokens(
        ids=tuple(np.array(r.ids, dtype=np.int64) for r in rows),
        text=tuple(np.array(r.text, dtype=bool) for r in rows),
        word=tuple(np.array(r.word, dtype=np.int32) for r in rows),
        segment=tuple(np.array([number[s] for s in r.segment], dtype=np.int16) for r in rows),
        span=tuple(np.array(r.span, dtype=np.int32).reshape(-1, 2) for r in rows),
        pieces=tuple(tuple(r.pieces) for r in rows),
        rendered=tuple(r.rendered for r in rows),
        segments=segments,
        names=tuple(r.name for r in rows),
    )
