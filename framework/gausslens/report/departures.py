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


def departures_table(results: Results) -> Markup:
    """A table of the ten strongest; or why there is none."""
    every = [(null, d) for null, compared in _comparisons(results) for d in departures(compared)]
    nulls = {null for null, _ in every}
    found = [(null, d) for null, d in every if d.tells(nulls)]
    if not found:
        none = "Nothing was compared with a null: `against:` in the run file names one."
        kept = "All that was compared with a null is kept by it, or constant under it."
        return element("p", kept if every else none, class_="note")
    found.sort(key=lambda pair: -abs(pair[1].z))
    store = Path(results.path).name
    return element("div", draw(_table(found[:MOST], len(found)), store), class_="figures")


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


def _table(found: list[tuple[str, Departure]], of: int) -> Table:
    several = len({null for null, _ in found}) > 1
    rows = [
        [
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
        for null, d in found
    ]
    return Table(
        title=f"The strongest departures from {found[0][0] if not several else 'the nulls'}",
        caption="Of each compared variable, its cell furthest from the null, in standard deviations of the null (z); "
        f"the {len(found)} largest of {of}; what the null itself keeps, and nulls "
        "beside each other, are left out. q is the false discovery rate over the cells of the variable; the last "
        f"column counts the cells with q below {LEVEL}.",
        sources=tuple(Source(d.variant, f"{d.label}.against.{null}", d.variable) for null, d in found),
        columns=("result", "variant", "variable", "furthest at", "value", "null", "z", "q", f"q < {LEVEL}"),
        rows=rows,
    )
