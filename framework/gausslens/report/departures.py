"""The strongest departures from a null among stored comparisons: what a reader wants to see first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contract.errors import StoreError
from ..figures import Source, Table
from ..maths.nulls import varies_by_rounding_alone
from .markup import Markup, element
from .numbers import NOTHING, number
from .page_figures import draw

if TYPE_CHECKING:
    import xarray as xr

    from ..store.read_results import Results

# A share of false discoveries that the field is used to.
LEVEL = 0.05
# Rows of the table.
MOST = 10
# The spread of a number that many roundings went into may be several of them: then too the null keeps the number, and a
# distance from it says nothing.
ROUNDINGS = 8


@dataclass(frozen=True)
class Departure:
    """One variable of one comparison: its cell of largest abs z, and how many cells have q below LEVEL."""

    label: str
    variant: str
    variable: str
    where: Mapping[str, Any]
    value: float
    null_mean: float
    null_sd: float
    z: float
    q: float
    called: int
    cells: int

    def tells(self, nulls: Iterable[str]) -> bool:
        """Whether it tells a reader anything: not of one of the nulls itself, not of a number that the null keeps."""
        kept = varies_by_rounding_alone(self.null_sd, self.null_mean, ROUNDINGS)
        return self.variant not in nulls and not kept

    @property
    def place(self) -> str:
        """The cell in words: ``layer 3, head 1``."""
        return ", ".join(f"{dim} {value}" for dim, value in self.where.items())


def departures(comparisons: Iterable[tuple[str, str, xr.Dataset]]) -> list[Departure]:
    """One departure for each variable of each (label, variant, dataset), strongest first."""
    found = [
        departure
        for label, variant, dataset in comparisons
        for name in map(str, dataset.data_vars)
        if f"{name}_z" in dataset and (departure := _furthest(label, variant, dataset, name)) is not None
    ]
    return sorted(found, key=lambda d: -abs(d.z))


def _furthest(label: str, variant: str, dataset: xr.Dataset, name: str) -> Departure | None:
    import numpy as np

    z = dataset[f"{name}_z"].values
    if not np.isfinite(z).any():
        return None
    cell = np.unravel_index(int(np.nanargmax(np.abs(z))), z.shape)
    q = dataset[f"{name}_q"].values

    def at(column: str) -> float:
        return float(dataset[column].values[cell])

    where = {
        str(dim): dataset[dim].values.tolist()[place] if dim in dataset.coords else int(place)
        for dim, place in zip(dataset[name].dims, cell, strict=True)
    }
    return Departure(
        label.split(".against.")[0],
        variant,
        name,
        where,
        at(name),
        at(f"{name}_null_mean"),
        at(f"{name}_null_sd"),
        at(f"{name}_z"),
        float(q[cell]),
        int(np.sum(q < LEVEL)),
        int(np.isfinite(z).sum()),
    )


def departures_table(*views: Results) -> Markup:
    """A table of the ten strongest, with a column for the run where there are several; or why there is none."""
    every = [(view, null, d) for view in views for null, compared in _comparisons(view) for d in departures(compared)]
    nulls = {(view.name, null) for view, null, _ in every}
    found = [(v.name, null, d) for v, null, d in every if d.tells({null for run, null in nulls if run == v.name})]
    if not found:
        none = "Nothing was compared with a null: `against:` in the run file names one."
        kept = "All that was compared with a null is kept by it, or constant under it."
        return element("p", kept if every else none, class_="note")
    found.sort(key=lambda row: -abs(row[2].z))
    of_runs = len(views) > 1
    store = Path(views[0].path).name if of_runs else views[0]
    return element("div", draw(_table(found[:MOST], len(found), of_runs), store), class_="figures")


def _comparisons(results: Results) -> Iterator[tuple[str, list[tuple[str, str, xr.Dataset]]]]:
    """For each null, what was compared with it and is finished."""
    nulls: dict[str, list[tuple[str, str, xr.Dataset]]] = {}
    for variant, label in results:
        for null in results.nulls(variant, label):
            try:
                nulls.setdefault(null, []).append((label, variant, results.against(variant, label, null)))
            except StoreError:
                continue  # some draws or swept values are not finished: the facts above say how many
    yield from nulls.items()


def _table(found: list[tuple[str, str, Departure]], of: int, of_runs: bool) -> Table:
    several = len({null for _, null, _ in found}) > 1
    rows = [
        [
            *([run] if of_runs else []),
            d.label,
            d.variant + (f" against {null}" if several else ""),
            d.variable,
            d.place or NOTHING,
            d.value,
            f"{number(d.null_mean)} ± {number(float(f'{d.null_sd:.2g}'))}",
            float(f"{d.z:.4g}"),
            float(f"{d.q:.1g}"),
            f"{d.called} of {d.cells}",
        ]
        for run, null, d in found
    ]
    columns = ("result", "variant", "variable", "furthest at", "value", "null", "z", "q", f"q < {LEVEL}")
    return Table(
        title=f"The strongest departures from {found[0][1] if not several else 'the nulls'}",
        caption="Of each compared variable, its cell furthest from the null, in standard deviations of the null (z); "
        f"the {len(found)} largest of {of}; what the null itself keeps, and nulls "
        "beside each other, are left out. q is the false discovery rate over the cells of the variable; the last "
        f"column counts the cells with q below {LEVEL}.",
        sources=tuple(
            Source(d.variant, f"{d.label}.against.{null}", d.variable, run if of_runs else "") for run, null, d in found
        ),
        columns=("run", *columns) if of_runs else columns,
        rows=rows,
    )
