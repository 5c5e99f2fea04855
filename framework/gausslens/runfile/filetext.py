"""The text of a run file: refused at once where it cannot be one."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..contract.errors import near
from ..runs.study import Mark

if TYPE_CHECKING:
    from .problems import Problems

LIMIT = 1_000_000  # bytes
_READ_DIFFERENTLY = "\x85\u2028\u2029\ufeff"
_REFUSED = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_OTHER_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def read_text(path: Path, problems: Problems) -> str:
    """The file as text. What is not a regular UTF-8 file of at most 1 MB is refused before it is read."""
    data = _read(path, problems)
    if data[:2] in _OTHER_ENCODINGS:
        _refuse(problems, f"is encoded as {_OTHER_ENCODINGS[data[:2]]}", "save it as UTF-8")
    if b"\0" in data:
        _refuse(problems, "is a binary file, not a run file", "a run file is YAML, as `gausslens example` shows")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        _refuse(
            problems,
            f"is not UTF-8 text: it holds the byte 0x{data[error.start]:02x}",
            "save it as UTF-8",
            line,
            column,
        )
    check_characters(text, problems.file, problems)
    return text


def check_characters(text: str, file: str, problems: Problems) -> None:
    """Refuse control characters, which YAML does not allow, and invisible ones that its versions read differently."""
    found = _REFUSED.search(text)
    if found:
        before = text[: found.start()]
        mark = Mark(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
        code = f"U+{ord(found[0]):04X}"
        if found[0] in _READ_DIFFERENTLY:
            hint = f'in double quotes, write "\\u{ord(found[0]):04x}"'
            problems.add(
                mark, (), f"holds the invisible character {code}, which versions of YAML read differently", hint
            )
        else:
            problems.add(mark, (), f"holds the control character {code}", "take it out")
        problems.stop()


def _read(path: Path, problems: Problems) -> bytes:
    try:
        # Without O_NONBLOCK, opening a pipe would wait for someone to write to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                _refuse(problems, "is a directory", _runnable(path))
            if not stat.S_ISREG(status.st_mode):
                _refuse(problems, "is not a regular file", "save the run file on disk first")
            data = b"" if status.st_size > LIMIT else file.read(LIMIT + 1)
            if max(status.st_size, len(data)) > LIMIT:
                size = f"{max(status.st_size, len(data)):,} bytes"
                _refuse(
                    problems,
                    f"is too large ({size})",
                    "a run file has at most 1 MB; keep long texts in files of their own",
                )
            return data
    except FileNotFoundError:
        _refuse(problems, "there is no such file", _alike(path))
    except IsADirectoryError:
        _refuse(problems, "is a directory", _runnable(path))
    except (OSError, ValueError) as error:  # ValueError: a zero character in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        _refuse(problems, f"cannot be read: {reason.lower()}")


def _alike(path: Path) -> str:
    """Files beside it with a near name."""
    try:
        names = [entry.name for entry in os.scandir(path.parent)]
    except OSError:
        return f"there is no directory {path.parent} either"
    found = near(path.name, names)
    return f"did you mean {' or '.join(str(path.with_name(name)) for name in found)}?" if found else ""


def _runnable(path: Path) -> str:
    """The run files in a directory."""
    try:
        names = sorted(str(found) for found in path.iterdir() if found.suffix in (".yaml", ".yml"))
    except OSError:
        return ""
    return f"name a run file in it, as {' or '.join(names[:3])}" if names else "name the run file in it"


def _refuse(problems: Problems, message: str, suggestion: str = "", line: int = 1, column: int = 1) -> NoReturn:
    problems.add(Mark(problems.file, line, column), (), message, suggestion)
    problems.stop()
