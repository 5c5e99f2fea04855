"""Tables as files: CSV with every digit, and LaTeX for a paper (booktabs), its text escaped and its numbers aligned."""

from __future__ import annotations

import csv
import io
import math
import re
from typing import TYPE_CHECKING

from .markup import visible
from .numbers import INFINITY, MINUS, NOTHING, number, written_cell
from .painted.rows import numbers_of

if TYPE_CHECKING:
    from ..figures import Cell, TableRows

# What LaTeX reads as something else, and how it prints it. Two hyphens would be joined to a dash.
_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "-": "-{}",
    MINUS: "$-$",
    "\N{PLUS-MINUS SIGN}": r"$\pm$",
    INFINITY: r"$\infty$",
    NOTHING: "--{}",
    "\N{HORIZONTAL ELLIPSIS}": r"\dots{}",
    "\n": r"\newline{}",
    "\t": " ",
}
_SPECIAL = re.compile("|".join(map(re.escape, _ESCAPES)))


def as_csv(drawing: TableRows) -> str:
    """The table as CSV (RFC 4180): numbers with every digit, nothing where there is none."""
    held = io.StringIO()
    rows = csv.writer(held, lineterminator="\r\n")
    rows.writerow([visible(name) for name in drawing.columns])
    rows.writerows([_plain(cell) for cell in row] for row in drawing.rows)
    return held.getvalue()


def _plain(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    return visible(cell) if isinstance(cell, str) else repr(cell)


def escaped_latex(text: str) -> str:
    """Text as LaTeX prints it. Letters beyond ASCII stay: of those that its fonts lack, LaTeX tells."""
    made = _SPECIAL.sub(lambda found: _ESCAPES[found[0]], visible(text))
    # Behind the end of a row these two would be read as its options.
    return f"{{{made[0]}}}{made[1:]}" if made[:1] in ("[", "*") else made


def as_latex(drawing: TableRows, title: str = "") -> str:
    r"""The table as a ``tabular`` between the rules of booktabs; columns of numbers are aligned at their points.

    The document needs ``\usepackage{booktabs}`` and ``\usepackage[T1]{fontenc}``.
    """
    numbers = numbers_of(drawing)
    shape = "".join("r@{}l" if each else "l" for each in numbers)
    head = " & ".join(
        rf"\multicolumn{{2}}{{r}}{{{escaped_latex(name)}}}" if of_numbers else escaped_latex(name)
        for name, of_numbers in zip(drawing.columns, numbers, strict=True)
    )
    rows = [
        " & ".join(
            _number(cell) if of_numbers else escaped_latex(written_cell(cell))
            for cell, of_numbers in zip(row, numbers, strict=True)
        )
        for row in drawing.rows
    ]
    said = [f"% {' '.join(visible(title).split())}"] if title.strip() else []
    needs = [r"% needs \usepackage{booktabs} and \usepackage[T1]{fontenc}"]
    table = [r"\toprule", rf"{head} \\", r"\midrule", *(rf"{row} \\" for row in rows), r"\bottomrule"]
    return "\n".join([*said, *needs, rf"\begin{{tabular}}{{{shape}}}", *table, r"\end{tabular}", ""])


def _number(cell: Cell) -> str:
    """A number in two columns: before its point, and from its point on."""
    if cell is None:
        return " & "
    text = number(float(cell))
    mantissa, _, power = text.partition("e")
    before, point, behind = mantissa.partition(".")
    before = escaped_latex(before).replace(",", "{,}")
    times = rf"$\times10^{{{power.replace(MINUS, '-')}}}$" if power else ""
    return f"{before} & {point}{behind}{times}"
