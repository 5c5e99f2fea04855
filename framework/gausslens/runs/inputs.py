"""What measured steps and edits read: which results, in what order steps are planned and computed, and the results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..contract.analyses import StepRef
from ..contract.errors import GausslensError, InputError
from ..contract.reference import resolve
from ..guard import Guard, is_outside, settled
from .lending import analysis_of

if TYPE_CHECKING:
    import xarray as xr

    from ..contract.analyses import Context
    from ..contract.twin import EditCall
    from ..store import Store
    from .steps import Step
    from .study import Point, Study, Use, Variant

# A twin of a study: its variant, swept values and draw.
Twin = tuple[str, tuple[tuple[str, Any], ...], int | None]
# Of each edit of a twin the results that it reads.
OfEdits = tuple[tuple[StepRef, ...], ...]


class PlanError(InputError):
    """A run file is well formed but asks for what cannot be."""


class Results(Mapping[StepRef, "xr.Dataset"]):
    """Results that a step reads, from the store: each when it is first asked for, large arrays when they are used.

    An array that was read whole is kept, and the same for whoever asks again: it is in memory once. Copies of the state
    of an analysis share it.
    """

    def __init__(self, store: Store, steps: Mapping[StepRef, Step]) -> None:
        self._store, self._steps = store, steps
        self._read: dict[StepRef, xr.Dataset] = {}

    def __getitem__(self, ref: StepRef) -> xr.Dataset:
        if ref not in self._read:
            step = self._steps[ref]
            self._read[ref] = _kept_once(self._store.read(step.folder, step.key))
        return self._read[ref]

    def __iter__(self) -> Iterator[StepRef]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def __deepcopy__(self, memo: dict[int, Any]) -> Results:
        return self


def _kept_once(dataset: xr.Dataset) -> xr.Dataset:
    """The same, whose lazy arrays stay in memory once they were read whole; parts of them are read as they are used."""
    import xarray as xr
    from xarray.core import indexing

    kept = {}
    for name, v in dataset.variables.items():
        if isinstance(v._data, indexing.LazilyIndexedArray):
            data = indexing.MemoryCachedArray(v._data)  # type: ignore[no-untyped-call]
            kept[name] = xr.Variable(v.dims, data, v.attrs, v.encoding, fastpath=True)
    return dataset.assign(kept)


def lost(refs: Iterable[StepRef], steps: Mapping[StepRef, Step], store: Store) -> str | None:
    """Why a step cannot be computed: results that it reads are not there. None where all are."""
    missing = {f"{r.label} on {r.variant}" for r in refs if not store.has(steps[r].folder, steps[r].key)}
    return f"not computed, because {', '.join(sorted(missing))} failed" if missing else None


def reads_results(use: Use) -> bool:
    """Whether an analysis that looks at the model has ``inputs`` besides."""
    if use.analysis.descriptor.shape == "derived":
        return False
    try:
        return callable(getattr(resolve(use.analysis.descriptor.analysis), "inputs", None))
    except BaseException as error:
        settled(error)
        return False  # its steps fail, and say why


def picked(
    use: Use, context: Context, candidates: Sequence[StepRef], left_out: Sequence[StepRef]
) -> tuple[StepRef, ...] | None:
    """What an analysis reads of these; None where it could read what was left out, and so is left out, too."""
    analysis: Any = None
    try:
        analysis = analysis_of(use, context)
        refs = Guard.of(use.analysis.owner).call(lambda: _steps(analysis.inputs(tuple(candidates)), candidates))
    except GausslensError as error:
        if left_out and _could_read(analysis, (*candidates, *left_out)):
            return None
        raise PlanError(f"{use.mark}: {use.label}: {error}") from error
    except Exception as error:
        owner = use.analysis.owner
        whose = f" of plugin {owner.plugin} ({owner.distribution})" if is_outside(owner) else ""
        raise PlanError(f"{use.mark}: {use.label}{whose} cannot say what it reads: {error!r}") from error
    if not refs and left_out and _could_read(analysis, (*candidates, *left_out)):
        return None
    unknown = next((ref for ref in refs if ref not in candidates), None)
    if unknown is not None or (not refs and use.analysis.descriptor.shape == "derived"):
        what = f"asks for {unknown}, which is not planned" if unknown else "finds none of the results it reads"
        raise PlanError(f"{use.mark}: {use.label} {what}; {known(candidates)}")
    return refs


def _steps(asked: Iterable[StepRef], offered: Sequence[StepRef]) -> tuple[StepRef, ...]:
    """The steps that were asked for, as those that were offered: where they are read no code of a plugin runs."""
    own = {ref: ref for ref in offered}
    return tuple(own.get(ref, ref) for ref in asked)


def known(candidates: Sequence[StepRef]) -> str:
    """The labels that could be read, for a message."""
    return f"the labels planned before it: {', '.join(sorted({c.label for c in candidates})) or 'none'}"


def _could_read(analysis: Any, candidates: Sequence[StepRef]) -> bool:
    try:
        return bool(analysis.inputs(candidates))
    except BaseException as error:
        settled(error)
        return False


def picked_by_edits(study: Study, places: Sequence[StepRef]) -> Mapping[Twin, OfEdits]:
    """For each twin whose edits read results, which: asked with all steps of other variants that may be planned.

    A twin that is a draw, or of a swept value, is offered of other draws and values those that are its own.
    """
    found: dict[Twin, OfEdits] = {}
    for variant in study.variants:
        for point, draw in variant.twins():
            _refuse_in_differences(point)
            if any(call.edit.descriptor.inputs for call in point.edits):
                offered = [p for p in places if p.variant != variant.name and _agrees(p, point, draw)]
                found[variant.name, point.values, draw] = tuple(_picked(call, offered) for call in point.edits)
    return found


def _agrees(place: StepRef, point: Point, draw: int | None) -> bool:
    """Whether a step is of the same draw and swept values, as far as both have them."""
    if None not in (place.draw, draw) and place.draw != draw:
        return False
    mine = dict(point.values)
    return all(mine.get(name, value) == value for name, value in place.sweep)


def _picked(call: EditCall, offered: Sequence[StepRef]) -> tuple[StepRef, ...]:
    edit = call.edit.descriptor
    if edit.inputs is None:
        return ()
    labels = ", ".join(sorted({f"{p.label} on {p.variant}" for p in offered})) or "none"
    try:
        refs = Guard.of(call.edit.owner).call(
            lambda: _steps(resolve(str(edit.inputs))(call.parameters, tuple(offered)), offered)
        )
    except GausslensError as error:
        raise PlanError(f"{call.mark}: edit {edit.name}: {error}; it may read {labels}") from error
    except Exception as error:
        raise PlanError(f"{call.mark}: edit {edit.name} cannot say what it reads: {error!r}") from error
    unknown = [ref for ref in refs if ref not in offered]
    if unknown or not refs:
        what = f"asks for {unknown[0]}, which is not of another variant" if unknown else "finds none of what it reads"
        raise PlanError(f"{call.mark}: edit {edit.name} {what}; it may read {labels}")
    return refs


def _refuse_in_differences(point: Point) -> None:
    sides = () if point.difference is None else (point.difference.of, point.difference.less)
    for call in (call for _, edits in sides for call in edits):
        if call.edit.descriptor.inputs is not None:
            name = call.edit.descriptor.name
            raise PlanError(f"{call.mark}: edit {name} reads results: it cannot be on a side of a difference")


def planned_after(study: Study, picked: Mapping[Twin, OfEdits]) -> list[list[Variant]]:
    """The variants in the order in which they are planned: those together that wait for none of each other."""
    reads: dict[str, set[str]] = {v.name: set() for v in study.variants}
    for (name, _, _), of_edits in picked.items():
        reads[name] |= {ref.variant for refs in of_edits for ref in refs}
    waiting = list(study.variants)
    order: list[list[Variant]] = []
    while waiting:
        done = {v.name for together in order for v in together}
        ready = [v for v in waiting if reads[v.name] <= done]
        if not ready:
            raise PlanError(_cycle(waiting, reads))
        order.append(ready)
        waiting = [v for v in waiting if v not in ready]
    return order


def _cycle(waiting: Sequence[Variant], reads: Mapping[str, Collection[str]]) -> str:
    held = {v.name: v for v in waiting}
    path = [waiting[0].name]
    while path.count(path[-1]) < 2:
        path.append(next(name for name in sorted(reads[path[-1]]) if name in held))
    around = path[path.index(path[-1]) :]
    told = ", ".join(f"{a} reads results of {b}" for a, b in pairwise(around))
    return f"{held[around[0]].mark}: edits wait for each other: {told}; let one of them read another variant"


def waves(todo: Sequence[Step], steps: Mapping[StepRef, Step]) -> list[list[Step]]:
    """Steps to compute one after another: in each the measured ones first, which read nothing that is in it."""
    keys = {step.key for step in todo}
    number: dict[StepRef, int] = {}
    for ref, step in steps.items():  # inputs stand before what reads them
        before = [number[r] for r in step.inputs]
        read = [number[r] + (steps[r].key in keys) for r in step.waits_for]
        number[ref] = max([0, *before, *read])
    found: dict[int, list[Step]] = {}
    for step in todo:
        found.setdefault(number[step.ref], []).append(step)
    return [found[n] for n in sorted(found)]
