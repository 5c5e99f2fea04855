"""What is no run file at all is refused at once: within a second, and without reading it where it is large."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gausslens.plugins.host import Host
from gausslens.runfile import RunFileErrors, read

Refused = Callable[[str | Path], str]


@pytest.fixture
def refused(host: Host) -> Refused:
    """Reads a file, which must be refused within a second of work; returns what is said."""

    def said(path: str | Path) -> str:
        start = time.process_time()
        with pytest.raises(RunFileErrors) as caught:
            read(path, host)
        assert time.process_time() - start < 1
        text = str(caught.value)
        assert len(text.splitlines()) <= 42
        return text

    return said


def test_two_gigabytes(refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(2 * 1024**3)
    assert "is too large (2,147,483,648 bytes)" in refused(path)


def test_just_over_the_limit(refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("#" * 1_000_001, encoding="utf-8")
    assert "is too large" in refused(path)


def test_a_pipe_is_not_waited_for(refused: Refused, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refused(tmp_path / "pipe")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device(refused: Refused, device: str) -> None:
    assert "is not a regular file" in refused(device)


def test_a_directory_says_what_is_in_it(refused: Refused, tmp_path: Path) -> None:
    assert "is a directory; name the run file in it" in refused(tmp_path)
    (tmp_path / "study.yaml").touch()
    assert f"as {tmp_path / 'study.yaml'}" in refused(tmp_path)


def test_a_missing_file_names_the_near_ones(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").touch()
    assert f"there is no such file; did you mean {tmp_path / 'study.yaml'}?" in refused(tmp_path / "studdy.yaml")
    assert "there is no directory" in refused(tmp_path / "absent" / "study.yaml")


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", ""])
def test_names_that_no_file_has(refused: Refused, tmp_path: Path, name: str) -> None:
    assert refused(str(tmp_path / "x") + name if name else "")


def test_a_file_that_may_not_be_read(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # root may read everything
    assert "cannot be read: permission denied" in refused("secret.yaml")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is empty"),
        (b"# nothing\n\n", "the file is empty"),
        (b"gausslens: 1\n\0", ":1:1: is a binary file"),
        (bytes(range(256)) * 100, ":1:1: is a binary file"),
        ("gausslens: 1".encode("utf-16"), "is encoded as UTF-16; save it as UTF-8"),
        ("gausslens: 1\nname: é".encode("latin-1"), ":2:7: is not UTF-8 text: it holds the byte 0xe9"),
        (b"gausslens: 1\nname: \x1b[31m", ":2:7: holds the control character U+001B"),
        ("a: 1\nb: x\u2028y".encode(), ":2:5: holds the invisible character U+2028, which versions of YAML read"),
        (b"some words, and no more", "a run file is a table of keys, this is the text 'some words, and no more'"),
        (b"[1, 2]", "a run file is a table of keys, this is a list"),
        (b"#!/usr/bin/python\nimport os\nprint(os)\n", "a run file is a table of keys"),
        (b"<html><body>Not found</body></html>", "a run file is a table of keys"),
    ],
)
def test_what_is_no_run_file(refused: Refused, tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(data)
    assert said in refused(path)


def test_a_byte_order_mark_is_no_mistake(refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes("gausslens: 2\nmodel: {path: builtin:tiny}\nanalyses: [{use: probe.norms}]".encode("utf-8-sig"))
    assert ":1:12: gausslens: this file is of format 2" in refused(path)


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LAUGHS, "aliases unfold to more than 50,000 values"),
        ("a: &a [1, 1, 1]\nb: [" + "*a, " * 200_000 + "]", "aliases unfold"),
        ("a: &a [*a]", "the alias *a stands within what it stands for"),
        ("a: &a {b: {c: *a}}", "the alias *a stands within what it stands for"),
        ("[" * 900_000, "nested more than 32 deep"),
        ("{a: " * 200_000, "nested more than 32 deep"),
        ("- " * 400_000, "nested more than 32 deep"),
        ("? " * 400_000, "nested more than 32 deep"),
        ("a: &a " + "[" * 20 + "]" * 20 + "\nb: " + "[" * 20 + "*a" + "]" * 20, "nested more than 32 deep"),
        ("a: 1\n" * 180_000, "at least 200 mistakes"),
        ("a" * 900_000 + ": 1", "a ':' is not expected here"),
        ("x: '" + "a" * 900_000, "this quote is never closed"),
        ("gausslens: " + "9" * 900_000, "is too large: whole numbers have at most 64 bits"),
        ("a: [" + "!x 1," * 150_000 + "]", "at least 200 mistakes"),
        (":" * 900_000, ""),
        ("a: " * 300_000, "a ':' is not expected here"),
    ],
    ids=lambda value: value[:20],
)
def test_bombs(refused: Refused, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    assert said in refused(path)


def test_no_terminal_is_told_what_to_do(refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text('"\\e[31mred\\a": 1\n"a\\nb": 2\n', encoding="utf-8")
    said = refused(path)
    assert all(line.isprintable() for line in said.splitlines())
    assert "red" in said
