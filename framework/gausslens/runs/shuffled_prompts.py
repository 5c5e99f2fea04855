"""Nulls of the text: the tokens of a study's prompts shuffled anew for each draw, and what a step reads of them."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..contract.digests_and_seeds import derive
from ..contract.errors import InputError, did_you_mean
from ..contract.prompts import Tokens
from ..maths.shuffles import derangement, drawn_within, permuted_within

if TYPE_CHECKING:
    from .study import Shuffle

Places = NDArray[np.int64]
_SPACE = re.compile(r"\s*")


class Reads:
    """What a step reads: tokens of the run file as they are, or shuffled.

    Shuffled tokens are made when asked for, the same each time, and let go when no one holds them: a study of many
    draws holds those of one. ``digest`` and ``lengths`` are theirs; ``source`` says which `prompts:` they are of.
    """

    def __init__(self, plain: Tokens, shuffle: Shuffle | None = None, seed: int = 0, source: str = "") -> None:
        self._plain, self._shuffle, self._seed, self.source = plain, shuffle, seed, source
        self._made: weakref.ref[Tokens] | None = None
        numbers = plain if shuffle is None else _arranged(plain, shuffle, seed)[2]
        self.digest, self.lengths = numbers.digest(), numbers.lengths

    @cached_property
    def plain_digest(self) -> str:
        """That of the tokens before they were shuffled."""
        return self._plain.digest()

    @cached_property
    def text_digest(self) -> str:
        """That of the text that they come of."""
        return self._plain.text_digest()

    @property
    def tokens(self) -> Tokens:
        """The tokens."""
        if self._shuffle is None:
            return self._plain
        tokens = self._made() if self._made is not None else None
        if tokens is None:
            tokens = shuffled(self._plain, self._shuffle, self._seed)
            self._made = weakref.ref(tokens)
        return tokens


def shuffle_seed(shuffle: Shuffle, run_seed: int, draw: int | None) -> int:
    """The seed of a shuffle: by run seed, its parameters, and the draw."""
    return derive(run_seed, "shuffle", shuffle.canonical(), draw)


def shuffled(tokens: Tokens, shuffle: Shuffle, seed: int) -> Tokens:
    """Prompts with their text shuffled; special tokens stay. Raises InputError where nothing can be shuffled.

    Words and segments belong to the places: a token has those of the place that it comes to. Where documents are
    swapped they move with the text.
    """
    units, filler, moved = _arranged(tokens, shuffle, seed)
    return _said(tokens, units, filler, moved)


def _arranged(tokens: Tokens, shuffle: Shuffle, seed: int) -> tuple[_Units, Places, Tokens]:
    """What moves as one, which unit comes to the place of each, and the tokens so arranged, as numbers without text."""
    flat = _Flat.of(tokens)
    chosen = flat.text & np.isin(flat.segment, _chosen(tokens, shuffle.segments))
    if not chosen.any():
        raise InputError("these prompts have no text to shuffle" + (" in these segments" if shuffle.segments else ""))
    generator = np.random.default_rng(seed)
    moving = shuffle.how == "documents"
    if moving:
        units = _Units.of(_runs(chosen, flat.prompt, flat.segment), len(chosen))
        filler = _swapped(tokens, flat, chosen, units, generator)
    else:
        units = _units(flat, chosen, words=shuffle.how == "words")
        filler = _permuted(flat, units, shuffle, generator)
    return units, filler, _moved(tokens, flat, units, filler, moving)


@dataclass(frozen=True)
class _Flat:
    """All tokens in one row: ``prompt`` [token] says whose each is, ``starts`` [prompt] where each prompt begins."""

    ids: Places
    text: NDArray[np.bool_]
    word: Places
    segment: Places
    prompt: Places
    starts: Places

    @classmethod
    def of(cls, tokens: Tokens) -> _Flat:
        lengths = np.array(tokens.lengths, dtype=np.int64)
        held: Any = tokens
        ids, word, segment = (rows.flat.astype(np.int64) for rows in (held.ids, held.word, held.segment))
        prompt = np.repeat(np.arange(len(lengths)), lengths)
        return cls(ids, held.text.flat, word, segment, prompt, np.cumsum(lengths) - lengths)


@dataclass(frozen=True)
class _Units:
    """What moves as one: runs of tokens [start, end) that cover all tokens; those that are not ``movable`` stay."""

    start: Places
    end: Places
    movable: NDArray[np.bool_]

    @classmethod
    def of(cls, runs: Places, tokens: int) -> _Units:
        """From the number of the run that each token is of, -1 where it stays."""
        new = np.ones(tokens, dtype=bool)
        new[1:] = (runs[1:] != runs[:-1]) | (runs[1:] < 0)
        start = np.flatnonzero(new)
        return cls(start, np.append(start[1:], tokens), runs[start] >= 0)


def _runs(chosen: NDArray[np.bool_], *same: Places) -> Places:
    """[token]: the number of the run of neighbours that agree in all these, -1 where a token is not chosen."""
    new = chosen.copy()
    new[1:] &= ~chosen[:-1] | np.any([of[1:] != of[:-1] for of in same], axis=0)
    return np.where(chosen, np.cumsum(new) - 1, -1)


def _chosen(tokens: Tokens, patterns: Sequence[str]) -> list[int]:
    """The numbers of the segments that match a pattern; no pattern: all."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in tokens.segments):
            beside = tokens.sources is not None and any(fnmatchcase(name, pattern) for name in tokens.sources.segments)
            why = ": sources stay, targets are shuffled" if beside else did_you_mean(pattern, tokens.segments)
            raise InputError(f"no segment of these prompts is {pattern!r}{why}")
    of = range(len(tokens.segments))
    return [i for i in of if not patterns or any(fnmatchcase(tokens.segments[i], p) for p in patterns)]


def _units(flat: _Flat, chosen: NDArray[np.bool_], words: bool) -> _Units:
    """Single tokens, or the runs of one word; text that is of no word (white space) stays where words are shuffled."""
    if not words:
        return _Units.of(np.where(chosen, np.arange(len(chosen)), -1), len(chosen))
    of_words = chosen & (flat.word >= 0)
    if not of_words.any():
        raise InputError("these prompts are tokens without words: shuffle tokens")
    return _Units.of(_runs(of_words, flat.prompt, flat.word, flat.segment), len(chosen))


def _permuted(flat: _Flat, units: _Units, shuffle: Shuffle, generator: np.random.Generator) -> Places:
    """Which unit comes to the place of each: permuted within pools, or drawn from them."""
    moved = np.flatnonzero(units.movable)
    prompt, segment = flat.prompt[units.start[moved]], flat.segment[units.start[moved]]
    pools = {
        "all": np.zeros_like(prompt),
        "prompt": prompt,
        "segment": prompt * (flat.segment.max() + 1) + segment,
    }[shuffle.within or "prompt"]
    choose = drawn_within if shuffle.how == "frequency" else permuted_within
    filler = np.arange(len(units.start))
    filler[moved] = moved[choose(pools, generator)]
    return filler


def _swapped(
    tokens: Tokens, flat: _Flat, chosen: NDArray[np.bool_], units: _Units, generator: np.random.Generator
) -> Places:
    """Which stretch comes to the place of each: all of a prompt's from one other prompt, beside its own source."""
    if len(tokens) < 2:
        raise InputError("there is one prompt alone: it has no other to swap its text with")
    if tokens.sources is None and chosen[flat.text].all():
        raise InputError(
            "all text is of these segments: swapped it is the same prompts in another order; choose some of "
            + ", ".join(tokens.segments[i] for i in np.unique(flat.segment[flat.text]))
        )
    moved = np.flatnonzero(units.movable)
    prompt = flat.prompt[units.start[moved]]
    own = [moved[prompt == number] for number in range(len(tokens))]
    stretches = [tuple(flat.segment[units.start[units_of]]) for units_of in own]
    for number, found in enumerate(stretches):
        if found != stretches[0]:
            raise InputError(
                f"prompt {number} ({tokens.names[number]}) has {_named(tokens, found)} where prompt 0 has "
                f"{_named(tokens, stretches[0])}: they cannot be swapped"
            )
    filler = np.arange(len(units.start))
    for number, other in enumerate(derangement(len(tokens), generator)):
        filler[own[number]] = own[other]
    return filler


def _named(tokens: Tokens, segments: Sequence[int]) -> str:
    return " and ".join(tokens.segments[i] for i in segments) or "none of these segments"


def _moved(tokens: Tokens, flat: _Flat, units: _Units, filler: Places, moving: bool) -> Tokens:
    """The prompts with each unit in its new place, as numbers; ``moving``: words and segments go with it."""
    source, place = _sources(units, filler)
    labelled = source if moving else units.start[place]
    prompt = flat.prompt[units.start[place]]
    word = _renumbered(prompt, flat.prompt[source], flat.word[source]) if moving else flat.word[labelled]
    cuts = np.searchsorted(prompt, np.arange(1, len(tokens)))
    rows = (flat.ids[source], flat.text[source], word, flat.segment[labelled])
    kinds = (np.int64, bool, np.int32, np.int16)
    ids, text, words, segment = (tuple(np.split(row.astype(kind), cuts)) for row, kind in zip(rows, kinds, strict=True))
    return replace(tokens, ids=ids, text=text, word=words, segment=segment, span=(), pieces=(), rendered=())


def _sources(units: _Units, filler: Places) -> tuple[Places, Places]:
    """[token]: where each token comes from, and to the place of which unit it comes."""
    lengths = (units.end - units.start)[filler]
    place = np.repeat(np.arange(len(filler)), lengths)
    before = np.cumsum(lengths) - lengths
    return (units.start[filler] - before)[place] + np.arange(len(place)), place


def _renumbered(prompt: Places, origin: Places, word: Places) -> Places:
    """Words numbered from 0 as they come in each prompt, those of two origins apart."""
    found = np.full(len(word), -1, dtype=np.int64)
    numbers: dict[tuple[int, int, int], int] = {}
    counts: dict[int, int] = {}
    for i in np.flatnonzero(word >= 0):
        key = (int(prompt[i]), int(origin[i]), int(word[i]))
        if key not in numbers:
            numbers[key] = counts.get(key[0], 0)
            counts[key[0]] = numbers[key] + 1
        found[i] = numbers[key]
    return found


def _said(tokens: Tokens, units: _Units, filler: Places, moved: Tokens) -> Tokens:
    """With the text of each prompt as its tokens now stand, the characters of each token, and its piece.

    What each unit stood for is set side by side, with the white space that no token stands for left in its place.
    """
    owner = np.repeat(np.arange(len(tokens)), tokens.lengths)[units.start].tolist()
    spans = np.concatenate(tokens.span)
    low: list[int] = np.minimum.reduceat(spans[:, 0], units.start).tolist()
    high: list[int] = np.maximum.reduceat(spans[:, 1], units.start).tolist()
    texts: list[list[str]] = [[] for _ in tokens.ids]
    ends, cursors = [-1] * len(tokens), [0] * len(tokens)
    shift = np.zeros(len(filler), dtype=np.int64)
    for slot, unit in enumerate(filler.tolist()):
        prompt, end = owner[slot], ends[owner[slot]]
        gap = _SPACE.fullmatch(tokens.rendered[prompt], end, low[slot]) if 0 <= end < low[slot] else None
        ends[prompt] = max(end, high[slot])
        said = (gap.group() if gap else "", tokens.rendered[owner[unit]][low[unit] : high[unit]])
        texts[prompt] += said
        shift[slot] = cursors[prompt] + len(said[0]) - low[unit]
        cursors[prompt] += len(said[0]) + len(said[1])
    source, place = _sources(units, filler)
    cuts = np.cumsum(moved.lengths)
    pieces = [piece for row in tokens.pieces for piece in row]
    ordered = [pieces[i] for i in source.tolist()]
    return replace(
        moved,
        span=tuple(np.split((spans[source] + shift[place, None]).astype(np.int32), cuts[:-1])),
        pieces=tuple(tuple(ordered[end - n : end]) for end, n in zip(cuts.tolist(), moved.lengths, strict=True)),
        rendered=tuple("".join(row) for row in texts),
    )
