"""What `--set key=value` changes, before anything is checked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..contract.errors import Mark
from .nodes import Node
from .problems import SETTING, instead
from .text import check_characters, compose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .problems import Problems

NAMING = ("as", "use", "edit")  # the key by which an entry of a list is found, the first that it has


def with_settings(root: Node, sets: Sequence[str], problems: Problems) -> Node:
    """The run file with each setting made, in the order given."""
    for setting in sets:
        root = _Setting(setting, problems).made(root)
    return root


class _Setting:
    """One `key=value`."""

    def __init__(self, setting: str, problems: Problems) -> None:
        key, equals, self.text = setting.partition("=")
        self.key = key.strip()
        self.whole = bool(equals and self.key)
        self.problems = problems
        self.mark = Mark(f"{SETTING}{self.key or setting}", 1, 1)

    def made(self, root: Node) -> Node:
        steps = self.key.split(".")
        if not self.whole or not all(steps):
            self.problems.add(self.mark, (), "should be key=value", "as --set model.dtype=float64")
            return root
        check_characters(self.text, self.mark.file, self.problems)
        value = compose(self.text, self.mark.file, self.problems)
        found = self.put(root, steps, value or Node(None, self.mark, text=""))
        return root if found is None else found

    def put(self, node: Node, steps: list[str], value: Node) -> Node | None:
        """The node with the value at the end of the steps; None where they lead nowhere."""
        if node.is_list:
            return self.put_in_list(node, steps, value)
        if node.value is None:
            node = replace(node, value={}, text=None)
        if not node.is_table:
            message = f"is {node.described()}: there is nothing to set in it"
            self.problems.add(self.mark, node.path, message)
            return None
        taken = next((n for n in range(len(steps), 0, -1) if ".".join(steps[:n]) in node.value), 1)
        name, rest = ".".join(steps[:taken]), steps[taken:]
        child: Node | None = value.moved((*node.path, name), self.mark)
        if rest:
            child = self.put(node.get(name) or Node({}, self.mark, (*node.path, name), self.mark), rest, value)
        return None if child is None else replace(node, value=node.value | {name: child})

    def put_in_list(self, node: Node, steps: list[str], value: Node) -> Node | None:
        """Entries are found by their label, which may hold dots, or by number."""
        names = [_name(entry) for entry in node.value]
        taken = next((n for n in range(len(steps), 0, -1) if ".".join(steps[:n]) in names), 1)
        name, rest = ".".join(steps[:taken]), steps[taken:]
        matching = [index for index, known in enumerate(names) if known == name]
        if not matching and name.isascii() and name.isdigit() and int(name[:9]) < len(names):
            matching = [int(name)]
        if len(matching) != 1:
            known = [n for n in names if n] or [str(index) for index in range(len(names))]
            hint = instead(name, known) if not matching else "say which by its number, from 0"
            what = f"there is no entry {name!r}" if not matching else f"{len(matching)} entries are called {name!r}"
            self.problems.add(self.mark, node.path, what, hint)
            return None
        index = matching[0]
        old: Node = node.value[index]
        child = self.put(old, rest, value) if rest else value.moved(old.path, None)
        return None if child is None else replace(node, value=[*node.value[:index], child, *node.value[index + 1 :]])


def _name(entry: Node) -> str:
    found = next((entry.get(key) for key in NAMING if entry.get(key) is not None), None)
    return found.value if found is not None and isinstance(found.value, str) else ""
