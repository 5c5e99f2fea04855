"""Results as pandas tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from ..contract.errors import StoreError, did_you_mean
from ..maths.resampling import difference_error
from ..verdicts import Onset, Statistic, explanations, rung_columns, with_verdicts
from .manifest import Manifest, PlannedStep, SweepPoint
from .read_parts import ERROR, WITHOUT, beside, error_beside

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A table of more rows than this is of no use to anyone and would fill the memory.
MOST_ROWS = 20_000_000
# What a comparison holds for each variable, and what its column is called.
NULL_COLUMNS = (
    *("null_mean", "null_sd", "null_low", "null_high", "difference", "difference_se", "ratio", "effect"),
    *("z", "p", "p_empirical", "q", "p_variable", "p_family", "called", "share", "rung", "draws_needed"),
    *("onset", "onset_low", "onset_high", "onset_kind"),
)


def frame(
    dataset: xr.Dataset, compared: Mapping[str, xr.Dataset], variables: Sequence[str] | None, what: str
) -> pd.DataFrame:
    """One row for each cell of each variable: ``variable``, its coordinates, ``value``, and the null's columns.

    Where there are errors over prompts, ``se`` is beside ``value``.
    """
    names = [str(n) for n, v in dataset.data_vars.items() if v.dtype.kind in "biufc" and not beside(dataset, n)]
    for name in variables or ():
        if name not in dataset.data_vars:
            raise StoreError(f"{what} has no variable {name!r}{did_you_mean(name, map(str, dataset.data_vars))}")
    names = list(variables) if variables is not None else names
    rows = {n: dataset[n].size for n in names}
    if sum(rows.values()) > MOST_ROWS:
        largest = max(rows, key=lambda n: rows[n])
        raise StoreError(
            f"{what} would make a table of {sum(rows.values()):,} rows, {rows[largest]:,} of them of {largest!r}: "
            "choose with variables=, or use the dataset"
        )
    tables = [_cells(dataset[name], error_beside(dataset, name), compared) for name in names]
    tables = [t for t in tables if len(t)]
    if not tables:
        return pd.DataFrame(columns=["variable", "value"])
    found = joined(tables)
    columns = [ERROR, *(_column(n, c) for n in compared for c in NULL_COLUMNS)]
    last = ["value", *(column for column in columns if column in found)]
    return found[["variable", *(c for c in found if c not in (*last, "variable")), *last]]


def judged_frame(
    result: xr.Dataset,
    comparisons: Mapping[str, xr.Dataset],
    judged: Sequence[Statistic],
    onsets: Sequence[Onset],
    rungs: Mapping[str, str],
    variables: Sequence[str] | None,
    what: str,
) -> pd.DataFrame:
    """A frame with the verdicts beside the numbers: of several nulls each has its columns, and there is the rung.

    Of a training there are also the onset of each cell, its interval and its kind, in every row of the cell.
    """
    explained = explanations(judged, rungs) if len(comparisons) > 1 else {}
    compared = {
        (null if len(comparisons) > 1 else ""): with_verdicts(comparison, null, judged, explained, onsets)
        for null, comparison in comparisons.items()
    }
    if explained:
        compared[""] = rung_columns(result, explained)
    return frame(result, compared, variables, what)


def joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Tables one below the other; whole numbers stay whole where other tables have none."""
    everywhere = set.intersection(*(set(t) for t in tables))
    ready = []
    for table in tables:
        whole = {c: "Int64" for c in table if c not in everywhere and table[c].dtype.kind in "iu"}
        ready.append(table.astype(whole))
    return pd.concat(ready, ignore_index=True)


def frame_of_draws(
    draws: Mapping[SweepPoint, xr.Dataset],
    compared: Mapping[str, Mapping[SweepPoint, xr.Dataset]],
    variables: Sequence[str] | None,
    what: str,
) -> pd.DataFrame:
    """The same for results that do not stack: one after another, each row with its draw and swept values."""
    tables = []
    for point, dataset in draws.items():
        nulls = {null: each[point] for null, each in compared.items() if point in each}
        table = frame(dataset, nulls, variables, what)
        for place, (name, value) in enumerate(point, start=1):
            table.insert(place, name, value)
        tables.append(table)
    return joined(tables)


def _cells(array: xr.DataArray, errors: xr.DataArray | None, compared: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    columns: dict[str, Any] = {"variable": np.full(array.size, array.name, dtype=object)}
    index: dict[Any, xr.DataArray] = {
        dim: xr.DataArray(np.arange(size), dims=[dim]) for dim, size in array.sizes.items()
    }
    for name, coordinate in {**index, **array.coords}.items():
        columns[str(name)] = _like(coordinate, array).values.ravel()
    columns["value"] = array.values.ravel()
    if errors is not None:
        columns[ERROR] = _like(errors, array).values.ravel()
    for null, found in compared.items():
        for column in NULL_COLUMNS:
            if f"{array.name}_{column}" in found:
                columns[_column(null, column)] = _like(found[f"{array.name}_{column}"], array).values.ravel()
    return pd.DataFrame(columns)


def side_by_side(
    found: Mapping[str, Mapping[str, xr.Dataset]], variables: Sequence[str] | None, what: str
) -> pd.DataFrame:
    """``{variant: {one: dataset, other: dataset}}`` as a row for each cell that either has; see ``Results.compare``."""
    tables, left_out, last = [], [], {}
    for variant, pair in found.items():
        last = dict.fromkeys(f"{run}.{column}" for column in ("value", "se") for run in pair)
        everything = dict.fromkeys(str(name) for dataset in pair.values() for name in dataset.data_vars)
        for name in everything if variables is None else variables:
            reason = _unpaired(name, pair)
            if reason:
                left_out.append(f"{variant}, {what}: {name} {reason}")
            elif variables is not None or not _is_error(name, pair):
                table = _pair(name, pair)
                table.insert(0, "variant", variant)
                tables.append(table)
                if sum(map(len, tables)) > MOST_ROWS:
                    raise StoreError(f"{what} has more than {MOST_ROWS:,} rows: choose with variables=")
    if not tables:
        raise StoreError(f"{what} cannot be set side by side: {'; '.join(left_out[:5]) or 'it has no arrays'}")
    made = joined(tables)
    last |= dict.fromkeys(("difference", "difference_se"))
    made = made[[*(c for c in made if c not in last), *(c for c in last if c in made)]]
    made.attrs["left_out"] = left_out
    return made


def _is_error(name: str, pair: Mapping[str, xr.Dataset]) -> bool:
    """Whether a variable only says how sure another is."""
    of, _, end = name.rpartition("_")
    return any((end == ERROR and of in dataset) or beside(dataset, name) for dataset in pair.values())


def _unpaired(name: str, pair: Mapping[str, xr.Dataset]) -> str:
    """Why a variable of two results cannot be set side by side; nothing where it can."""
    for run, dataset in pair.items():
        if name not in dataset.data_vars:
            return f"is not in {run}"
        if dataset[name].dtype.kind not in "biufc":
            return "holds no numbers"
        if dataset[name].size > MOST_ROWS:
            return f"would make a table of {dataset[name].size:,} rows"
        twice = [d for d in dataset[name].dims if d in dataset.indexes and not dataset.indexes[d].is_unique]
        if twice:
            return f"has the same {twice[0]} twice in {run}"
    one, other = (dataset[name] for dataset in pair.values())
    if set(one.dims) != set(other.dims):
        said = (", ".join(map(str, array.dims)) or "no dimension" for array in (one, other))
        return "is over " + " and over ".join(said)
    mixed = [d for d in one.dims if (one[d].dtype.kind in "biuf") != (other[d].dtype.kind in "biuf")]
    return f"has text along {mixed[0]} in one and numbers in the other" if mixed else ""


def _pair(name: str, pair: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """The cells of a variable in two results, paired by the coordinates of its dimensions."""
    one, other = pair
    keys = ["variable", *map(str, pair[one][name].dims)]
    left, right = (_side(run, name, keys, dataset) for run, dataset in pair.items())
    paired = _paired_error(name, pair)
    if paired is not None:
        left["difference_se"] = paired.ravel()
    for key in keys:
        if left[key].dtype != right[key].dtype and left[key].dtype.kind in "biuf":
            left[key], right[key] = left[key].astype(float), right[key].astype(float)
    made = left.merge(right, how="outer", on=keys)
    for column in [c.removeprefix(f"{one}.") for c in left if c not in keys]:
        if column not in ("value", "se") and f"{other}.{column}" in made:
            first, second = made[f"{one}.{column}"], made[f"{other}.{column}"]
            if ((first == second) | first.isna() | second.isna()).all():
                made[column] = first.where(first.notna(), second)
                made = made.drop(columns=[f"{one}.{column}", f"{other}.{column}"])
    made["difference"] = made[f"{other}.value"] - made[f"{one}.value"]
    if paired is None and f"{one}.se" in made and f"{other}.se" in made:
        made["difference_se"] = np.hypot(made[f"{one}.se"], made[f"{other}.se"])
    return made


def _paired_error(name: str, pair: Mapping[str, xr.Dataset]) -> NDArray[np.float64] | None:
    """The error of the difference from the values without each group of prompts, where both have the same cells.

    Of the same prompts the same groups are left out of both, so that what they do to both alike drops out; those of
    other prompts are independent.
    """
    sides = [dataset.get(f"{name}_{WITHOUT}") for dataset in pair.values()]
    one, other = sides
    if one is None or other is None or one.dims != other.dims or one.shape != other.shape:
        return None
    if any(not one[d].equals(other[d]) for d in one.dims if d in one.coords or d in other.coords):
        return None
    return difference_error(other.values, [one.values], [side.attrs.get("prompts") for side in (other, one)])


def _side(run: str, name: str, keys: Sequence[str], dataset: xr.Dataset) -> pd.DataFrame:
    """The cells of one result, its columns called after the run but for those that cells are paired by."""
    table = _cells(dataset[name], None, {})
    table["value"] = table["value"] if table["value"].dtype.kind == "c" else table["value"].astype(float)
    if f"{name}_{ERROR}" in dataset:
        table[ERROR] = _like(dataset[f"{name}_{ERROR}"], dataset[name]).values.ravel().astype(float)
    return table.rename(columns={c: f"{run}.{c}" for c in table if c not in keys})


def _column(null: str, column: str) -> str:
    return f"{null}.{column}" if null else column


def _like(found: xr.DataArray, array: xr.DataArray) -> xr.DataArray:
    """Values in the cells of another array; NaN where they have none."""
    return found.reindex_like(array).broadcast_like(array).transpose(*array.dims)


def table(
    steps: Iterable[tuple[Manifest, PlannedStep]],
    finished: Callable[[PlannedStep], bool],
    facts: Callable[[PlannedStep], Mapping[str, Any]],
) -> pd.DataFrame:
    """One row for each step."""
    rows = []
    swept: dict[str, None] = {}
    for manifest, step in steps:
        done = finished(step)
        swept |= dict.fromkeys(step.sweep)
        rows.append(
            {
                "run": manifest.run,
                "variant": step.variant,
                "draw": step.draw,
                **{f"sweep {n}": v for n, v in step.sweep.items()},
                "label": step.label,
                "analysis": step.analysis,
                "key": step.key,
                "finished": done,
                "created": facts(step)["created"] if done else None,
            }
        )
    columns = ["run", "variant", "draw", *(f"sweep {n}" for n in swept)]
    made = pd.DataFrame(rows, columns=[*columns, "label", "analysis", "key", "finished", "created"])
    made["created"] = pd.to_datetime(made["created"], utc=True, format="ISO8601")
    made["draw"] = made["draw"].astype("Int64")
    return made.rename(columns={f"sweep {n}": n for n in swept if n not in made})
