"""Prompts in pairs, for models of two stacks: a source that the encoder reads, and a target that the decoder writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gausslens import InputError, ModelError, Part, Prompt

from .rows import TABLES, rows_of, text_of
from .tokenise import tokenise

if TYPE_CHECKING:
    from gausslens import SourceContext, Tokens

    from ..parameters import PairsParameters

SOURCE, TARGET = "source", "target"
# What tokens have one of each of.
_ROWS = ("ids", "text", "word", "segment", "span", "pieces")
HOW = (
    "write `prompts: {source: pairs, pairs: [{source: ..., target: ...}]}`, or `path:` of a file with two columns; "
    "a target may be empty"
)


def pairs(parameters: PairsParameters, context: SourceContext) -> Iterator[Prompt]:
    """One prompt for each pair, its two parts in segments `source` and `target`."""
    if "stack" not in context.facts:
        raise InputError("prompts in pairs are for models of two stacks; this one reads one text: give it that")
    found = iter([(one.source, one.target) for one in parameters.pairs])
    path = None if parameters.path is None else Path(context.directory) / parameters.path
    if path is not None:
        found = chain(found, islice(_rows(path, parameters.fields), parameters.limit))
    number = -1
    for number, (source, target) in enumerate(found):
        if not source.strip():
            raise InputError(f"pair {number} has no source: the encoder has nothing to read")
        yield Prompt((Part(source, SOURCE), Part(target, TARGET)))
    if number < 0:
        raise InputError(f"{path}: holds no pairs")


def _rows(path: Path, fields: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """The pairs of a file: columns of .csv and .tsv, keys of .jsonl and .json."""
    if path.suffix not in TABLES:
        raise InputError(f"{path}: pairs are read from {', '.join(TABLES)}")
    for where, row in rows_of(path, fields):
        source, target = (text_of(row, field, where) for field in fields)
        yield source, target


@dataclass(frozen=True)
class PairReader:
    """How one stack of a model reads prompts in pairs.

    Targets begin with the config's ``first`` token, or as ``begins`` says with their own "last", which is the mark of
    their language.
    """

    model: str
    stack: str
    begins: str
    first: int | None
    longest: int | None

    def tokens(self, tokenizer: Any, prompts: Sequence[Prompt]) -> Tokens:
        """Sources for an encoder; for a decoder its targets, with the sources beside them."""
        sources = tokenise(tokenizer, [self._source(one) for one in prompts], self.model)
        if self.stack == "encoder":
            return sources
        for number, length in enumerate(sources.lengths):
            if self.longest is not None and length > self.longest:
                raise ModelError(
                    f"the source of prompt {sources.names[number]} has {length} tokens, the model takes "
                    f"{self.longest}: shorten it"
                )
        empty = next((i for i, length in enumerate(sources.lengths) if not length), None)
        if empty is not None:
            raise ModelError(f"the source of prompt {sources.names[empty]} has no tokens")
        targets = [self._target(number, one) for number, one in enumerate(prompts)]
        written = tokenise(tokenizer, targets, self.model, target=True, start=self._start)
        unwritten = {i for i, one in enumerate(targets) if not any(part.text for part in one.parts)}
        if unwritten:  # nothing but what stands before every target
            before = self._before(tokenizer)
            rows: dict[str, Any] = {name: getattr(written, name) for name in _ROWS}
            cut = {n: tuple(v[:before] if i in unwritten else v for i, v in enumerate(of)) for n, of in rows.items()}
            written = replace(written, **cut)  # type: ignore[arg-type]
        return replace(written, sources=sources, crossed=self.stack == "cross")

    def _source(self, prompt: Prompt) -> Prompt:
        """What the encoder reads of a prompt: its source, or all of it where no part is called so."""
        own = tuple(part for part in prompt.parts if part.segment == SOURCE)
        return replace(prompt, parts=own) if own else prompt

    def _target(self, number: int, prompt: Prompt) -> Prompt:
        """What the decoder reads of a prompt."""
        segments = {part.segment for part in prompt.parts}
        if prompt.ids is not None or not {SOURCE, TARGET} <= segments:
            lost = " and ".join(f"no {one}" for one in (SOURCE, TARGET) if one not in segments)
            what = "is token numbers" if prompt.ids is not None else f"has {lost}"
            raise ModelError(
                f"{self.model}: `stack: {self.stack}` reads prompts in pairs, and prompt {prompt.name or number} "
                f"{what}: {HOW}"
            )
        return replace(prompt, parts=tuple(part for part in prompt.parts if part.segment != SOURCE))

    def _start(self, ids: Sequence[int]) -> int:
        """The token that a target begins with."""
        if self.begins == "last":
            if ids:
                return int(ids[-1])
        elif self.first is not None:
            return self.first
        raise ModelError(
            f"{self.model}: its config does not say what a target begins with: put decoder_start_token_id into it"
        )

    def _before(self, tokenizer: Any) -> int:
        """How many special tokens stand before every target, the one that it begins with counted."""
        probe = tokenise(tokenizer, [Prompt((Part("a", TARGET),))], self.model, target=True, start=self._start)
        text = probe.text[0]
        return int(text.argmax()) if text.any() else 1
