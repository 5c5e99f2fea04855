"""Verdicts as columns beside the numbers: datasets that tables are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

    from .explanations import Explanation
    from .onsets import Onset
    from .selection import Statistic


def with_verdicts(
    comparison: xr.Dataset,
    null: str,
    judged: Sequence[Statistic],
    explained: Mapping[tuple[str, str, str], Explanation],
    onsets: Sequence[Onset] = (),
) -> xr.Dataset:
    """A comparison with, for each variable v, also v_difference, v_ratio, v_called, on a ladder v_share.

    Of a training there are v_onset, its interval v_onset_low and v_onset_high, and v_onset_kind, over the cells.
    """
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
    for each_onset in onsets:
        if each_onset.statistic.null == null:
            variable = each_onset.statistic.variable
            made |= {f"{variable}_{name}": array for name, array in each_onset.columns().items()}
    return comparison.assign(made)


def rung_columns(result: xr.Dataset, explained: Mapping[tuple[str, str, str], Explanation]) -> xr.Dataset:
    """For each explained variable v of a result: v_rung, and v_draws_needed to decide what is undecided."""
    found = {}
    for (_, _, name), each in explained.items():
        value = result[name].transpose(*each.first.comparison[name].dims)
        found[f"{name}_rung"] = value.copy(data=each.cells.rung)
        found[f"{name}_draws_needed"] = value.copy(data=each.cells.draws)
    return result.assign(found)[list(found)]
