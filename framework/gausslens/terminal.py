"""What a terminal and a notebook show: tables, sizes and durations for people; names cannot send escapes or markup."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TextIO
from unicodedata import combining, east_asian_width

if TYPE_CHECKING:
    import pandas as pd

# Rows of a frame that are printed; --csv and --json print all.
MOST_ROWS = 60
# A column of text is not made narrower than this to fit a terminal.
NARROW = 12
# Where a text may go on in the next line: not within a number, not within "before x 8".
_PLACES = re.compile(r"(?<=\s)(?<! x )(?!\s)|(?<=[,./_:;-])(?![\d\s])")
# With what a cell begins that a spreadsheet computes; and what marks that it shall not.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")


def plain(text: object) -> str:
    """Text with everything a terminal might obey made visible."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def plain_lines(text: object) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(plain, str(text).split("\n")))


def cell_len(text: str) -> int:
    """How many columns a text takes: letters of East Asia two each, combining marks none."""
    return len(text) if text.isascii() else sum(0 if combining(c) else 1 + (east_asian_width(c) in "WF") for c in text)


def columns() -> int | None:
    """How wide the terminal is; None where the output goes elsewhere, where lines are as long as they are."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def tell(text: str, stream: TextIO | None = None) -> None:
    """Print text. On a terminal a long line goes on in the next, a little to the right, without breaking a word."""
    width = columns() if (stream or sys.stdout).isatty() else None
    lines = [part for line in text.split("\n") for part in (_folded(line, width) if width else [line])]
    print("\n".join(lines), file=stream)


def _folded(line: str, width: int) -> list[str]:
    if cell_len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(
        line, width, subsequent_indent=indent, replace_whitespace=False, break_long_words=False, break_on_hyphens=False
    )


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = (), width: int | None = None
) -> list[str]:
    """Rows as aligned text; columns named in ``right`` are numbers, set to the right and never broken.

    Where it would be wider than ``width``, cells of the widest columns of text go on in further lines; the head is one.
    """
    cells = [list(head), *[list(row) for row in rows]]
    widths = [max(cell_len(row[i]) for row in cells) for i in range(len(head))]
    if width is not None:
        least = [w if i in right else min(w, max(NARROW, cell_len(head[i]))) for i, w in enumerate(widths)]
        widths = _squeezed(widths, least, width - 2 * (len(head) - 1))
    lines = []
    for row in cells:
        parts = [[c] if i in right else _in_cell(c, w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        for line in zip_longest(*parts, fillvalue=""):
            padded = [set_cell(c, w, i in right) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
            lines.append("  ".join(padded).rstrip())
    return lines


def set_cell(text: str, width: int, right: bool) -> str:
    """Text with spaces up to a width; letters of East Asia take two columns."""
    spaces = " " * (width - cell_len(text))
    return spaces + text if right else text + spaces


def _squeezed(widths: list[int], least: Sequence[int], most: int) -> list[int]:
    """Widths of which the widest are made smaller until all fit, or each is the least."""
    widths = list(widths)
    while sum(widths) > most and (wide := [i for i, w in enumerate(widths) if w > least[i]]):
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _in_cell(text: str, width: int) -> list[str]:
    """Text in lines of a width: cut at spaces and after signs, but in no number; what is longer, anywhere."""
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for piece in _PLACES.split(text):
        if cell_len((lines[-1] + piece).rstrip()) <= width:
            lines[-1] += piece
            continue
        rest = piece.lstrip()
        while cell_len(rest) > width:
            fits = next(n for n in range(len(rest), 0, -1) if cell_len(rest[:n]) <= max(width, 2))
            lines, rest = [*lines, rest[:fits]], rest[fits:]
        lines.append(rest)
    return [line.rstrip() for line in lines if line.strip()]


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int] = ()) -> None:
    """Print rows under a head; columns in ``right`` are numbers and set to the right.

    On a terminal that is too narrow for them side by side, each row is a list of its cells.
    """
    cells, width = [[plain(c) for c in row] for row in rows], columns()
    first, *lines = table(head, cells, right, width)
    if width is not None and max(map(cell_len, (first, *lines))) > width:
        broad = max(map(cell_len, head))
        lists = [
            [f"{set_cell(name, broad, False)}  {c}" for name, c in zip(head, row, strict=True) if c] for row in cells
        ]
        tell("\n\n".join("\n".join(each) for each in lists))
        return
    print("\n".join([_bold(first), *lines]))


def _bold(line: str) -> str:
    """A head, where the terminal has more than one weight of letters."""
    plainly = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return line if plainly else f"\033[1m{line}\033[0m"


def print_rows(frame: pd.DataFrame, what: str) -> None:
    """The first rows of a frame, numbers with five digits."""
    columns = [str(c) for c in frame]
    right = [i for i, c in enumerate(columns) if frame[c].dtype.kind in "iuf"]
    rows = [[written(v) for v in row] for row in frame.head(MOST_ROWS).astype(object).values.tolist()]
    print_table(columns, rows, right)
    if len(frame) > MOST_ROWS:
        print(f"... {len(frame) - MOST_ROWS:,} more rows of {plain(what)}; --csv prints them all")


def written(value: Any) -> str:
    """A cell of a frame; nothing where it is missing."""
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None or type(value).__name__ == "NAType" else str(value)


def print_frame(frame: pd.DataFrame, as_json: bool, quoted: bool = False) -> None:
    """Every row, with every digit: as CSV (``quoted`` for spreadsheets), or as JSON."""
    if as_json:
        print(json.dumps([{c: _plain_json(v) for c, v in row.items()} for row in frame.to_dict("records")], indent=1))
        return
    if quoted:
        frame = frame.rename(columns=lambda name: quoted_cell(str(name)))
        texts = [column for column in frame if frame[column].dtype.kind not in "biufc"]
        frame = frame.assign(**{column: frame[column].map(quoted_cell) for column in texts})
    text = frame.to_csv(index=False)
    print("\n".join(map(plain, text.splitlines())) if sys.stdout.isatty() else text.rstrip("\n"))


def quoted_cell(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula, with a ' before it; text that begins with ' has one more.

    So to take one ' away from cells that begin with one gives what was there.
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _plain_json(value: Any) -> Any:
    """A value as JSON has it: null for what is missing or not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, bool | int | str):
        return value
    item = getattr(value, "item", None)
    if item is not None and not hasattr(value, "isoformat"):
        return _plain_json(item())
    return str(value) if hasattr(value, "year") and value == value else None


def size(count: int) -> str:
    """Bytes for people; nothing where nothing is known."""
    if not count:
        return ""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


def duration(seconds: float) -> str:
    """Seconds for people; nothing where nothing is known."""
    if not seconds:
        return ""
    if seconds < 1:
        return "< 1 s"
    return f"about {seconds:.0f} s" if seconds < 120 else f"about {seconds / 60:.0f} min"


def html_table(title: str, rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """Rows under a title, for a notebook."""
    shown = [(f"<{tag}>{escape(plain(cell))}</{tag}>" for cell in row) for tag, row in _tagged(head, rows)]
    lines = "".join(f"<tr>{''.join(cells)}</tr>" for cells in shown)
    return f'<table><caption style="text-align: left">{escape(plain(title))}</caption>{lines}</table>'


def _tagged(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[tuple[str, Sequence[object]]]:
    if head:
        yield "th", head
    yield from (("td", row) for row in rows)
