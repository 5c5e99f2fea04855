"""Prompt sources: text of the run file, of a file, token numbers, and repeated random tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from gausslens import InputError, Part, Prompt

from .rows import TABLES, lines_of, rows_of, text_of

if TYPE_CHECKING:
    from gausslens import SourceContext

    from ..parameters import FileParameters, RepeatedRandomParameters, TextParameters, TokensParameters


def text(parameters: TextParameters, context: SourceContext) -> list[Prompt]:  # noqa: ARG001
    """One prompt for each text."""
    role = parameters.role or None
    return [Prompt((Part(t, role=role),)) for t in parameters.text]


def tokens(parameters: TokensParameters, context: SourceContext) -> list[Prompt]:
    """Token numbers as they are."""
    most = context.facts.get("vocabulary")
    for row, ids in enumerate(parameters.ids):
        wrong = [i for i in ids if i < 0 or (most is not None and i >= most)]
        if wrong:
            raise InputError(f"prompt {row}: the vocabulary has no token {wrong[0]}: it has 0 to {(most or 0) - 1}")
    return [Prompt(ids=tuple(ids)) for ids in parameters.ids]


def repeated_random(parameters: RepeatedRandomParameters, context: SourceContext) -> list[Prompt]:
    """Random tokens that repeat; BOS stands before them where the tokenizer puts one."""
    import numpy as np

    generator = np.random.default_rng(context.seed)
    special = set(context.facts.get("special_ids", ()))
    allowed = np.array([i for i in range(int(context.facts["vocabulary"])) if i not in special])
    bos = context.facts.get("bos")
    prompts = []
    for _ in range(parameters.prompts):
        drawn = allowed[generator.integers(len(allowed), size=parameters.length)]
        repeated = [int(i) for i in drawn] * parameters.repeats
        prompts.append(Prompt(ids=tuple(repeated if bos is None else [int(bos), *repeated])))
    return prompts


def file(parameters: FileParameters, context: SourceContext) -> Iterator[Prompt]:
    """The texts of a file, one prompt each; with ``chunk`` one long text, which is cut into prompts later."""
    path = Path(context.directory) / parameters.path
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    found = islice((one for one in _texts(path, parameters.field) if one.strip()), parameters.limit)
    if parameters.chunk is not None:
        joined = Part("\n".join(found))
        if joined.text:
            yield Prompt((joined,), name=path.stem, chunk=parameters.chunk, max_tokens=parameters.max_tokens)
            return
    number = -1
    for number, one in enumerate(found):
        yield Prompt((Part(one),), max_tokens=parameters.max_tokens)
    if number < 0:
        raise InputError(f"{path}: holds no text")


def _texts(path: Path, field: str) -> Iterator[str]:
    if path.suffix not in TABLES:
        yield from lines_of(path)
        return
    for where, row in rows_of(path):
        yield row if isinstance(row, str) else text_of(row, field, where)
