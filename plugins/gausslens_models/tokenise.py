"""Prompts into tokens: rendered once, tokenised once with offsets, every token traced to its part, word and segment."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gausslens import ModelError, Tokens

if TYPE_CHECKING:
    import numpy as np

    from gausslens import Part, Prompt

SPECIAL = "special"
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Stretch:
    """Characters of the rendered text that came from one part."""

    start: int
    end: int
    segment: str
    word: str | None


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


def tokenise(tokenizer: Any, prompts: Sequence[Prompt], model: str) -> Tokens:
    """All prompts as tokens. BOS and other special tokens follow the tokenizer's own convention."""
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
            rows.extend(_cut(_from_text(tokenizer, prompt, name, model), prompt))
    return _packed(rows)


def render(tokenizer: Any, parts: Sequence[Part], model: str) -> tuple[str, list[Stretch], bool]:
    """The text, where its parts lie in it, and whether it went through the chat template."""
    if not any(p.role for p in parts):
        text, stretches = "", []
        for part in parts:
            stretches.append(Stretch(len(text), len(text) + len(part.text), part.segment, part.word))
            text += part.text
        return text, stretches, False
    if any(not p.role for p in parts):
        raise ModelError("a prompt mixes chat messages with plain text: give every part a role, or none")
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(f"{model} has no chat template: leave the roles out of the prompts")
    messages: list[tuple[str, list[Part]]] = []
    for part in parts:
        if not messages or messages[-1][0] != part.role:
            messages.append((str(part.role), []))
        messages[-1][1].append(part)
    said = [{"role": role, "content": "".join(p.text for p in own)} for role, own in messages]
    try:
        text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=said[-1]["role"] == "user")
    except Exception as error:
        raise ModelError(f"{model}: its chat template refuses these messages: {error}") from error
    return text, _found_in(text, messages, model), True


def _found_in(text: str, messages: Sequence[tuple[str, list[Part]]], model: str) -> list[Stretch]:
    """Where the parts of the messages lie in the rendered text; a template may strip what surrounds a message."""
    stretches = []
    cursor = 0
    for role, parts in messages:
        content = "".join(p.text for p in parts)
        lead = 0
        start = text.find(content, cursor)
        if start < 0:
            lead = len(content) - len(content.lstrip())
            content = content.strip()
            start = text.find(content, cursor)
        if start < 0:
            raise ModelError(
                f"{model}: its chat template changes the text of the {role} message; words cannot be traced"
            )
        cursor = start + len(content)
        place = start - lead
        for part in parts:
            begin, end = max(place, start), min(place + len(part.text), cursor)
            stretches.append(Stretch(begin, max(begin, end), part.segment, part.word))
            place += len(part.text)
    return stretches


def _from_text(tokenizer: Any, prompt: Prompt, name: str, model: str) -> _Row:
    rendered, stretches, chat = render(tokenizer, prompt.parts, model)
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(f"{model}: its tokenizer gives no offsets; convert it to a tokenizer.json with transformers")
    found = tokenizer(
        rendered,
        add_special_tokens=not chat,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        truncation=False,
        verbose=False,
    )
    special = set(tokenizer.all_special_ids)
    stretches = [s for s in stretches if s.end > s.start]
    parts = [(s.start, s.end) for s in stretches]
    words = _words(rendered, stretches)
    row = _Row(name, rendered)
    for number, (start, end), added in zip(
        found["input_ids"], found["offset_mapping"], found["special_tokens_mask"], strict=True
    ):
        anchor = _anchor(rendered, start, end)
        part = _holding(anchor, parts)
        if part >= 0 and not added and number not in special and end > start:
            word = _holding(anchor, words)
            row.add(number, True, word, stretches[part].segment, (start, end), rendered[start:end])
        else:
            piece = rendered[start:end] or tokenizer.decode([number])
            row.add(number, False, -1, SPECIAL, (start, end), piece)
    return row


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
