"""What goes into a key is the same in every process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from gausslens import Files, InputError, Parameters


class Nested(Parameters):
    names: set[str] = Field(default={"b", "a", "c"}, description="A set.")
    pairs: list[tuple[int, float]] = Field(default=[(1, 2.0)], description="Pairs.")


class Outer(Parameters):
    inner: Nested = Field(default=Nested(), description="A table.")
    ways: dict[str, frozenset[int]] = Field(default={"x": frozenset({3, 1})}, description="Sets by name.")


def test_canonical_is_plain_data_with_sets_in_order():
    assert Outer().canonical() == {
        "inner": {"names": ["a", "b", "c"], "pairs": [[1, 2.0]]},
        "ways": {"x": [1, 3]},
    }


def test_canonical_does_not_depend_on_the_hashes_of_a_process():
    code = (
        "from gausslens import Parameters\n"
        "class P(Parameters):\n    s: set[str] = set('abcdefgh')\n"
        "print(P().canonical())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1


class OnDisk(Parameters):
    """Parameters of which some are paths."""

    size: int = Field(3, description="A number.")
    file: Annotated[str, Files()] = Field(description="A file.")
    folder: Annotated[str | None, Files("*.npz", "told.json")] = Field(None, description="A directory.")


def written(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, text in {"a.npz": "1", "b.npz": "2", "told.json": "{}", "README.md": "words"}.items():
        (folder / name).write_text(text)
    return folder


def test_a_key_holds_what_files_hold_and_not_where_they_are(tmp_path: Path):
    one = written(tmp_path / "one")
    first = OnDisk(file=str(one / "a.npz"), folder=str(one)).keyed()
    assert first.keys() == {"size", "file", "folder"}
    assert str(tmp_path) not in str(first)
    two = Path(shutil.copytree(one, tmp_path / "elsewhere" / "two"))
    (two / "README.md").write_text("other words")
    assert OnDisk(file=str(two / "a.npz"), folder=str(two)).keyed() == first
    assert OnDisk(file=str(two / "b.npz"), folder=str(two)).keyed()["file"] != first["file"]
    (two / "b.npz").write_text("3")
    changed = OnDisk(file=str(two / "a.npz"), folder=str(two)).keyed()
    assert (changed["file"], changed["size"]) == (first["file"], first["size"])
    assert changed["folder"] != first["folder"]
    (two / "b.npz").rename(two / "c.npz")
    assert OnDisk(file=str(two / "a.npz"), folder=str(two)).keyed()["folder"] != changed["folder"]


def test_a_path_that_is_not_given_is_no_part_of_the_key(tmp_path: Path):
    """So that a new parameter that is one leaves the keys of all results as they are."""
    one = written(tmp_path / "one")
    assert OnDisk(file=str(one / "a.npz")).keyed().keys() == {"size", "file"}
    assert OnDisk(file="x").canonical() == {"size": 3, "file": "x", "folder": None}
    assert Outer().keyed() == Outer().canonical()


def test_what_cannot_be_read_is_told(tmp_path: Path):
    with pytest.raises(InputError, match=r"a\.npz: cannot be read: No such file"):
        OnDisk(file=str(tmp_path / "a.npz")).keyed()
    (tmp_path / "told.txt").write_text("")
    with pytest.raises(InputError, match=r"none of its files is called \*\.npz or told\.json"):
        OnDisk(file=str(tmp_path / "told.txt"), folder=str(tmp_path)).keyed()


def test_paths_are_taken_from_a_directory(tmp_path: Path):
    found = OnDisk(file="../a.npz", folder="/somewhere").located(tmp_path / "runs")
    assert (found.file, found.folder) == (str(tmp_path / "a.npz"), "/somewhere")
    named = OnDisk(file="builtin:tiny").located(tmp_path)
    assert (named.file, named.folder) == ("builtin:tiny", None)
    assert Outer().located(tmp_path) == Outer()
