"""A valid run file changed in one place at a time; each change knows the line at which it must be told."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from gausslens.runfile.nodes import Node
from gausslens.runfile.problems import Problems, shown_path
from gausslens.runfile.text import compose

# Keys of these tables are names that the user chooses.
FREE = {("variants",), ("analyses", 1, "with", "by_segment"), ("analyses", 1, "with", "by_layer")}

# For a scalar of each sort: what YAML readers take for one and YAML 1.2 does not, and what is none at all.
TRAPS = {
    bool: ["yes", "no", "on", "off", '"true"', "1", "maybe", "[true]"],
    int: ["0123", "1_000", "1.5", "3.0", '"3"', "12:30:45", "true", ".nan", "0b1", "three", "99999999999999999999"],
    float: ["1,5", "1e", "1.5x", ".inf", "-.Inf", "1e999", '"1.0"', "yes", "{a: 1}"],
    str: ["1.10", "2024", "true", "0x1F", "[a]", "{a: b}"],
}


@dataclass(frozen=True)
class Mutation:
    """A changed run file, what was done, and the line of the mistake."""

    what: str
    text: str
    line: int


def nodes_of(node: Node) -> Iterator[Node]:
    """A tree, from the top down."""
    yield node
    for child in node.nodes:
        yield from nodes_of(child)


class Mutations:
    """All mutations of one text; its scalars are written on one line each."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.splitlines(keepends=True)
        root = compose(text, "", Problems(""))
        assert root is not None
        self.root = root
        self.nodes = list(nodes_of(root))
        # The text of an anchor's copy is elsewhere: there are none in this file.
        self.keyed = [node for node in self.nodes if node.key is not None]

    def all(self) -> list[Mutation]:
        """Each kind in turn."""
        kinds = (self.misspelt, self.duplicated, self.trapped, self.reshaped, self.tagged, self.tabbed, self.stranger)
        return [mutation for kind in kinds for mutation in kind()]

    def replaced(self, what: str, line: int, column: int, old: str, new: str, at: int = 0) -> Mutation:
        """One piece of one line changed; ``at`` counts from there to the line of the mistake."""
        row = self.lines[line - 1]
        assert row[column - 1 :].startswith(old), (what, row)
        changed = row[: column - 1] + new + row[column - 1 + len(old) :]
        return Mutation(what, "".join([*self.lines[: line - 1], changed, *self.lines[line:]]), line + at)

    def misspelt(self) -> Iterator[Mutation]:
        """Each key with two letters swapped, one doubled, and one too many."""
        for node in self.keyed:
            name = str(node.path[-1])
            if node.path[:-1] in FREE or node.key is None:
                continue
            swapped = name[:-2] + name[-1] + name[-2]
            for wrong in sorted({swapped, name + name[-1], name[0] + name} - {name}):
                what = f"{shown_path(node.path)} as {wrong}"
                yield self.replaced(what, node.key.line, node.key.column, name, wrong)

    def duplicated(self) -> Iterator[Mutation]:
        """Each key given again: the second one is the mistake."""
        for node in self.keyed:
            name, mark = str(node.path[-1]), node.key
            assert mark is not None
            what, row = f"{shown_path(node.path)} twice", self.lines[mark.line - 1]
            before = row[: mark.column - 1]
            if before.strip(" -"):  # within { }: the mistake is on the same line
                yield self.replaced(what, mark.line, mark.column, name, f"{name}: 0, {name}")
            else:
                indent = " " * (mark.column - 1)
                yield self.replaced(what, mark.line, mark.column, name, f"{name}: 0\n{indent}{name}", at=1)

    def scalars(self) -> Iterator[tuple[Node, str]]:
        """Each scalar with the text by which it is written."""
        for node in self.nodes:
            if not isinstance(node.value, dict | list):
                yield node, node.text if node.text is not None else f'"{node.value}"'

    def trapped(self) -> Iterator[Mutation]:
        """Each scalar as something that looks like its sort and is not."""
        for node, written in self.scalars():
            for trap in TRAPS[type(node.value)]:
                if trap == "1,5" and isinstance(node.path[-1], int):
                    continue  # in a list, two numbers
                what = f"{shown_path(node.path)} = {trap}"
                yield self.replaced(what, node.mark.line, node.mark.column, written, trap)

    def reshaped(self) -> Iterator[Mutation]:
        """Each list or table that is written on one line as a text."""
        for node in self.nodes:
            row = self.lines[node.mark.line - 1][node.mark.column - 1 :]
            if isinstance(node.value, dict | list) and row.startswith(("[", "{")):
                depths = itertools.accumulate((c in "[{") - (c in "]}") for c in row)
                written = row[: next(index for index, depth in enumerate(depths) if depth == 0) + 1]
                what = f"{shown_path(node.path)} as a text"
                yield self.replaced(what, node.mark.line, node.mark.column, written, "some words")

    def tagged(self) -> Iterator[Mutation]:
        """Scalars with a tag."""
        for node, written in self.scalars():
            for tag in ("!!str", "!mine", "!!python/object/apply:os.system"):
                what = f"{shown_path(node.path)} {tag}"
                yield self.replaced(what, node.mark.line, node.mark.column, written, f"{tag} {written}")

    def tabbed(self) -> Iterator[Mutation]:
        """Each indented line with a tab in place of its first spaces."""
        for number, row in enumerate(self.lines, 1):
            if row.startswith("  "):
                yield self.replaced(f"a tab on line {number}", number, 1, "  ", "\t")

    def stranger(self) -> Iterator[Mutation]:
        """A key that belongs nowhere, in each table that is written over several lines; and a merge key."""
        for node in self.nodes:
            if not isinstance(node.value, dict) or node.path in FREE or not node.value:
                continue
            first = next(iter(node.value.values()))
            assert first.key is not None
            for name in ("zzz", "<<"):
                what = f"{name} in {shown_path(node.path)}"
                row = self.lines[first.key.line - 1][: first.key.column - 1]
                separator = ", " if row.strip(" -") else "\n" + " " * (first.key.column - 1)
                key = str(first.path[-1])
                yield self.replaced(what, first.key.line, first.key.column, key, f"{name}: 1{separator}{key}")
