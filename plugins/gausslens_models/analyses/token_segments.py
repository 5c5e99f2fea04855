"""Which tokens of the prompts a measure counts, and the text that tokens and words stand for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from gausslens import InputError, did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gausslens import Tokens


def chosen_segments(tokens: Tokens, patterns: Sequence[str]) -> list[int]:
    """The numbers of the segments whose names match one of the patterns (``*`` is a wildcard); no pattern: all."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in tokens.segments):
            raise InputError(f"no segment of these prompts is {pattern!r}{did_you_mean(pattern, tokens.segments)}")
    matched = [not patterns or any(fnmatchcase(name, p) for p in patterns) for name in tokens.segments]
    return [number for number, wanted in enumerate(matched) if wanted]


def parts_of_segments(tokens: Tokens, patterns: Sequence[str]) -> list[list[int]]:
    """The numbers of the segments of each part: ``example.*`` has a part for each name in place of its ``*``.

    ``example.0.word`` and ``example.0.clue`` are one part. Parts are in the order of their first segments.
    """
    parts: dict[tuple[str, str], list[int]] = {}
    for pattern in patterns:
        before, star, after = pattern.partition("*")
        if "*" in after:
            raise InputError(f"parts: {pattern!r} has more than one *, which stands for what parts differ by")
        named = re.compile(f"{re.escape(before)}([^.]+){re.escape(after)}(?:\\..*)?" if star else re.escape(pattern))
        found = {n: match for n, name in enumerate(tokens.segments) if (match := named.fullmatch(name))}
        if not found:
            raise InputError(f"no segment of these prompts is {pattern!r}{did_you_mean(pattern, tokens.segments)}")
        for number, match in found.items():
            parts.setdefault((pattern, match[1] if star else ""), []).append(number)
    twice = [n for n, times in Counter(n for part in parts.values() for n in part).items() if times > 1]
    if twice:
        raise InputError(f"parts: segment {tokens.segments[twice[0]]!r} is of two of them")
    return sorted(parts.values(), key=min)


def in_segments(tokens: Tokens, prompt: int, segments: Sequence[int]) -> NDArray[np.bool_]:
    """[position]: whether a token of a prompt is of one of these segments."""
    found: NDArray[np.bool_] = np.isin(tokens.segment[prompt], list(segments))
    return found


def bytes_of(tokens: Tokens, prompt: int, counted: NDArray[np.bool_]) -> int:
    """UTF-8 bytes of the characters that the counted tokens stand for, each character once (tokens may share one).

    White space that a tokenizer gives to no token, as those do that cut at spaces, is of the token behind it: so that
    the bytes of all tokens are those of the text.
    """
    rendered, spans = tokens.rendered[prompt], tokens.span[prompt].tolist()
    covered = np.zeros(len(rendered), dtype=bool)
    for start, end in spans:
        covered[start:end] = True
    under = np.zeros_like(covered)
    for place, (start, end) in enumerate(spans):
        if counted[place] and end > start:
            under[start if _is_cut(rendered, spans, place) else _behind_space(rendered, covered, start) : end] = True
    return len("".join(c for c, held in zip(rendered, under, strict=True) if held).encode("utf-8", "surrogatepass"))


def _behind_space(rendered: str, covered: NDArray[np.bool_], start: int) -> int:
    """Where the white space before a character begins that no token has."""
    while start and rendered[start - 1].isspace() and not covered[start - 1]:
        start -= 1
    return start


def _is_cut(rendered: str, spans: Sequence[tuple[int, int]], place: int) -> bool:
    """Whether text before the first token of a chunk is in another: what is between, that may have counted."""
    return not any(end > start for start, end in spans[:place]) and bool(rendered[: spans[place][0]].strip())


def group_texts(tokens: Tokens, prompt: int, groups: NDArray[np.int64]) -> list[str]:
    """The text of each group: the characters that its tokens stand for."""
    rendered, spans, pieces = tokens.rendered[prompt], tokens.span[prompt], tokens.pieces[prompt]
    starts = np.full(int(groups.max()) + 1, len(rendered))
    ends = np.zeros_like(starts)
    np.minimum.at(starts, groups, spans[:, 0])
    np.maximum.at(ends, groups, spans[:, 1])
    texts = [rendered[start:end].strip() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return [text or "".join(pieces[i] for i in np.flatnonzero(groups == n)) for n, text in enumerate(texts)]
