"""Arrays of unequal extents, one for each prompt, one after another in a flat array. Bookkeeping alone.

``Ragged`` says how arrays of several dimensions lie in a result. ``Rows``, ``Texts`` and ``Pieces`` hold what is known
of each prompt and token in a few bytes, and read like sequences of arrays, of texts, and of tuples of texts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

# An array is laid flat where filling its entries up to the longest would take more than so many times their numbers.
WASTE = 2
# So many rows are widened at a time where all are gone through.
_BLOCK = 4096


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


class Growing:
    """A flat array that grows at its end, in place: joining many small ones would leave holes in memory."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._like: NDArray[Any] = np.zeros(0, dtype=bool)

    def add(self, more: NDArray[Any]) -> None:
        """Put these behind what there is, all in a type that holds both."""
        if not self._bytes:
            self._like = more[:0]
        kind = np.promote_types(self._like.dtype, more.dtype)
        if kind != self._like.dtype:
            self._bytes = bytearray(self.array().astype(kind).tobytes())
            self._like = self._like.astype(kind)
        self._bytes += np.ascontiguousarray(more, dtype=kind).tobytes()

    def array(self) -> NDArray[Any]:
        """All of it; nothing can be put behind it from then on."""
        if not self._bytes:
            return self._like
        found: NDArray[Any] = np.frombuffer(self._bytes, self._like.dtype).reshape(-1, *self._like.shape[1:])
        found.setflags(write=False)
        return found


class _Held(Sequence[Any]):
    """What all three share: a slice is a tuple, and what is equal entry by entry is equal."""

    def _one(self, index: int) -> Any:
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self._one(i) for i in range(*index.indices(len(self))))
        place = int(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"there is no entry {place}: there are {len(self)}")
        return self._one(place % len(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(np.array_equal(a, b) for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)}>"


class Rows(_Held, Sequence[NDArray[Any]]):
    """Arrays [entry, ...] of unequal lengths, in one flat array of the smallest integers that hold them.

    ``rows[i]`` is a new array of ``dtype``: what is done to it changes nothing here. Row i is ``flat[ends[i - 1] :
    ends[i]]``.
    """

    def __init__(self, flat: NDArray[Any], ends: NDArray[np.int64], dtype: DTypeLike) -> None:
        self.flat, self.ends, self.dtype = narrow(flat), ends, np.dtype(dtype)
        for held in (self.flat, self.ends):
            held.setflags(write=False)

    @classmethod
    def of(cls, arrays: Sequence[ArrayLike], dtype: DTypeLike, *shape: int) -> Rows:
        """From arrays [entry, *shape], one after another."""
        if isinstance(arrays, Rows):
            return arrays
        each = [np.asarray(array, dtype=dtype) for array in arrays]
        flat = np.concatenate([one.reshape(-1, *shape) for one in each] or [np.zeros((0, *shape), dtype=dtype)])
        return cls(flat, np.cumsum([len(one) for one in each], dtype=np.int64), dtype)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each row begins."""
        return self.ends - self.lengths

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Entries of each row."""
        return np.diff(self.ends, prepend=0)

    def _span(self, index: int) -> slice:
        return slice(int(self.ends[index - 1]) if index else 0, int(self.ends[index]))

    def __len__(self) -> int:
        return len(self.ends)

    def _one(self, index: int) -> NDArray[Any]:
        return self.flat[self._span(index)].astype(self.dtype)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        for first in range(0, len(self), _BLOCK):
            ends = self.ends[first : first + _BLOCK]
            begin = self._span(first).start
            wide = self.flat[begin : int(ends[-1])].astype(self.dtype)
            cuts = [0, *(ends - begin).tolist()]
            yield from (wide[a:b] for a, b in pairwise(cuts))

    def bytes(self, dtype: DTypeLike) -> Iterator[memoryview]:
        """The bytes of each row as numbers of this type."""
        width = np.dtype(dtype).itemsize * int(np.prod(self.flat.shape[1:], dtype=np.int64))
        for first in range(0, len(self), _BLOCK):
            ends = self.ends[first : first + _BLOCK]
            begin = self._span(first).start
            whole = memoryview(self.flat[begin : int(ends[-1])].astype(dtype).tobytes())
            cuts = [0, *((ends - begin) * width).tolist()]
            yield from (whole[a:b] for a, b in pairwise(cuts))

    def chosen(self, entries: NDArray[np.int64], lengths: NDArray[np.int64]) -> Rows:
        """New rows of these lengths, of entries by their place in ``flat``."""
        return Rows(self.flat[entries], np.cumsum(lengths), self.dtype)

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places in ``flat`` of the entries of these rows, one after another."""
        lengths = self.lengths[rows]
        before = np.cumsum(lengths) - lengths
        return np.repeat(self.starts[rows] - before, lengths) + np.arange(int(lengths.sum()))

    def padded(self, rows: Sequence[int] | NDArray[np.int64], fill: Any = 0) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Some rows as an array [row, longest], filled up on the right, and where it is not filled."""
        chosen = np.asarray(rows, dtype=np.int64)
        lengths = self.lengths_of(chosen)
        mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
        found = np.full((*mask.shape, *self.flat.shape[1:]), fill, dtype=self.dtype)
        ends = self.ends[chosen]
        within = np.arange(mask.shape[1]) + (ends - lengths)[:, None]
        found[mask] = self.flat[within[mask]]
        return found, mask

    def lengths_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Entries of these rows."""
        return self.ends[rows] - np.where(rows == 0, 0, self.ends[rows - 1])


def narrow(flat: NDArray[Any]) -> NDArray[Any]:
    """The same integers in the smallest type that holds them; a new array, or one that nothing can write to."""
    if flat.dtype.kind not in "iu":
        return flat.copy() if flat.flags.writeable else flat
    low, high = (int(flat.min()), int(flat.max())) if flat.size else (0, 0)
    kinds = (np.int8, np.int16, np.int32)
    fits = next((k for k in kinds if np.iinfo(k).min <= low and high <= np.iinfo(k).max), np.int64)
    return flat.astype(fits, copy=flat.flags.writeable)


class Texts(_Held, Sequence[str]):
    """Texts in one row of UTF-8; entries may share characters, as pieces of one long text do."""

    def __init__(self, data: bytes | bytearray, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self.data, self.starts, self.ends = data, starts, ends

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """From texts; neighbours that are one object are held once."""
        if isinstance(texts, Texts):
            return texts
        data: list[bytes] = []
        starts, ends, before, end = [], [], None, 0
        for text in texts:
            if text is not before:
                data.append(text.encode("utf-8", "surrogatepass"))
                start, end, before = end, end + len(data[-1]), text
            starts.append(start)
            ends.append(end)
        return cls(b"".join(data), np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def _one(self, index: int) -> str:
        return self.data[int(self.starts[index]) : int(self.ends[index])].decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), _BLOCK):
            some = slice(first, first + _BLOCK)
            for a, b in zip(self.starts[some].tolist(), self.ends[some].tolist(), strict=True):
                yield self.data[a:b].decode("utf-8", "surrogatepass")

    def chosen(self, rows: NDArray[np.int64]) -> Texts:
        """Those of these rows."""
        return Texts(self.data, self.starts[rows], self.ends[rows])


class Pieces(_Held, Sequence[tuple[str, ...]]):
    """The text of each token, [row] of (token ...): characters ``spans`` of ``texts``, but where it is another.

    ``other`` [token] is 0 where it is the characters, else one more than its place in ``table``.
    """

    def __init__(self, texts: Texts, spans: Rows, other: Rows, table: tuple[str, ...]) -> None:
        self.texts, self.spans, self.other, self.table = texts, spans, other, table

    @classmethod
    def of(cls, pieces: Sequence[Sequence[str]], texts: Texts, spans: Rows) -> Pieces:
        """From tuples of texts."""
        table: dict[str, int] = {}
        found = []
        for row, text, span in zip(pieces, texts, spans, strict=True):
            cuts = span.tolist() if len(span) == len(row) else [(0, -1)] * len(row)
            same = [piece == text[a:b] if b >= 0 else False for piece, (a, b) in zip(row, cuts, strict=True)]
            found.append([0 if s else table.setdefault(p, len(table) + 1) for p, s in zip(row, same, strict=True)])
        return cls(texts, spans, Rows.of(found, np.int64), tuple(table))

    def __len__(self) -> int:
        return len(self.other)

    def _said(self, text: str, span: NDArray[Any], other: NDArray[Any]) -> tuple[str, ...]:
        if not other.any():
            return tuple([text[a:b] for a, b in span.tolist()])
        if len(span) != len(other):
            return tuple([self.table[n - 1] for n in other.tolist()])
        pairs = zip(span.tolist(), other.tolist(), strict=True)
        return tuple([self.table[n - 1] if n else text[a:b] for (a, b), n in pairs])

    def _one(self, index: int) -> tuple[str, ...]:
        return self._said(self.texts[index], self.spans[index], self.other[index])

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        for each in zip(self.texts, self.spans, self.other, strict=True):
            yield self._said(*each)
