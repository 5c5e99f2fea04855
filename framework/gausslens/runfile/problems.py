"""What is wrong with a run file: every problem with its place, together in one screen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ..contract.errors import InputError, Mark, did_you_mean

if TYPE_CHECKING:
    from .nodes import KeyPath, Node

SHOWN = 40  # problems printed; the rest is counted
MOST = 200  # problems collected; a file with more is not read to its end
LONGEST = 400  # characters of one message

SETTING = "--set "  # the "file" of what the command line sets


@dataclass(frozen=True)
class Problem:
    """One mistake: where it is, the path in the file, what is wrong, and what to write instead."""

    mark: Mark
    path: str
    message: str
    suggestion: str = ""

    def __str__(self) -> str:
        where = self.mark.file if self.mark.file.startswith(SETTING) else str(self.mark)
        # What `--set` sets is its path; what comes from Python has no other place than its path.
        places = [where] if not self.path or where == SETTING + self.path else [where, self.path][not self.mark.line :]
        said = [*places, self.message]
        return printable(": ".join(said) + (f"; {self.suggestion}" if self.suggestion else ""))


class RunFileErrors(InputError):
    """A run file cannot be used; ``problems`` holds all that is wrong with it, in the order of the file."""

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        self.file = file
        self.problems = tuple(sorted(problems, key=_order))
        super().__init__(file, self.problems)

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems[:SHOWN]]
        if len(self.problems) == 1:
            return lines[0]
        more = len(self.problems) - len(lines)
        at_least = "at least " if len(self.problems) >= MOST else ""
        tail = [f"... and {more} more"] if more else []
        return "\n".join([f"{at_least}{len(self.problems)} mistakes in {printable(self.file)}", *lines, *tail])


class Problems:
    """Collects problems while a run file is read: one of each value, and of a key or table each sentence once."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: dict[tuple[Mark, KeyPath, str], Problem] = {}
        self.warnings: dict[str, None] = {}  # each sentence once, in order

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._found.values())

    def add(self, mark: Mark, path: KeyPath, message: str, suggestion: str = "", only: bool = False) -> None:
        """Note a problem at a mark; with ``only``, no second one of the same kind there."""
        problem = Problem(mark, shown_path(path), message, suggestion)
        # An alias gives one mistake several paths; a dict gives all mistakes one mark.
        self._found.setdefault((mark, () if mark.line else path, "" if only else message), problem)
        if len(self._found) >= MOST:
            self.stop()

    def value(self, node: Node, message: str, suggestion: str = "") -> None:
        """Note that a value is wrong."""
        self.add(node.mark, node.path, message, suggestion, only=not node.nodes)

    def key(self, node: Node, message: str, suggestion: str = "") -> None:
        """Note that a key is wrong, or something within what it names."""
        self.add(node.place, node.path, message, suggestion)

    def warn(self, mark: Mark, path: KeyPath, message: str, suggestion: str) -> None:
        """Note what works and should be written otherwise."""
        self.warnings[str(Problem(mark, shown_path(path), message, suggestion))] = None

    def stop(self) -> NoReturn:
        """Raise what was found: nothing more can be read."""
        raise RunFileErrors(self.file, self._found.values())

    def settle(self) -> None:
        """Raise what was found, if anything was."""
        if self._found:
            self.stop()


def shown_path(path: KeyPath) -> str:
    """``analyses[1].with.site``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.fullmatch(r"[\w.-]{1,80}", step):
            text += f".{step}" if text else step
        else:
            text += f"[{shortened(step)}]"
    return text


def instead(name: str, known: Iterable[str]) -> str:
    """Near names, or all that there are, as a suggestion."""
    return did_you_mean(name, known).lstrip(":; ")


def shortened(text: str, most: int = 40) -> str:
    """A text in quotes, cut where it is long."""
    return repr(text if len(text) <= most else text[: most - 3] + "...")


def printable(text: str) -> str:
    """One line without characters that a terminal would obey."""
    line = " ".join(text.split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def _order(problem: Problem) -> tuple[bool, int, int]:
    mark = problem.mark
    return mark.file.startswith(SETTING), mark.line, mark.column
