"""Which plugins are installed: from the metadata of distributions alone, before anything is imported."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..version import VERSION

if TYPE_CHECKING:
    from importlib.metadata import Distribution

GROUP = "gausslens"
OURS = "gausslens"  # the distribution whose plugins stay where names clash, and to which the reserved prefixes belong
GIVEN = "(given)"  # stands for the distribution of a plugin that was passed from Python

_VALUE = re.compile(r"([A-Za-z_][\w.]*)(?::([A-Za-z_][\w.]*))?\s*(?:\[.*\])?")


class BadEntryPoint(ValueError):
    """An entry point that cannot be understood."""


@dataclass(frozen=True)
class Candidate:
    """A plugin that metadata promises. ``given`` is the object itself where it was passed from Python."""

    plugin: str
    distribution: str
    version: str
    entry_point: str
    given: Any = field(default=None, repr=False, compare=False)

    @property
    def ours(self) -> bool:
        """Whether it belongs to the distribution gausslens."""
        return self.distribution == OURS

    @property
    def whose(self) -> str:
        """Its distribution and version."""
        return f"{self.distribution} {self.version}".strip()

    def imported(self) -> Any:
        """The module or object that the entry point names; a class is called without arguments."""
        found = self._named() if self.given is None else self.given
        return found() if isinstance(found, type) else found

    def _named(self) -> Any:
        parts = _VALUE.fullmatch(self.entry_point)
        if parts is None:
            raise BadEntryPoint(f"the entry point {self.entry_point!r} is not of the form 'package.module'")
        found: Any = importlib.import_module(parts[1])
        for name in (parts[2] or "").split("."):
            found = getattr(found, name) if name else found
        return found


def candidates() -> tuple[list[Candidate], list[str]]:
    """Every installed plugin, and what is wrong with metadata that cannot be read.

    Ours come first, the others by name: the order does not depend on where or when they were installed.
    """
    from importlib.metadata import distributions

    found: dict[str, list[Candidate]] = {}
    unreadable: list[str] = []
    for distribution in distributions():
        text = _entry_points(distribution)
        if f"[{GROUP}]" not in text:
            continue
        name, version = _name_and_version(distribution)
        if _folded(name) in found:  # the same distribution further down sys.path: Python imports the first
            continue
        mine = found.setdefault(_folded(name), [])
        for line in _group(text):
            plugin, equals, value = (part.strip() for part in line.partition("="))
            if plugin and equals:
                mine.append(Candidate(plugin, name, version, value))
            else:
                unreadable.append(f"{name} {version}: its entry_points.txt holds a line that is none: {line!r}")
    ordered = sorted((c for each in found.values() for c in each), key=order)
    return ordered, sorted(unreadable)


def order(candidate: Candidate) -> tuple[bool, str, str, str]:
    """Ours first, then by name."""
    return (not candidate.ours, candidate.plugin, candidate.distribution, candidate.entry_point)


def _entry_points(distribution: Distribution) -> str:
    try:
        return distribution.read_text("entry_points.txt") or ""
    except (OSError, UnicodeDecodeError):
        return ""


def _group(text: str) -> Iterator[str]:
    """The lines of our section. Read here: one bad line of a stranger must not hide the plugins of all others."""
    inside = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            inside = line == f"[{GROUP}]"
        elif inside and line and line[0] not in "#;":
            yield line


def _name_and_version(distribution: Distribution) -> tuple[str, str]:
    """From the first lines of the metadata: the standard library parses the whole of it, which takes a start longer."""
    try:
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    except (OSError, UnicodeDecodeError):
        text = ""
    head = dict(line.split(": ", 1) for line in text.split("\n\n", 1)[0].splitlines() if ": " in line)
    name = head.get("Name", "unknown").strip()
    if _folded(name) == OURS:
        return OURS, VERSION
    return name, head.get("Version", "unknown").strip()


def _folded(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
