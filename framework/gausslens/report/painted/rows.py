"""Tables and texts on matplotlib: as wide as their words need, and broken between words where there is less room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..numbers import written_cell
from .words import LINE, filled, measured, pieces, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ...figures import Cell, Passages, TableRows

GAP = 1.4  # between columns, of the size of letters
MOST_LETTERS = 2_000  # of a cell


@dataclass(frozen=True)
class SetTable:
    """A table as it is set: the lines of each cell, how wide its columns are, and which of them are numbers.

    ``columns``, ``wide`` and ``high`` are in points; ``left_out`` rows found no room.
    """

    head: list[list[str]]
    rows: list[list[list[str]]]
    columns: list[float]
    numbers: list[bool]
    wide: float
    high: float
    size: float
    left_out: int = 0


def numbers_of(drawing: TableRows) -> list[bool]:
    """Which columns are numbers, or nothing."""
    rows = drawing.rows
    return [
        any(row[i] is not None for row in rows)
        and all(isinstance(row[i], int | float | None) and not isinstance(row[i], bool) for row in rows)
        for i in range(len(drawing.columns))
    ]


def set_table(drawing: TableRows, room: float, size: float, most_high: float) -> SetTable:
    """Set it into ``room`` points of width, if its words can be broken so far; numbers are never broken.

    Rows that ``most_high`` has no room for are counted, and neither measured nor broken.
    """
    numbers = numbers_of(drawing)
    line = LINE * size
    cells = [[_cell(cell) for cell in row] for row in drawing.rows[: max(1, int(most_high / line))]]
    gaps = GAP * size * max(0, len(drawing.columns) - 1)
    columns = _columns(drawing.columns, cells, numbers, room - gaps, size)
    head = [list(filled(name, wide, size, bold=True)) for name, wide in zip(drawing.columns, columns, strict=True)]
    rows: list[list[list[str]]] = []
    high = line * (1.8 + max(map(len, head), default=1))
    for row in cells:
        lines = [
            [plain(text)] if alone else list(filled(text, wide, size))
            for text, wide, alone in zip(row, columns, numbers, strict=True)
        ]
        more = line * max(map(len, lines), default=1)
        if rows and high + more + line * (len(rows) + 1 < len(drawing.rows)) > most_high:
            break
        rows.append(lines)
        high += more
    left_out = len(drawing.rows) - len(rows)
    return SetTable(head, rows, columns, numbers, gaps + sum(columns), high + line * (left_out > 0), size, left_out)


def _cell(cell: Cell) -> str:
    text = " ".join(written_cell(cell).split())
    return text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS] + "…"


def _columns(
    names: Sequence[str], cells: Sequence[Sequence[str]], numbers: Sequence[bool], room: float, size: float
) -> list[float]:
    """How wide each column is: as its longest cell where all fit, else the widest of text give way."""
    whole, least = [], []
    for i, name in enumerate(names):
        texts = [row[i] for row in cells]
        held = max((measured(text, size) for text in set(texts)), default=0.0)
        word = max((measured(piece.rstrip(), size, bold=True) for piece in pieces(name)), default=1.0)
        parts = {piece.rstrip() for text in texts for piece in pieces(text)}
        longest = held if numbers[i] else max((measured(part, size) for part in parts), default=0.0)
        whole.append(max(measured(name, size, bold=True), held) + 0.5)
        least.append(max(word, min(longest, max(room / 4, 12 * size))) + 0.5)
    columns = whole
    while sum(columns) > room and (wide := [i for i, points in enumerate(columns) if points > least[i]]):
        widest = max(wide, key=columns.__getitem__)
        columns[widest] = max(least[widest], columns[widest] - 2)
    return columns


def paint_table(table: SetTable, axes: Axes) -> None:
    """Rows between three rules, from the upper left corner of the axes; columns of numbers to the right."""
    axes.set_axis_off()
    line, y = LINE * table.size, -0.4 * LINE * table.size
    starts = [0.0]
    for wide in table.columns:
        starts.append(starts[-1] + wide + GAP * table.size)
    _rule(axes, table.wide, 0.0, 0.9)
    y = _row(table, axes, table.head, starts, y, bold=True)
    _rule(axes, table.wide, y - 0.1 * line, 0.5)
    y -= 0.4 * line
    for row in table.rows:
        y = _row(table, axes, row, starts, y)
    if table.left_out:
        _say(axes, f"and {table.left_out:,} more rows", 0.0, y, table.size, color="0.35")
        y -= line
    _rule(axes, table.wide, y - 0.2 * line, 0.9)


def _row(
    table: SetTable, axes: Axes, row: Sequence[Sequence[str]], starts: Sequence[float], y: float, bold: bool = False
) -> float:
    """One row from ``y`` points below the corner; where the next begins."""
    line = LINE * table.size
    for i, lines in enumerate(row):
        right = table.numbers[i]
        x = starts[i] + (table.columns[i] if right else 0.0)
        for k, text in enumerate(lines):
            look: dict[str, Any] = {"ha": "right" if right else "left", "weight": "bold" if bold else "normal"}
            _say(axes, text, x, y - k * line, table.size, **look)
    return y - line * max(map(len, row), default=1)


def _say(axes: Axes, text: str, x: float, y: float, size: float, **look: Any) -> None:
    if text:
        made = axes.annotate(
            text,
            (0, 1),
            (x, y),
            "axes fraction",
            "offset points",
            va="top",
            fontsize=size,
            annotation_clip=False,
            **look,
        )
        made.set_in_layout(False)


def _rule(axes: Axes, wide: float, y: float, weight: float) -> None:
    line: dict[str, Any] = {"arrowstyle": "-", "linewidth": weight, "shrinkA": 0, "shrinkB": 0}
    made = axes.annotate(
        "", (0, y), (wide, y), _from_corner(axes), _from_corner(axes), arrowprops=line, annotation_clip=False
    )
    made.set_in_layout(False)


def _from_corner(axes: Axes) -> Any:
    """Points from the upper left corner of the axes."""
    from matplotlib.text import OffsetFrom

    return OffsetFrom(axes, (0, 1))


def set_texts(drawing: Passages, room: float, size: float, most_high: float) -> tuple[list[tuple[str, bool]], bool]:
    """The lines of texts under their names, which are bold; and whether there are more than there is room for."""
    most = int(most_high / (LINE * size))
    lines = list(islice(_lines(drawing, room, size), most + 1))
    return lines[:most], len(lines) > most


def _lines(drawing: Passages, room: float, size: float) -> Iterator[tuple[str, bool]]:
    for k, text in enumerate(drawing.texts):
        yield from [("", False)] if k else []
        yield from ((line, True) for line in filled(text.name, room, size, bold=True))
        for part in text.text.split("\n"):
            yield from ((line, False) for line in filled(part, room, size))


def paint_texts(lines: Sequence[tuple[str, bool]], axes: Axes, size: float) -> None:
    """The lines, from the upper left corner of the axes."""
    axes.set_axis_off()
    for k, (text, bold) in enumerate(lines):
        _say(axes, text, 0.0, -k * LINE * size, size, weight="bold" if bold else "normal")
