"""Prompt sources: text of the run file, of a file, token numbers, and repeated random tokens."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gausslens import InputError, Part, Prompt

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


def file(parameters: FileParameters, context: SourceContext) -> list[Prompt]:
    """The texts of a file, one prompt each; with ``chunk`` one long text, which the model side cuts."""
    path = Path(context.directory) / parameters.path
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    found: list[str] = []
    for one in _texts(path, parameters.field):
        if parameters.limit is not None and len(found) == parameters.limit:
            break
        if one.strip():
            found.append(one)
    if not found:
        raise InputError(f"{path}: holds no text")
    if parameters.chunk is not None:
        joined = Part("\n".join(found))
        return [Prompt((joined,), name=path.stem, chunk=parameters.chunk, max_tokens=parameters.max_tokens)]
    return [Prompt((Part(one),), max_tokens=parameters.max_tokens) for one in found]


def _texts(path: Path, field: str) -> Iterator[str]:
    try:
        if path.suffix in (".csv", ".tsv"):
            with path.open(newline="", encoding="utf-8") as stream:
                rows = csv.DictReader(stream, delimiter="\t" if path.suffix == ".tsv" else ",")
                if field not in (rows.fieldnames or ()):
                    raise InputError(f"{path}: no column {field!r}: it has {', '.join(rows.fieldnames or ())}")
                yield from (row[field] or "" for row in rows)
        elif path.suffix == ".json":
            for number, entry in enumerate(json.loads(path.read_text("utf-8"))):
                yield _field(entry, field, f"{path}: entry {number}")
        elif path.suffix == ".jsonl":
            with path.open(encoding="utf-8") as stream:
                for number, line in enumerate(stream, 1):
                    if line.strip():
                        yield _field(json.loads(line), field, f"{path}:{number}")
        else:
            with path.open(encoding="utf-8") as stream:
                yield from (line.rstrip("\n") for line in stream)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not JSON: {error}") from error


def _field(entry: Any, field: str, where: str) -> str:
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, dict) or not isinstance(entry.get(field), str):
        known = ", ".join(entry) if isinstance(entry, dict) else type(entry).__name__
        raise InputError(f"{where}: no text {field!r} in it: it has {known}")
    return str(entry[field])
