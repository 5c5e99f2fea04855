"""List the example run files, or copy one."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ..contract.errors import InputError, did_you_mean

# The line by which an editor finds the schema of a run file, where it lies in the tree: a copy has no place to name
# that holds for everyone.
_SCHEMA = re.compile(r"^# yaml-language-server: \$schema=.*\n?", flags=re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """A run file that can be copied: its name, the first sentence of its comment, its text."""

    name: str
    summary: str
    text: str


def examples() -> dict[str, Example]:
    """All example run files by name."""
    found = (f for f in files("gausslens_examples").iterdir() if f.name.endswith(".yaml"))
    made = (_example(f.name.removesuffix(".yaml"), f.read_text(encoding="utf-8")) for f in found)
    return {example.name: example for example in sorted(made, key=lambda e: e.name)}


def copied(name: str, to: Path | None = None) -> Path:
    """Copy an example and its data, by default into the current directory; return where it is, overwrite nothing."""
    known = examples()
    plain = name.removesuffix(".yaml")
    if plain not in known:
        raise InputError(f"there is no example {name!r}{did_you_mean(plain, known)}")
    path = to or Path(f"{plain}.yaml")
    _write_new(path, _SCHEMA.sub("", known[plain].text).encode())
    for data in files("gausslens_examples").iterdir():
        # What the run file reads, which looks for it beside itself: a file, or a directory with a checkpoint.
        if data.name.endswith(".npz") and data.name in known[plain].text:
            _write_new(path.with_name(data.name), data.read_bytes())
        elif data.name == plain and data.is_dir():
            directory = path.with_name(data.name)
            _make_new(directory)
            for held in data.iterdir():
                _write_new(directory / held.name, held.read_bytes())
    return path


def _write_new(path: Path, content: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError:
        raise InputError(f"{path} is there already; choose another place with --to FILE") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def _make_new(directory: Path) -> None:
    try:
        directory.mkdir()
    except FileExistsError:
        raise InputError(f"{directory} is there already; choose another place with --to FILE") from None
    except OSError as error:
        raise InputError(f"cannot make {directory}: {error.strerror}") from error


def _example(name: str, text: str) -> Example:
    """The summary is the first line of comment that is not for the editor."""
    comments = [line for line in text.splitlines() if line.startswith("#") and not _SCHEMA.match(line)]
    return Example(name, comments[0].lstrip("# ") if comments else "", text)


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="which one to copy; without it they are listed")
    parser.add_argument("--to", metavar="FILE", help="where to copy it (default: NAME.yaml here)")


def run(arguments: Namespace) -> int:
    """Print the list, or copy NAME."""
    if arguments.name is None:
        known = examples()
        broad = max(map(len, known), default=0)
        for example in known.values():
            print(f"{example.name:<{broad}}  {example.summary}")
        print("\n'gausslens example NAME' copies one here; then 'gausslens run NAME.yaml'.")
        return 0
    path = copied(arguments.name, Path(arguments.to) if arguments.to else None)
    print(f"{path}\nnow: gausslens run {path}")
    return 0
