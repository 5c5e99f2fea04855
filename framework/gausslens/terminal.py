"""What the terminal shows: tables, sizes and durations for people; names cannot send it escapes."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

# Rows of a frame that are printed; --csv and --json print all.
MOST_ROWS = 60


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


def print_frame(frame: pd.DataFrame, as_json: bool) -> None:
    """Every row, with every digit: as CSV, or as JSON."""
    if as_json:
        print(json.dumps([{c: _plain_json(v) for c, v in row.items()} for row in frame.to_dict("records")], indent=1))
        return
    text = frame.to_csv(index=False)
    print("\n".join(map(plain, text.splitlines())) if sys.stdout.isatty() else text.rstrip("\n"))


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
