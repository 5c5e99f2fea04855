"""What the report shows of attention.roles: a map of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Dial, Figure, Heatmap, Source, Table

from .drawing import averaged, places, points, shown

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Results


# Columns of the table of heads.
_SHOWN = ("margin", "offset", "width", "column", "effective_rank", "entropy")


def roles(results: Results) -> list[Figure]:
    """For each step: the family of each head as a map, how sure it is, and how many there are of each."""
    figures: list[Figure] = []
    for label, found in results.of("attention.roles").items():
        figures.append(_counts(label, found))
        for variant, data in shown(results, label, found):
            if data["family"].ndim > 2:  # draws and sweeps: families have no mean
                continue
            if (data["family"] < data.sizes["family_name"]).any():
                figures.append(_families(label, variant, data))
            figures.append(_shares(label, variant, data))
            figures.append(_table_of_heads(label, variant, data))
    return figures


def _counts(label: str, found: dict[str, xr.Dataset]) -> Figure:
    rows = []
    first = next(iter(found.values()))
    names = [str(name) for name in first["role"].values]
    for variant, data in points(found.items()):
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
            if any(data["family"].ndim > 2 for data in found.values())
            else ""
        ),
        sources=tuple(Source(variant, label, "heads") for variant in found),
        columns=("variant", *names, "rare: first token", *(f"share, {name}" for name in names[:-1])),
        rows=rows,
    )


def _families(label: str, variant: str, data: xr.Dataset) -> Figure:
    names = ", ".join(f"{i} {name}" for i, name in enumerate(data["family_name"].values))
    family = averaged(data["family"], "layer", "head")
    return Heatmap(
        title=f"Family of each head, {variant}",
        caption=f"The family whose best member holds most of the attention at equal storage: {names}. Blank: none, "
        "since the best holds too little of it.",
        sources=(Source(variant, label, "family"),),
        units="family",
        values=np.where(family < data.sizes["family_name"], family, np.nan),
        rows=data["layer"].values,
        columns=data["head"].values,
        row_name="layer",
        column_name="head",
    )


def _shares(label: str, variant: str, data: xr.Dataset) -> Figure:
    return Heatmap(
        title=f"Attention that each family holds, {variant}",
        caption="Share of the head's attention that the best member of the family holds, at equal storage: a head has "
        "a role where one family holds much and the others little.",
        sources=(Source(variant, label, "share"),),
        units="1",
        values=averaged(data["share"], "family_name", "layer", "head"),
        rows=data["layer"].values,
        columns=data["head"].values,
        row_name="layer",
        column_name="head",
        dials=(Dial("family", data["family_name"].values),),
    )


def _table_of_heads(label: str, variant: str, data: xr.Dataset, most: int = 20) -> Figure:
    share = averaged(data["share"].max("family_name"), "layer", "head")
    clearest = sorted(places(data), key=lambda place: -share[place[0][0], place[1][0]])[:most]
    rows = []
    for (_, layer), (_, head) in clearest:
        one = data.sel(layer=layer, head=head)
        role = str(data["role"].values[int(averaged(one["family"]))])
        held = float(averaged(one["share"].max("family_name")))
        rows.append((int(layer), int(head), role, held, *(float(averaged(one[name])) for name in _SHOWN)))
    return Table(
        title=f"Heads with the clearest roles, {variant}",
        caption="The heads whose attention a member of a family holds best. Offset: of the best diagonal; width: of "
        "the best band; column: the key that windows look at most (0: the first token).",
        sources=(Source(variant, label, "share"),),
        columns=("layer", "head", "family", "share", *(name.replace("_", " ") for name in _SHOWN)),
        rows=rows,
    )
