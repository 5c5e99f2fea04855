"""The comparison of any analysis' result with its null, variable by variable. Knows datasets, not analyses."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..contract.analyses import compared
from ..maths.nulls import INTERVAL, Comparison, compare
from ..maths.resampling import difference_error
from ..maths.trainings import matched_by_rank

if TYPE_CHECKING:
    import xarray as xr

# Along these, cells have no counterpart in another draw.
HEADS = ("head", "kv_head")


def against(
    of: xr.Dataset, null: Sequence[xr.Dataset], exchangeable: Sequence[str] = (), as_sets: bool = False
) -> xr.Dataset:
    """A result beside its null: with each compared variable v the columns of maths.nulls.compare.

    ``as_sets``: heads of the null's draws have no counterpart among those of the model, as where they are other
    trainings. Then, in each layer, the k-th smallest of the model's heads is compared with the k-th smallest of each
    draw.

    Those are v_null_mean, v_null_sd, v_null_low, v_null_high, v_z, v_p, v_p_empirical, v_q and v_effect, and of all
    cells together v_p_variable and v_p_family. What could not be compared is told in the attribute ``not_compared``.
    """
    import xarray as xr

    made: dict[str, xr.DataArray] = {}
    left: list[str] = []
    for name, variable in of.data_vars.items():
        if not compared(variable):
            continue
        reason = _cannot(str(name), variable, null)
        if reason:
            left.append(f"{name}: {reason}")
            continue
        beside, pooled = null, exchangeable
        if as_sets:  # ranks are places of their own: the smallest of one draw says nothing of the largest
            beside, pooled = _by_rank(str(name), of, null, {*exchangeable, *HEADS}), ()
        made |= _columns(str(name), variable, [n[name] for n in beside], pooled)
        made |= errors_beside(str(name), of, beside)
    found = xr.Dataset(made)
    if as_sets:
        found.attrs["heads"] = "compared by rank: the k-th smallest in a layer with the k-th smallest of each draw"
    found.attrs["draws"] = len(null)
    if left:
        found.attrs["not_compared"] = "; ".join(left)
    return found


def errors_beside(name: str, of: xr.Dataset, null: Sequence[xr.Dataset]) -> dict[str, xr.DataArray]:
    """The errors over prompts of a compared variable v, where it has them: v_se of its own, v_difference_se.

    The latter is that of the difference from the mean of the null, with the same groups of prompts left out of both.
    """
    made = {}
    variable, own, values = of[name], f"{name}_se", f"{name}_without"
    if own in of and of[own].dims == variable.dims:
        made[own] = of[own].assign_attrs(of=name)
    sides = [one[values] for one in (of, *null) if values in one]
    if len(sides) == len(null) + 1:
        of_without, *twins = [side.values for side in sides]
        error = difference_error(of_without, twins, [side.attrs.get("prompts") for side in sides])
        found = variable.copy(data=error)
        long_name = variable.attrs.get("long_name", name)
        text = f"{long_name}: standard error over prompts of the difference from the null's mean"
        found.attrs = {"long_name": text, "units": variable.attrs.get("units", "1"), "of": name}
        found.attrs["groups"] = len(of_without)
        made[f"{name}_difference_se"] = found
    return made


def _by_rank(name: str, of: xr.Dataset, null: Sequence[xr.Dataset], heads: set[str]) -> list[xr.Dataset]:
    """The draws with their heads in the order of the model's by this variable, and so their values without groups."""
    axes = [i for i, dim in enumerate(of[name].dims) if dim in heads]
    if not axes:
        return list(null)
    matched = matched_by_rank(of[name].values, np.stack([draw[name].values for draw in null]), axes)
    paired, without = [], f"{name}_without"
    for number, draw in enumerate(null):
        other = {name: draw[name].copy(data=matched.draws[number])}
        if without in draw:
            other[without] = draw[without].copy(data=matched.companion(draw[without].values, number))
        paired.append(draw.assign(other))
    return paired


def _cannot(name: str, variable: xr.DataArray, null: Sequence[xr.Dataset]) -> str | None:
    for draw, dataset in enumerate(null):
        if name not in dataset:
            return f"draw {draw} of the null does not have it"
        other = dataset[name]
        if other.dims != variable.dims or other.shape != variable.shape:
            return f"{dict(variable.sizes)} here, {dict(other.sizes)} in draw {draw} of the null"
        apart = [d for d in variable.dims if d in variable.indexes and not _agree(variable, other, d)]
        if apart:
            return f"the cells along {apart[0]} are not those of draw {draw} of the null"
    return None


def _agree(one: xr.DataArray, other: xr.DataArray, dim: Hashable) -> bool:
    return dim in other.indexes and one.indexes[dim].equals(other.indexes[dim])


def _columns(
    name: str, variable: xr.DataArray, null: Sequence[xr.DataArray], exchangeable: Sequence[str]
) -> dict[str, xr.DataArray]:
    import xarray as xr

    pooled = tuple(i for i, dim in enumerate(variable.dims) if dim in exchangeable)
    unlike = tuple(i for i in range(variable.ndim) if i not in pooled)
    found = compare(variable.values, np.stack([n.values for n in null]), pooled, unlike)
    long_name = variable.attrs.get("long_name", name)
    units = variable.attrs.get("units", "")
    share = f"{100 * INTERVAL:.0f} %"
    columns = {
        "null_mean": (found.mean, "mean of the null", units),
        "null_sd": (found.sd, "standard deviation of the null", units),
        "null_low": (found.low, f"lower end of {share} of the null", units),
        "null_high": (found.high, f"upper end of {share} of the null", units),
        "z": (found.z, "z against the null", "1"),
        "p": (found.p, "two-sided p, by a t fitted to the null's draws against each other", "1"),
        "p_empirical": (found.p_empirical, "empirical p", "1"),
        "q": (found.q, "q (Benjamini-Hochberg)", "1"),
        "effect": (found.effect, _EFFECT_OF_ONE if variable.size == 1 else _EFFECT, "1"),
    }
    made = {name: variable.copy(deep=False)}
    for suffix, (values, text, unit) in columns.items():
        column = variable.copy(data=values)
        column.attrs = {"long_name": f"{long_name}: {text}", "units": unit, "of": name}
        made[f"{name}_{suffix}"] = column
    made[f"{name}_p"].attrs |= _of_all_cells(found)
    for suffix, p, text in (
        ("p_variable", found.p_variable, "one p for all cells (Simes)"),
        ("p_family", found.p_family, "one p for all cells, by the rank of the largest departure"),
    ):
        attrs = {"long_name": f"{long_name}: {text}", "units": "1", "of": name}
        made[f"{name}_{suffix}"] = xr.DataArray(p, attrs=attrs)
    note = _notes(found)
    if note:
        made[f"{name}_z"].attrs["note"] = note
    return made


_EFFECT = "difference from the null's mean over the spread of cells"
_EFFECT_OF_ONE = "ratio to the null's mean, less one"


def _of_all_cells(found: Comparison) -> dict[str, Any]:
    """What holds of all cells of a variable: the scale, the tail, and how many different cells are tested."""
    told: dict[str, Any] = {"scale": found.scale, "tests": found.tests}
    return told if found.tail is None else told | {"degrees": found.tail.degrees, "tail_scale": found.tail.scale}


def _notes(found: Comparison) -> str:
    constant = int(np.sum(found.sd == 0))
    several = f"{constant} cells are constant under the null"
    notes = ["constant under the null" if constant == found.sd.size else several] if constant else []
    return "; ".join([*notes, *found.notes])
