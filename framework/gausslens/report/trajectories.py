"""Trajectories: what a variant that is swept over models, as the checkpoints of a training, gives at each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from ..contract.analyses import compared
from ..contract.errors import StoreError
from ..figures import Dial, Figure, Line, Lines, Panels, Source, Table
from ..maths.ladder import ladder_order
from ..maths.nulls import INTERVAL
from ..verdicts import LATER, LEVEL, NEVER, PASSES, START, first_nulls, whole
from .numbers import NOTHING
from .thinning import SERIES

if TYPE_CHECKING:
    import xarray as xr

    from ..store.read_results import Results
    from ..verdicts import Onset, Statistic

NAME = "trajectories"
QUESTION = "When does it appear in training?"
SUMMARY = "Numbers against what models are swept over: each scalar, each head, and where the nulls lie."
# Nulls that are drawn in one figure; the other colours are for heads.
MOST_NULLS = 3
# Steps that span more than this factor have a logarithmic axis.
DECADE = 10.0
# And positive values that do.
WIDE = 1000.0
# Dimensions whose cells are curves of one plot. Of all others each cell has a plot of its own, under a slider.
CURVES = ("head", "kv_head")
MOST_PLOTS = 4096
# Layers, or whatever cells lie in, that a row of the table of onsets names.
MOST_PLACES = 8


@dataclass(frozen=True)
class _Trajectory:
    """One variable along a swept number: its values, half their 95 % interval over prompts, each null's columns.

    ``named`` says of each null what it is.
    """

    variant: str
    label: str
    name: str
    along: str
    values: xr.DataArray
    half: xr.DataArray | None
    nulls: Mapping[str, Mapping[str, xr.DataArray]]
    named: Mapping[str, str]

    @property
    def x(self) -> np.ndarray:
        return np.asarray(self.values[self.along].values, dtype=np.float64)

    @property
    def curve(self) -> str | None:
        return next((dim for dim in CURVES if dim in self.values.dims), None)

    @property
    def dials(self) -> list[str]:
        """What sliders turn: every other dimension that has more than one place."""
        dims = [str(dim) for dim in self.values.dims if dim not in (self.along, self.curve)]
        return [dim for dim in dims if self.values.sizes[dim] > 1]

    def far(self) -> xr.DataArray:
        """How far each cell gets from the mean of the first null, at any step; without a null, its own range."""
        if not self.nulls:
            return self.values.max(self.along) - self.values.min(self.along)
        first = next(iter(self.nulls.values()))
        return abs(self.values - first["null_mean"]).max(self.along)

    def effect(self) -> xr.DataArray:
        """The same over the spread of cells, by which cells of other units can be compared."""
        return abs(next(iter(self.nulls.values()))["effect"]).max(self.along) if self.nulls else self.far()


def trajectories(results: Results) -> list[Figure]:
    """Of every variant that is swept over models by a number: when what appears, and a figure for each variable."""
    each = list(_trajectories(results))
    titles = Counter(_title(found) for found in each)
    figures = [_figure(found, results, _title(found, titles[_title(found)] > 1)) for found in each]
    firsts = first_nulls([one.statistic for one in results.onsets()], results.rungs)
    tables = []
    for variant, null in firsts.items():
        mine = [one for one in results.onsets() if (one.statistic.variant, one.statistic.null) == (variant, null)]
        told = [one for one in mine if one.statistic.tests]
        tables.append(_onset_table(variant, null, told, results.named_null(null)))
    return [*tables, *figures]


def _onset_table(variant: str, null: str, found: Sequence[Onset], named: str) -> Figure:
    """When numbers come to stay beyond a null, earliest first; then those that are beyond it from the start."""
    cells = [(one, cell) for one in found for cell in one.cells()]
    along = found[0].along if found else "step"
    counts = {kind: sum(one.kind[cell] == kind for one, cell in cells) for kind in (PASSES, NEVER)}
    alike: dict[tuple[bool, float, int, int], list[tuple[int, ...]]] = {}
    for place, one in enumerate(found):
        for cell in one.cells():
            if one.kind[cell] in (LATER, START):
                key = (bool(one.kind[cell] == START), float(one.step[cell]), place, -int(one.direction[cell]))
                alike.setdefault(key, []).append(cell)
    rows = [
        [
            START if start else whole(step),
            NOTHING if start else _interval(found[place], there),
            found[place].statistic.label,
            found[place].statistic.variable,
            len(there),
            _places(found[place], there) or NOTHING,
            "above" if side < 0 else "below",
        ]
        for (start, step, place, side), there in sorted(alike.items())
    ]
    return Table(
        title=f"When {variant} comes to stay beyond {named}",
        caption=f"The first {along} at which a number is beyond the null with all that follow, all cells and {along}s "
        f"of a statistic tested together (false discovery rate {LEVEL}). It came in the interval (a, b]: after a, the "
        f"last {along} at which it may have been within the null, and by b, from which on it is beyond it even where "
        "it is moved by its error over prompts; ? where there is none; of several cells it holds all. Besides these, "
        f"{counts[PASSES]} are beyond the null at some {along} and not to the last, {counts[NEVER]} at none.",
        sources=tuple(
            Source(variant, f"{one.statistic.label}.against.{null}", f"{one.statistic.variable}_p") for one in found
        ),
        columns=(f"from {along}", "interval", "result", "variable", "cells", "where", "side"),
        rows=rows,
    )


def _interval(one: Onset, cells: Sequence[tuple[int, ...]]) -> str:
    """(50, 100] holds the onsets of all these cells."""
    low, high = min(float(one.low[cell]) for cell in cells), max(float(one.high[cell]) for cell in cells)
    return f"({whole(low) if np.isfinite(low) else '?'}, {whole(high) if np.isfinite(high) else '?'}]"


def _places(one: Onset, cells: Sequence[tuple[int, ...]]) -> str:
    """Where cells are: "layer 0, head 1, 3; layer 2, head 0"; only the first few of many."""
    by_rest: dict[str, list[str]] = {}
    for cell in sorted(cells):
        *rest, last = list(one.place(cell).items()) or [("", "")]
        told = ", ".join(f"{dim} {value}" for dim, value in [*rest, (last[0], "")]).strip()
        by_rest.setdefault(told, []).append(str(last[1]))
    said = [f"{told} {', '.join(values)}".strip() for told, values in by_rest.items()]
    return "; ".join(said[:MOST_PLACES]) + (f"; and {len(said) - MOST_PLACES} more" if len(said) > MOST_PLACES else "")


def _trajectories(results: Results) -> Iterator[_Trajectory]:
    judged: dict[tuple[str, str, str], list[Statistic]] = {}
    for one in results.statistics():
        judged.setdefault(one.name, []).append(one)
    for variant in results.variants:
        along = results.manifest().swept_by_number(variant)
        for label in results.labels if along is not None else ():
            if (variant, label) not in results or results.unfinished(variant, label):
                continue
            try:
                data = results[variant, label]
            except StoreError:  # of several shapes: there is no cell to follow
                continue
            names = [name for v, of, name in judged if (v, of) == (variant, label)]
            for name in names or _unjudged(data):
                assert along is not None
                yield _trajectory(results, data, judged.get((variant, label, name), []), (variant, label, name), along)


def _unjudged(data: xr.Dataset) -> list[str]:
    """Without a null: what would be compared with one."""
    return [str(name) for name, variable in data.data_vars.items() if "of" not in variable.attrs and compared(variable)]


def _trajectory(
    results: Results, data: xr.Dataset, judged: Sequence[Statistic], name: tuple[str, str, str], along: str
) -> _Trajectory:
    variant, label, variable = name
    error = data.get(f"{variable}_se")
    half = None
    if error is not None:
        half = error * stdtrit(int(error.attrs.get("groups", 10)) - 1, (1 + INTERVAL) / 2)
    rungs = results.rungs
    ordered = [judged[i] for i in ladder_order([rungs.get(one.null, one.null) for one in judged])]
    nulls = {}
    for one in ordered[:MOST_NULLS]:
        columns = ("null_mean", "null_low", "null_high", "effect")
        # Beside a null that has no draws at some values there is nothing to draw there.
        here = {along: data[variable][along]}
        nulls[one.null] = {c: _ready(one.comparison[f"{variable}_{c}"].reindex(here), along) for c in columns}
    named = {null: results.named_null(null) for null in nulls}
    values = _ready(data[variable], along)
    return _Trajectory(variant, label, variable, along, values, _ready(half, along), nulls, named)


def _ready(values: Any, along: str) -> Any:
    """The mean over draws, in the order of the swept number."""
    if values is None:
        return None
    kept = values.mean("draw", keep_attrs=True) if "draw" in values.dims else values
    return kept.sortby(along)


def _title(found: _Trajectory, named: bool = False) -> str:
    """What the number is, of which variant and result; ``named`` with its name, where two have the same words."""
    words = str(found.values.attrs.get("long_name", found.name))
    name = f": {found.name}" if named else ""
    return f"{words[:1].upper()}{words[1:]}{name}, {found.variant} ({found.label})"


def _figure(found: _Trajectory, results: Results, title: str) -> Figure:
    attrs = found.values.attrs
    words = str(attrs.get("long_name", found.name))
    about = f"The variable {found.name}. " if words != found.name else ""
    log = _spans_decades(found.x)
    said: dict[str, Any] = {
        "title": title,
        "caption": f"{about}{_caption(found, results, log)}".rstrip(),
        "sources": _sources(found),
        "units": str(attrs.get("units", "1")),
        "x": found.x,
        "x_name": found.along,
        "log_x": log,
        "log_y": _is_wide(found),
    }
    dials = found.dials
    labels = [[str(v) for v in _coordinate(found.values, dim)] for dim in dials]
    if not dials or prod(map(len, labels)) > MOST_PLOTS:
        return Lines(**said, series=_lines(found, {}))
    places = list(product(*map(range, map(len, labels))))
    panels = tuple(_lines(found, dict(zip(dials, place, strict=True))) for place in places)
    start = _furthest(found, dials)
    made = tuple(Dial(dim, names, at) for dim, names, at in zip(dials, labels, start, strict=True))
    return Panels(**said, panels=panels, dials=made, alike=dials == ["layer"])


def _lines(found: _Trajectory, place: Mapping[str, int]) -> tuple[Line, ...]:
    """The nulls, then the heads that get furthest from them, then the others, faint."""
    values, nulls = found.values.isel(place), list(found.nulls.items())
    lines = [
        _null_line(found.named[null], {c: _flat(found, v.isel(place)) for c, v in columns.items()})
        for null, columns in nulls
    ]
    flat = _flat(found, values)
    half = None if found.half is None else _flat(found, found.half.isel(place))
    labels = _names(found, values)
    far = np.nan_to_num(_flat_cells(found, found.far().isel(place)), nan=-1.0)
    named = set(np.argsort(-far, kind="stable")[: SERIES - len(nulls)].tolist())
    for faint in (False, True):
        for cell, label in enumerate(labels):
            if (cell not in named) == faint:
                y, error = flat[:, cell], None if half is None or faint else half[:, cell]
                band = error is not None and bool(np.isfinite(error).any())
                low, high = (y - error, y + error) if band and error is not None else (None, None)
                lines.append(Line(label, y, low, high, faint=faint))
    return tuple(lines)


def _null_line(named: str, columns: Mapping[str, np.ndarray]) -> Line:
    """The mean of a null over heads, and the band that holds the 95 % of each of them."""
    known = {name: np.where(np.isfinite(values), values, np.nan) for name, values in columns.items()}
    mean = _over_cells(known["null_mean"], "mean")
    low, high = _over_cells(known["null_low"], "min"), _over_cells(known["null_high"], "max")
    return Line(named, mean, low, high) if np.isfinite(low).any() else Line(named, mean)


def _over_cells(values: np.ndarray, how: str) -> np.ndarray:
    """The mean, least or largest [step] of cells [step, cell]; NaN where none is known."""
    masked = np.ma.masked_invalid(values)
    return np.asarray(getattr(masked, how)(axis=1).filled(np.nan), dtype=np.float64)


def _flat(found: _Trajectory, values: xr.DataArray) -> np.ndarray:
    """[step, cell]: dimensions of one place are dropped, and what is left over is one dimension."""
    ordered = values.transpose(found.along, ...).values
    return np.asarray(ordered, dtype=np.float64).reshape(ordered.shape[0], -1)


def _flat_cells(found: _Trajectory, values: xr.DataArray) -> np.ndarray:
    kept = [dim for dim in found.values.dims if dim in values.dims]
    return np.asarray(values.transpose(*kept).values, dtype=np.float64).ravel()


def _names(found: _Trajectory, values: xr.DataArray) -> list[str]:
    """What the curves of a plot are called: head 3."""
    dims = [str(dim) for dim in values.dims if dim != found.along and values.sizes[dim] > 1]
    places = product(*(_coordinate(values, dim) for dim in dims))
    return [", ".join(f"{d} {v}" for d, v in zip(dims, place, strict=True)) or found.variant for place in places]


def _coordinate(values: xr.DataArray, dim: str) -> list[Any]:
    return list(values[dim].values.tolist() if dim in values.coords else range(values.sizes[dim]))


def _furthest(found: _Trajectory, dials: Sequence[str]) -> list[int]:
    """Where the sliders stand at first: where a cell gets furthest."""
    far = found.far() if dials == ["layer"] else found.effect()
    largest = np.nan_to_num(far.max([dim for dim in far.dims if dim not in dials]).transpose(*dials).values, nan=-1.0)
    return [int(i) for i in np.unravel_index(int(np.argmax(largest)), largest.shape)]


def _spans_decades(x: np.ndarray) -> bool:
    positive = x[x > 0]
    return bool((x >= 0).all() and positive.size > 1 and positive.max() / positive.min() > DECADE)


def _is_wide(found: _Trajectory) -> bool:
    """Whether values and nulls are all positive and span so much that a straight axis would show the largest alone."""
    drawn = [found.values, *(columns[c] for columns in found.nulls.values() for c in columns if c != "effect")]
    held = np.concatenate([np.asarray(each.values, dtype=np.float64).ravel() for each in drawn])
    held = held[np.isfinite(held)]
    if not held.size or held.min() <= 0:
        return False
    least, most = np.percentile(held, (5, 95))
    return bool(most / least > WIDE)


def _caption(found: _Trajectory, results: Results, log: bool) -> str:
    said = []
    many = found.curve is not None and found.values.sizes[found.curve] > SERIES - len(found.nulls)
    if many:
        than = "furthest from the nulls" if found.nulls else "that change most"
        said.append(f"In colour the {found.curve}s {than}, the others thin and grey.")
    if found.nulls:
        of = f", over all {found.curve}s" if found.curve is not None else ""
        swept = [found.along in results.manifest().swept_models(null) for null in found.nulls]
        own = [found.named[null] for null, is_swept in zip(found.nulls, swept, strict=True) if is_swept]
        fixed = [found.named[null] for null, is_swept in zip(found.nulls, swept, strict=True) if not is_swept]
        drawn = [f"{_and(own)} at the same {found.along}"] if own else []
        drawn += [f"{_and(fixed)} the same for every {found.along}"] if fixed else []
        half = f"{100 * INTERVAL:.0f} %"
        said.append(f"Nulls, the mean of their draws and where {half} of these lie{of}: {'; '.join(drawn)}.")
    if found.half is not None and bool(np.isfinite(found.half).any()):
        which = f"Bands of {found.curve}s" if found.curve is not None else f"Band of {found.variant}"
        said.append(f"{which}: {100 * INTERVAL:.0f} % intervals over prompts.")
    if "layer" in found.dials and len(found.dials) == 1:
        said.append("All layers have one vertical axis.")
    if log and (found.x == 0).any():
        said.append(f"The axis is logarithmic, where 0 has no place: {found.along} 0 is set apart at the left.")
    return " ".join(said)


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _sources(found: _Trajectory) -> tuple[Source, ...]:
    beside = [Source(found.variant, f"{found.label}.against.{null}", f"{found.name}_null_mean") for null in found.nulls]
    return (Source(found.variant, found.label, found.name), *beside)
