"""The rows of tables of texts, each with its place: .csv, .tsv, .json, .jsonl, .parquet, .arrow, .feather, directories.

They are read one after another, and no table is held whole (but that of .json).
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gausslens import InputError, did_you_mean

ARROW = (".parquet", ".arrow", ".feather")
TABLES = (".csv", ".tsv", ".json", ".jsonl", *ARROW)
# Rows that are made of Arrow's columns at a time.
_BATCH = 1024
_LONGEST_FIELD = 2**31 - 1
_SHARD = re.compile(r"(?:(?P<split>.+)-)?(?P<number>\d{5})-of-(?P<count>\d{5})")
# What files of one split are called, by itself or between other words.
_SPLIT = re.compile(r"(?<![a-z])(train|test|valid|val|dev|eval)(?:ing|ation|uation)?(?![a-z])", re.IGNORECASE)
Row = tuple[str, Any]


def rows_of(path: Path, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """(place, row) of a file, one by one; a row is a mapping from names, of .json and .jsonl whatever stands there.

    In .tsv a quote is a letter as any other; in .csv a field between quotes may hold commas and line ends. ``columns``
    are those that are wanted: of Parquet and Arrow no others are read.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    reading: dict[str, Callable[[Path, Sequence[str] | None], Iterator[Row]]] = {
        ".csv": _delimited,
        ".tsv": _delimited,
        ".json": _entries,
        ".jsonl": _lines,
    }
    try:
        yield from reading.get(path.suffix, _of_arrow)(path, columns)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from error


def tables_of(path: Path, split: str | None) -> list[Path]:
    """The files of a table: one, or those of a directory in order, of one split."""
    if path.is_file():
        if path.suffix not in TABLES:
            raise InputError(f"{path}: columns are read from {', '.join(TABLES)}, or a directory of these")
        _refuse_split(path, split, None)
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: no such file or directory")
    told = _json_of(path / "dataset_dict.json")
    if told is not None:
        splits = [str(one) for one in told.get("splits", ())]
        return tables_of(path / _one_of(path, splits, split), None)
    state = _json_of(path / "state.json")
    if state is not None:
        _refuse_split(path, split, state.get("_split"))
        return [_there(path / str(one["filename"])) for one in state.get("_data_files", ())]
    files = sorted(one for one in path.iterdir() if one.suffix in TABLES and not one.name.startswith((".", "_")))
    files = [one for one in files if one.name not in ("dataset_info.json", "dataset_infos.json")]
    if not files:
        within = sorted({one.parent.name for end in TABLES for one in path.glob(f"*/*{end}")})
        here = f"; its folders {', '.join(within)} hold some: name one of them in `path:`" if within else ""
        raise InputError(f"{path}: none of its files is called *{', *'.join(TABLES)}{here}")
    kinds = sorted({one.suffix for one in files})
    if len(kinds) > 1:
        raise InputError(f"{path}: holds files of several kinds, {', '.join(kinds)}: give one of them")
    return _of_split(path, files, split)


def _of_split(path: Path, files: Sequence[Path], split: str | None) -> list[Path]:
    """Those called <split>-00000-of-00002.parquet, all of which must be there, or by splits; others are one table."""
    found = {one: _SHARD.fullmatch(one.stem) for one in files}
    names = {one: (shard["split"] or "" if shard else one.stem) for one, shard in found.items()}
    shards = {name for one, name in names.items() if found[one]}
    splits = {told[1].lower() for name in names.values() if (told := _SPLIT.search(name))}
    if not shards and split is None and len(splits) < 2:
        return list(files)
    name = next(iter(shards)) if split is None and set(names.values()) == shards and len(shards) == 1 else None
    name = _one_of(path, sorted(set(names.values())), split) if name is None else name
    chosen = [one for one in files if names[one] == name]
    counts = {int(shard["count"]) for one in chosen if (shard := found[one])}
    if counts and counts != {len(chosen)}:
        raise InputError(
            f"{path}: holds {len(chosen)} files of {name or 'the table'}, and their names say {max(counts)}"
        )
    return chosen


def _refuse_split(path: Path, split: str | None, own: str | None) -> None:
    """What is one split, or none, has no others to choose from."""
    if split is not None and split != own:
        what = "one file" if path.is_file() else f"the split {own}" if own else "one table"
        raise InputError(f"{path}: is {what}: there is no split {split!r} in it, leave out `split:`")


def _one_of(path: Path, splits: Sequence[str], split: str | None) -> str:
    if split in splits:
        return str(split)
    what = "choose one with `split:`" if split is None else f"{split!r} is none of them{did_you_mean(split, splits)}"
    raise InputError(f"{path}: holds the splits {', '.join(splits) or 'none'}: {what}")


def _there(path: Path) -> Path:
    if not path.is_file():
        raise InputError(f"{path}: no such file, and {path.parent / 'state.json'} says that it is of the table")
    return path


def _json_of(path: Path) -> Any:
    """What a JSON file beside tables holds; None where there is none."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
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
        return whole(found, field, where)
    if isinstance(row, Mapping) and field in row and found is None:
        return ""
    known = ", ".join(str(key) for key in row) if isinstance(row, Mapping) else type(row).__name__
    raise InputError(f"{where}: no text {field!r} in it: it has {known}")


def whole(text: str, field: str, where: str) -> str:
    """The text, of whole characters: JSON may hold half of one, as "\\ud83d", which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start])
        raise InputError(f"{where}: {field!r} holds {half}, half of a character: the text was cut there") from error
    return text


def value_of(row: Any, column: str, where: str) -> Any:
    """What stands in a column of a row, which must have it."""
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: a row has names and values, here is a {type(row).__name__}")
    if column not in row:
        names = [str(key) for key in row]
        raise InputError(f"{where}: no column {column!r}{did_you_mean(column, names)}")
    return row[column]


def _delimited(path: Path, columns: Sequence[str] | None) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_FIELD)
    plain: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {"strict": True}
    with path.open(newline="", encoding="utf-8-sig") as stream:
        rows = csv.DictReader(stream, **plain)
        try:
            _refuse_twice(f"{path}:1", rows.fieldnames or (), columns)
            for row in rows:
                where = f"{path}:{rows.line_num}"
                if None in row:
                    raise InputError(f"{where}: {len(row[None])} more columns than the first line names")
                yield where, row
        except csv.Error as error:
            # The lines of the reader behind it, for those of `rows` are of the row before.
            raise InputError(f"{path}:{rows.reader.line_num}: quotes that do not fit: {error}") from error


def _entries(path: Path, _: Sequence[str] | None) -> Iterator[Row]:
    found = _json(path.read_text("utf-8-sig"), str(path))
    if not isinstance(found, list):
        raise InputError(f"{path}: holds a {type(found).__name__}, not a list of texts")
    yield from ((f"{path}: entry {number}", entry) for number, entry in enumerate(found))


def _lines(path: Path, _: Sequence[str] | None) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                where = f"{path}:{number}"
                yield where, _json(line, where)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON: {error.msg} at character {error.pos}") from error
    except (RecursionError, ValueError) as error:  # a thousand lists in each other, a number of thousands of digits
        raise InputError(f"{where}: JSON that is too much to read: {error}") from error


def _refuse_twice(where: str, names: Sequence[str], columns: Sequence[str] | None) -> None:
    """Of two columns of one name nothing says which is meant."""
    for name in columns or ():
        if names.count(name) > 1:
            raise InputError(f"{where}: {names.count(name)} columns are called {name!r}: rename all but one")


def _of_arrow(path: Path, columns: Sequence[str] | None) -> Iterator[Row]:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise InputError(
            f"{path}: {path.suffix} is read with pyarrow, which is not installed: pip install 'gausslens[columns]'"
        ) from error
    number = 0
    try:
        for batch in _batches_of_arrow(path, columns):
            for start in range(0, batch.num_rows, _BATCH):
                for row in batch.slice(start, _BATCH).to_pylist():
                    yield f"{path}: row {number}", row
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read as {path.suffix.removeprefix('.')}: {error}") from error


def _batches_of_arrow(path: Path, columns: Sequence[str] | None) -> Iterator[Any]:
    """Record batches with the columns that are wanted; a file that lacks one is read whole, so that it can be told."""
    import pyarrow as pa

    if path.suffix == ".parquet":
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            yield from file.iter_batches(_BATCH, columns=_wanted(path, names, columns))
        return
    with pa.memory_map(str(path)) as source:
        # Files begin with this mark; what `datasets` saves are streams, which do not.
        if source.read(6) == b"ARROW1":
            file = pa.ipc.open_file(source)
            batches: Iterator[Any] = (file.get_batch(i) for i in range(file.num_record_batches))
            names = file.schema.names
        else:
            source.seek(0)
            batches = stream = pa.ipc.open_stream(source)
            names = stream.schema.names
        for batch in batches:
            wanted = _wanted(path, names, columns)
            yield batch if wanted is None else batch.select(wanted)


def _wanted(path: Path, names: Sequence[str], columns: Sequence[str] | None) -> list[str] | None:
    _refuse_twice(str(path), names, columns)
    if columns is None or any(name not in names for name in columns):
        return None
    return list(dict.fromkeys(columns))
