"""Attention maps in numbers by head, and maps between tokens as maps between words. Numpy, or where a map lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gausslens.maths.on_device import alike, entropy_and_deficit, in_numpy

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    # On the CPU an array of numpy, on a device a tensor.
    Map: TypeAlias = "NDArray[np.float64] | torch.Tensor"

# Numbers by head: each is a mean over query rows of real text.
NUMBERS = {
    "entropy": ("entropy of a row", "nat"),
    "entropy_deficit": ("divergence of a row from even attention to all tokens in view", "nat"),
    "to_first": ("attention to the first position", "1"),
    "to_previous": ("attention to the position before", "1"),
    "to_self": ("attention to the own position", "1"),
}


def row_numbers(rows: Map, place: NDArray[np.int64] | None, even: Any) -> NDArray[np.float64]:
    """[number, head, query] of rows [head, query, key] whose own positions are ``place``; see NUMBERS.

    Without positions, where keys are other tokens than queries, those up to ``to_first``.

    Entropy is H = -sum p log p, its deficit sum p log(p / u) against the even rows u [query, key]: between tokens that
    is log n - H, with n keys in view; between words u counts the tokens of each. The row of the first position gives 0
    to what is before it.
    """
    if isinstance(rows, np.ndarray):
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -np.where(rows > 0, rows * np.log(rows), 0.0).sum(axis=-1)
            deficit = -np.where(rows > 0, rows * np.log(even), 0.0).sum(axis=-1) - entropy
    else:
        entropy, deficit = entropy_and_deficit(rows, even)
    first = in_numpy(rows[:, :, 0])
    if place is None:
        return np.stack([entropy, deficit, first])
    at = np.arange(len(place))
    before = np.where(place > 0, in_numpy(rows[:, at, np.maximum(place - 1, 0)]), 0.0)
    return np.stack([entropy, deficit, first, before, in_numpy(rows[:, at, place])])


def between_segments(rows: Map, from_segment: NDArray[np.bool_], to_segment: NDArray[np.bool_]) -> NDArray[np.float64]:
    """[head, query segment, key segment]: what rows [head, query, key] of one segment give to another, in all.

    ``from_segment`` [query, segment] and ``to_segment`` [key, segment] say which is of which.
    """
    queries, keys = from_segment.astype(float), to_segment.astype(float)
    if isinstance(rows, np.ndarray):
        found: NDArray[np.float64] = np.einsum("hqk,qa,kb->hab", rows, queries, keys, optimize=True)
        return found
    given: NDArray[np.float64] = in_numpy(rows @ alike(keys, rows))
    among: NDArray[np.float64] = np.einsum("hqb,qa->hab", given, queries)
    return among


def between_parts(
    sums: NDArray[np.float64], rows: NDArray[np.int64], parts: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """[layer, head, behind]: attention of a row of part p to all of part p - behind, mean over the rows that have one.

    ``sums`` [prompt, layer, head, query segment, key segment] are what rows give in all, ``rows`` [prompt, query
    segment] how many there are, ``parts`` the segments of each part, in order. A row of a part whose other part has no
    token in the prompt gives it nothing and counts.
    """
    given = np.zeros((*sums.shape[1:3], len(parts)))
    counted = np.zeros(len(parts))
    for place, mine in enumerate(parts):
        for behind in range(place + 1):
            other = parts[place - behind]
            given[..., behind] += sums[:, :, :, mine][..., other].sum(axis=(0, 3, 4))
            counted[behind] += rows[:, mine].sum()
    with np.errstate(invalid="ignore"):
        found: NDArray[np.float64] = given / counted
    return found


def weighted_mean(maps: Map, weights: NDArray[np.float64] | None) -> Any:
    """[query, key]: the mean of maps [head, query, key], each with its weight, or all alike."""
    if weights is None:
        return maps.mean(0)
    return (maps * alike(weights[:, None, None], maps)).sum(0)


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


def between_groups(pattern: Map, groups: NDArray[np.int64], of_keys: NDArray[np.int64] | None = None) -> Any:
    """[..., query, key] between tokens as [..., query, key] between groups; ``of_keys``: those of keys, if other.

    What a token gives to the tokens of a word is summed; what the tokens of a word give is averaged. So rows keep their
    total, and rows times the number of their tokens keep the total of the map.
    """
    member, keys = (_members(each) for each in (groups, groups if of_keys is None else of_keys))
    averaged = member / member.sum(axis=1, keepdims=True)
    return alike(averaged, pattern) @ pattern @ alike(keys.T, pattern)


def _members(groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """[group, position]: 1 where a token is of a group."""
    member = np.zeros((int(groups.max()) + 1, len(groups)))
    member[groups, np.arange(len(groups))] = 1
    return member


def first_members(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The position of the first token of each group."""
    found: NDArray[np.int64] = np.unique(groups, return_index=True)[1].astype(np.int64)
    return found
