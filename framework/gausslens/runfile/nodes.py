"""A run file as a tree of values that know their place; a dict from Python as the same tree."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..contract.errors import Mark
from .problems import shortened

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from .problems import Problems

KeyPath = tuple[str | int, ...]
Scalar = None | bool | int | float | str
DEEPEST = 32  # lists and tables within each other
FILE = "<dict>"
MOST_VALUES = 1_000_000
_NOWHERE = Mark(FILE, 0, 0)
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_END_OF_INTEGERS = 2**63  # numbers are stored as 64-bit integers


@dataclass(frozen=True, slots=True)
class Node:
    """A value of a run file.

    ``value`` is None, a bool, int, float or str, a list of nodes, or a dict of nodes (a table). ``mark`` is where it
    starts, ``key`` where its key does (None for what has none), ``path`` how it is reached. ``text`` is a scalar as it
    was written without quotes.
    """

    value: Any
    mark: Mark
    path: KeyPath = ()
    key: Mark | None = None
    text: str | None = None

    @property
    def place(self) -> Mark:
        """Where its key is, or itself."""
        return self.key or self.mark

    @property
    def is_table(self) -> bool:
        """Whether it holds keys."""
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        """Whether it holds items."""
        return isinstance(self.value, list)

    @property
    def nodes(self) -> list[Node]:
        """Its items, or the values of its keys; none where it is a scalar."""
        if isinstance(self.value, dict):
            return list(self.value.values())
        return self.value if isinstance(self.value, list) else []

    def get(self, key: str) -> Node | None:
        """The value of a key, where this is a table that has it."""
        return self.value.get(key) if isinstance(self.value, dict) else None

    def step(self, step: str | int) -> Node | None:
        """What one step of a path leads to; None where it leads nowhere."""
        if isinstance(self.value, dict):
            return self.value.get(step)
        if isinstance(self.value, list) and isinstance(step, int) and 0 <= step < len(self.value):
            found: Node = self.value[step]
            return found
        return None

    def plain(self) -> Any:
        """The values alone."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return [node.plain() for node in self.value] if isinstance(self.value, list) else self.value

    def moved(self, path: KeyPath, key: Mark | None) -> Node:
        """The same values at another path."""
        value = self.value
        if isinstance(value, dict):
            value = {k: node.moved((*path, k), node.key) for k, node in value.items()}
        elif isinstance(value, list):
            value = [node.moved((*path, i), None) for i, node in enumerate(value)]
        return replace(self, value=value, path=path, key=key)

    def only(self, keys: Container[str]) -> Node:
        """This table with some of its keys."""
        return replace(self, value={k: node for k, node in self.value.items() if k in keys})

    def but(self, keys: Container[str]) -> Node:
        """This table without some of its keys."""
        return replace(self, value={k: node for k, node in self.value.items() if k not in keys})

    def renamed(self, path: Sequence[str | int], names: Mapping[str, str | None]) -> Node:
        """The tree with other names for some keys of one table; None drops a key. Paths stay as in the file."""
        if not path:
            table = {names.get(key, key): node for key, node in self.value.items()}
            table.pop(None, None)
            return replace(self, value=table)
        step, *rest = path
        if isinstance(self.value, list):
            return replace(self, value=[n.renamed(rest, names) if i == step else n for i, n in enumerate(self.value)])
        return replace(self, value={k: n.renamed(rest, names) if k == step else n for k, n in self.value.items()})

    def described(self) -> str:
        """What it is, in words."""
        value = self.value
        if value is None:
            return "empty" if self.text == "" else "null"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str):
            return f"the text {shortened(value)}"
        if isinstance(value, dict):
            return "a table" if value else "an empty table"
        if isinstance(value, list):
            return "a list" if value else "an empty list"
        return shortened(self.text or repr(value))[1:-1]


def unfit(value: Scalar) -> str:
    """Why a value cannot be in a run file: it could not be stored, or not be part of a key. Empty where it can."""
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a finite number"
    if isinstance(value, int) and not -_END_OF_INTEGERS <= value < _END_OF_INTEGERS:
        return "is too large: whole numbers have at most 64 bits"
    if isinstance(value, str) and _NO_TEXT.search(value):
        return "holds a zero character, or half of a surrogate pair"
    return ""


def from_python(data: Mapping[Any, Any], problems: Problems, mark: Mark = _NOWHERE, path: KeyPath = ()) -> Node:
    """Nodes of a dict that holds dicts, lists, texts, numbers, paths; also arrays and their scalars."""
    return _Reading(problems, mark).node(data, path, 0)


class _Reading:
    def __init__(self, problems: Problems, mark: Mark) -> None:
        self.problems = problems
        self.mark = mark
        self.count = 0

    def node(self, value: Any, path: KeyPath, depth: int) -> Node:
        self.count += 1
        if depth > DEEPEST:
            self.problems.add(self.mark, path, f"lists and tables are nested more than {DEEPEST} deep")
            self.problems.stop()
        if self.count > MOST_VALUES:
            self.problems.add(
                self.mark, path, f"there are more than {MOST_VALUES:,} values", "keep long texts in files"
            )
            self.problems.stop()
        if hasattr(value, "tolist"):  # numpy and torch, without importing them
            value = value.tolist()
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        return Node(self.value(value, path, depth), self.mark, path, self.mark if path else None)

    def value(self, value: Any, path: KeyPath, depth: int) -> Any:
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
