"""Tokens gathered into words, and attention between tokens into attention between words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gausslens import Tokens


def groups_of(word: NDArray[np.int32]) -> NDArray[np.int64]:
    """[position]: the group of each token, numbered by first appearance.

    Tokens of one word are one group; a token of no word (-1) is a group by itself, so that nothing is lost.
    """
    found = np.empty(len(word), dtype=np.int64)
    known: dict[int, int] = {}
    count = 0
    for position, number in enumerate(word.tolist()):
        if number < 0 or number not in known:
            found[position] = count
            count += 1
            if number >= 0:
                known[number] = int(found[position])
        else:
            found[position] = known[number]
    return found


def between_groups(pattern: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """[..., query, key] between tokens as [..., query, key] between groups.

    What a token gives to the tokens of a word is summed; what the tokens of a word give is averaged. So rows keep their
    total, and rows times the number of their tokens keep the total of the map.
    """
    count = int(groups.max()) + 1
    member = np.zeros((count, len(groups)))
    member[groups, np.arange(len(groups))] = 1
    averaged = member / member.sum(axis=1, keepdims=True)
    found: NDArray[np.float64] = averaged @ pattern @ member.T
    return found


def group_texts(tokens: Tokens, prompt: int, groups: NDArray[np.int64]) -> list[str]:
    """The text of each group: the characters that its tokens stand for."""
    rendered, spans, pieces = tokens.rendered[prompt], tokens.span[prompt], tokens.pieces[prompt]
    texts = []
    for group in range(int(groups.max()) + 1):
        members = np.flatnonzero(groups == group)
        start, end = int(spans[members, 0].min()), int(spans[members, 1].max())
        texts.append(rendered[start:end].strip() or "".join(pieces[i] for i in members))
    return texts


def first_members(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The position of the first token of each group."""
    found: NDArray[np.int64] = np.unique(groups, return_index=True)[1].astype(np.int64)
    return found
