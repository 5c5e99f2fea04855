"""Which characters each token stands for, exactly, where a tokenizer's own offsets are only nearly so.

Tokenizers report offsets that leave out leading spaces (RoBERTa), that give a made-up leading space the first character
(SentencePiece style), or that drop the accents of decomposed letters.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

Span = tuple[int, int]
SPACE = "▁"  # SentencePiece's mark of a space


def exact_spans(rendered: str, strings: Sequence[str], offsets: Sequence[Span], added: Sequence[bool]) -> list[Span]:
    """The characters of each token; ``strings`` are vocabulary entries, ``added`` those that are not made of text.

    Where a character is several tokens, each of them has it. A space that the tokenizer made up is an empty span.
    """
    found = _from_bytes(rendered, strings, offsets, added)
    return found if found is not None else _mended(rendered, strings, offsets, added)


def offsets_by_text(rendered: str, strings: Sequence[str], added: Sequence[bool], unknown: str) -> list[Span] | None:
    """Offsets where a tokenizer gives none: its tokens, one behind the other, are the text but for white space.

    An unknown token stands for what lies before the next that is known. None where the text is written otherwise.
    """
    spans: list[Span] = []
    cursor, open_at = 0, -1  # open_at: the unknown token whose end is not known yet
    for i, (string, made_up) in enumerate(zip(strings, added, strict=True)):
        said = string.replace(SPACE, " ").strip()
        if made_up or not said:
            spans.append((cursor, cursor))
            continue
        if string == unknown:
            open_at = i if open_at < 0 else open_at
            spans.append((cursor, cursor))
            continue
        place = rendered.find(said, cursor)
        if place < 0 or (open_at < 0 and rendered[cursor:place].strip()):
            return None
        if open_at >= 0:
            end = cursor + len(rendered[cursor:place].rstrip())
            spans[open_at], cursor, open_at = (spans[open_at][0], end), end, -1
        spans.append((cursor, place + len(said)))
        cursor = place + len(said)
    if open_at >= 0:
        spans[open_at] = (spans[open_at][0], len(rendered.rstrip()))
        cursor = spans[open_at][1]
    return None if rendered[cursor:].strip() else spans


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's 256 letters for bytes: those that print stand for themselves, the others follow from U+0100 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printing]
    return {chr(b): b for b in printing} | {chr(0x100 + i): b for i, b in enumerate(others)}


BYTE_OF = _byte_alphabet()


def _from_bytes(
    rendered: str, strings: Sequence[str], offsets: Sequence[Span], added: Sequence[bool]
) -> list[Span] | None:
    """Spans counted out in bytes, for byte-level tokenizers; None where the tokens are not the bytes of the text."""
    whole = rendered.encode("utf-8", "surrogatepass")
    # The byte at which each character starts; a byte belongs to the last character that starts at or before it.
    starts = list(accumulate((len(c.encode("utf-8", "surrogatepass")) for c in rendered), initial=0))
    spans = []
    place, fresh = 0, True
    for string, (start, end), made_up in zip(strings, offsets, added, strict=True):
        if made_up:
            piece = rendered[start:end].encode("utf-8", "surrogatepass")
        elif all(letter in BYTE_OF for letter in string):
            piece = bytes(BYTE_OF[letter] for letter in string)
        else:
            return None
        if fresh and piece.startswith(b" ") and not whole.startswith(piece, place):
            piece = piece[1:]  # a space that the tokenizer puts before a text
        if not whole.startswith(piece, place):
            return None
        begin = bisect_right(starts, place) - 1
        place += len(piece)
        spans.append((begin, bisect_right(starts, place - 1) if piece else begin))
        fresh = made_up
    return spans if place == len(whole) else None


def _mended(rendered: str, strings: Sequence[str], offsets: Sequence[Span], added: Sequence[bool]) -> list[Span]:
    spans = []
    for i, (start, end) in enumerate(offsets):
        if not added[i]:
            if strings[i] == SPACE and _is_made_up(rendered, offsets, i):
                end = start
            while start < end < len(rendered) and unicodedata.combining(rendered[end]):
                end += 1
        spans.append((start, end))
    return spans


def _is_made_up(rendered: str, offsets: Sequence[Span], i: int) -> bool:
    """Whether a space is one that the tokenizer put before a text: it points at what the next token stands for."""
    start, end = offsets[i]
    shared = i + 1 < len(offsets) and offsets[i + 1][0] == start < offsets[i + 1][1]
    return shared or not (rendered[start:end].isspace() or rendered[start:end] == SPACE)
