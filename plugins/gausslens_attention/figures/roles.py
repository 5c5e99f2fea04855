"""What the report shows of attention.roles: a map of the model."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import CategoryMap, Dial, Figure, Heatmap, Source, Table, head_curves

from . import averaged, other_keys

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Result, Results

# Columns of the table of heads.
_COLUMNS = ("margin", "offset", "width", "column", "effective_rank", "entropy")


def roles(results: Results) -> list[Figure]:
    """For each step: the family of each head as a map, how sure it is, and how many there are of each."""
    figures: list[Figure] = []
    for label, several in results.by_label("attention.roles").items():
        figures.append(_counts(label, several))
        for result in several:
            if "singular" in result.data:
                figures.append(_cumulative(result, [other for other in several if other.variant in result.nulls]))
            if "cumulative" in result.data:
                figures.append(_all_values(result, [other for other in several if other.variant in result.nulls]))
            if _has_no_map(result):
                continue
            if (result.data["family"] < result.data.sizes["family_name"]).any():
                figures.append(_families(result))
            figures.append(_shares(result))
            figures.append(_table_of_heads(result))
    return figures


def _cumulative(result: Result, nulls: list[Result]) -> Figure:
    """How much of each head's map its largest singular values hold."""

    def shares(data: xr.Dataset) -> xr.DataArray:
        squares = data["singular"] ** 2
        return (squares.cumsum("direction") / squares.sum("direction")).assign_attrs(units="1")

    held = shares(result.data.drop_vars("direction", errors="ignore"))
    return head_curves(
        held,
        "direction",
        title=f"Cumulative spectrum of each head's map, {result.variant}",
        caption="The share of the squared map that its largest singular values hold, the largest first: a map of low "
        "rank is at 1 soon.",
        sources=tuple(Source(each.variant, each.label, "singular") for each in (result, *nulls)),
        x_name="singular values",
        nulls={null.named: shares(null.data) for null in nulls},
    )


def _all_values(result: Result, nulls: list[Result]) -> Figure:
    """The curve of all singular values, on an axis that prompts of all lengths share."""
    return head_curves(
        result.data["cumulative"],
        "part",
        title=f"Cumulative spectrum of each head's map, all values, {result.variant}",
        caption="What the largest singular values hold of the sum of all, against how many of them that is: the "
        "straight line is a map whose values are equal, a map of low rank is at 1 soon (Wang et al. 2020, figure 1).",
        sources=tuple(Source(each.variant, each.label, "cumulative") for each in (result, *nulls)),
        x_name="share of the singular values",
        nulls={null.named: null.data["cumulative"] for null in nulls},
    )


def _has_no_map(result: Result) -> bool:
    """Families have no mean over draws and swept values."""
    return result.draws is not None or bool(result.swept)


def _counts(label: str, several: list[Result]) -> Figure:
    rows = []
    names = [str(name) for name in several[0].data["role"].values]
    for variant, data in (point for result in several for point in result.points()):
        counts = averaged(data["heads"].sum("layer"), "role")
        shares = [float(np.mean(data["share"].sel(family_name=f).values)) for f in data["family_name"].values]
        windowed = (data["family"] == names.index("rare")) & (data["column"] == 0)
        first_token = float(averaged(windowed.sum(("layer", "head"))))
        rows.append((variant, *(float(c) for c in counts), first_token, *shares))
    return Table(
        title="Families of heads",
        caption="How many heads each family holds best at equal storage (none: it holds too little of the "
        "attention), how many of the rare-token ones look at the first token, and the mean share of the attention that "
        "the best member of each family holds. Means over draws."
        + (
            " Those with draws or swept values have no map: families have no mean."
            if any(_has_no_map(result) for result in several)
            else ""
        )
        + other_keys(*several),
        sources=tuple(Source(result.variant, label, "heads") for result in several),
        columns=("variant", *names, "rare: first token", *(f"share, {name}" for name in names[:-1])),
        rows=rows,
    )


def _families(result: Result) -> Figure:
    data = result.data
    names = [str(name) for name in data["family_name"].values]
    family = averaged(data["family"], "layer", "head").astype(int)
    return CategoryMap(
        title=f"Family of each head, {result.variant}",
        caption="The family whose best member holds most of the attention at equal storage.",
        sources=(Source(result.variant, result.label, "family"),),
        values=np.array([*names, ""])[np.minimum(family, len(names))],
        categories=names,
        missing="none: the best holds too little of the attention",
        rows=data["layer"].values,
        columns=data["head"].values,
        row_name="layer",
        column_name="head",
    )


def _shares(result: Result) -> Figure:
    data = result.data
    return Heatmap(
        title=f"Attention that each family holds, {result.variant}",
        caption="Share of the head's attention that the best member of the family holds, at equal storage: a head has "
        "a role where one family holds much and the others little.",
        sources=(Source(result.variant, result.label, "share"),),
        units="1",
        values=averaged(data["share"], "family_name", "layer", "head"),
        rows=data["layer"].values,
        columns=data["head"].values,
        row_name="layer",
        column_name="head",
        dials=(Dial("family", data["family_name"].values),),
    )


def _table_of_heads(result: Result, most: int = 20) -> Figure:
    data = result.data
    share = averaged(data["share"].max("family_name"), "layer", "head")
    places = product(enumerate(data["layer"].values), enumerate(data["head"].values))
    clearest = sorted(places, key=lambda place: -share[place[0][0], place[1][0]])[:most]
    rows = []
    for (_, layer), (_, head) in clearest:
        one = data.sel(layer=layer, head=head)
        role = str(data["role"].values[int(averaged(one["family"]))])
        held = float(averaged(one["share"].max("family_name")))
        rows.append((int(layer), int(head), role, held, *(float(averaged(one[name])) for name in _COLUMNS)))
    return Table(
        title=f"Heads with the clearest roles, {result.variant}",
        caption="The heads whose attention a member of a family holds best. Offset: of the best diagonal; width: of "
        "the best band; column: the key that windows look at most (0: the first token).",
        sources=(Source(result.variant, result.label, "share"),),
        columns=("layer", "head", "family", "share", *(name.replace("_", " ") for name in _COLUMNS)),
        rows=rows,
    )
