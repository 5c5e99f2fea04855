"""Writing tables, and texts side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import thin
from .axes import number
from .markup import Markup, element

if TYPE_CHECKING:
    from ..figures import Cell, Table, Texts


def draw_table(figure: Table, most: thin.Most = thin.FINE) -> tuple[Markup, str]:
    """The table, and what was thinned: its first rows are kept."""
    columns, rows = tuple(figure.columns), tuple(tuple(row) for row in figure.rows)
    shown = rows[: most.rows]
    numeric = [bool(shown) and all(isinstance(r[i], int | float | None) for r in shown) for i in range(len(columns))]
    head = element(
        "tr",
        *(element("th", c, scope="col", class_="n" if n else None) for c, n in zip(columns, numeric, strict=True)),
    )
    body = [
        element(
            "tr", *(element("td", _written(c), class_="n" if n else None) for c, n in zip(row, numeric, strict=True))
        )
        for row in shown
    ]
    drawn = element(
        "div", element("table", element("thead", head), element("tbody", *body)), class_="scroll", tabindex="0"
    )
    return drawn, thin.note(len(shown), len(rows), "rows")


def draw_texts(figure: Texts, most: thin.Most = thin.FINE) -> tuple[Markup, str]:
    """The texts side by side, and what was thinned: the beginning of each is kept."""
    long = sum(len(t.text) > most.letters for t in figure.texts)
    cards = [
        element("div", element("h4", t.name), element("p", t.text[: most.letters] + "…" * (len(t.text) > most.letters)))
        for t in figure.texts
    ]
    note = f"Thinned: of {long} text(s) the first {most.letters:,} letters are shown." if long else ""
    return element("div", *cards, class_="texts"), note


def _written(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return str(cell)
    return number(float(cell))
