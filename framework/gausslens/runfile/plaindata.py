"""A run file given from Python, as a dict: the same nodes, with paths in place of lines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..runs.study import Mark
from .compose import DEEPEST
from .nodes import Node, Path
from .scalars import unfit

if TYPE_CHECKING:
    from .problems import Problems

FILE = "<dict>"
LARGEST = 1_000_000  # values

_NOWHERE = Mark(FILE, 0, 0)


def from_python(data: Mapping[Any, Any], problems: Problems, mark: Mark = _NOWHERE, path: Path = ()) -> Node:
    """Nodes of a dict that holds dicts, lists, texts, numbers, paths; also arrays and their scalars."""
    return _Reading(problems, mark).node(data, path, 0)


class _Reading:
    def __init__(self, problems: Problems, mark: Mark) -> None:
        self.problems = problems
        self.mark = mark
        self.count = 0

    def node(self, value: Any, path: Path, depth: int) -> Node:
        self.count += 1
        if depth > DEEPEST:
            self.problems.add(self.mark, path, f"lists and tables are nested more than {DEEPEST} deep")
            self.problems.stop()
        if self.count > LARGEST:
            self.problems.add(self.mark, path, f"there are more than {LARGEST:,} values", "keep long texts in files")
            self.problems.stop()
        if hasattr(value, "tolist"):  # numpy and torch, without importing them
            value = value.tolist()
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        return Node(self.value(value, path, depth), self.mark, path, self.mark if path else None)

    def value(self, value: Any, path: Path, depth: int) -> Any:
        if isinstance(value, Mapping):
            return {str(k): self.node(v, (*path, str(k)), depth + 1) for k, v in value.items()}
        if isinstance(value, list | tuple | range):
            return [self.node(v, (*path, i), depth + 1) for i, v in enumerate(value)]
        if value is None or isinstance(value, bool | int | float | str):
            # An enumeration of texts is the text that it extends.
            found = str.__str__(value) if isinstance(value, str) else value
            wrong = unfit(found)
            if not wrong:
                return found
        else:
            wrong = f"is {_a(type(value).__name__)}; a run file holds numbers, texts, lists and tables"
        self.problems.add(self.mark, path, wrong, only=True)
        return None


def _a(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
