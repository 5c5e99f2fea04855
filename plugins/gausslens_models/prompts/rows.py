"""The rows of a file of texts: columns of .csv and .tsv, entries of .json and .jsonl, each with its place."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gausslens import InputError

TABLES = (".csv", ".tsv", ".json", ".jsonl")


def rows_of(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, row) of a file, one by one; of .csv and .tsv a row is a mapping from the names in the first line.

    In .tsv a quote is a letter as any other; in .csv a field between quotes may hold commas and line ends.
    """
    reading = {".csv": _columns, ".tsv": _columns, ".json": _entries, ".jsonl": _lines}[path.suffix]
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        yield from reading(path)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not JSON: {error}") from error


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a text file; a mark of byte order before them is no text."""
    try:
        with path.open(encoding="utf-8-sig") as stream:
            yield from (line.rstrip("\n") for line in stream)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from error


def text_of(row: Any, field: str, where: str) -> str:
    """The text under a name in a row, empty where nothing stands there; an error where there is no such name."""
    found = row.get(field) if isinstance(row, Mapping) else None
    if isinstance(found, str):
        return found
    if isinstance(row, Mapping) and field in row and found is None:
        return ""
    known = ", ".join(str(key) for key in row) if isinstance(row, Mapping) else type(row).__name__
    raise InputError(f"{where}: no text {field!r} in it: it has {known}")


def _columns(path: Path) -> Iterator[tuple[str, Any]]:
    plain: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {"strict": True}
    with path.open(newline="", encoding="utf-8-sig") as stream:
        rows = csv.DictReader(stream, **plain)
        try:
            for row in rows:
                where = f"{path}:{rows.line_num}"
                if None in row:
                    raise InputError(f"{where}: {len(row[None])} more columns than the first line names")
                yield where, row
        except csv.Error as error:
            raise InputError(f"{path}:{rows.line_num}: quotes that do not fit: {error}") from error


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    found = json.loads(path.read_text("utf-8-sig"))
    if not isinstance(found, list):
        raise InputError(f"{path}: holds a {type(found).__name__}, not a list of texts")
    yield from ((f"{path}: entry {number}", entry) for number, entry in enumerate(found))


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open(encoding="utf-8-sig") as stream:
        yield from ((f"{path}:{number}", json.loads(line)) for number, line in enumerate(stream, 1) if line.strip())
