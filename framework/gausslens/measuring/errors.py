"""Errors over prompts of any stream analysis: its states without each group of prompts in turn, and what they tell.

Each group of prompts has a state; states of all groups but one are merged by divide and conquer, always in the same
order, so that no more than G + log2 G of them are held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..contract.analyses import compared, error_of
from ..maths.resampling import delete_group_error, owned_by_one
from ..runs.outcome import labelled

if TYPE_CHECKING:
    import xarray as xr

    from .passes import Job

# The dimension of the values without each group.
LEFT_OUT = "left_out"
CONDITIONAL = "given what earlier passes found in all prompts: their own error is not in it"
LOWER_BOUND = "a lower bound: no resampling of a sample knows the error of a fourth moment"


def merged(states: Sequence[Any]) -> Any:
    """All states in one, merged into the first in their order."""
    first, *others = states
    for other in others:
        first.merge(other)
    return first


def leave_one_out(states: Sequence[Any], copied: Callable[[Any], Any]) -> Iterator[Any]:
    """For each of the states, all the others merged; they are left as they are.

    The half that a state is not in is merged once for the other half, and so on down: G log2 G merges of G states.
    """

    def without(low: int, high: int, outside: Any) -> Iterator[Any]:
        """``outside`` is what is not from ``low`` to ``high``, merged; None for nothing. It is used up."""
        if high - low == 1:
            yield outside
            return
        middle = (low + high) // 2
        yield from without(low, middle, grown(None if outside is None else copied(outside), states[middle:high]))
        yield from without(middle, high, grown(outside, states[low:middle]))

    def grown(outside: Any, more: Sequence[Any]) -> Any:
        return merged([copied(more[0]), *more[1:]] if outside is None else [outside, *more])

    return without(0, len(states), None)


def jackknifed(job: Job, prompts: str) -> xr.Dataset:
    """The result of all groups of a job, with an error of each compared variable; ``prompts`` is their digest.

    A result that cannot be had without some prompts costs the errors, not the result: attribute ``no_errors`` says so.
    """
    groups = len(job.groups)
    left_out: list[xr.Dataset] = []
    trouble = None
    try:
        for state in leave_one_out(job.groups, job.copied):
            found = labelled(state.result(), job.info, job.skipped)
            left_out.append(found[[name for name, variable in found.data_vars.items() if compared(variable)]])
    except Exception as error:
        trouble = f"without some prompts there is no result: {type(error).__name__}: {error}"
    whole = labelled(merged(job.groups).result(), job.info, job.skipped)
    conditional = job.request.passes > 1
    return with_errors(whole, left_out if trouble is None else trouble, groups, prompts, conditional)


def with_errors(
    whole: xr.Dataset, left_out: Sequence[xr.Dataset] | str, groups: int, prompts: str, conditional: bool
) -> xr.Dataset:
    """A result with ``<v>_se`` and ``<v>_without`` of each compared variable v, from the results without each group.

    ``left_out`` may be a text that says why there are none. ``conditional``: there were passes before, which all
    prompts share. What does not vary at all then comes from those, and has no error. Where there is no error it is NaN,
    so that results of all draws have one shape, and ``no_errors`` says why. An error that the analysis gave itself
    stays.
    """
    made: dict[str, Any] = {}
    lacking: dict[str, list[str]] = {}
    elsewhere = [] if isinstance(left_out, str) else [_other_places(whole, one) for one in left_out]
    for name, variable in whole.data_vars.items():
        if not compared(variable):
            continue
        without = np.full((groups, *variable.shape), np.nan)
        if isinstance(left_out, str):
            reason: str | None = left_out
        elif (reason := _cannot(str(name), variable.variable, left_out, elsewhere)) is None:
            without = np.stack([np.asarray(one.variables[name].values, dtype=np.float64) for one in left_out])
            if conditional and np.array_equal(without, np.broadcast_to(without[0], without.shape), equal_nan=True):
                without = np.full_like(without, np.nan)
                reason = "it comes from an earlier pass"
        if reason is not None:
            lacking.setdefault(reason, []).append(str(name))
        made |= _columns(str(name), variable, without, prompts, conditional)
    found = whole.assign({name: value for name, value in made.items() if name not in whole})
    told = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in lacking.items())
    return found.assign_attrs(no_errors=told) if told else found


def _cannot(
    name: str, variable: xr.Variable, left_out: Sequence[xr.Dataset], elsewhere: Sequence[frozenset[str]]
) -> str | None:
    for one, other_places in zip(left_out, elsewhere, strict=True):
        if name not in one.variables:
            return "without some prompts it is not there"
        other = one.variables[name]
        if other.dims != variable.dims or other.shape != variable.shape or not other_places.isdisjoint(other.dims):
            return "without some prompts it has other cells"
    return None


def _other_places(whole: xr.Dataset, one: xr.Dataset) -> frozenset[str]:
    """The dimensions along which another result has other coordinates; those that it does not have at all do not count.

    Asked once of a result, for all its variables.
    """
    found = set()
    for dim in one.dims:
        mine, theirs = ({n: c.variable for n, c in d.coords.items() if set(c.dims) <= {dim}} for d in (whole, one))
        if dim in mine and (mine.keys() != theirs.keys() or any(not mine[n].equals(theirs[n]) for n in mine)):
            found.add(str(dim))
    return frozenset(found)


def _columns(name: str, variable: xr.DataArray, without: Any, prompts: str, conditional: bool) -> dict[str, Any]:
    """The error and the values without each group, as variables."""
    long_name, units = str(variable.attrs.get("long_name", name)), str(variable.attrs.get("units", "1"))
    dims = tuple(map(str, variable.dims))
    notes: dict[str, Any] = {"groups": len(without)}
    owned = int(owned_by_one(without).sum())
    if owned:
        notes["se_note"] = f"one group of prompts makes most of the error in {owned} of {variable.size} cells"
    if int(variable.attrs.get("order", 1)) >= 4:
        notes["lower_bound"] = LOWER_BOUND
    if conditional:
        notes["conditional"] = CONDITIONAL
    about = {"units": units, "against": 0, "of": name, "prompts": prompts}
    told = about | {"long_name": f"{long_name}, without each group of prompts"}
    return {
        f"{name}_se": error_of(name, dims, delete_group_error(without), long_name, units, **notes),
        f"{name}_without": ((LEFT_OUT, *dims), without, told),
    }
