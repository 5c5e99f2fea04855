"""Which statistics depart from a null, over all of a run, and in which cells.

Called by any cell, some statistics would depart by luck alone, the more the more are looked at. So statistics are
selected first, and cells are called within the selected ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy.special import stdtrit

from ..maths.nulls import INTERVAL, benjamini_hochberg, simes, varies_by_rounding_alone

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import NDArray

# A share of false discoveries that the field is used to.
LEVEL = 0.05
# The spread of a number that many roundings went into may be several of them: then too the null keeps the number, and a
# distance from it says nothing.
ROUNDINGS = 8

# What two cells have in common that are one.
_TELLING = ("", "null_mean", "null_sd")

# For variant, label and null the comparison, with draws and swept values as leading dimensions.
Comparisons: TypeAlias = "Mapping[tuple[str, str, str], xr.Dataset]"


@dataclass(frozen=True, repr=False)
class Statistic:
    """One variable of one result beside one null.

    ``p`` is one for all its cells (Simes), ``q`` that of p over all statistics of the variant beside this null;
    ``selected`` says that q is below 0.05. ``called`` [cell] are the cells that depart: q below 0.05 over the cells of
    a selected statistic. ``general`` [cell] says where the departure is beyond the error over prompts too, None where
    that is not known.
    """

    variant: str
    label: str
    variable: str
    null: str
    comparison: xr.Dataset
    p: float
    q: float
    selected: bool
    called: NDArray[np.bool_]
    tests: int
    general: NDArray[np.bool_] | None = None

    def __repr__(self) -> str:
        """One line, without the comparison: what departs from which null, by how much and how surely."""
        what = f"{self.variable} of {self.label}, {self.variant} against {self.null}"
        if not self.tests:
            return f"<Statistic {what}: not judged>"
        cell = self.furthest()
        largest = f", largest effect {float(self.column('effect')[cell]):+.3g}" if cell is not None else ""
        at = ", ".join(f"{dim} {value}" for dim, value in self.place(cell).items()) if cell is not None else ""
        judged = "departs" if self.selected else "does not depart"
        called = f", {int(self.called.sum())} of {self.called.size} cells called" if self.called.size > 1 else ""
        return f"<Statistic {what}: {judged}, q = {self.q:.3g}{called}{largest}{f' at {at}' if at else ''}>"

    @property
    def name(self) -> tuple[str, str, str]:
        """Variant, label and variable."""
        return self.variant, self.label, self.variable

    def column(self, name: str) -> NDArray[Any]:
        """A column of the comparison, "" for the value itself, in the order of the dimensions of the value."""
        value = self.comparison[self.variable]
        found = self.comparison[f"{self.variable}_{name}"] if name else value
        return np.asarray(found.transpose(*value.dims).values)

    def furthest(self) -> tuple[int, ...] | None:
        """The cell of the largest effect, of those called if there are any; None where there is no effect."""
        size = np.abs(self.column("effect"))
        size = np.where(self.called, size, np.nan) if self.called.any() else size
        size = np.where(np.isfinite(self.column("z")), size, np.nan)
        if not np.isfinite(size).any():
            return None
        return tuple(int(i) for i in np.unravel_index(int(np.nanargmax(size)), size.shape))

    def place(self, cell: tuple[int, ...]) -> dict[str, Any]:
        """The coordinates of a cell: ``{"layer": 3, "head": 2}``."""
        dims = self.comparison[self.variable].dims
        return {
            str(dim): self.comparison[dim].values.tolist()[i] if dim in self.comparison.coords else int(i)
            for dim, i in zip(dims, cell, strict=True)
        }


def statistics(comparisons: Comparisons) -> list[Statistic]:
    """Every variable that is compared, selected and called; what its null keeps (or nearly) has no tests.

    One p for each variable (that of its comparison, by Simes over its cells; over draws and swept values Simes again),
    Benjamini-Hochberg over the variables of a variant beside a null, then Benjamini-Hochberg over the cells of the
    selected ones. Cells that hold the same numbers, as the layers that no value of a sweep edits, count once.
    """
    found = [
        _statistic(variant, label, null, name, dataset)
        for (variant, label, null), dataset in comparisons.items()
        for name in map(str, dataset.data_vars)
        if f"{name}_effect" in dataset
    ]
    families: dict[tuple[str, str], list[int]] = {}
    for place, one in enumerate(found):
        families.setdefault((one.variant, one.null), []).append(place)
    for places in families.values():
        for place, q in zip(places, benjamini_hochberg(np.array([found[i].p for i in places])), strict=True):
            selected = bool(q < LEVEL)
            called = _called(found[place]) if selected else found[place].called
            found[place] = replace(found[place], q=float(q), selected=selected, called=called)
    return found


def prompts_half_width(one: Statistic) -> NDArray[np.float64] | None:
    """Half the 95 % interval over prompts of the difference from the null, if the comparison has its error."""
    name = f"{one.variable}_difference_se"
    if name not in one.comparison:
        return None
    groups = int(one.comparison[name].attrs.get("groups", 10))
    return np.asarray(stdtrit(groups - 1, (1 + INTERVAL) / 2) * one.column("difference_se"))


def _statistic(variant: str, label: str, null: str, name: str, dataset: xr.Dataset) -> Statistic:
    nothing = np.zeros(dataset[name].shape, dtype=bool)
    one = Statistic(variant, label, name, null, dataset, np.nan, np.nan, False, nothing, 0)
    once, _ = _p_counted_once(one)
    tests = int((~np.isnan(once)).sum())
    p = simes(_p_of_points(one)) if tests else np.nan
    return replace(one, p=p, tests=tests, general=_general(one))


def _p_of_points(one: Statistic) -> NDArray[np.float64]:
    """p of each draw and swept value; of those that hold the same numbers once.

    Equal p alone do not say so: what lies far from few draws has the least p that they allow, whatever it is.
    """
    p = one.comparison[f"{one.variable}_p_variable"]
    axes = [one.comparison[one.variable].dims.index(dim) for dim in p.dims]
    columns = (np.moveaxis(one.column(name), axes, range(len(axes))) for name in _TELLING)
    points = np.stack([column.reshape(p.size, -1) for column in columns], axis=1)
    distinct = {point.tobytes(): told for point, told in zip(points, p.values.ravel(), strict=True)}
    return np.array(list(distinct.values()))


def _p_counted_once(one: Statistic) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """p of each distinct cell, NaN where the null keeps the number; and for each cell which of these it is."""
    kept = varies_by_rounding_alone(one.column("null_sd"), one.column("null_mean"), ROUNDINGS)
    p = np.where(kept, np.nan, one.column("p")).ravel()
    cells = np.stack([one.column(name).ravel() for name in _TELLING])
    _, first, which = np.unique(cells, axis=1, return_index=True, return_inverse=True)
    return p[first], which.ravel()


def _called(one: Statistic) -> NDArray[np.bool_]:
    once, which = _p_counted_once(one)
    return np.asarray((benjamini_hochberg(once)[which] < LEVEL).reshape(one.called.shape))


def _general(one: Statistic) -> NDArray[np.bool_] | None:
    """Where the difference from the null is beyond its error over prompts; a number without prompts is general."""
    half = prompts_half_width(one)
    if half is None:
        return None
    difference = np.abs(one.column("") - one.column("null_mean"))
    return np.asarray(np.isnan(half) | (difference > half))
