"""What the report shows: a module for each section, named like the analysis that it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Result, Results


def shown(results: Results, analysis: str) -> list[Result]:
    """Every result of an analysis that is no null of another; of a label with nothing but nulls, these."""
    by_label = results.by_label(analysis).values()
    return [result for each in by_label for result in [r for r in each if not r.is_null] or each]


def first_twin(data: xr.Dataset, *kept: str) -> xr.Dataset:
    """The first of several draws and swept values, where they differ in nothing that is drawn."""
    return data.isel({dim: 0 for dim in data.dims if dim not in kept})
