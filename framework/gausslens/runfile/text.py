"""The text of a run file, read strictly: a regular UTF-8 file of one YAML document, to nodes.

Scalars are those of YAML 1.2 (core schema), with one difference: a number with a leading zero, as ``0123``, is text.
YAML 1.1 takes it for octal and 1.2 for decimal; a scientist means an identifier, and where a number is wanted the
error says what to write. Nesting is bounded, and so is what aliases unfold to.
"""

from __future__ import annotations

import math
import os
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from ..contract.errors import Mark, near
from .nodes import DEEPEST, KeyPath, Node, Scalar, unfit
from .problems import instead, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .problems import Problems

LIMIT = 1_000_000  # bytes
_READ_DIFFERENTLY = "\x85\u2028\u2029\ufeff"
_REFUSED = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_OTHER_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}

UNFOLDED = 50_000  # values that aliases may stand for, together
_LOADER = getattr(yaml, "CLoader", yaml.Loader)  # used for its events alone: no object is ever made of a tag

# Scalars, as YAML 1.2 reads them.
_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:(?:\.[0-9]+|(?:0|[1-9][0-9]*)\.[0-9]*)(?:[eE][-+]?[0-9]+)?|(?:0|[1-9][0-9]*)[eE][-+]?[0-9]+)"
)
_STARTS = "+-.0123456789"  # of a number
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_DIGITS = 4000  # Python reads no longer ones; cut there, a number is still too large

# What the parser was doing and what it met (both parsers of PyYAML), and what we say of it.
_UNCLOSED = {
    "flow sequence": ("this '[' is never closed, or a ',' is missing in the list", ""),
    "flow mapping": ("this '{' is never closed, or a ',' is missing in the table", ""),
    "quoted scalar": ("this quote is never closed", ""),
}
_KEY = ("could not find expected ':'", "a key without its ':'", "write key: value")
_PROBLEMS = (
    ("tab", "a tab indents this line", "YAML wants spaces"),
    ("unexpected ':'", "a ':' without a space after it", "write key: value"),
    ("mapping values are not allowed", "a ':' is not expected here", "put a text that holds ': ' in quotes"),
    ("unknown escape", "an escape that YAML does not have", "double each backslash, or use single quotes"),
    ("undefined tag handle", "tags are not read", "write the value without the tag"),
    _KEY,
    ("block mapping", "this line is not at the indentation of the keys above it", ""),
    ("block collection", "this line is not at the indentation of the list above it", ""),
    ("node content", "a value is missing here", "is a '[' or '{' not closed?"),
    ("<document start>", "this does not belong to what stands above it", "check the indentation"),
)


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


def compose(text: str, file: str, problems: Problems, path: KeyPath = (), loader: Any = _LOADER) -> Node | None:
    """The one document of a YAML text as nodes; None where it is empty. Problems are noted; fatal ones raised."""
    try:
        return _Composer(yaml.parse(text, Loader=loader), file, problems).document(path)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: escapes beyond Unicode
        _note_syntax(error, text, file, problems)
        problems.stop()


class _Composer:
    """Nodes of the events of a YAML parser."""

    def __init__(self, events: Iterator[yaml.Event], file: str, problems: Problems) -> None:
        self.events = events
        self.file = file
        self.problems = problems
        self.anchors: dict[str, Node | None] = {}  # None: not closed yet
        self.sizes: dict[str, tuple[int, int]] = {}  # of each anchor: values, depth
        self.unfolded = 0

    def document(self, path: KeyPath) -> Node | None:
        next(self.events)  # the stream starts
        if isinstance(next(self.events), yaml.StreamEndEvent):
            return None
        node = self.node(next(self.events), path, None, 0)
        next(self.events)  # the document ends
        following = next(self.events)
        if not isinstance(following, yaml.StreamEndEvent):
            self.fatal(self.mark(following), "a second document starts here", "a run file is one document")
        return node

    def node(self, event: yaml.Event, path: KeyPath, key: Mark | None, depth: int) -> Node:
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

    def scalar(self, event: yaml.ScalarEvent, mark: Mark, path: KeyPath, key: Mark | None) -> Node:
        plain = not event.style
        value = scalar(event.value) if plain else event.value
        node = Node(value, mark, path, key, event.value if plain else None)
        wrong = unfit(value)
        if wrong:
            self.problems.value(node, wrong)
            return replace(node, value=None)  # so that nothing else stumbles over it
        return node

    def items(self, path: KeyPath, depth: int) -> list[Node]:
        found: list[Node] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            found.append(self.node(event, (*path, len(found)), None, depth + 1))
        return found

    def table(self, path: KeyPath, depth: int) -> dict[str, Node]:
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

    def name(self, event: yaml.Event, path: KeyPath, depth: int) -> str | None:
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

    def alias(self, anchor: str, mark: Mark, path: KeyPath, key: Mark | None, depth: int) -> Node:
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


def scalar(text: str) -> Scalar:
    """The value of a scalar written without quotes."""
    if text in _WORDS:
        found: Scalar = _WORDS[text]
        return found
    if text[0] not in _STARTS:
        return text
    if _DECIMAL.fullmatch(text):
        return int(text[:_DIGITS])
    if _OTHER_BASE.fullmatch(text):
        return int(text[:_DIGITS], 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _note_syntax(error: Exception, text: str, file: str, problems: Problems) -> None:
    """Note a syntax error at the place where its cause is, with the line it is in."""
    mark = getattr(error, "problem_mark", None)
    said = str(getattr(error, "problem", None) or error)
    context = str(getattr(error, "context", None) or "")
    began = getattr(error, "context_mark", None)
    lines = text.splitlines()
    message, suggestion = f"this is not YAML: {said}", ""
    opened = next((words for what, words in _UNCLOSED.items() if what in context), None)
    if _starts_with_tab(lines, mark):
        _, message, suggestion = _PROBLEMS[0]
    elif opened and began is not None and "escape" not in said:
        mark, (message, suggestion) = began, opened
    elif "cannot start any token" in said and mark is not None:
        character = text.splitlines()[mark.line][mark.column : mark.column + 1]
        message, suggestion = f"a value cannot start with {character!r}", "put it in quotes"
    else:
        found = next((words for what, *words in _PROBLEMS if what in said or what in context), None)
        message, suggestion = found or (message, suggestion)
        bare = _without_colon(said, mark, began, lines)
        if bare is not None:
            mark, (_, message, suggestion) = bare, _KEY
    # The end of a text is noted at its last line.
    at = (min(mark.line + 1, max(len(lines), 1)), mark.column + 1) if mark is not None else (1, 1)
    place = Mark(file, *at)
    if lines:
        message += f", in {shortened(lines[place.line - 1].strip(), 60)}"
    problems.add(place, (), message, suggestion)


def _without_colon(said: str, mark: Any, began: Any, lines: list[str]) -> Any:
    """The place of a key that lacks its ':', which a parser notices one or more lines later; None for another fault."""
    if _KEY[0] in said:
        return began
    if "mapping values" not in said or mark is None:
        return None
    above = next((n for n in range(min(mark.line, len(lines)) - 1, -1, -1) if lines[n].strip()), None)
    if above is None or ":" in lines[above] or lines[above].lstrip().startswith("#"):
        return None
    return yaml.Mark("", 0, above, len(lines[above]) - len(lines[above].lstrip(" -")), None, 0)


def _starts_with_tab(lines: list[str], mark: yaml.Mark | None) -> bool:
    if mark is None or mark.line >= len(lines):
        return False
    line = lines[mark.line]
    return "\t" in line[: len(line) - len(line.lstrip())]
