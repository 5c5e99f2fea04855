"""Prompts as text in parts, and the tokens they become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from .errors import ModelError

if TYPE_CHECKING:
    import numpy as np

    from .model import OpenModel

# A shard is the unit of a forward pass and of merging: its size is fixed, so results do not depend on memory settings.
SHARD_TOKENS = 2048
# So many prompts, or of so many characters, are tokenised together.
BATCH_PROMPTS = 1024
BATCH_CHARACTERS = 1 << 20


@dataclass(frozen=True)
class Part:
    """A stretch of text: which segment it belongs to, which word it is, and its role in a chat."""

    text: str
    segment: str = "text"
    word: str | None = None
    role: str | None = None


@dataclass(frozen=True)
class Prompt:
    """One prompt: its parts in order. ``ids`` gives token numbers instead, for sources that have no text.

    ``chunk`` asks the model side to cut it into prompts of that many tokens, ``max_tokens`` to keep no more than that.
    """

    parts: tuple[Part, ...] = ()
    ids: tuple[int, ...] | None = None
    name: str | None = None
    chunk: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class Tokens:
    """Prompts as tokens, ragged, in the user's order. All sequences have one entry for each prompt.

    ids      int64 [position]         segment  int16 [position], index into ``segments``
    text     bool [position], real text: not BOS, not special
    word     int32 [position], which word of the prompt; -1 where the token is of none
    span     int32 [position, 2], characters of ``rendered``
    pieces   the text of each token

    They are given as tuples, and held in few bytes: ``ids[i]`` is made when it is asked for, so ask once, and changing
    it changes nothing.

    In a model of two stacks ``sources`` is what its encoder reads beside each prompt, and with ``crossed`` the keys of
    what is studied are of sources: of attention from one stack to the other.
    """

    ids: Sequence[np.ndarray]
    text: Sequence[np.ndarray]
    word: Sequence[np.ndarray]
    segment: Sequence[np.ndarray]
    span: Sequence[np.ndarray]
    pieces: Sequence[tuple[str, ...]]
    rendered: Sequence[str]
    segments: tuple[str, ...]
    names: Sequence[str]
    sources: Tokens | None = None
    crossed: bool = False

    def __post_init__(self) -> None:
        from ..maths.ragged import Pieces, Rows, Texts

        held: dict[str, Any] = {name: Rows.of(getattr(self, name), *how) for name, how in _ROWS.items()}
        held |= {name: Texts.of(getattr(self, name)) for name in ("rendered", "names")}
        if not isinstance(self.pieces, Pieces):
            held["pieces"] = Pieces.of(self.pieces, held["rendered"], held["span"])
        for name, value in held.items():
            object.__setattr__(self, name, value)

    @classmethod
    def joined(cls, parts: Iterable[Tokens]) -> Tokens:
        """The prompts of several, those of the first first; segments are numbered as they come."""
        joined = _Joined()
        for part in parts:
            joined.add(part)
        return joined.tokens()

    def cut_as_asked(self, prompts: Sequence[Prompt]) -> Tokens:
        """These prompts cut as they ask for: to ``max_tokens``, or into chunks; those that are short enough stay.

        Each chunk keeps the special tokens at the ends of its prompt, and is called ``<name>.0``, ``<name>.1``, ...
        """
        import numpy as np

        if not any(_asks(prompt) for prompt in prompts):
            return self
        if self.sources is not None:
            raise ModelError("targets beside sources are not cut: leave out `chunk` and `max_tokens`")
        cuts = [_cuts(self, number, prompt) for number, prompt in enumerate(prompts)]
        held: Any = self
        rows = np.repeat(np.arange(len(prompts)), [len(each) for each in cuts])
        chosen = [start + one for start, each in zip(held.ids.starts, cuts, strict=True) for one in each]
        names = tuple(
            f"{self.names[number]}.{place}" if prompt.chunk is not None else self.names[number]
            for number, prompt in enumerate(prompts)
            for place in range(len(cuts[number]))
        )
        return replace(self._taken(rows, np.concatenate(chosen), np.array([*map(len, chosen)])), names=names)

    def chosen(self, indices: Sequence[int] | np.ndarray) -> Tokens:
        """The tokens of some prompts, in this order."""
        import numpy as np

        rows, held = np.asarray(indices, dtype=np.int64), cast("Any", self.ids)
        sources = None if self.sources is None else self.sources.chosen(rows)
        return replace(self._taken(rows, held.places(rows), held.lengths_of(rows)), sources=sources)

    def _taken(self, rows: np.ndarray, entries: np.ndarray, lengths: np.ndarray) -> Tokens:
        """New prompts of these lengths, of tokens by their place among all of them, with the texts of these."""
        from ..maths.ragged import Pieces

        of: Any = self
        made: dict[str, Any] = {name: getattr(of, name).chosen(entries, lengths) for name in _ROWS}
        made |= {name: getattr(of, name).chosen(rows) for name in _TEXTS}
        other = of.pieces.other.chosen(entries, lengths)
        return replace(self, **made, pieces=Pieces(made["rendered"], made["span"], other, of.pieces.table))

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each prompt."""
        held: Any = self.ids
        return tuple(held.lengths.tolist())

    @property
    def keys(self) -> Tokens:
        """The tokens that keys and values are of: these, or in attention between stacks their sources."""
        return self.sources if self.crossed and self.sources is not None else self

    def beside(self, indices: Sequence[int] | np.ndarray) -> dict[str, Any]:
        """What ``runner.forward`` and ``generate`` are given beside the tokens of these prompts: their sources.

        {"sources": (ids, mask) [prompt, position]}, or nothing where there are none.
        """
        if self.sources is None:
            return {}
        ids, _, mask = self.sources.padded(indices)
        return {"sources": (ids, mask)}

    def begun(self, index: int) -> np.ndarray:
        """What is continued of a prompt: all of it; of a target beside a source what stands before its text."""
        ids, text = self.ids[index], self.text[index]
        return ids if self.sources is None or not text.any() else ids[: max(1, int(text.argmax()))]

    def digest(self) -> str:
        """SHA-256 of what a model and an analysis see: ids, text masks, words and segments; of sources too."""
        found = sha256("\0".join(self.segments).encode("utf-8", "surrogatepass"))
        columns: list[Any] = [self.ids, self.text, self.word, self.segment]
        rows = [of.bytes(kind) for of, kind in zip(columns, ("<i8", "|b1", "<i4", "<i2"), strict=True)]
        counts = (str(n).encode() for n in self.lengths)
        for many in _some(zip(counts, *rows, strict=True), _HASHED):
            found.update(b"".join(chain.from_iterable(many)))
        if self.sources is not None:
            found.update(f"\0sources {self.crossed} {self.sources.digest()}".encode())
        return found.hexdigest()

    def text_digest(self) -> str:
        """SHA-256 of what is read or shown of the text: names, rendered prompts, and the piece and place of each token.

        The same token numbers may be other text: no part of ``digest``.
        """
        found = sha256()
        for told in (self.names, self.rendered):
            found.update(f"{len(told)} [".encode())
            for number, many in enumerate(_some(told, _HASHED)):
                found.update((", " if number else "").encode() + ", ".join([str(len(t)) for t in many]).encode())
            found.update(b"]\0")
            for text in told:
                found.update(text.encode("utf-8", "surrogatepass"))
        for row in self.pieces:
            found.update(f"{len(row)} {[*map(len, row)]}\0{''.join(row)}".encode("utf-8", "surrogatepass"))
        spans: Any = self.span
        for span in spans.bytes("<i4"):
            found.update(span)
        if self.sources is not None:
            found.update(f"\0sources {self.sources.text_digest()}".encode())
        return found.hexdigest()

    def shards(self, size: int = SHARD_TOKENS, among: Iterable[int] | None = None) -> list[np.ndarray]:
        """Indices of prompts, sorted by length (then place), cut so that no shard is over ``size`` when padded.

        ``among`` are the prompts to cut (None: all). A prompt is as long as the longer of it and its source.
        """
        import numpy as np

        longer = np.array(self.lengths, dtype=np.int64)
        if self.sources is not None:
            longer = np.maximum(longer, self.sources.lengths)
        chosen = np.arange(len(self)) if among is None else np.array([*among], dtype=np.int64)
        order = chosen[np.lexsort((chosen, longer[chosen]))]
        width, cut, begin = longer[order], [], 0
        while begin < len(order):
            # Sorted by length, so the last is the longest: it sets the padded width, and more are never less.
            some = width[begin : begin + max(size, 1)]
            fits = int(np.searchsorted(some * np.arange(1, len(some) + 1), size, side="right"))
            cut.append(order[begin : begin + max(fits, 1)])
            begin += max(fits, 1)
        return cut

    def padded(self, indices: Sequence[int] | np.ndarray, pad: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """ids, text and mask of some prompts as [prompt, position] arrays, padded on the right."""
        held: Any = self
        ids, mask = held.ids.padded(indices, pad)
        return ids, held.text.padded(indices, False)[0], mask


def tokenised(model: OpenModel, prompts: Iterable[Prompt], loader: str) -> Tokens:
    """The tokens of all prompts, of which no more than a batch is held as text and lists.

    A ``loader`` need not know ``chunk`` and ``max_tokens``: prompts that it leaves whole are cut here.
    """
    return Tokens.joined(_cut_as_asked(model.tokenise(batch), batch, loader) for batch in _batches(prompts))


def _batches(prompts: Iterable[Prompt]) -> Iterator[list[Prompt]]:
    """Prompts as they are tokenised together; one that is to be cut into chunks is alone.

    A model numbers what it is given from 0: from the second batch on, prompts without a name are called by their number
    among all.
    """
    batch: list[Prompt] = []
    size = 0
    for number, prompt in enumerate(prompts):
        full = len(batch) >= BATCH_PROMPTS or size > BATCH_CHARACTERS or prompt.chunk is not None
        if batch and (full or batch[-1].chunk is not None):
            yield batch
            batch, size = [], 0
        nameless = number > len(batch) and not prompt.name
        batch.append(replace(prompt, name=str(number)) if nameless else prompt)
        size += sum([len(part.text) for part in prompt.parts])
    if batch:
        yield batch


def _cut_as_asked(tokens: Tokens, prompts: Sequence[Prompt], loader: str) -> Tokens:
    """What a model made of a batch, cut where it left prompts whole that are to be cut."""
    if len(tokens) == len(prompts):
        limits = [[n for n in (prompt.chunk, prompt.max_tokens) if n is not None] for prompt in prompts]
        long = any(limit and n > min(limit) for n, limit in zip(tokens.lengths, limits, strict=True))
        return tokens.cut_as_asked(prompts) if long else tokens
    chunk, most = prompts[0].chunk, prompts[0].max_tokens
    if chunk is None:
        raise ModelError(
            f"the loader {loader!r} made {len(tokens)} prompts of {len(prompts)}, none of which asks for chunks: its "
            "`tokenise` must give one for each"
        )
    longest, whole = max(tokens.lengths, default=0), sum(tokens.lengths)
    if longest > chunk or (most is not None and whole > most):
        limit = "" if most is None else f", {most} in all"
        raise ModelError(
            f"the loader {loader!r} cut a prompt into {len(tokens)} pieces of up to {longest} tokens, {whole} in all; "
            f"asked for are chunks of {chunk}{limit}. Its `tokenise` may leave the prompt whole: it is then cut for it"
        )
    return tokens


# How each sequence of arrays is held; those that are texts.
_ROWS: dict[str, tuple[Any, ...]] = {
    "ids": ("int64",),
    "text": ("bool",),
    "word": ("int32",),
    "segment": ("int16",),
    "span": ("int32", 2),
}
_TEXTS = ("rendered", "names")
# Prompts that are hashed at a time.
_HASHED = 1024


def _some(values: Iterable[Any], size: int) -> Iterator[list[Any]]:
    each = iter(values)
    while many := list(islice(each, size)):
        yield many


class _Joined:
    """Tokens that grow by those of more prompts."""

    def __init__(self) -> None:
        from ..maths.ragged import Growing

        self.flat = {name: Growing() for name in (*_ROWS, "other")}
        self.lengths = {name: Growing() for name in self.flat}
        self.texts = {name: (bytearray(), Growing(), Growing()) for name in _TEXTS}
        self.segments: dict[str, int] = {}
        self.pieces: dict[str, int] = {}
        self.sources: _Joined | None = None
        self.last: Tokens | None = None

    def add(self, part: Any) -> None:
        """Put these behind what there is; segments and pieces are numbered as they come."""
        import numpy as np

        from ..maths.ragged import narrow

        if self.last is not None and (self.last.sources is None) != (part.sources is None):
            raise ModelError("the loader gave sources beside some prompts alone")
        segment = np.array([self.segments.setdefault(name, len(self.segments)) for name in part.segments], np.int16)
        other = [0, *(self.pieces.setdefault(piece, len(self.pieces) + 1) for piece in part.pieces.table)]
        rows: dict[str, Any] = {**{name: getattr(part, name) for name in _ROWS}, "other": part.pieces.other}
        numbers: dict[str, Any] = {"segment": segment, "other": np.array(other, dtype=np.int32)}
        for name, row in rows.items():
            self.flat[name].add(narrow(numbers[name][row.flat]) if name in numbers and len(row.flat) else row.flat)
            self.lengths[name].add(row.lengths.astype(np.int32))
        for name, (data, starts, ends) in self.texts.items():
            texts = getattr(part, name)
            starts.add(texts.starts + len(data))
            ends.add(texts.ends + len(data))
            data += texts.data
        if part.sources is not None:
            self.sources = self.sources or _Joined()
            self.sources.add(part.sources)
        self.last = part

    def tokens(self) -> Tokens:
        """All of them."""
        import numpy as np

        from ..maths.ragged import Pieces, Rows, Texts

        ends: dict[str, Any] = {name: np.cumsum(grown.array(), dtype=np.int64) for name, grown in self.lengths.items()}
        alike = {name: ends["ids"] if np.array_equal(own, ends["ids"]) else own for name, own in ends.items()}
        rows: dict[str, Any] = {
            name: Rows(self.flat[name].array().reshape(-1, *shape), alike[name], kind)
            for name, (kind, *shape) in {**_ROWS, "other": ("int32",)}.items()
        }
        texts: dict[str, Any] = {name: Texts(d, s.array(), e.array()) for name, (d, s, e) in self.texts.items()}
        pieces = Pieces(texts["rendered"], rows["span"], rows.pop("other"), tuple(self.pieces))
        sources = None if self.sources is None else self.sources.tokens()
        crossed = self.last is not None and self.last.crossed
        return Tokens(**rows, **texts, pieces=pieces, segments=tuple(self.segments), sources=sources, crossed=crossed)


def _asks(prompt: Prompt) -> bool:
    return prompt.chunk is not None or prompt.max_tokens is not None


def _cuts(tokens: Tokens, number: int, prompt: Prompt) -> list[np.ndarray]:
    """The positions of each piece that a prompt is cut into."""
    import numpy as np

    n = tokens.lengths[number]
    whole = np.arange(n)
    if not _asks(prompt) or (prompt.chunk is None and n <= (prompt.max_tokens or 0)):
        return [whole]
    real = np.flatnonzero(tokens.text[number])
    before, after = (int(real[0]), n - 1 - int(real[-1])) if len(real) else (n, 0)
    if prompt.chunk is None:
        assert prompt.max_tokens is not None
        kept = before + max(prompt.max_tokens - before - after, 0)
        return [np.concatenate([whole[:kept], whole[n - after :]])[: prompt.max_tokens]]
    width = prompt.chunk - before - after
    if width < 1:
        raise ModelError(f"chunk: {prompt.chunk} leaves no room beside {before + after} special tokens")
    chunks: list[np.ndarray] = []
    left = prompt.max_tokens if prompt.max_tokens is not None else n + prompt.chunk
    for start in range(before, n - after, width):
        body = whole[start : min(start + width, n - after)]
        chosen = np.concatenate([whole[:before], body, whole[n - after :]])
        # A last piece shorter than the others would make a shard of its own for a few tokens: it is left out.
        if (chunks and len(body) < width) or len(chosen) > left:
            break
        left -= len(chosen)
        chunks.append(chosen)
    if not chunks:
        raise ModelError(f"max_tokens: {prompt.max_tokens} is less than one chunk of {prompt.chunk} tokens")
    return chunks


@dataclass(frozen=True)
class SourceContext:
    """What a prompt source knows: the directory that paths are relative to, and a seed."""

    directory: Path
    seed: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)


class PromptFunction(Protocol):
    """The function behind a prompt source: a list of prompts, or an iterator, of which a few are held at a time."""

    def __call__(self, parameters: Any, context: SourceContext) -> Iterable[Prompt]: ...
