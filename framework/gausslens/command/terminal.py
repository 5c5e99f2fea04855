"""What the terminal shows: tables, sizes and durations for people; names cannot send it escapes."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def plain(text: object) -> str:
    """Text with everything a terminal might obey made visible."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def plain_lines(text: object) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(plain, str(text).split("\n")))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Rows as aligned text; columns named in ``right`` are set to the right."""
    cells = [list(head), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        "  ".join(
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int] = ()) -> None:
    """Print rows under a head; columns in ``right`` are numbers and set to the right."""
    cells = [[plain(c) for c in row] for row in rows]
    if not sys.stdout.isatty():
        print("\n".join(table(list(head), cells, right)))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(head):
        drawn.add_column(Text(name), justify="right" if index in right else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*(Text(c) for c in row))
    Console().print(drawn)


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
