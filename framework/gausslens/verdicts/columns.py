"""Verdicts as columns beside the numbers: datasets that tables are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

    from .explanations import Explanation
    from .selection import Statistic


def with_verdicts(
    comparison: xr.Dataset,
    null: str,
    judged: Sequence[Statistic],
    explained: Mapping[tuple[str, str, str], Explanation],
) -> xr.Dataset:
    """A comparison with, for each variable v, also v_difference, v_ratio, v_called and on a ladder v_share."""
    made = dict(comparison.data_vars)
    for one in judged:
        if one.null != null:
            continue
        value = comparison[one.variable]
        x, mean = one.column(""), one.column("null_mean")
        with np.errstate(divide="ignore", invalid="ignore"):
            columns = {"difference": x - mean, "ratio": x / mean, "called": one.called}
        each = explained.get(one.name)
        if each is not None:
            columns["share"] = each.cells.share[each.nulls.index(null)]
        made |= {f"{one.variable}_{name}": value.copy(data=array) for name, array in columns.items()}
    return comparison.assign(made)


def rung_columns(result: xr.Dataset, explained: Mapping[tuple[str, str, str], Explanation]) -> xr.Dataset:
    """For each explained variable v of a result: v_rung, and v_draws_needed to decide what is undecided."""
    found = {}
    for (_, _, name), each in explained.items():
        value = result[name].transpose(*each.first.comparison[name].dims)
        found[f"{name}_rung"] = value.copy(data=each.cells.rung)
        found[f"{name}_draws_needed"] = value.copy(data=each.cells.draws)
    return result.assign(found)[list(found)]
