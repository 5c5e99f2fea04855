"""The strongest departures from a null among stored comparisons: what a reader wants to see first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray as xr

# A share of false discoveries that the field is used to.
LEVEL = 0.05
# A spread this small beside the mean is rounding: the null keeps the number, and a distance from it says nothing.
ROUNDING = 1e-6


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
        return self.variant not in nulls and self.null_sd > ROUNDING * abs(self.null_mean)

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
        if f"{name}_z" in dataset and (departure := _strongest(label, variant, dataset, name)) is not None
    ]
    return sorted(found, key=lambda d: -abs(d.z))


def _strongest(label: str, variant: str, dataset: xr.Dataset, name: str) -> Departure | None:
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
