"""What a YAML parser says of a text that is not YAML, in words for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runs.study import Mark
from .problems import shortened

if TYPE_CHECKING:
    import yaml

    from .problems import Problems

# What the parser was doing and what it met (both parsers of PyYAML), and what we say of it.
_UNCLOSED = {
    "flow sequence": ("this '[' is never closed, or a ',' is missing in the list", ""),
    "flow mapping": ("this '{' is never closed, or a ',' is missing in the table", ""),
    "quoted scalar": ("this quote is never closed", ""),
}
_PROBLEMS = (
    ("tab", "a tab indents this line", "YAML wants spaces"),
    ("unexpected ':'", "a ':' without a space after it", "write key: value"),
    ("mapping values are not allowed", "a ':' is not expected here", "put a text that holds ': ' in quotes"),
    ("unknown escape", "an escape that YAML does not have", "double each backslash, or use single quotes"),
    ("undefined tag handle", "tags are not read", "write the value without the tag"),
    ("could not find expected ':'", "a key without its ':'", "write key: value"),
    ("block mapping", "this line is not at the indentation of the keys above it", ""),
    ("block collection", "this line is not at the indentation of the list above it", ""),
    ("node content", "a value is missing here", "is a '[' or '{' not closed?"),
    ("<document start>", "this does not belong to what stands above it", "check the indentation"),
)


def note(error: Exception, text: str, file: str, problems: Problems) -> None:
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
    # The end of a text is told at its last line.
    at = (min(mark.line + 1, max(len(lines), 1)), mark.column + 1) if mark is not None else (1, 1)
    place = Mark(file, *at)
    if lines:
        message += f", in {shortened(lines[place.line - 1].strip(), 60)}"
    problems.add(place, (), message, suggestion)


def _starts_with_tab(lines: list[str], mark: yaml.Mark | None) -> bool:
    if mark is None or mark.line >= len(lines):
        return False
    line = lines[mark.line]
    return "\t" in line[: len(line) - len(line.lstrip())]
