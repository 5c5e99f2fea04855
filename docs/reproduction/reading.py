"""A row's numbers, read from the results of a run: variable, selection, reduction; beside each its nulls and its error.

A number is data (README.md): ``of`` names label and variable, ``variant`` whose (the first of the run), ``at`` a
place, or several, along some dimensions, ``by`` how each of the others is reduced, in this order; at most one stays
(``each``). Or ``is`` is an expression over other numbers of the row. One way for all: the same is done to the result,
to it without each group of prompts, which gives the error (delete-a-group jackknife), and to each draw of each null it
is compared with. ``error`` names a variable that is the error of an analysis that tells its own; ``less`` one of
another label that is taken off first, ``less_of`` the variant that it is of. ``over`` names a dimension of repeats, as
of trainings from several seeds: the number is the mean of what each gives, its error theirs. ``onset`` names a null:
the number is from which step on the variable is beyond it, for good. What is text is read as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
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
    "median size": lambda values, axis: np.nanmedian(np.abs(values), axis=axis),
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
        if not (np.isfinite(found[name].value).all() or may_never_be(spec, numbers)):
            raise UnreadableNumber(f"{name}: is not finite: {found[name].value}")
    told = texts | {name: _told(one, results.rungs) for name, one in found.items()}
    return {name: told[name] for name in numbers}


def may_never_be(spec: Mapping[str, Any], numbers: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a number is of a step that may never come: an onset, a first step, or made of one."""
    first = "onset" in spec or any(how.startswith("first ") for how in spec.get("by", {}).values())
    of = [name for name in numbers if re.search(rf"\b{name}\b", spec.get("is", ""))]
    return first or any(may_never_be(numbers[name], numbers) for name in of)


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
    if "onset" in spec:
        return _repeated(_onset(results, variant, label, name, spec["onset"]), spec)
    if "less_of" in spec:
        other = _of_other(spec, results)  # places of the same dimensions are the same, whatever they are called
        return Samples(reduced(whole[name] - (other.values if other.sizes == whole[name].sizes else other), spec))
    if "over" in spec:
        beside = results.nulls(variant, label) if spec.get("nulls", True) else ()
        return _repeated(whole[name], spec, {null: results[null, label][name] for null in beside})
    nulls = results.nulls(variant, label) if spec.get("nulls", True) else ()
    without = _less(f"{name}_without", variant, label, spec, results) if f"{name}_without" in whole else None
    own = _less(name, variant, label, spec, results)
    assert own is not None
    return Samples(
        reduced(own, spec),
        None if without is None else reduced(without, spec, "left_out"),
        {n: reduced(one, spec, "draw") for n in nulls if (one := _less(name, n, label, spec, results)) is not None},
        reduced(whole[spec["error"]], spec) if "error" in spec else None,
    )


def _less(name: str, variant: str, label: str, spec: Mapping[str, Any], results: Any) -> xr.DataArray | None:
    """A variable of a variant, less that of another label where one is to be taken off; None if it has none."""
    own: xr.DataArray = results[variant, label][name]
    if "less" not in spec:
        return own
    other, _, taken = spec["less"].rpartition(".")
    taken += "_without" if name.endswith("_without") else ""
    beside = results[variant, other]
    return own - beside[taken].values if taken in beside else None


def _of_other(spec: Mapping[str, Any], results: Any) -> xr.DataArray:
    """What another variant has of what is taken off; of draws their mean."""
    *_, name, whole = _variable(spec | {"of": spec["less"], "variant": spec["less_of"]}, results)
    found: xr.DataArray = whole[name]
    return found.mean("draw") if "draw" in found.dims else found


@lru_cache(maxsize=1)
def _onsets(results: Any) -> Sequence[Any]:
    """All onsets of a run, told once for all its rows."""
    found: Sequence[Any] = results.onsets()
    return found


def _onset(results: Any, variant: str, label: str, name: str, null: str) -> xr.DataArray:
    """From which step on each cell is beyond a null for good; inf where it never is."""
    for one in _onsets(results):
        found = one.statistic
        if (found.variant, found.label, found.null, found.variable) == (variant, label, null, name):
            onset: xr.DataArray = one.columns()["onset"].fillna(np.inf)
            return onset
    raise KeyError(f"{variant}, {label}, {name} has no onsets beside {null}")


def _repeated(array: xr.DataArray, spec: Mapping[str, Any], nulls: Mapping[str, xr.DataArray] | None = None) -> Samples:
    """The mean over repeats, and without each of them; draws of nulls that were repeated too are means over them."""
    over = spec.get("over")
    if over is None:
        return Samples(reduced(array, spec))
    each = reduced(array, spec, over)
    value, without = each.mean(axis=0), None
    if len(each) > 1 and np.isfinite(each).all():
        without = np.stack([np.delete(each, n, axis=0).mean(axis=0) for n in range(len(each))])
    drawn = {null: _drawn(draws, spec, over) for null, draws in (nulls or {}).items()}
    alike = {null: np.broadcast_to(one.T, (*value.shape[::-1], len(one))).T for null, one in drawn.items()}
    return Samples(value, without, alike)


def _drawn(draws: xr.DataArray, spec: Mapping[str, Any], over: str) -> Array:
    """A number of each draw [draw, ...]; a null that is not swept has fewer dimensions, and is one for all places."""
    its = {
        key: {d: how for d, how in spec.get(key, {}).items() if {*d.split()} <= {*draws.dims}} for key in ("at", "by")
    }
    if over not in draws.dims:
        return reduced(draws, its, "draw")
    return np.stack([reduced(draws.isel({over: n}), its, "draw") for n in range(draws.sizes[over])]).mean(axis=0)


def reduced(array: xr.DataArray, spec: Mapping[str, Any], over: str | None = None) -> Array:
    """The array at one place along some dimensions, reduced along others; ``over`` comes first and stays."""
    for dim, place in spec.get("at", {}).items():
        places = [_index(array, dim, each) for each in place] if isinstance(place, list) else _index(array, dim, place)
        array = array.isel({dim: places})
    kept = [dim for dim, how in spec.get("by", {}).items() if how == "each"]
    for dims, how in spec.get("by", {}).items():
        if how.startswith("first <= "):
            array = _first(array, dims, float(how.removeprefix("first <= ")))
        elif how != "each":
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


def _first(array: xr.DataArray, dim: str, bound: float) -> xr.DataArray:
    """From which coordinate on all values are at most this; inf where the last is not."""
    array = array.sortby(dim)
    stays = (array <= bound).isel({dim: slice(None, None, -1)}).cumprod(dim).isel({dim: slice(None, None, -1)})
    return array[dim].astype(float).where(stays > 0, np.inf).min(dim)


def _reduction(how: str) -> Callable[..., Any]:
    """A name of REDUCTIONS, or a share: "share <= 0.1" of what is positive, "share > 0" or "share beyond 3" of all."""
    word, _, rest = how.partition(" ")
    kind, _, bound = rest.partition(" ")
    if word == "share" and kind in _SHARES and bound:
        return lambda values, axis: _SHARES[kind](values, float(bound), axis)
    if how not in REDUCTIONS:
        shares = ", ".join(f"share {kind} X" for kind in _SHARES)
        raise KeyError(f"no reduction {how!r}: each, {shares}, {', '.join(REDUCTIONS)}")
    return REDUCTIONS[how]


def _share(values: Array, bound: float, axis: Any) -> Array:
    positive = values > 0
    found: Array = ((values <= bound) & positive).sum(axis=axis) / positive.sum(axis=axis)
    return found


def _share_above(values: Array, bound: float, axis: Any) -> Array:
    """Of all values that are numbers."""
    found: Array = (values > bound).sum(axis=axis) / np.isfinite(values).sum(axis=axis)
    return found


_SHARES: dict[str, Callable[[Array, float, Any], Array]] = {
    "<=": _share,
    ">": _share_above,
    "beyond": lambda values, bound, axis: _share_above(np.abs(values), bound, axis),
}


def _made(expression: str, found: Mapping[str, Samples]) -> Samples:
    """A number made of others, in the same way of each sample."""
    with np.errstate(invalid="ignore"):  # steps that never come have no difference
        return _of_each(expression, found)


def _of_each(expression: str, found: Mapping[str, Samples]) -> Samples:
    named = {name: one for name, one in found.items() if re.search(rf"\b{name}\b", expression)}
    used = list(named.values())
    nulls = set.intersection(*(set(one.nulls) for one in used)) if used else set()
    without = None
    if used and all(one.without is not None for one in used):
        without = _by_sample(expression, {name: one.without for name, one in named.items()})
    return Samples(
        np.asarray(evaluated(expression, {name: one.value for name, one in found.items()}), dtype=float),
        without,
        {
            null: _by_sample(expression, {name: one.nulls[null] for name, one in named.items()})
            for null in sorted(nulls)
        },
    )


def _by_sample(expression: str, arrays: Mapping[str, Array | None]) -> Array:
    """The expression of each draw, or of each group left out, by itself: its indices are of lists, not of draws."""
    each = zip(*(array for array in arrays.values() if array is not None), strict=True)
    return np.asarray([evaluated(expression, dict(zip(arrays, sample, strict=True))) for sample in each], dtype=float)


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
