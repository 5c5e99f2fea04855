"""Every number that heads have, as maps of layers by heads: the number, how surely it departs, and what explains it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...figures import CategoryMap, Dial, Figure, Heatmap, Source, Table
from ...verdicts import Explanation, Statistic, first_nulls, named_null
from .ladder_table import rung_names

if TYPE_CHECKING:
    import xarray as xr

    from ...store.read_results import Results
    from ..sections import Section

# What a head is called in results; key/value heads may be fewer.
KV_HEADS = "kv_head"
HEADS = ("head", KV_HEADS)
# Rows of the table of heads; more make a page heavy.
MOST_HEADS = 1500


@dataclass(frozen=True)
class HeadFigure:
    """A figure, and the null that it is about: "" for the number itself, and for what explains it."""

    figure: Figure
    null: str = ""
    again: str = ""


@dataclass(frozen=True)
class HeadNumber:
    """One number of each head: its name in the store and in words, its figures, and its largest effect."""

    variant: str
    label: str
    variable: str
    title: str
    figures: tuple[HeadFigure, ...]
    effect: float = 0.0

    def anchor(self, null: str = "") -> str:
        """Where it is on the page, or where it stands beside a null."""
        return anchor_of(self.variant, self.label, self.variable, *([null] if null else []))


def anchor_of(*names: str) -> str:
    """An anchor of the names: any name becomes one that has no white space."""
    return "heads-" + re.sub(r"[^\w.-]", "_", "-".join(names))


@dataclass(frozen=True)
class _Drawn:
    """A figure of a plugin, and the line of Python that makes it again."""

    figure: Heatmap
    again: str


# By variant, label and array.
_Plugins: TypeAlias = Mapping[tuple[str, str, str], _Drawn]


def by_head(results: Results, found: Sequence[Section], opened: str = "store") -> tuple[list[HeadNumber], set[int]]:
    """Each number that every head has, the largest effect first, and the identities of the figures that stand there.

    What a plugin draws of a number, layers by heads, stands here and nowhere else on the page; so do maps of its z.
    A number that no null tells anything of, as one that all of them keep, makes no head stand out and is left out.
    """
    drawn = _drawn(found, opened)
    judged: dict[tuple[str, str, str], list[Statistic]] = {}
    for one in results.statistics():
        if heads_of(one.comparison[one.variable]):
            judged.setdefault(one.name, []).append(one)
    judged = {name: each for name, each in judged.items() if any(one.tests for one in each)}
    firsts = first_nulls(results.statistics(), results.rungs)
    ladders = results.explanations()
    numbers = [_number(each, firsts[name[0]], ladders.get(name), results.rungs, drawn) for name, each in judged.items()]
    compared = {(s.variant, f"{s.label}.against.{s.null}", f"{s.variable}_z") for each in judged.values() for s in each}
    held = {id(each.figure) for key, each in drawn.items() if key in judged or key in compared}
    return sorted(numbers, key=lambda number: -number.effect), held


def heads_of(values: xr.DataArray) -> str:
    """The dimension of heads of an array that has layers too; "" where there is none."""
    return next((dim for dim in HEADS if dim in values.dims and "layer" in values.dims), "")


def _drawn(found: Sequence[Section], opened: str) -> _Plugins:
    """Plugins' maps of layers by heads that are made of one array."""
    made: dict[tuple[str, str, str], _Drawn] = {}
    for section in found:
        for place, figure in enumerate(section.figures):
            if not isinstance(figure, Heatmap) or len(figure.sources) != 1:
                continue
            if figure.row_name == "layer" and figure.column_name in HEADS:
                source = figure.sources[0]
                again = f"gausslens.draw({opened}, section={section.name!r})[{place}].plot()"
                made.setdefault((source.variant, source.label, source.array), _Drawn(figure, again))
    return made


def _number(
    each: Sequence[Statistic], first: str, ladder: Explanation | None, rungs: Mapping[str, str], drawn: _Plugins
) -> HeadNumber:
    one = next((s for s in each if s.null == first), each[0])
    title = str(one.comparison[one.variable].attrs.get("long_name", one.variable))
    others = [s for s in each if s is not one]
    figures = [_value(one, title, drawn), *(_sureness(s, rungs) for s in (one, *others))]
    if ladder is not None:
        figures.append(HeadFigure(_explained(ladder, rungs)))
    cell = one.furthest()
    size = abs(float(one.column("effect")[cell])) if cell is not None else 0.0
    return HeadNumber(*one.name, title, tuple(figures), size if one.selected else -1 / (1 + size))


def _value(one: Statistic, title: str, drawn: _Plugins) -> HeadFigure:
    """The number itself: as the plugin draws it, where it does."""
    if one.name in drawn:
        return HeadFigure(drawn[one.name].figure, again=drawn[one.name].again)
    values = one.comparison[one.variable]
    caption = f"{title[:1].upper()}{title[1:]}, {one.variant}."
    figure = Heatmap(
        title=f"{one.variable}, {one.variant} ({one.label})",
        caption=caption,
        sources=(Source(*one.name),),
        units=str(values.attrs.get("units", "1")),
        **_map(one, ""),
    )
    return HeadFigure(figure)


def _sureness(one: Statistic, rungs: Mapping[str, str]) -> HeadFigure:
    """z against one null, named by what it is."""
    source = Source(one.variant, f"{one.label}.against.{one.null}", f"{one.variable}_z")
    twins = named_null(one.null, rungs)
    on = "its logarithm" if one.comparison[f"{one.variable}_p"].attrs.get("scale") == "log" else "the number itself"
    figure = Heatmap(
        title=f"z against {twins}",
        caption=f"How surely {one.variable} departs, judged on {on}; 0 is the mean of the null.",
        sources=(source,),
        units="z",
        centre=0.0,
        missing="no z: the null does not vary here",
        **_map(one, "z"),
    )
    return HeadFigure(figure, one.null)


def _explained(ladder: Explanation, rungs: Mapping[str, str]) -> Figure:
    """What explains the number of each head, as categories."""
    one = ladder.first
    words = np.where(one.called, ladder.cells.rung, "")
    return CategoryMap(
        title=f"What explains {one.variable}",
        caption="The first null of the ladder that gives the head's number too. Arrangement: none of them does. "
        "Undecided: these draws and prompts do not tell.",
        sources=tuple(
            Source(one.variant, f"{one.label}.against.{null}", f"{one.variable}_null_mean") for null in ladder.nulls
        ),
        categories=rung_names(ladder.rungs),
        missing=f"does not depart from {named_null(one.null, rungs)}",
        **_map(one, "", words),
    )


def _map(one: Statistic, column: str, given: np.ndarray | None = None) -> dict[str, Any]:
    """A column of a comparison as layers by heads; a slider for each other dimension, where there is a choice.

    It stands where the largest effect is.
    """
    values = one.comparison[one.variable]
    head, cell = heads_of(values), one.furthest() or (0,) * values.ndim
    places = dict(zip(map(str, values.dims), cell, strict=True))
    others = [str(dim) for dim in values.dims if dim not in ("layer", head) and values.sizes[dim] > 1]
    array = values.copy(data=one.column(column) if given is None else given)
    single = {dim: 0 for dim in values.dims if dim not in ("layer", head, *others)}
    known = one.comparison.coords
    labels = {dim: known[dim].values if dim in known else range(values.sizes[dim]) for dim in map(str, values.dims)}
    return {
        "values": array.isel(single).transpose(*others, "layer", head).values,
        "rows": labels["layer"],
        "columns": labels[head],
        "row_name": "layer",
        "column_name": head,
        "dials": tuple(Dial(dim, labels[dim], places[dim]) for dim in others),
    }


def table_of_heads(results: Results, numbers: Sequence[HeadNumber], most: int = MOST_HEADS) -> list[Figure]:
    """For each variant a row for each head, with all its numbers side by side; of many heads those furthest off."""
    judged = {one.name: one for one in results.statistics()}
    chosen: dict[str, list[Statistic]] = {}
    for number in numbers:
        one = judged[number.variant, number.label, number.variable]
        values = one.comparison[one.variable]
        if set(values.dims) == {"layer", "head"}:
            chosen.setdefault(number.variant, []).append(one)
    return [_heads_of(variant, each, most) for variant, each in chosen.items()]


def _heads_of(variant: str, each: Sequence[Statistic], most: int) -> Figure:
    places: dict[tuple[Any, Any], dict[int, float]] = {}
    far: dict[tuple[Any, Any], float] = {}
    for column, one in enumerate(each):
        effects = np.nan_to_num(np.abs(one.column("effect")), posinf=0.0)
        for cell, value in np.ndenumerate(one.column("")):
            at = one.place(cell)
            head = (at["layer"], at["head"])
            places.setdefault(head, {})[column] = float(value)
            far[head] = max(far.get(head, 0.0), float(effects[cell]))
    kept = set(sorted(places, key=lambda head: -far[head])[:most])
    several = len({one.label for one in each}) > 1
    said = "" if len(kept) == len(places) else f" Of {len(places):,} heads the {len(kept):,} furthest from the null."
    return Table(
        title=f"Every head of {variant}",
        caption="All numbers of each head side by side. A column's name sorts it; the fields above keep some rows."
        + said,
        sources=tuple(Source(*one.name) for one in each),
        columns=("layer", "head", *(f"{one.variable} ({one.label})" if several else one.variable for one in each)),
        rows=[(*head, *(values.get(i) for i in range(len(each)))) for head, values in places.items() if head in kept],
    )
