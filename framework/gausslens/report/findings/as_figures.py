"""What stands first on the page as figures, for papers and notebooks: the ladder, what departs, numbers by head."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...figures import Figure, Heatmap, Source, Table
from ...verdicts import what_twins_are
from ..departures import departures_of
from ..sections import Section
from .by_head import by_head, table_of_heads
from .ladder_table import Row, ladders_of

if TYPE_CHECKING:
    from ...store.read_results import Results

LADDER, HEADS = "ladder", "heads"


def findings(results: Results, found: Sequence[Section]) -> list[Section]:
    """The sections that no plugin makes: the ladder and what departs; and what heads have that ``found`` lacks."""
    if not results.statistics():
        return []
    ladder = [
        figure for variant, nulls, rows in ladders_of(results) for figure in _ladder(results, variant, nulls, rows)
    ]
    ladder += departures_of(results)
    numbers, _ = by_head(results, found)
    drawn = {source for section in found for figure in section.figures for source in _one(figure)}
    heads: list[Figure] = list(table_of_heads(results, numbers))
    for number in numbers:
        for each in number.figures:
            figure = each.figure
            if not drawn.isdisjoint(_one(figure)):
                continue
            named = copy.copy(figure)
            object.__setattr__(named, "title", _title(figure.title, number.variable, number.variant, number.label))
            heads.append(named)
    about = "Every statistic beside every null, and the largest departures."
    heads_about = "Every number that each head has, how surely it departs from each null, and what explains it."
    made = [(LADDER, about, tuple(ladder)), (HEADS, heads_about, tuple(heads))]
    return [Section(name, told, f"the section {name}", figures) for name, told, figures in made if figures]


def _one(figure: Figure) -> set[Source]:
    """The one array that a map is made of."""
    return set(figure.sources) if isinstance(figure, Heatmap) and len(figure.sources) == 1 else set()


def _title(title: str, variable: str, variant: str, label: str) -> str:
    """A title that says by itself what it is about."""
    if title.startswith("z against"):
        return f"{variable} of {variant}, {title} ({label})"
    return title if f"({label})" in title else f"{title} of {variant} ({label})"


def _ladder(results: Results, variant: str, nulls: Sequence[str], rows: Sequence[Row]) -> list[Figure]:
    """The ladder of a variant: as a map of effects, and as a table with what explains each statistic."""
    rungs = results.rungs
    names = [f"{row.first.variable} ({row.first.label})" for row in rows]
    effects = [[row.effect(null) for null in nulls] for row in rows]
    sources = tuple(
        Source(variant, f"{one.label}.against.{null}", f"{one.variable}_effect")
        for row in rows
        for null, one in row.each.items()
    )
    of = (
        "in the cell where it is furthest from the first null: how far the model is from that null, over the spread of "
    )
    said = f"The effect of every statistic, {of}cells (of one cell, the ratio less one)."
    nulls_named = [results.named_null(null) for null in nulls]
    words = {null: what_twins_are(null, rungs) for null in nulls}
    meant = "; ".join(f"{null}: {word}" for null, word in words.items() if word != null)
    picture = Heatmap(
        title=f"The ladder of nulls, {variant}",
        caption=f"{said} Orange is above the null, blue below, grey does not depart. From left to right the nulls "
        "share more and more with the model" + (f" ({meant})." if meant else "."),
        sources=sources,
        units="effect",
        values=[[effect if called else math.nan for effect, called in row] for row in effects],
        rows=names,
        columns=nulls,
        row_name="statistic",
        column_name="null",
        centre=0.0,
        missing="does not depart",
    )
    table = Table(
        title=f"The ladder of nulls in numbers, {variant}",
        caption=f"{said} Explained by: the first null that gives the statistic too, for most of its cells that depart.",
        sources=sources,
        columns=("statistic", "result", "furthest at", *nulls_named, "explained by", "cells"),
        rows=[_cells(row, each) for row, each in zip(rows, effects, strict=True)],
    )
    return [picture, table]


def _cells(row: Row, effects: Sequence[tuple[float, bool]]) -> list[str | float | None]:
    one = row.first
    place = ", ".join(f"{dim} {at}" for dim, at in one.place(row.cell).items()) if row.cell is not None else ""
    shown = [
        None if math.isnan(effect) else float(f"{effect:.3g}") if abs(effect) >= 0.01 else 0.0 for effect, _ in effects
    ]
    explained = row.explanation.rung if row.explanation is not None else "" if one.selected else "does not depart"
    called = f"{int(one.called.sum())} of {int((one.column('p') == one.column('p')).sum())}"
    return [one.variable, one.label, place, *shown, explained, called]
