"""Prompt sources: text of the run file, of a file or a table, token numbers, and repeated random tokens."""

from __future__ import annotations

import heapq
import reprlib
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gausslens import InputError, Part, Prompt

from .rows import TABLES, lines_of, rows_of, tables_of, text_of, value_of, whole

if TYPE_CHECKING:
    from gausslens import SourceContext

    from ..parameters import (
        ColumnsParameters,
        FileParameters,
        RepeatedRandomParameters,
        TextParameters,
        TokensParameters,
    )


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
    first = next(found, None)
    for one in () if first is None else chain([first], found):
        yield Prompt((Part(one),), max_tokens=parameters.max_tokens)
    if first is None:
        raise InputError(f"{path}: holds no text")


def _texts(path: Path, field: str) -> Iterator[str]:
    if path.suffix not in TABLES:
        yield from lines_of(path)
        return
    for where, row in rows_of(path, [field]):
        yield whole(row, "text", where) if isinstance(row, str) else text_of(row, field, where)


def columns(parameters: ColumnsParameters, context: SourceContext) -> Iterator[Prompt]:
    """A prompt of each row of a table; of several columns, each is a segment of its name."""
    path = Path(context.directory) / parameters.path
    found: Iterator[Prompt] = _prompts(parameters, tables_of(path, parameters.split))
    found = islice(found, parameters.offset, None)
    if parameters.sample is not None:
        found = iter(_sample(found, parameters.sample, context.seed))
    found = islice(found, parameters.limit)
    first = next(found, None)
    if first is None:
        beyond = f" behind the first {parameters.offset}" if parameters.offset else ""
        raise InputError(f"{path}: holds no text in {', '.join(parameters.columns)}{beyond}")
    yield first
    yield from found


def _prompts(parameters: ColumnsParameters, tables: Sequence[Path]) -> Iterator[Prompt]:
    names = parameters.columns
    wanted = [*names, *([parameters.name] if parameters.name is not None else [])]
    for table in tables:
        for where, row in rows_of(table, wanted):
            texts = [_text(row, name, where) for name in names]
            if not any(text.strip() for text in texts):
                continue
            called = None if parameters.name is None else str(_given(row, parameters.name, where))
            last = len(names) - 1
            parts = (
                (Part(texts[0]),)
                if not last
                else tuple(
                    Part(text + (parameters.between if i < last else ""), segment=name)
                    for i, (name, text) in enumerate(zip(names, texts, strict=True))
                )
            )
            yield Prompt(parts, name=called, max_tokens=parameters.max_tokens)


def _given(row: Any, column: str, where: str) -> Any:
    value = value_of(row, column, where)
    if value is None:
        raise InputError(f"{where}: nothing stands in {column!r}: fill it in, or leave out such rows")
    return value


def _text(row: Any, column: str, where: str) -> str:
    value = _given(row, column, where)
    if not isinstance(value, str):
        raise InputError(f"{where}: {column!r} is {reprlib.repr(value)}, which is no text")
    return whole(value, column, where)


def _sample(prompts: Iterator[Prompt], count: int, seed: int) -> list[Prompt]:
    """So many of the prompts, in their order, all choices being as likely: those that draw the least numbers."""
    import numpy as np

    generator = np.random.default_rng(seed)
    kept: list[tuple[float, int, Prompt]] = []
    for number, prompt in enumerate(prompts):
        entry = (-generator.random(), number, prompt)
        if len(kept) < count:
            heapq.heappush(kept, entry)
        elif entry > kept[0]:
            heapq.heapreplace(kept, entry)
    return [prompt for _, _, prompt in sorted(kept, key=lambda entry: entry[1])]
