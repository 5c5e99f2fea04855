"""Words on matplotlib: how much room they take, where they are broken, and that they are drawn as they are."""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from ..markup import visible

# Of the size of its letters: the mean width of one of DejaVu Sans, rather more than less; the height of a line.
LETTER, LINE = 0.6, 1.3
LONGEST = 40  # letters of a label


def plain(text: str) -> str:
    """Text that matplotlib draws as it is: no controls, and a dollar sign is no mathematics."""
    return visible(text).replace("$", r"\$")


def short(text: str, most: int = LONGEST) -> str:
    """A label of one line, cut where it is too long."""
    shown = text.replace("\n", "↵").replace("\t", "⇥")
    return plain(shown if len(shown) <= most else shown[: max(1, most - 1)] + "…")


def longest(texts: Iterable[str]) -> int:
    """How many letters the longest has."""
    return max(map(len, texts), default=0)


def width(letters: float, size: float) -> float:
    """About how wide so many letters are, in points."""
    return letters * size * LETTER


def fitting(points: float, size: float) -> int:
    """How many letters fit into so many points."""
    return max(4, int(points / (size * LETTER)))


@cache
def _font(bold: bool) -> Any:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return get_font(findfont(FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")))


def measured(text: str, size: float, bold: bool = False) -> float:
    """How wide a line is in DejaVu Sans, in points."""
    font = _font(bold)
    font.set_size(100, 72)  # matplotlib shares it, and sets others
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a letter that it lacks
        font.set_text(visible(text), 0.0)
    return float(font.get_width_height()[0]) / 64 * size / 100


def pieces(text: str) -> list[str]:
    """Text in pieces that are not broken: it is behind spaces and between the parts of a name."""
    return [piece for piece in re.split(r"(?<=\s)(?=\S)|(?<=[_/])(?=\w)|(?<=[a-z,;]\.)(?=\w)", text) if piece]


def filled(text: str, points: float, size: float, bold: bool = False) -> Iterator[str]:
    """Text in lines of at most so many points, one after another; only what is longer by itself is broken anywhere."""
    line = ""
    for piece in pieces(" ".join(text.split())):
        rest = piece
        if _fits(line + rest, points, size, bold):
            line += rest
            continue
        if line:
            yield plain(line.rstrip())
        while not _fits(rest, points, size, bold):
            cut = _most_that_fits(rest, points, size, bold)
            yield plain(rest[:cut])
            rest = rest[cut:]
        line = rest
    if line or not text.strip():
        yield plain(line.rstrip())


def _fits(text: str, points: float, size: float, bold: bool) -> bool:
    shown = text.rstrip()
    return len(shown) < 2 or _most_that_fits(shown, points, size, bold) == len(shown)


def _most_that_fits(text: str, points: float, size: float, bold: bool) -> int:
    """How many of its letters fit, one at least; no more of a long text is measured than about twice as many."""
    low, high = 1, 2
    while high <= len(text) and measured(text[:high], size, bold) <= points:
        low, high = high, 2 * high
    high = min(high, len(text) + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if measured(text[:middle], size, bold) <= points else (low, middle)
    return low


def wrapped(text: str, letters: int) -> list[str]:
    """Text in lines of at most so many letters, as it is drawn; its own line breaks stay."""
    return [plain(line) for part in text.split("\n") for line in textwrap.wrap(part, max(letters, 1)) or [""]]


def evenly(labels: Sequence[str], least: float, cell: float) -> range:
    """Which labels there is room for, where each takes ``least`` points of cells of ``cell``: all, every 2nd, ..."""
    every = max(1, -(-int(100 * least) // max(1, int(100 * cell))))
    return range(0, len(labels), every)


def ordinal(number: int) -> str:
    """2nd, 3rd, 4th."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"
