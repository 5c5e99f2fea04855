"""What goes into a key is the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys

from pydantic import Field

from gausslens import Parameters


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
