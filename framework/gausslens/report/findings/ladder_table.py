"""The ladder as a table: a row for each statistic, a column for each null, coloured by effect; what explains each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ...maths.ladder import ARRANGEMENT, SEEDS, UNDECIDED, WEIGHT_RUNGS, WORDS, ladder_order
from ...verdicts import Explanation, Statistic, first_nulls, what_twins_are
from ..colours import category_colour, ink, shade
from ..markup import Markup, element, joined
from ..numbers import NOTHING, number

if TYPE_CHECKING:
    from ...store.read_results import Results

# From a statistic and a null to where its figure is on the page.
Anchor: TypeAlias = Callable[[Statistic], str]
# The effect at which colours end: as far from the null as eight times the spread of all cells.
STRONGEST = 8.0


@dataclass(frozen=True)
class Row:
    """A statistic beside all its nulls, and the cell that the row is about: the furthest from the first of them."""

    each: Mapping[str, Statistic]
    first: Statistic
    cell: tuple[int, ...] | None
    explanation: Explanation | None

    @property
    def size(self) -> float:
        """How large its effect is beside the first null, where it departs."""
        if self.cell is None or not self.first.selected:
            return -1.0
        return abs(float(self.first.column("effect")[self.cell]))

    def effect(self, null: str) -> tuple[float, bool]:
        """The effect beside a null, and whether the cell departs from it; NaN where they are not compared."""
        one = self.each.get(null)
        if one is None or self.cell is None or one.called.shape != self.first.called.shape:
            return math.nan, False
        return float(one.column("effect")[self.cell]), bool(one.called[self.cell])


def ladders(view: Results, anchor: Anchor, run: str = "") -> list[Markup]:
    """For each variant that is compared the ladder; with ``run`` it is named, on a page of several."""
    several = len(first_nulls(view.statistics(), view.rungs)) > 1
    made = []
    for variant, nulls, rows in ladders_of(view):
        name = ", ".join(words for words in (run, variant if several else "") if words)
        made.append(_table(rows, nulls, view.rungs, anchor, name))
    return made


def ladders_of(view: Results) -> list[tuple[str, list[str], list[Row]]]:
    """Of each variant that is compared its nulls, in their order on the ladder, and its statistics beside them."""
    found, rungs = view.statistics(), view.rungs
    made = []
    for variant, first in first_nulls(found, rungs).items():
        mine = [one for one in found if one.variant == variant]
        nulls = list(dict.fromkeys(one.null for one in mine))
        nulls = [nulls[i] for i in ladder_order([rungs.get(null, null) for null in nulls])]
        made.append((variant, nulls, _rows(mine, first, view.explanations())))
    return made


def _rows(mine: Sequence[Statistic], first: str, explained: Mapping[tuple[str, str, str], Explanation]) -> list[Row]:
    """The statistics of a variant, those of the largest effect first."""
    by_name: dict[tuple[str, str, str], dict[str, Statistic]] = {}
    for one in mine:
        by_name.setdefault(one.name, {})[one.null] = one
    rows = []
    for name, each in by_name.items():
        one = each.get(first) or next(iter(each.values()))
        rows.append(Row(each, one, one.furthest(), explained.get(name) if one.selected else None))
    return sorted(rows, key=lambda row: -row.size)


def _table(rows: Sequence[Row], nulls: Sequence[str], rungs: Mapping[str, str], anchor: Anchor, name: str) -> Markup:
    laddered = any(row.explanation is not None for row in rows)
    heads = [
        element("th", "statistic", scope="col"),
        element("th", "in", scope="col"),
        *(_null_name(null, rows, rungs) for null in nulls),
        *([element("th", "explained by", scope="col")] if laddered else []),
    ]
    body = [
        element(
            "tr",
            _statistic(row),
            element("td", row.first.label),
            *(_effect(row, null, anchor) for null in nulls),
            *([_rung(row)] if laddered else []),
        )
        for row in rows
    ]
    said = (
        "Every statistic beside every null. A number is the effect, in the cell where the statistic is furthest from "
        "the first null: how far the model is from that null, over the spread of cells (of one cell, the ratio less "
        "one). Orange is above the null, blue below; grey does not depart. Small: how many cells depart. Each leads to "
        "its figure." + (" Explained by: what explains most of the cells that depart." if laddered else "")
    )
    caption = element("p", f"{name}. {said}" if name else said, class_="about")
    table = element("table", element("thead", element("tr", *heads)), element("tbody", *body), class_="ladder")
    region = {"tabindex": "0", "role": "region", "aria_label": "The ladder of nulls"}
    return joined([caption, element("div", table, class_="scroll", **region)])


def _null_name(null: str, rows: Sequence[Row], rungs: Mapping[str, str]) -> Markup:
    """A column: the null by what it is, its name and how many draws of it there are."""
    draws = max((int(row.each[null].comparison.attrs.get("draws", 0)) for row in rows if null in row.each), default=0)
    words = what_twins_are(null, rungs)
    told = f"{null}, {draws} draws" if words != null else f"{draws} draws"
    return element("th", words, element("small", told), scope="col", class_="null")


def _statistic(row: Row) -> Markup:
    one = row.first
    name = str(one.comparison[one.variable].attrs.get("long_name", one.variable))
    place = ", ".join(f"{dim} {at}" for dim, at in one.place(row.cell).items()) if row.cell is not None else ""
    told = [one.variable] if name != one.variable else []
    told += [f"furthest at {place}"] if place and one.selected else []
    return element("th", name, element("small", "; ".join(told)) if told else None, scope="row")


def _effect(row: Row, null: str, anchor: Anchor) -> Markup:
    one = row.each.get(null)
    if one is None or row.cell is None or one.called.shape != row.first.called.shape:
        return element("td", NOTHING, class_="n")
    effect = float(one.column("effect")[row.cell])
    tested = int(np.isfinite(one.column("p")).sum())
    called = int(one.called.sum())
    count = element("small", f"{called} of {tested}") if tested > 1 else None
    # Two decimals where it is nothing: 1e-10 of a spread is none.
    shown = element("a", number(float(f"{effect:.3g}") if abs(effect) >= 0.01 else 0.0), href=f"#{anchor(one)}")
    if not bool(one.called[row.cell]) or not np.isfinite(effect):
        return element("td", shown, count, class_="n quiet", data_sort=effect)
    # The square root, so that an effect of one is told from none beside one of eight.
    share = 0.5 + 0.5 * float(np.sign(effect)) * min(1.0, (abs(effect) / STRONGEST) ** 0.5)
    colour = shade(share, True)
    return element("td", shown, count, class_=f"n {ink(colour)}", style=f"background:{colour}", data_sort=effect)


def _rung(row: Row) -> Markup:
    """What explains most of the cells that depart, and how many of them, as one of a few words."""
    if row.explanation is None:
        return element("td", "does not depart" if not row.first.selected else NOTHING, class_="quiet")
    words, called = row.explanation.cells.rung, row.first.called
    word = row.explanation.rung
    alike = int((words[called] == word).sum())
    count = element("small", f"{alike} of {int(called.sum())}") if int(called.sum()) > 1 else None
    return element("td", rung_mark(word, row.explanation.rungs), count)


def rung_names(rungs: Sequence[str]) -> list[str]:
    """The words that explain a number, what is left first: so each has its colour, everywhere on the page."""
    weights = WEIGHT_RUNGS[:0:-1]
    return list(dict.fromkeys([ARRANGEMENT, *weights, SEEDS, UNDECIDED, *WORDS, *rungs]))


def rung_mark(word: str, rungs: Sequence[str]) -> Markup:
    """A word of the ladder in its colour."""
    colour = category_colour(rung_names(rungs).index(word))
    return joined([element("span", word, class_=f"rung {ink(colour)}", style=f"background:{colour}")])
