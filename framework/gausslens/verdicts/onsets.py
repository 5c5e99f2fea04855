"""When a structure appears: from which step of a training on each statistic is beyond its null, and stays there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtr, stdtrit

from ..maths.nulls import INTERVAL, varies_by_rounding_alone
from ..maths.trainings import Onsets, onsets_judged
from .explanations import first_nulls
from .selection import LEVEL, ROUNDINGS, Statistic, prompts_half_width

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# What is said of a cell: it is beyond the null from the first step on, or from a later one on, to stay; at some steps,
# but not from any of them to the last; or at none.
START, LATER, PASSES, NEVER = "from the start", "later", "comes and goes", "never"


@dataclass(frozen=True)
class Onset:
    """From which value of a swept number on each cell of a statistic is beyond a null.

    ``step``, ``low``, ``high`` and ``kind`` are over the cells, in the order of ``dims``: the first step that is beyond
    with all that follow (NaN where there is none), after which step it came and by which it was surely there, and one
    of the four kinds. ``direction`` is 1 above the null and -1 below.
    """

    statistic: Statistic
    along: str
    steps: Floats
    dims: tuple[str, ...]
    step: Floats
    low: Floats
    high: Floats
    direction: NDArray[np.int8]
    kind: NDArray[np.str_]

    def cells(self) -> list[tuple[int, ...]]:
        """The cells, earliest first: those of a later onset in order, then those of each other kind."""
        order = {LATER: 0, START: 1, PASSES: 2, NEVER: 3}
        found = [tuple(map(int, cell)) for cell in np.ndindex(self.step.shape)]
        return sorted(found, key=lambda cell: (order[str(self.kind[cell])], float(np.nan_to_num(self.step[cell]))))

    def place(self, cell: tuple[int, ...]) -> dict[str, Any]:
        """The coordinates of a cell: ``{"layer": 1, "head": 2}``."""
        comparison = self.statistic.comparison
        return {
            dim: comparison[dim].values.tolist()[i] if dim in comparison.coords else i
            for dim, i in zip(self.dims, cell, strict=True)
        }

    def columns(self) -> dict[str, xr.DataArray]:
        """Onset, its interval and its kind as arrays over the cells, for tables."""
        value = self.statistic.comparison[self.statistic.variable].isel({self.along: 0}, drop=True)
        shaped = value.transpose(*self.dims)
        columns = {"onset": self.step, "onset_low": self.low, "onset_high": self.high, "onset_kind": self.kind}
        return {name: shaped.copy(data=array) for name, array in columns.items()}


def onsets(
    found: Sequence[Statistic], along: Mapping[str, str], stored: Callable[[str, str, str], Mapping[Any, xr.Dataset]]
) -> list[Onset]:
    """The onsets of all statistics of the variants in ``along``, which names the swept number of each.

    ``stored`` gives, for variant, label and null, the comparison at each point by itself, ``{(("step", 10),): ...}``.

    All steps and cells of a statistic are tested together (``maths.trainings.onsets``). A statistic that does not
    depart from the null over the run has no onsets: else of many statistics some would have one by luck. One that is
    compared at a single step is no trajectory.
    """
    each: dict[tuple[str, str, str], Mapping[Any, xr.Dataset]] = {}
    made = []
    for one in found:
        name = (one.variant, one.label, one.null)
        if one.variant in along and one.comparison[one.variable].sizes.get(along[one.variant], 0) > 1:
            if name not in each:
                each[name] = stored(*name)
            made.append(_onset(one, along[one.variant], each[name]))
    return made


def _onset(one: Statistic, along: str, stored: Mapping[Any, xr.Dataset]) -> Onset:
    value = one.comparison[one.variable]
    axis = value.dims.index(along)
    order = np.argsort(value[along].values, kind="stable")
    steps = np.asarray(value[along].values, dtype=np.float64)[order]

    def first(array: Any) -> Any:
        return np.moveaxis(np.asarray(array), axis, 0)[order]

    x, mean, low, high = (first(one.column(name)) for name in ("", "null_mean", "null_low", "null_high"))
    kept = varies_by_rounding_alone(first(one.column("null_sd")), mean, ROUNDINGS)
    p = np.where(kept, np.nan, first(one.column("p")))
    made = _none(x, p)
    if one.selected:
        half = prompts_half_width(one)
        error = np.zeros_like(x) if half is None else np.nan_to_num(first(half))
        tails = _Tails(x, mean, low, high, p, *(first(array) for array in _told(one, stored)))
        made = onsets_judged(steps, x, p, (mean, low, high), error, tails.p_of, 0, LEVEL)
    passes = first(one.called).any(axis=0)
    kind = np.where(made.never, np.where(passes, PASSES, NEVER), np.where(made.step == steps[0], START, LATER))
    dims = tuple(str(dim) for dim in value.dims if dim != along)
    return Onset(one, along, steps, dims, made.step, made.low, made.high, made.direction, kind)


def _told(one: Statistic, stored: Mapping[Any, xr.Dataset]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Of each cell what its comparison tells of all its cells: degrees and scale of the tail, and whether on logs."""
    value = one.comparison[one.variable]
    degrees, scale, log = np.full(value.shape, np.nan), np.full(value.shape, np.nan), np.zeros(value.shape, dtype=bool)
    for point, dataset in stored.items():
        attrs = dataset[f"{one.variable}_p"].attrs
        at = dict(point)
        where = tuple(value[dim].values.tolist().index(at[dim]) if dim in at else slice(None) for dim in value.dims)
        degrees[where], scale[where] = attrs.get("degrees", np.nan), attrs.get("tail_scale", np.nan)
        log[where] = attrs.get("scale") == "log"
    return degrees, scale, log


def _none(x: Floats, p: Floats) -> Onsets:
    nothing = np.full(x.shape[1:], np.nan)
    never = np.ones(x.shape[1:], dtype=np.bool_)
    return Onsets(nothing, nothing, nothing, np.zeros(x.shape[1:], dtype=np.int8), never, p, p)


@dataclass(frozen=True)
class _Tails:
    """Cells [step, cell] beside their nulls, and the tails from which p of other values is told."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    p: Floats
    degrees: Floats
    scale: Floats
    log: NDArray[np.bool_]

    def p_of(self, moved: Floats) -> Floats:
        """p of values nearer to the null, which is no smaller than that of the values themselves.

        A t is told by the 95 % interval: its middle is the null's mean and its half width the tail's, on the scale on
        which the null was judged.
        """
        on_log = self.log & (self.x > 0) & (self.low > 0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            low, high, there = (
                np.where(on_log, np.log(np.maximum(values, 1e-300)), values) for values in (self.low, self.high, moved)
            )
            half = self.scale * stdtrit(self.degrees, (1 + INTERVAL) / 2)
            middle, spread = np.where(on_log, (low + high) / 2, self.mean), (high - low) / 2 / half
            told = 2 * stdtr(self.degrees, -np.abs((there - middle) / spread) / self.scale)
            return np.asarray(np.maximum(told, self.p))


def onset_sentences(found: Sequence[Onset], rungs: Mapping[str, str]) -> list[str]:
    """One sentence for each variant that is swept over models: what is there for good first, and how much else is.

    It is told against the null that shares least with the model; ``rungs`` gives the word of each null.
    """
    firsts = first_nulls([one.statistic for one in found], rungs)
    made = []
    for variant, null in firsts.items():
        mine = [one for one in found if (one.statistic.variant, one.statistic.null) == (variant, null)]
        if any(one.statistic.tests for one in mine):
            made.append(_sentence(variant, null, [one for one in mine if one.statistic.tests]))
    return made


def _sentence(variant: str, null: str, mine: Sequence[Onset]) -> str:
    along = mine[0].along
    kinds = np.concatenate([one.kind.ravel() for one in mine])
    words = {
        START: f"beyond it from the first {along} on",
        PASSES: "beyond it at some, not at the last",
        NEVER: "never for sure",
    }
    counts = {kind: int((kinds == kind).sum()) for kind in (LATER, *words)}
    others = ", ".join(f"{counts[kind]} {text}" for kind, text in words.items() if counts[kind])
    said = f"Along {along}, of {kinds.size} numbers of {variant} (each cell of each statistic)"
    if not counts[LATER]:
        return f"{said} none comes to stay beyond {null}: {others}."
    later = [(one, cell) for one in mine for cell in one.cells() if one.kind[cell] == LATER]
    one, cell = min(later, key=lambda pair: (pair[0].step[pair[1]], -abs(_effect(*pair))))
    name = str(one.statistic.comparison[one.statistic.variable].attrs.get("long_name", one.statistic.variable))
    where = ", ".join(f"{dim} {value}" for dim, value in one.place(cell).items())
    first = f"{name}{f' at {where}' if where else ''} (in {one.statistic.label}), from {along} {whole(one.step[cell])}"
    comes = f"{counts[LATER]} come{'s' if counts[LATER] == 1 else ''} to stay beyond {null}"
    return f"{said} {comes}, first {first} on ({_interval(one, cell)}){'; ' if others else ''}{others}."


def _effect(one: Onset, cell: tuple[int, ...]) -> float:
    """The effect at the last step."""
    value = one.statistic.comparison[one.statistic.variable]
    effects = one.statistic.comparison[f"{one.statistic.variable}_effect"].transpose(*value.dims)
    last = effects.isel({one.along: int(np.argmax(value[one.along].values))}).transpose(*one.dims)
    return float(np.nan_to_num(last.values[cell]))


def _interval(one: Onset, cell: tuple[int, ...]) -> str:
    """After which step, and by which at the latest: "after 50, by 100 at the latest"."""
    low, high = float(one.low[cell]), float(one.high[cell])
    after = f"after {whole(low)}" if np.isfinite(low) else f"perhaps at {whole(one.steps[0])} already"
    by = f"by {whole(high)} at the latest" if np.isfinite(high) else "the errors are too large to say by when"
    return f"{after}, {by}"


def whole(value: float) -> str:
    """A step as a person writes it."""
    return str(int(value)) if float(value).is_integer() else f"{value:g}"
