"""A row's numbers, read from the results of a run: variable, selection, reduction; beside each its nulls and its error.

A number is data (README.md): ``of`` names label and variable, ``variant`` whose (the first of the run), ``at`` a
place, or several, along some dimensions, ``by`` how each of the others is reduced, in this order; at most one stays
(``each``). Or ``is`` is an expression over other numbers of the row. One way for all: the same is done to the result,
to it without each group of prompts, which gives the error (delete-a-group jackknife), and to each draw of each null it
is compared with. ``error`` names a variable that is the error of an analysis that tells its own; ``less`` one of
another label, or of the variant ``less_of``, that is taken off first. What is text is read as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from judging import evaluated
from numpy.typing import NDArray

import gausslens
from gausslens.maths.ladder import Rung, explained
from gausslens.maths.resampling import delete_group_error

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "mean": np.nanmean,
    "median": np.nanmedian,
    "sum": np.nansum,
    "max": np.nanmax,
    "min": np.nanmin,
    "sd": lambda values, axis: np.nanstd(values, axis=axis, ddof=1),
    "error": lambda values, axis: np.nanstd(values, axis=axis, ddof=1) / np.sqrt(np.isfinite(values).sum(axis=axis)),
    "largest": lambda values, axis: np.nanmax(np.abs(values), axis=axis),
}


class UnreadableNumber(Exception):
    """A number of a row cannot be read from a run, and why."""


@dataclass(frozen=True)
class Samples:
    """A number as it is, without each group of prompts [group, ...], and of each draw of each null [draw, ...].

    ``error`` is its error where the analysis told it.
    """

    value: Array
    without: Array | None = None
    nulls: Mapping[str, Array] = field(default_factory=dict)
    error: Array | None = None


def read_numbers(numbers: Mapping[str, Mapping[str, Any]], results: Any) -> dict[str, dict[str, Any]]:
    """All numbers of a row as plain data: ``{name: {value, error, nulls: {null: {mean, sd, draws, p}}, rung}}``."""
    found: dict[str, Samples] = {}
    texts: dict[str, dict[str, Any]] = {}
    for name, spec in numbers.items():
        try:
            if "is" not in spec and (text := _text(spec, results)) is not None:
                texts[name] = {"value": text, "error": None, "nulls": {}}
                continue
            found[name] = _made(spec["is"], found) if "is" in spec else _read(spec, results)
        except (KeyError, ValueError, gausslens.GausslensError) as error:
            raise UnreadableNumber(f"{name}: {error}") from error
        if not np.isfinite(found[name].value).all():
            raise UnreadableNumber(f"{name}: is not finite: {found[name].value}")
    told = texts | {name: _told(one, results.rungs) for name, one in found.items()}
    return {name: told[name] for name in numbers}


def first_variant(results: Any) -> str:
    """The variant that a run file names first, whatever is computed first."""
    return str(next(iter(results.manifest().resolved.get("variants") or results.variants)))


def _variable(spec: Mapping[str, Any], results: Any) -> tuple[str, str, str, Any]:
    """The variant, the label and the name of what a number is of, and the result that holds it."""
    label, _, name = spec["of"].rpartition(".")
    variant = spec.get("variant", first_variant(results))
    whole = results[variant, label]
    if name not in whole:
        raise KeyError(f"{variant}, {label} has no variable {name}: {', '.join(map(str, whole.data_vars))}")
    return variant, label, name, whole


def _text(spec: Mapping[str, Any], results: Any) -> str | None:
    """What is written at a place, where the variable is text."""
    variant, label, name, whole = _variable(spec, results)
    if whole[name].dtype.kind not in "OUT":
        return None
    at = {dim: _index(whole[name], dim, place) for dim, place in spec.get("at", {}).items()}
    chosen = whole[name].isel(at).squeeze()
    if chosen.ndim:
        raise ValueError(f"{variant}, {label}, {name} is text: `at` takes one of {', '.join(map(str, chosen.dims))}")
    return " ".join(str(chosen.values).split())


def _read(spec: Mapping[str, Any], results: Any) -> Samples:
    variant, label, name, whole = _variable(spec, results)
    if "less" in spec:
        other = _variable(spec | {"of": spec["less"], "variant": spec.get("less_of", variant)}, results)
        return Samples(reduced(whole[name] - other[3][other[2]].values, spec))
    nulls = results.nulls(variant, label) if spec.get("nulls", True) else ()
    without = whole.get(f"{name}_without")
    return Samples(
        reduced(whole[name], spec),
        None if without is None else reduced(without, spec, "left_out"),
        {null: reduced(results[null, label][name], spec, "draw") for null in nulls},
        reduced(whole[spec["error"]], spec) if "error" in spec else None,
    )


def reduced(array: xr.DataArray, spec: Mapping[str, Any], over: str | None = None) -> Array:
    """The array at one place along some dimensions, reduced along others; ``over`` comes first and stays."""
    for dim, place in spec.get("at", {}).items():
        places = [_index(array, dim, each) for each in place] if isinstance(place, list) else _index(array, dim, place)
        array = array.isel({dim: places})
    kept = [dim for dim, how in spec.get("by", {}).items() if how == "each"]
    for dims, how in spec.get("by", {}).items():
        if how != "each":
            array = array.reduce(_reduction(how), dim=dims.split())
    left = [str(dim) for dim in array.dims if dim not in (over, *kept)]
    if left or len(kept) > 1:
        raise ValueError(f"left are the dimensions {', '.join([*left, *kept])}; `at` or `by` takes all but one")
    return np.asarray(array.transpose(*([over] if over else []), *kept).values, dtype=float)


def _index(array: xr.DataArray, dim: str, place: Any) -> int:
    known = [str(value) for value in array[dim].values]
    if isinstance(place, int) and place < 0:
        return len(known) + place
    if str(place) not in known:
        raise KeyError(f"{dim} has no {place!r}: {', '.join(known[:12])}")
    return known.index(str(place))


def _reduction(how: str) -> Callable[..., Any]:
    """A name of REDUCTIONS, or "share <= 0.1" of the values that are positive."""
    word, _, bound = how.partition(" <= ")
    if word == "share" and bound:
        return lambda values, axis: _share(values, float(bound), axis)
    if how not in REDUCTIONS:
        raise KeyError(f"no reduction {how!r}: each, share <= X, {', '.join(REDUCTIONS)}")
    return REDUCTIONS[how]


def _share(values: Array, bound: float, axis: Any) -> Array:
    positive = values > 0
    found: Array = ((values <= bound) & positive).sum(axis=axis) / positive.sum(axis=axis)
    return found


def _made(expression: str, found: Mapping[str, Samples]) -> Samples:
    """A number made of others, in the same way of each sample."""
    used = [one for name, one in found.items() if name in expression]
    nulls = set.intersection(*(set(one.nulls) for one in used)) if used else set()
    without = None
    if used and all(one.without is not None for one in used):
        without = np.asarray(evaluated(expression, {n: one.without for n, one in found.items()}))
    return Samples(
        np.asarray(evaluated(expression, {name: one.value for name, one in found.items()}), dtype=float),
        without,
        {n: np.asarray(evaluated(expression, {k: s.nulls.get(n) for k, s in found.items()})) for n in sorted(nulls)},
    )


def _told(one: Samples, rungs: Mapping[str, str]) -> dict[str, Any]:
    """As plain data, with what the nulls say."""
    beside: dict[str, Any] = {}
    ladder: list[Rung] = []
    departs: NDArray[np.bool_] | None = None
    for null, draws in one.nulls.items():
        if len(draws) < 2:
            continue
        judged = gausslens.versus(one.value, list(draws))
        mean, low, high, p = (judged[f"value_{name}"].values for name in ("null_mean", "null_low", "null_high", "p"))
        spread = draws.std(axis=0, ddof=1)
        beside[null] = {"mean": plain(mean), "sd": plain(spread), "draws": len(draws), "p": plain(p)}
        departs = np.asarray(p < 0.05) if departs is None else departs
        ladder.append(Rung(rungs.get(null, null), len(draws), mean, low, high))
    error = one.error if one.without is None else delete_group_error(one.without)
    told: dict[str, Any] = {
        "value": plain(one.value),
        "error": None if error is None else plain(error),
        "nulls": beside,
    }
    if departs is not None and len(ladder) > 1:
        told["rung"] = explained(one.value, departs, ladder).rung.tolist()
    return told


def plain(values: Any) -> Any:
    """Floats of six digits, or lists of them; what is not finite is None."""
    array = np.asarray(values, dtype=float)
    if array.ndim:
        return [plain(each) for each in array]
    return float(f"{float(array):.6g}") if np.isfinite(array) else None
