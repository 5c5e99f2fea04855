"""Prompts into tokens: rendered once, tokenised once with offsets, every token traced to its part, word and segment."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gausslens import ModelError, Tokens

from .rendering import render
from .spans import exact_spans, offsets_by_text

if TYPE_CHECKING:
    import numpy as np

    from gausslens import Prompt

    from .rendering import Stretch

SPECIAL = "special"
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

    def cut(self, name: str, chosen: Sequence[int]) -> _Row:
        def some(values: list[Any]) -> list[Any]:
            return [values[i] for i in chosen]

        return _Row(
            *(name, self.rendered, some(self.ids), some(self.text), some(self.word)),
            *(some(self.segment), some(self.span), some(self.pieces)),
        )


def tokenise(
    tokenizer: Any, prompts: Sequence[Prompt], model: str, target: bool = False, start: Start | None = None
) -> Tokens:
    """All prompts as tokens. BOS and other special tokens follow the tokenizer's own convention.

    ``target``: as that writes what a decoder is to give; ``start`` then says what the decoder reads before a text.
    """
    rows: list[_Row] = []
    for number, prompt in enumerate(prompts):
        name = prompt.name or str(number)
        if prompt.ids is not None:
            rows.append(_from_ids(tokenizer, prompt.ids, name))
        elif tokenizer is None:
            raise ModelError(
                f"{model} has no tokenizer: give token numbers with `prompts: {{source: tokens, ids: ...}}`"
            )
        else:
            row = _from_text(tokenizer, prompt, name, model, target)
            rows.extend(_cut(row if start is None else _begun(tokenizer, row, start), prompt))
    return _packed(rows)


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


def _cut(row: _Row, prompt: Prompt) -> list[_Row]:
    """A prompt that asks for it, cut to ``max_tokens`` or into chunks; each keeps the special tokens at the ends."""
    n = len(row.ids)
    if prompt.chunk is None:
        if prompt.max_tokens is None or n <= prompt.max_tokens:
            return [row]
        before, after = _ends(row)
        kept = before + max(prompt.max_tokens - before - after, 0)
        return [row.cut(row.name, [*range(kept), *range(n - after, n)][: prompt.max_tokens])]
    before, after = _ends(row)
    width = prompt.chunk - before - after
    if width < 1:
        raise ModelError(f"chunk: {prompt.chunk} leaves no room beside {before + after} special tokens")
    chunks: list[_Row] = []
    left = prompt.max_tokens if prompt.max_tokens is not None else n + prompt.chunk
    for start in range(before, n - after, width):
        body = range(start, min(start + width, n - after))
        chosen = [*range(before), *body, *range(n - after, n)]
        # A last piece shorter than the others would make a shard of its own for a few tokens: it is left out.
        if (chunks and len(body) < width) or len(chosen) > left:
            break
        left -= len(chosen)
        chunks.append(row.cut(f"{row.name}.{len(chunks)}", chosen))
    if not chunks:
        raise ModelError(f"max_tokens: {prompt.max_tokens} is less than one chunk of {prompt.chunk} tokens")
    return chunks


def _ends(row: _Row) -> tuple[int, int]:
    """How many special tokens stand at the start and at the end."""
    real = [i for i, plain in enumerate(row.text) if plain]
    return (real[0], len(row.text) - 1 - real[-1]) if real else (len(row.text), 0)


def _packed(rows: Sequence[_Row]) -> Tokens:
    import numpy as np

    segments = tuple(dict.fromkeys(s for row in rows for s in row.segment))
    number = {s: i for i, s in enumerate(segments)}

    def arrays(values: Sequence[Sequence[Any]], dtype: Any, *shape: int) -> tuple[np.ndarray, ...]:
        return tuple(np.array(v, dtype=dtype).reshape(len(v), *shape) for v in values)

    return Tokens(
        ids=arrays([r.ids for r in rows], np.int64),
        text=arrays([r.text for r in rows], bool),
        word=arrays([r.word for r in rows], np.int32),
        segment=arrays([[number[s] for s in r.segment] for r in rows], np.int16),
        span=arrays([r.span for r in rows], np.int32, 2),
        pieces=tuple(tuple(r.pieces) for r in rows),
        rendered=tuple(r.rendered for r in rows),
        segments=segments,
        names=tuple(r.name for r in rows),
    )
