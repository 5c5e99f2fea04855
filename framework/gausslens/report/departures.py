"""What departs from the nulls among the stored comparisons: the first sentences, and the tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..figures import Source, Table
from ..verdicts import LEVEL, Explanation, Statistic, first_nulls, prompts_half_width
from .findings.ladder_table import ladders
from .markup import Markup, element, joined
from .numbers import NOTHING, number
from .page_figures import draw

if TYPE_CHECKING:
    from ..store.read_results import Results

# Rows of the table.
MOST = 10
_EXPLAINED = (
    " Explained by: the null that gives this cell too, and of how many of the cells that depart this holds, where it "
    "is not all; then what explains most of them, where that is another: scale, twins with matrices of the same size; "
    "entries, the same entries shuffled; spectrum, the same singular values. Arrangement: none of the nulls. "
    "Undecided: neither given nor beyond, by these draws and prompts."
)
COLUMNS = ("result", "variant", "variable", "furthest at", "value", "null", "effect", "q", "cells")


@dataclass(frozen=True)
class Departure:
    """A statistic that departs from a null: its called cell of the largest effect, and its rung on the ladder."""

    statistic: Statistic
    cell: tuple[int, ...]
    explanation: Explanation | None = None

    @property
    def place(self) -> str:
        """Where the cell is: "layer 0, head 3"."""
        return ", ".join(f"{dim} {value}" for dim, value in self.statistic.place(self.cell).items())

    def at(self, column: str) -> float:
        """A column of the comparison in this cell."""
        return float(self.statistic.column(column)[self.cell])

    def row(self) -> list[str | float]:
        """Its cells under ``COLUMNS``, and under the rung where there is a ladder."""
        one = self.statistic
        half = prompts_half_width(one)
        told = np.nan if half is None else float(half[self.cell])
        prompts = f"; prompts \N{PLUS-MINUS SIGN} {number(float(f'{told:.2g}'))}" if np.isfinite(told) else ""
        spread = number(float(f"{self.at('null_sd'):.2g}"))
        made: list[str | float] = [
            one.label,
            one.variant,
            one.variable,
            self.place or NOTHING,
            self.at(""),
            f"{number(self.at('null_mean'))} \N{PLUS-MINUS SIGN} {spread}{prompts}",
            float(f"{self.at('effect'):.3g}"),
            float(f"{one.q:.1g}"),
            f"{int(one.called.sum())} of {int(np.isfinite(one.column('p')).sum())}",
        ]
        return [*made, self.rung] if self.explanation is not None else made

    @property
    def rung(self) -> str:
        """What explains the cell, and how many of the called cells: "spectrum (7 of 12)"; of all the word alone.

        Where most cells have another word, by which the sentence counts the statistic: "..., most undecided".
        """
        assert self.explanation is not None
        words, called = self.explanation.cells.rung, self.statistic.called
        word, alike = str(words[self.cell]), int((words[called] == words[self.cell]).sum())
        if alike == called.sum():
            return word
        most = "" if self.explanation.rung == word else f", most {self.explanation.rung}"
        return f"{word} ({alike} of {int(called.sum())}){most}"


def departures(view: Results) -> dict[str, list[Departure]]:
    """For each null that stands first on a ladder what departs from it, the largest effect first."""
    found, rungs, explained = view.statistics(), view.rungs, view.explanations()
    firsts = first_nulls(found, rungs)
    made: dict[str, list[Departure]] = {}
    for one in found:
        first = firsts[one.variant]
        cell = one.furthest()
        if one.null == first and one.selected and cell is not None:
            made.setdefault(first, []).append(Departure(one, cell, explained.get(one.name)))
    return {null: sorted(each, key=lambda d: -abs(d.at("effect"))) for null, each in made.items()}


def first_sentences(*views: Results) -> Markup:
    """What was found, for the head of the page; each sentence with the name of its run where there are several."""
    named = len(views) > 1
    said = [(view.name, sentence) for view in views for sentence in view.sentences()]
    return joined(element("p", f"{run}: {sentence}" if named else sentence, class_="finding") for run, sentence in said)


def departures_table(*views: Results, anchor: Callable[[Statistic, str], str]) -> Markup:
    """Run by run the ladder, and for each null that stands first the ten largest effects; or why there is none.

    ``anchor`` says of a statistic and its run where on the page its figure is.
    """
    judged = [one for view in views for one in view.statistics()]
    if not judged:
        said = "Nothing was compared with a null: `against:` in a run file names one; a run compares at its end."
        return element("p", said, class_="note")
    named = len(views) > 1
    whole = [
        table
        for view in views
        for table in ladders(view, partial(_anchored, anchor, view.name), view.name if named else "")
    ]
    tables = [table for view in views for table in _of_run(view, named)]
    if tables:
        return joined([*whole, element("div", *tables, class_="figures")])
    tested = any(one.tests for one in judged)
    said = "Nothing departs." if tested else "Nothing was tested: the sentence says why."
    return joined([element("p", said, class_="soft"), *whole])


def _anchored(anchor: Callable[[Statistic, str], str], run: str, one: Statistic) -> str:
    return anchor(one, run)


def _of_run(view: Results, named: bool) -> list[Markup]:
    """The tables of a run, which name it where there are several."""
    return [draw(table, view) for table in departures_of(view, view.name if named else "")]


def departures_of(view: Results, run: str = "") -> list[Table]:
    """For each null that stands first the table of the largest departures; with ``run`` a column names it."""
    return [_table(null, each, run) for null, each in departures(view).items()]


def columns(found: Sequence[Departure]) -> tuple[str, ...]:
    """The columns of ``Departure.row``."""
    return (*COLUMNS, "explained by") if any(d.explanation is not None for d in found) else COLUMNS


def rows(found: Sequence[Departure], most: int = MOST) -> list[list[str | float]]:
    """The first of them, each under ``columns(found)``: what no other null was asked about has no rung beside it."""
    wide = len(columns(found))
    return [[*row, *[NOTHING] * (wide - len(row))] for row in (d.row() for d in found[:most])]


def _table(null: str, found: Sequence[Departure], run: str) -> Table:
    shown = found[:MOST]
    ladder = any(d.explanation is not None for d in found)
    return Table(
        title=f"The largest departures from {null}",
        caption="Of each statistic that departs, its cell of the largest effect: the difference from the null's mean "
        "over the spread of cells, model and null alike; of a statistic of one cell, the ratio less one. The "
        f"{len(shown)} largest of {len(found)}. q is the false discovery rate over the statistics; cells are those "
        f"with q below {LEVEL} within the statistic." + (_EXPLAINED if ladder else ""),
        sources=tuple(_source(d.statistic, run) for d in shown),
        columns=("run", *columns(found)) if run else columns(found),
        rows=[[*([run] if run else []), *row] for row in rows(found)],
    )


def _source(one: Statistic, run: str) -> Source:
    return Source(one.variant, f"{one.label}.against.{one.null}", one.variable, run)
