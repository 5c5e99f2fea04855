"""YAML text to nodes: safe, strict, and bounded in depth and in what aliases unfold to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from ..runs.study import Mark
from . import syntax
from .nodes import Node, Path
from .problems import instead, shortened
from .scalars import scalar, unfit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .problems import Problems

DEEPEST = 32
UNFOLDED = 50_000  # values that aliases may stand for, together

_LOADER = getattr(yaml, "CLoader", yaml.Loader)  # used for its events alone: no object is ever made of a tag


def compose(text: str, file: str, problems: Problems, path: Path = (), loader: Any = _LOADER) -> Node | None:
    """The one document of a YAML text as nodes; None where it is empty. Problems are noted; fatal ones raised."""
    try:
        return _Composer(yaml.parse(text, Loader=loader), file, problems).document(path)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: escapes beyond Unicode
        syntax.note(error, text, file, problems)
        problems.stop()


class _Composer:
    def __init__(self, events: Iterator[yaml.Event], file: str, problems: Problems) -> None:
        self.events = events
        self.file = file
        self.problems = problems
        self.anchors: dict[str, Node | None] = {}  # None: not closed yet
        self.sizes: dict[str, tuple[int, int]] = {}  # of each anchor: values, depth
        self.unfolded = 0

    def document(self, path: Path) -> Node | None:
        next(self.events)  # the stream starts
        if isinstance(next(self.events), yaml.StreamEndEvent):
            return None
        node = self.node(next(self.events), path, None, 0)
        next(self.events)  # the document ends
        following = next(self.events)
        if not isinstance(following, yaml.StreamEndEvent):
            self.fatal(self.mark(following), "a second document starts here", "a run file is one document")
        return node

    def node(self, event: yaml.Event, path: Path, key: Mark | None, depth: int) -> Node:
        mark = self.mark(event)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(str(event.anchor), mark, path, key, depth)
        if depth > DEEPEST:
            self.fatal(mark, f"lists and tables are nested more than {DEEPEST} deep", "")
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.tag is not None:
            self.problems.add(mark, path, f"the tag {_shown(event.tag)} is not read", "write the value without it")
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            node = self.scalar(event, mark, path, key)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = Node(self.items(path, depth), mark, path, key)
        else:
            node = Node(self.table(path, depth), mark, path, key)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
            self.sizes[event.anchor] = _size(node)
        return node

    def scalar(self, event: yaml.ScalarEvent, mark: Mark, path: Path, key: Mark | None) -> Node:
        plain = not event.style
        value = scalar(event.value) if plain else event.value
        node = Node(value, mark, path, key, event.value if plain else None)
        wrong = unfit(value)
        if wrong:
            self.problems.value(node, wrong)
            return replace(node, value=None)  # so that nothing else stumbles over it
        return node

    def items(self, path: Path, depth: int) -> list[Node]:
        found: list[Node] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            found.append(self.node(event, (*path, len(found)), None, depth + 1))
        return found

    def table(self, path: Path, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            mark = self.mark(event)
            name = self.name(event, path, depth)
            node = self.node(next(self.events), path if name is None else (*path, name), mark, depth + 1)
            if name is None:
                continue
            first = found.setdefault(name, node)
            if first is not node:
                line = first.place.line
                self.problems.add(mark, node.path, f"this key is given twice, first on line {line}", "keep one")
        return found

    def name(self, event: yaml.Event, path: Path, depth: int) -> str | None:
        """The text of a key, or None where it is refused. A key is what is written: ``no`` and ``1`` are names."""
        mark = self.mark(event)
        node = self.node(event, path, None, depth + 1)
        if isinstance(node.value, dict | list):
            self.problems.add(mark, path, f"a key is a text, this is {node.described()}")
            return None
        if node.text == "<<":
            self.problems.add(mark, path, "merge keys (<<) are not read", "write the keys out")
            return None
        return str(node.value) if node.text is None else node.text

    def alias(self, anchor: str, mark: Mark, path: Path, key: Mark | None, depth: int) -> Node:
        if anchor not in self.anchors:
            hint = instead(anchor, self.anchors)
            self.problems.add(mark, path, f"the alias *{anchor} stands for no anchor above it", hint)
            return Node(None, mark, path, key, "")
        target = self.anchors[anchor]
        if target is None:
            self.fatal(mark, f"the alias *{anchor} stands within what it stands for", "")
        size, height = self.sizes[anchor]
        self.unfolded += size
        if self.unfolded > UNFOLDED:
            self.fatal(mark, f"aliases unfold to more than {UNFOLDED:,} values", "write fewer of them")
        if depth + height > DEEPEST:
            self.fatal(mark, f"lists and tables are nested more than {DEEPEST} deep", "")
        copy = target.moved(path, key)
        return replace(copy, mark=mark)

    def mark(self, event: yaml.Event) -> Mark:
        start = event.start_mark
        assert start is not None  # only events made by hand have none
        return Mark(self.file, start.line + 1, start.column + 1)

    def fatal(self, mark: Mark, message: str, suggestion: str) -> NoReturn:
        self.problems.add(mark, (), message, suggestion)
        self.problems.stop()


def _size(node: Node) -> tuple[int, int]:
    """How many values a tree holds, and how deep it is."""
    size, height = 1, 0
    for child in node.nodes:
        below, deep = _size(child)
        size, height = size + below, max(height, deep + 1)
    return size, height


def _shown(tag: str) -> str:
    """A tag as it is written in files."""
    return shortened(tag.replace("tag:yaml.org,2002:", "!!"))
