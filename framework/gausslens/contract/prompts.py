"""Prompts as text in parts, and the tokens they become."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

# A shard is the unit of a forward pass and of merging: its size is fixed, so results do not depend on memory settings.
SHARD_TOKENS = 2048


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
    """Prompts as tokens, ragged, in the user's order. All lists have one entry for each prompt.

    ids      int64 [position]         segment  int16 [position], index into ``segments``
    text     bool [position], real text: not BOS, not special
    word     int32 [position], which word of the prompt; -1 where the token is of none
    span     int32 [position, 2], characters of ``rendered``
    pieces   the text of each token

    In a model of two stacks ``sources`` is what its encoder reads beside each prompt, and with ``crossed`` the keys of
    what is studied are of sources: of attention from one stack to the other.
    """

    ids: tuple[np.ndarray, ...]
    text: tuple[np.ndarray, ...]
    word: tuple[np.ndarray, ...]
    segment: tuple[np.ndarray, ...]
    span: tuple[np.ndarray, ...]
    pieces: tuple[tuple[str, ...], ...]
    rendered: tuple[str, ...]
    segments: tuple[str, ...]
    names: tuple[str, ...]
    sources: Tokens | None = None
    crossed: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each prompt."""
        return tuple(len(i) for i in self.ids)

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
        for arrays in zip(self.ids, self.text, self.word, self.segment, strict=True):
            found.update(str(len(arrays[0])).encode())
            for array, dtype in zip(arrays, ("<i8", "|b1", "<i4", "<i2"), strict=True):
                found.update(array.astype(dtype).tobytes())
        if self.sources is not None:
            found.update(f"\0sources {self.crossed} {self.sources.digest()}".encode())
        return found.hexdigest()

    def text_digest(self) -> str:
        """SHA-256 of what is read or shown of the text: names, rendered prompts, and the piece and place of each token.

        The same token numbers may be other text: no part of ``digest``.
        """
        found = sha256()
        for told in (self.names, self.rendered, *self.pieces):
            found.update(f"{len(told)} {[len(text) for text in told]}\0".encode())
            found.update("".join(told).encode("utf-8", "surrogatepass"))
        for span in self.span:
            found.update(span.astype("<i4").tobytes())
        if self.sources is not None:
            found.update(f"\0sources {self.sources.text_digest()}".encode())
        return found.hexdigest()

    def shards(self, size: int = SHARD_TOKENS, among: Iterable[int] | None = None) -> list[np.ndarray]:
        """Indices of prompts, sorted by length (then place), cut so that no shard is over ``size`` when padded.

        ``among`` are the prompts to cut (None: all). A prompt is as long as the longer of it and its source.
        """
        import numpy as np

        chosen = range(len(self)) if among is None else among
        beside = self.lengths if self.sources is None else self.sources.lengths
        longer = [max(pair) for pair in zip(self.lengths, beside, strict=True)]
        order = sorted(map(int, chosen), key=lambda i: (longer[i], i))
        cut: list[list[int]] = []
        for index in order:
            # Sorted by length, so the newest is the longest: it sets the padded width.
            if cut and (len(cut[-1]) + 1) * longer[index] <= size:
                cut[-1].append(index)
            else:
                cut.append([index])
        return [np.array(c) for c in cut]

    def padded(self, indices: Sequence[int] | np.ndarray, pad: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """ids, text and mask of some prompts as [prompt, position] arrays, padded on the right."""
        import numpy as np

        width = max((len(self.ids[i]) for i in indices), default=0)
        ids = np.full((len(indices), width), pad, dtype=np.int64)
        text = np.zeros((len(indices), width), dtype=bool)
        mask = np.zeros((len(indices), width), dtype=bool)
        for row, index in enumerate(indices):
            n = len(self.ids[index])
            ids[row, :n], text[row, :n], mask[row, :n] = self.ids[index], self.text[index], True
        return ids, text, mask


@dataclass(frozen=True)
class SourceContext:
    """What a prompt source knows: the directory that paths are relative to, and a seed."""

    directory: Path
    seed: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)


class PromptFunction(Protocol):
    """The function behind a prompt source."""

    def __call__(self, parameters: Any, context: SourceContext) -> Sequence[Prompt]: ...
