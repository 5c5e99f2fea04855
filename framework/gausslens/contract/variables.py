"""Variables of results: dimensions, values, and the attributes that every variable owes its readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# As xarray.Dataset takes it.
Variable = tuple[tuple[str, ...], Any, dict[str, Any]]


def attributes(long_name: str, units: str = "1", against: bool | None = None, **more: Any) -> dict[str, Any]:
    """The attributes of a variable. ``against`` overrides the rule by which variables are compared with a null."""
    told: dict[str, Any] = {"long_name": long_name, "units": units}
    return told | ({} if against is None else {"against": int(against)}) | more


def variable(
    dims: str | Sequence[str], values: Any, long_name: str, units: str = "1", against: bool | None = None, **more: Any
) -> Variable:
    """A variable for ``xarray.Dataset({"trace": variable("layer", values, "trace of the covariance")})``.

    ``units`` is "1" for pure numbers. ``against=False`` leaves it out of comparisons with a null, ``against=True`` puts
    it in. ``more`` are attributes of your own.
    """
    named = (dims,) if isinstance(dims, str) else tuple(dims)
    return named, values, attributes(long_name, units, against, **more)
