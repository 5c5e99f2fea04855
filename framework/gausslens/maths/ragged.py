"""Arrays of unequal extents, one for each prompt, one after another in a flat array. Bookkeeping alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# An array is laid flat where filling its entries up to the longest would take more than so many times their numbers.
WASTE = 2


@dataclass(frozen=True)
class Ragged:
    """How entries of unequal extents lie one after another.

    ``dims`` are those of the whole array, in which entries are filled up: ("layer", "prompt", "head", "query", "key").
    ``over`` is the dimension of the entries, ``unequal`` are those in which they differ, with ``extents`` [entry,
    unequal]; ``sizes`` of all others. Flat, the numbers of an entry stand together, its unequal dimensions first: the
    array is [before ``over`` ..., cell, all others ...].
    """

    dims: tuple[str, ...]
    unequal: tuple[str, ...]
    extents: NDArray[np.int64]
    sizes: Mapping[str, int]
    over: str = "prompt"

    @classmethod
    def of(cls, dims: Sequence[str], unequal: Sequence[str], extents: Any, sizes: Mapping[str, int]) -> Ragged:
        """The same from sequences; ``extents`` [entry] serves one unequal dimension, or all of them alike."""
        each = np.asarray(extents, dtype=np.int64)
        if each.ndim == 1:
            each = np.repeat(each[:, None], len(unequal), axis=1)
        return cls(tuple(dims), tuple(unequal), each, dict(sizes))

    @property
    def lead(self) -> tuple[str, ...]:
        """The dimensions before the entries."""
        return self.dims[: self.dims.index(self.over)]

    @property
    def rest(self) -> tuple[str, ...]:
        """The dimensions of an entry that are of one size, in their order."""
        return tuple(d for d in self.dims[len(self.lead) + 1 :] if d not in self.unequal)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Where the cells of each entry begin, and where the last ends."""
        return np.concatenate([[0], np.cumsum(self.extents.prod(axis=1))]).astype(np.int64)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array, filled up."""
        longest = dict(zip(self.unequal, self.extents.max(axis=0, initial=0).tolist(), strict=True))
        return tuple((dict(self.sizes) | longest | {self.over: len(self.extents)})[d] for d in self.dims)

    @property
    def flat_shape(self) -> tuple[int, ...]:
        """The shape of the flat array."""
        lead, rest = (tuple(self.sizes[d] for d in dims) for dims in (self.lead, self.rest))
        return (*lead, int(self.offsets[-1]), *rest)

    def flat_dims(self, name: str) -> tuple[str, ...]:
        """The dimensions of the flat array of that name."""
        return (*self.lead, f"{name}_cell", *self.rest)

    @property
    def wasteful(self) -> bool:
        """Whether the whole array has more than twice the numbers of the flat one."""
        return math.prod(self.shape) > WASTE * math.prod(self.flat_shape)

    def told(self) -> str:
        """What a reader needs, beside the extents, to see the whole array in the flat one."""
        return json.dumps({"dims": self.dims, "unequal": self.unequal, "over": self.over})

    def cells(self, entry: int) -> slice:
        """Where the cells of an entry are."""
        return slice(int(self.offsets[entry]), int(self.offsets[entry + 1]))

    def flat(self, block: NDArray[Any]) -> NDArray[Any]:
        """An entry [those of ``dims`` after the entries, in their order] as it lies flat, [cell, rest ...]."""
        inner = self.dims[len(self.lead) + 1 :]
        ordered = block.transpose([inner.index(d) for d in (*self.unequal, *self.rest)])
        return np.ascontiguousarray(ordered).reshape(-1, *ordered.shape[len(self.unequal) :])

    def entry(self, number: int, cells: NDArray[Any]) -> NDArray[Any]:
        """Cells [lead ..., cell, rest ...] of an entry as [lead ..., its own dimensions in the order of ``dims``]."""
        before = len(self.lead)
        found = cells.reshape(*cells.shape[:before], *self.extents[number], *cells.shape[before + 1 :])
        lies = (*self.unequal, *self.rest)
        inner = [before + lies.index(d) for d in self.dims[before + 1 :]]
        return found.transpose([*range(before), *inner])
