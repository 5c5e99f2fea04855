"""Prompts of the rows of tables: what was written in each format is read back, and errors name the file and the row."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from gausslens import InputError, Prompt, SourceContext
from gausslens_models.parameters import ColumnsParameters, FileParameters
from gausslens_models.prompts.rows import rows_of
from gausslens_models.prompts.sources import columns, file

Rows = Sequence[dict[str, Any]]


def as_arrow_file(path: Path, rows: Rows) -> None:
    table = pa.Table.from_pylist(list(rows))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=2):
            writer.write_batch(batch)


def as_arrow_stream(path: Path, rows: Rows) -> None:
    table = pa.Table.from_pylist(list(rows))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def as_parquet(path: Path, rows: Rows) -> None:
    parquet.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=2)


def as_lines(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def as_json(path: Path, rows: Rows) -> None:
    path.write_text(json.dumps(list(rows)), encoding="utf-8")


def as_csv(path: Path, rows: Rows) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)


def as_tsv(path: Path, rows: Rows) -> None:
    lines = ["\t".join(rows[0]), *("\t".join(str(row[name]) for name in rows[0]) for row in rows)]
    path.write_text("\n".join(lines), encoding="utf-8")


FORMATS: dict[str, tuple[str, Callable[[Path, Rows], None]]] = {
    "parquet": ("t.parquet", as_parquet),
    "arrow file": ("t.arrow", as_arrow_file),
    "arrow stream": ("t.arrow", as_arrow_stream),
    "feather": ("t.feather", as_arrow_file),
    "json lines": ("t.jsonl", as_lines),
    "json": ("t.json", as_json),
    "csv": ("t.csv", as_csv),
    "tsv": ("t.tsv", as_tsv),
}
ROWS = [{"text": f"row {i}", "title": f"t{i}", "id": i} for i in range(7)]
ANY = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=12)
# What a .tsv can hold.
PLAIN = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=12)


def texts(directory: Path, **given: Any) -> list[str]:
    return ["".join(part.text for part in prompt.parts) for prompt in prompts(directory, **given)]


def prompts(directory: Path, seed: int = 0, **given: Any) -> list[Prompt]:
    return list(columns(ColumnsParameters(**given), SourceContext(directory, seed)))


@pytest.mark.parametrize("kind", FORMATS)
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_rows_are_read_back(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    name, write = FORMATS[kind]
    one = PLAIN if kind == "tsv" else ANY
    rows = data.draw(st.lists(st.fixed_dictionaries({"text": one, "title": one}), min_size=1, max_size=7))
    write(tmp_path / name, rows)
    assert [row for _, row in rows_of(tmp_path / name)] == rows
    wanted = [row["text"] for row in rows if row["text"].strip()]
    if wanted:
        assert texts(tmp_path, path=name) == wanted
        whole = list(file(FileParameters(path=name), SourceContext(tmp_path)))
        assert [prompt.parts[0].text for prompt in whole] == wanted


@pytest.mark.parametrize("kind", FORMATS)
def test_several_columns_are_segments_and_one_is_the_name(kind: str, tmp_path: Path) -> None:
    name, write = FORMATS[kind]
    write(tmp_path / name, ROWS)
    found = prompts(tmp_path, path=name, fields=["title", "text"], between=": ", name="id", offset=2, limit=2)
    assert [prompt.name for prompt in found] == ["2", "3"]
    assert [(part.text, part.segment) for part in found[0].parts] == [("t2: ", "title"), ("row 2", "text")]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"field": "txt"}, "no column 'txt': did you mean text?"),
        ({"field": "body"}, "no column 'body'; there are id, text, title"),
        ({"offset": 7}, "holds no text in text behind the first 7"),
    ],
)
def test_errors_name_the_file_and_what_it_has(kind: str, given: dict[str, Any], said: str, tmp_path: Path) -> None:
    name, write = FORMATS[kind]
    write(tmp_path / name, ROWS)
    with pytest.raises(InputError) as caught:
        texts(tmp_path, path=name, **given)
    assert str(tmp_path / name) in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("kind", ["parquet", "arrow file", "json lines", "json"])
@pytest.mark.parametrize(("value", "said"), [(None, "nothing stands in 'text'"), (3, "'text' is 3, which is no text")])
def test_what_is_no_text_is_told_with_its_row(kind: str, value: Any, said: str, tmp_path: Path) -> None:
    name, write = FORMATS[kind]
    rows = [{"text": value, "id": i} for i in range(2)] if value else [*ROWS[:2], {"text": None, "title": "", "id": 2}]
    write(tmp_path / name, rows)
    place = {"json lines": ":1" if value else ":3", "json": "entry 0" if value else "entry 2"}
    with pytest.raises(InputError, match=said) as caught:
        texts(tmp_path, path=name)
    assert place.get(kind, "row 0" if value else "row 2") in str(caught.value)


def test_a_broken_line_is_told_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n\n{"text": \n', encoding="utf-8")
    with pytest.raises(InputError, match=r"t\.jsonl:3: not JSON: Expecting value at character"):
        texts(tmp_path, path="t.jsonl")


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_a_broken_file_is_told(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"ARROW1 and nothing else" * 3)
    with pytest.raises(InputError, match=f"{name}: cannot be read as {name[2:]}"):
        texts(tmp_path, path=name)


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_parquet(tmp_path / "t.parquet", ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'gausslens\[columns\]'"):
        texts(tmp_path, path="t.parquet")


def test_a_sample_is_drawn_by_the_seed_and_stands_in_order(tmp_path: Path) -> None:
    as_lines(tmp_path / "t.jsonl", [{"text": f"{i:03}"} for i in range(200)])
    found = texts(tmp_path, path="t.jsonl", sample=50)
    assert len(set(found)) == 50
    assert found == sorted(found) == texts(tmp_path, path="t.jsonl", sample=50)
    assert found != texts(tmp_path, path="t.jsonl", sample=50, seed=1)
    # Mean of 50 of 0..199 without replacement: 99.5 with error sqrt(200 * 201 / 12 / 50 * 150 / 199) = 7.1.
    drawn = [float(text) for seed in range(20) for text in texts(tmp_path, path="t.jsonl", sample=50, seed=seed)]
    assert abs(sum(drawn) / len(drawn) - 99.5) < 4 * 7.1 / 20**0.5
    assert texts(tmp_path, path="t.jsonl", sample=50, limit=3) == found[:3]
    assert len(texts(tmp_path, path="t.jsonl", sample=500)) == 200


def saved(directory: Path, rows: Rows, shards: int) -> None:
    """A table as `Dataset.save_to_disk` of the library datasets writes it."""
    directory.mkdir(parents=True)
    names = [f"data-{i:05}-of-{shards:05}.arrow" for i in range(shards)]
    for i, name in enumerate(names):
        as_arrow_stream(directory / name, rows[i::shards])
    (directory / "state.json").write_text(json.dumps({"_data_files": [{"filename": n} for n in names]}), "utf-8")
    (directory / "dataset_info.json").write_text("{}", "utf-8")


def test_a_directory_that_was_saved(tmp_path: Path) -> None:
    saved(tmp_path / "d", ROWS, 2)
    wanted = [row["text"] for row in [*ROWS[::2], *ROWS[1::2]]]
    assert texts(tmp_path, path="d") == wanted
    (tmp_path / "d" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(InputError, match=r"data-00001-of-00002\.arrow: no such file"):
        texts(tmp_path, path="d")


def test_what_datasets_itself_saves(tmp_path: Path) -> None:
    import datasets  # it takes its time

    datasets.disable_progress_bars()
    table = datasets.Dataset.from_list(ROWS)
    table.save_to_disk(str(tmp_path / "one"), num_shards=2)
    assert texts(tmp_path, path="one") == [row["text"] for row in ROWS]
    datasets.DatasetDict({"train": table, "test": table.select([0])}).save_to_disk(str(tmp_path / "two"))
    assert texts(tmp_path, path="two", split="test") == ["row 0"]


def test_splits_are_never_mixed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for i in range(2):
        as_parquet(tmp_path / "d" / f"train-0000{i}-of-00002.parquet", ROWS[i::2])
    as_parquet(tmp_path / "d" / "test-00000-of-00001.parquet", [{"text": "tested"}])
    with pytest.raises(InputError, match="holds the splits test, train: choose one with `split:`"):
        texts(tmp_path, path="d")
    assert texts(tmp_path, path="d", split="test") == ["tested"]
    assert len(texts(tmp_path, path="d", split="train")) == 7
    with pytest.raises(InputError, match=r"'tran' is none of them: did you mean train\?"):
        texts(tmp_path, path="d", split="tran")
    (tmp_path / "d" / "train-00000-of-00002.parquet").unlink()
    with pytest.raises(InputError, match="holds 1 files of train, and their names say 2"):
        texts(tmp_path, path="d", split="train")


def test_shards_of_other_names_are_one_table_and_kinds_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in "ab":
        as_parquet(tmp_path / "d" / f"{name}.parquet", [{"text": name}])
    assert texts(tmp_path, path="d") == ["a", "b"]
    as_lines(tmp_path / "d" / "c.jsonl", ROWS)
    with pytest.raises(InputError, match=r"files of several kinds, \.jsonl, \.parquet"):
        texts(tmp_path, path="d")


@pytest.mark.parametrize("path", ["nowhere", "nowhere.parquet", "t.xlsx", "."])
def test_what_is_no_table_is_told(path: str, tmp_path: Path) -> None:
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"no such file or directory|columns are read from|none of its files"):
        texts(tmp_path, path=path)


@pytest.mark.parametrize("kind", ["parquet", "arrow file", "arrow stream", "csv", "tsv"])
def test_of_two_columns_of_one_name_none_is_chosen(kind: str, tmp_path: Path) -> None:
    name, _ = FORMATS[kind]
    table = pa.table([["mine"], ["other"], ["a"]], names=["text", "text", "id"])
    if kind == "parquet":
        parquet.write_table(table, tmp_path / name)
    elif kind in ("csv", "tsv"):
        between = "," if kind == "csv" else "\t"
        lines = (["text", "text", "id"], ["mine", "other", "a"])
        (tmp_path / name).write_text("".join(f"{between.join(line)}\n" for line in lines), encoding="utf-8")
    else:
        made = pa.ipc.new_file if kind == "arrow file" else pa.ipc.new_stream
        with pa.OSFile(str(tmp_path / name), "wb") as sink, made(sink, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(InputError, match=f"{name}.*: 2 columns are called 'text': rename all but one"):
        texts(tmp_path, path=name)
    assert texts(tmp_path, path=name, field="id") == ["a"]
    with pytest.raises(InputError, match="no column 'txt'"):
        texts(tmp_path, path=name, field="txt")


def test_files_called_as_splits_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in ("train-1", "train-2"):
        as_lines(tmp_path / "d" / f"{name}.jsonl", [{"text": name}])
    assert texts(tmp_path, path="d") == ["train-1", "train-2"]
    as_lines(tmp_path / "d" / "contest.jsonl", [{"text": "contest"}])
    assert len(texts(tmp_path, path="d")) == 3
    as_lines(tmp_path / "d" / "test.jsonl", [{"text": "tested"}])
    with pytest.raises(InputError, match="holds the splits contest, test, train-1, train-2: choose one with `split:`"):
        texts(tmp_path, path="d")
    assert texts(tmp_path, path="d", split="test") == ["tested"]


def test_a_split_of_what_has_none_is_refused(tmp_path: Path) -> None:
    as_lines(tmp_path / "train.jsonl", ROWS)
    with pytest.raises(InputError, match="is one file: there is no split 'test' in it"):
        texts(tmp_path, path="train.jsonl", split="test")
    saved(tmp_path / "one", ROWS, 2)
    with pytest.raises(InputError, match="there is no split 'test' in it"):
        texts(tmp_path, path="one", split="test")


def test_tables_one_folder_further_down_are_told(tmp_path: Path) -> None:
    (tmp_path / "d" / "data").mkdir(parents=True)
    as_parquet(tmp_path / "d" / "data" / "train-00000-of-00001.parquet", ROWS)
    with pytest.raises(InputError, match="its folders data hold some: name one of them in `path:`"):
        texts(tmp_path, path="d")


@pytest.mark.parametrize("value", ["[" * 100_000 + "]" * 100_000, "9" * 5000])
@pytest.mark.parametrize("name", ["t.jsonl", "t.json"])
def test_json_that_python_does_not_read_is_told_with_its_place(name: str, value: str, tmp_path: Path) -> None:
    row = f'{{"text": "a", "more": {value}}}'
    (tmp_path / name).write_text(f"{row}\n" if name == "t.jsonl" else f"[{row}]", encoding="utf-8")
    with pytest.raises(InputError, match=rf"{name}(:1)?: JSON that is too much to read"):
        texts(tmp_path, path=name)


@pytest.mark.parametrize("row", ['"a"b,1', '"a,1'])
def test_quotes_that_do_not_fit_are_told_with_their_line(row: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"text,id\nfirst,0\n{row}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"t\.csv:3: quotes that do not fit"):
        texts(tmp_path, path="t.csv")


@pytest.mark.parametrize(
    "source", [texts, lambda place, path: list(file(FileParameters(path=path), SourceContext(place)))]
)
def test_half_of_a_character_is_told_with_its_line(source: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n{"text": "cut \\ud83d"}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"t\.jsonl:2: 'text' holds '\\ud83d', half of a character"):
        source(tmp_path, path="t.jsonl")
