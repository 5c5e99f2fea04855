"""Many prompts into tokens at once: plain text, of tokenizers whose tokens are the bytes of the text.

What is found is what `tokenise` finds of one prompt after the other, in arrays over all tokens. The bytes of the
tokens, side by side, are those of the text, so where they lie needs no offsets. Prompts of which that is not so, and
those with special tokens in their text, named words or roles, are left to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens import Tokens
from gausslens.maths.ragged import Pieces, Rows, Texts

from .spans import BYTE_OF

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gausslens import Prompt

    Numbers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

SPECIAL = "special"
# White space as `str.isspace` and `re` see it, by code point; there is none beyond.
_SPACE = np.array([chr(c).isspace() for c in range(0x3002)])
# Where none of the first so many texts is the bytes of its tokens, no other is tried.
_PROBED = 8


def tokenised_together(tokenizer: Any, prompts: Sequence[Prompt]) -> tuple[Flags, Tokens | None]:
    """Which prompts [prompt] were tokenised, and their tokens; None where there are none of these."""
    none = np.zeros(len(prompts), dtype=bool)
    chosen = [i for i, prompt in enumerate(prompts) if _is_plain(prompt)]
    ends = _special_ends(tokenizer) if chosen and _is_usual(tokenizer) else None
    if ends is None:
        return none, None
    texts = ["".join([part.text for part in prompts[i].parts]) for i in chosen]
    fits = _encoded(tokenizer, texts[:_PROBED], ends)[1]
    if not fits.any():
        return none, None
    laid, fits, size = _encoded(tokenizer, texts, ends)
    none[chosen] = fits
    whose = np.repeat(fits, laid.lengths)
    fitting = _Laid(laid.ids[whose], laid.inner[whose], laid.lengths[fits])
    kept = [i for i, fit in zip(chosen, fits.tolist(), strict=True) if fit]
    rendered = [text for text, fit in zip(texts, fits.tolist(), strict=True) if fit]
    names = [prompts[i].name or str(i) for i in kept]
    return none, _traced(tokenizer, [prompts[i] for i in kept], rendered, names, fitting, size[whose])


def in_order(parts: Sequence[Tokens], first: Flags) -> Tokens:
    """One, or the prompts of the two as they stood: those of the first where it says so; segments as they come."""
    tokens = Tokens.joined(parts)
    if len(parts) > 1:
        place = np.empty(len(first), dtype=np.int64)
        place[np.concatenate([np.flatnonzero(first), np.flatnonzero(~first)])] = np.arange(len(first))
        tokens = tokens.chosen(place)
    held: Any = tokens.segment
    met, at = np.unique(held.flat, return_index=True)
    order = met[np.argsort(at)]
    if np.array_equal(order, np.arange(len(tokens.segments))):
        return tokens
    number = np.zeros(len(tokens.segments), dtype=np.int64)
    number[order] = np.arange(len(order))
    segment = Rows(number[held.flat], held.ends, held.dtype)
    return replace(tokens, segment=segment, segments=tuple(tokens.segments[i] for i in order))


@dataclass(frozen=True)
class _Laid:
    """Tokens of all prompts in one row; ``inner`` are those between the special ones at the ends."""

    ids: Numbers
    inner: Flags
    lengths: Numbers

    @classmethod
    def of(cls, found: Sequence[Sequence[int]], ends: tuple[int, int]) -> _Laid:
        """From the token numbers of each prompt, of which so many at the ends are special."""
        lengths = np.array([len(one) for one in found], dtype=np.int64)
        ids = np.fromiter(chain.from_iterable(found), dtype=np.int64, count=int(lengths.sum()))
        place = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return cls(ids, (place >= ends[0]) & (place < np.repeat(lengths - ends[1], lengths)), lengths)

    @property
    def row(self) -> Numbers:
        """[token]: whose each is."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


def _is_plain(prompt: Prompt) -> bool:
    return prompt.ids is None and all(part.role is None and part.word is None for part in prompt.parts)


def _is_usual(tokenizer: Any) -> bool:
    """Whether a tokenizer of transformers does nothing of its own before or after the fast one behind it."""
    from transformers import PreTrainedTokenizerFast as Fast

    same = ("__call__", "_encode_plus", "set_truncation_and_padding")
    return isinstance(tokenizer, Fast) and all(getattr(type(tokenizer), n) is getattr(Fast, n) for n in same)


def _special_ends(tokenizer: Any) -> tuple[int, int] | None:
    """How many special tokens it puts before and behind a text; None where it does not say."""
    mask = tokenizer("a", return_special_tokens_mask=True, truncation=False, verbose=False)["special_tokens_mask"]
    return (mask.index(0), mask[::-1].index(0)) if 0 in mask else None


def _encoded(tokenizer: Any, texts: Sequence[str], ends: tuple[int, int]) -> tuple[_Laid, Flags, Numbers]:
    """Texts as token numbers, which of the texts are the bytes of their tokens, and how many bytes each token is."""
    # As it was set up for `_special_ends`: nothing is cut off or filled up.
    laid = _Laid.of([one.ids for one in tokenizer.backend_tokenizer.encode_batch_fast(texts)], ends)
    return laid, *_bytes_that_fit(tokenizer, texts, laid)


def _bytes_that_fit(tokenizer: Any, texts: Sequence[str], laid: _Laid) -> tuple[Flags, Numbers]:
    """Which texts [text] are the bytes of their tokens, and how many bytes each token [token] is."""
    known, which = np.unique(laid.ids, return_inverse=True)
    strings = tokenizer.convert_ids_to_tokens(known.tolist())
    special = np.isin(known, tokenizer.all_special_ids)
    is_bytes = np.array([s is not None and all(c in BYTE_OF for c in s) for s in strings], dtype=bool) & ~special
    said = [bytes([BYTE_OF[c] for c in s]) if good else b"" for s, good in zip(strings, is_bytes, strict=True)]
    code = np.where(laid.inner, which, len(said))  # what is special at the ends is no text
    size = np.array([*map(len, said), 0])[code]
    whole = [text.encode("utf-8", "surrogatepass") for text in texts]
    wrong = laid.inner & ~is_bytes[which]
    row = laid.row
    fits = np.bincount(row, wrong, len(texts)) == 0
    fits &= np.bincount(row, size, len(texts)) == [len(one) for one in whole]
    table = [*said, b""]
    made = b"".join([table[i] for i in code.tolist()])
    if made != b"".join(whole):
        ends = np.cumsum(np.bincount(row, size, len(texts)).astype(np.int64)).tolist()
        fits &= [made[a:b] == one for a, b, one in zip([0, *ends], ends, whole, strict=False)]
    return fits, size


@dataclass(frozen=True)
class _Characters:
    """The characters of all prompts in one row, with one more behind them.

    ``start`` [prompt + 1] is where each prompt begins; ``of_byte`` [byte + 1] which character each byte is of; and for
    each character ``segment``, ``word`` (of its prompt; -1 for white space) and ``solid``, the next one that is no
    white space.
    """

    start: Numbers
    of_byte: Numbers
    segment: Numbers
    word: Numbers
    solid: Numbers

    @classmethod
    def of(cls, prompts: Sequence[Prompt], texts: Sequence[str], segments: Sequence[str]) -> _Characters:
        """Of these prompts, which are these texts."""
        joined = "".join(texts)
        start = np.cumsum([0, *map(len, texts)])
        points = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        raw = np.frombuffer(joined.encode("utf-8", "surrogatepass"), dtype=np.uint8)
        of_byte = np.append(np.cumsum((raw & 0xC0) != 0x80) - 1, len(points))
        solid = ~_SPACE[np.minimum(points, len(_SPACE) - 1)]
        begins = solid.copy()
        begins[1:] &= ~solid[:-1]
        first = start[:-1][np.diff(start) > 0]
        begins[first] = solid[first]
        words = np.cumsum(np.append(0, begins))  # [character + 1]: how many begin before it
        own = words[1:] - 1 - np.repeat(words[start[:-1]], np.diff(start))
        places = np.where(solid, np.arange(len(points)), len(points))
        number = {name: i for i, name in enumerate(segments)}
        parts = [(number[part.segment], len(part.text)) for prompt in prompts for part in prompt.parts]
        of_parts = np.array(parts, dtype=np.int64).reshape(-1, 2)
        return cls(
            start,
            of_byte,
            np.append(np.repeat(of_parts[:, 0], of_parts[:, 1]), -1),
            np.append(np.where(solid, own, -1), -1),
            np.append(np.minimum.accumulate(places[::-1])[::-1], len(points)),
        )


def _traced(
    tokenizer: Any, prompts: Sequence[Prompt], texts: Sequence[str], names: Sequence[str], laid: _Laid, size: Numbers
) -> Tokens:
    """Tokens that are the bytes of the texts, ``size`` of each, with the characters and words that they stand for."""
    named_segments = (part.segment for prompt in prompts for part in prompt.parts)
    segments = tuple(dict.fromkeys(chain([SPECIAL], named_segments)))
    characters = _Characters.of(prompts, texts, segments)
    behind = np.cumsum(size)
    begin = characters.of_byte[behind - size]
    end = np.where(size > 0, characters.of_byte[behind - 1] + 1, begin)
    # A token belongs where its first character that is not space does (" Ant" belongs to Ant).
    anchor = np.where(characters.solid[begin] < end, characters.solid[begin], begin)
    row = laid.row
    text = laid.inner & (anchor < characters.start[1:][row])
    first = characters.start[row]
    unsaid = ~text & (begin == end)
    named, code = np.unique(laid.ids[unsaid], return_inverse=True)
    other = np.zeros(len(text), dtype=np.int64)
    other[unsaid] = code + 1
    ends = np.cumsum(laid.lengths)
    held = Texts.of(texts)
    span = Rows(np.stack([begin - first, end - first], axis=1), ends, np.int32)
    return Tokens(
        ids=Rows(laid.ids, ends, np.int64),
        text=Rows(text, ends, bool),
        word=Rows(np.where(text, characters.word[anchor], -1), ends, np.int32),
        segment=Rows(np.where(text, characters.segment[anchor], 0), ends, np.int16),
        span=span,
        pieces=Pieces(held, span, Rows(other, ends, np.int64), tuple(tokenizer.decode([n]) for n in named.tolist())),
        rendered=held,
        segments=segments,
        names=Texts.of(names),
    )
