"""Reading a store or a pack: results by variant and label, as xarray and pandas. Nothing here writes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..contract.errors import StoreError, did_you_mean
from .disk import is_file
from .index import has_index
from .layout import RUNS, NotAStore, entry_of, is_store, part_path
from .manifest import Manifest, PlannedStep, SweepPoint, manifests

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from ..verdicts import Statistic


class NoResult(StoreError, KeyError):
    """There is no such result, or it is not finished."""

    __str__ = Exception.__str__


def open(path: str | os.PathLike[str]) -> Results:  # noqa: A001  users say gausslens.open
    """Open a store (or a pack) for reading: ``gausslens.open("store")``."""
    return Results(open_reader(path))


@dataclass(frozen=True)
class Result:
    """A finished result as a report section reads it: it knows its own draws, swept values and nulls.

    ``draws`` is their number (None: it has none), and ``data`` then has a dimension ``draw``; ``swept`` names the
    dimensions that a sweep gave. ``nulls`` are the variants it is compared with, and ``is_null`` says that others are
    compared with it.
    """

    variant: str
    label: str
    data: xr.Dataset
    draws: int | None = None
    swept: tuple[str, ...] = ()
    nulls: tuple[str, ...] = ()
    is_null: bool = False

    def points(self) -> list[tuple[str, xr.Dataset]]:
        """("dose, alpha 0.5", its data) for each swept value; the variant itself where nothing is swept."""
        found = []
        for place in product(*(range(self.data.sizes[dim]) for dim in self.swept)):
            at = dict(zip(self.swept, place, strict=True))
            said = [f"{dim} {self.data[dim].values[i]}" for dim, i in at.items()]
            found.append((", ".join([self.variant, *said]), self.data.isel(at)))
        return found


class Results:
    """The results of a store, read-only.

    ``results["trained", "gaussian.moments"]`` is an xarray.Dataset of the newest plan that has it, with draws and swept
    values as leading dimensions; ``results.run("name")`` looks at one run only. Large arrays are read when used.
    """

    def __init__(self, found: Reader, run: str | None = None, known: Sequence[Manifest] | None = None):
        self._reader = found
        self._run = run
        self._manifests = [m for m in (found.manifests() if known is None else known) if run in (None, m.run)]
        self._statistics: list[Statistic] | None = None
        self._steps: dict[tuple[str, str], tuple[Manifest, list[PlannedStep]]] = {}
        for manifest in self._manifests:
            grouped: dict[tuple[str, str], tuple[Manifest, list[PlannedStep]]] = {}
            for step in manifest.steps:
                grouped.setdefault((step.variant, step.label), (manifest, []))[1].append(step)
            self._steps |= grouped

    @property
    def path(self) -> str:
        """Where the store is."""
        return str(self._reader.path)

    @property
    def runs(self) -> tuple[str, ...]:
        """Names of the runs, the one planned last at the end."""
        return tuple(reversed(dict.fromkeys(m.run for m in reversed(self._manifests))))

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the variants."""
        return tuple(dict.fromkeys(variant for variant, _ in self._steps))

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the results, without the comparisons with nulls."""
        found = dict.fromkeys(label for (_, label), (_, steps) in self._steps.items() if steps[0].against is None)
        return tuple(found)

    def run(self, name: str) -> Results:
        """The results of one run."""
        if name not in self.runs:
            name = str(name)
            raise NoResult(f"{self.path} has no run {name!r}{did_you_mean(name, self.runs)}")
        return Results(self._reader, name, self._manifests)

    def manifest(self) -> Manifest:
        """The newest plan: ``.resolved`` is its run file, ``.steps`` what it planned."""
        if not self._manifests:
            raise NotAStore(f"{self.path} holds no run yet")
        return self._manifests[-1]

    def manifests(self) -> tuple[Manifest, ...]:
        """All plans, oldest first."""
        return tuple(self._manifests)

    def steps(self, variant: str, label: str) -> tuple[PlannedStep, ...]:
        """What the newest plan that has it planned for a variant and label: one step for each draw and swept value."""
        if (variant, label) not in self._steps:
            variant, label = str(variant), str(label)
            if variant not in self.variants:
                raise NoResult(f"{self.path} has no variant {variant!r}{did_you_mean(variant, self.variants)}")
            known = [known for v, known in self._steps if v == variant]
            raise NoResult(f"{variant} has no result {label!r}{did_you_mean(label, known)}")
        return tuple(self._steps[variant, label][1])

    def finished(self, step: PlannedStep) -> bool:
        """Whether the result of a step is in the store."""
        return self._reader.finished(step)

    @property
    def planned(self) -> tuple[tuple[str, str], ...]:
        """Variant and label of all that was planned, finished or not; iterating goes over what is finished."""
        return tuple(self._steps)

    def unfinished(self, variant: str, label: str) -> list[str]:
        """The draws and swept values of a planned result that are not in the store, in words."""
        steps = self.steps(variant, label)
        return [", ".join(f"{n} {v}" for n, v in s.point) or "all of it" for s in steps if not self.finished(s)]

    def draws(self, variant: str, label: str) -> dict[SweepPoint, xr.Dataset]:
        """Each finished result by itself: ``{(("draw", 0), ("alpha", 0.5)): dataset, ...}``."""
        steps = self.steps(variant, label)
        found = {step.point: self._reader.read(step) for step in steps if self.finished(step)}
        if not found:
            raise NoResult(f"{variant}, {label} is planned and not finished: run again to finish it")
        return found

    def __getitem__(self, name: tuple[str, str]) -> xr.Dataset:
        from .read_parts import stack

        if not isinstance(name, tuple) or len(name) != 2 or not all(isinstance(n, str) for n in name):
            raise NoResult(f"{name!r}: results are named by variant and label, as in results['trained', 'values']")
        stacked = stack(self.draws(*name), f"{name[0]}, {name[1]}")
        missing = self.unfinished(*name)
        return stacked.assign_attrs(unfinished=missing) if missing else stacked

    def __contains__(self, name: object) -> bool:
        return name in self._steps and any(self.finished(s) for s in self._steps[name][1])

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter([name for name in self._steps if name in self])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def of(self, analysis: str) -> dict[str, dict[str, xr.Dataset]]:
        """All results of an analysis, ``{label: {variant: dataset}}``: what a report section starts from.

        A variant of which a draw or swept value is not finished yet is left out.
        """
        found: dict[str, dict[str, xr.Dataset]] = {}
        for (variant, label), (_, steps) in self._steps.items():
            mine = steps[0].analysis == analysis and steps[0].against is None
            if mine and all(self.finished(s) for s in steps):
                found.setdefault(label, {})[variant] = self[variant, label]
        return found

    def by_label(self, analysis: str) -> dict[str, list[Result]]:
        """The same as ``of``, each result with its draws, swept values and nulls; the nulls of others come last."""
        found = {}
        for label, by_variant in self.of(analysis).items():
            nulls = {variant: self.nulls(variant, label) for variant in by_variant}
            compared_with = {null for each in nulls.values() for null in each}
            each = [
                self._result(variant, label, data, nulls[variant], variant in compared_with)
                for variant, data in by_variant.items()
            ]
            found[label] = sorted(each, key=lambda result: result.is_null)
        return found

    def _result(self, variant: str, label: str, data: xr.Dataset, nulls: tuple[str, ...], is_null: bool) -> Result:
        steps = self._steps[variant, label][1]
        draws = None if steps[0].draw is None else data.sizes["draw"]
        return Result(variant, label, data, draws, tuple(steps[0].sweep), nulls, is_null)

    def nulls(self, variant: str, label: str) -> tuple[str, ...]:
        """The nulls that a result is compared with: as they and the result now are, not as an older plan had them."""
        compared = dict.fromkeys(steps[0].against for (v, _), (_, steps) in self._steps.items() if v == variant)
        return tuple(n for n in compared if n is not None and self._compared(variant, label, n))

    def _compared(self, variant: str, label: str, null: str) -> bool:
        """Whether there is a comparison, made from the very results that go by these names now."""
        name = variant, f"{label}.against.{null}"
        if name not in self:
            return False
        manifest, steps = self._steps[name]
        planned = self._steps.get((variant, label))
        if planned is None or planned[0] is manifest:
            return planned is not None
        made_of = {s.ingredients.get("of") for s in steps}
        draws = {key for s in steps for key in s.ingredients.get("null", ())}
        now = {s.key for s in planned[1]}, {s.key for s in self._steps.get((null, label), (None, []))[1]}
        return made_of <= now[0] and draws <= now[1]

    def against(self, variant: str, label: str, null: str | None = None) -> xr.Dataset:
        """The comparison with a null: for each compared variable ``v`` also ``v_z``, ``v_p``, ``v_q``, ..."""
        self.steps(variant, label)
        nulls = self.nulls(variant, label)
        if not nulls:
            raise NoResult(f"{variant}, {label} is compared with no null: `against:` of a run file names one")
        if null is None and len(nulls) > 1:
            raise NoResult(f"{variant}, {label} is compared with {', '.join(nulls)}: say which with null=")
        if null is not None and null not in nulls:
            raise NoResult(f"{variant}, {label} is not compared with {null!r}{did_you_mean(null, nulls)}")
        return self[variant, f"{label}.against.{null or nulls[0]}"]

    def comparisons(self) -> dict[tuple[str, str, str], xr.Dataset]:
        """Every finished comparison, ``{(variant, label, null): dataset}``, with draws and swept values stacked."""
        from .read_parts import DifferentShapes

        found = {}
        for variant, label in self:
            for null in self.nulls(variant, label):
                try:
                    compared = self.against(variant, label, null)
                except DifferentShapes:
                    continue  # what differs in shape is many statistics and no one
                if "unfinished" not in compared.attrs:
                    found[variant, label, null] = compared
        return found

    @property
    def rungs(self) -> dict[str, str]:
        """Of each null its place on the ladder of nulls, in words: by what its twins share with the model."""
        return {name: rung for manifest in self._manifests for name, rung in manifest.rungs.items()}

    def statistics(self) -> list[Statistic]:
        """Every variable that is compared with a null: whether it departs, over all of the run, and in which cells."""
        if self._statistics is None:
            from ..verdicts import statistics

            self._statistics = statistics(self.comparisons())
        return self._statistics

    def sentences(self) -> list[str]:
        """What was found, in one sentence for each variant that is compared with a null."""
        from ..verdicts import sentences

        return sentences(self.statistics(), self.rungs)

    def frame(
        self, variant: str, label: str, null: str | None = None, variables: str | Sequence[str] | None = None
    ) -> pd.DataFrame:
        """A result as a table, one row for each cell, with the null's mean, sd, z, p and q where there is a null.

        ``se`` is the value's error over prompts, ``difference_se`` that of its difference from the null's mean.
        Where there are several, ``null`` picks one; else the columns are called ``<null>.z`` and so on.
        """
        from ..verdicts import explanations, rung_columns, with_verdicts
        from .read_parts import DifferentShapes
        from .tables import frame, frame_of_draws

        variables = [variables] if isinstance(variables, str) else variables
        if null is not None:
            self.against(variant, label, null)
        nulls = self.nulls(variant, label) if null is None else (null,)
        judged = [one for one in (self.statistics() if nulls else []) if (one.variant, one.label) == (variant, label)]
        short = {name: name if len(nulls) > 1 else "" for name in nulls}
        what = f"{variant}, {label}"
        try:
            explained = explanations(judged, self.rungs) if null is None else {}
            compared = {
                short[name]: with_verdicts(self.against(variant, label, name), name, judged, explained)
                for name in nulls
            }
            result = self[variant, label]
            return frame(
                result, {**compared, **({"": rung_columns(result, explained)} if explained else {})}, variables, what
            )
        except DifferentShapes:
            each = {short[name]: self.draws(variant, f"{label}.against.{name}") for name in nulls}
            return frame_of_draws(self.draws(variant, label), each, variables, what)

    def table(self) -> pd.DataFrame:
        """What there is, one row for each step: run, variant, draw, swept values, label, key, when it was finished."""
        from .tables import table

        return table(self._steps_by_run(), self.finished, self._reader.facts)

    def tree(self) -> xr.DataTree:
        """Everything as a tree: run, variant, label; results that differ in shape have a node for each draw."""
        import xarray as xr

        from .read_parts import DifferentShapes, stack

        nodes: dict[str, xr.Dataset | xr.DataTree | None] = {}
        for run in self.runs:
            view = self if self._run else self.run(run)
            for variant, label in view:
                where = f"/{run}/{variant}/{label}"
                each = view.draws(variant, label)
                try:
                    nodes[where] = stack(each, f"{variant}, {label}")
                except DifferentShapes:
                    members = {step.point: step.member for step in view.steps(variant, label)}
                    nodes |= {f"{where}/{members[point]}": dataset for point, dataset in each.items()}
        return xr.DataTree.from_dict(nodes)

    def facts(self, variant: str, label: str) -> list[Mapping[str, Any]]:
        """What made each finished result: plugin, versions, when, and its provenance, one mapping for each draw."""
        return [self._reader.facts(step) for step in self.steps(variant, label) if self.finished(step)]

    def _steps_by_run(self) -> Iterator[tuple[Manifest, PlannedStep]]:
        for run in self.runs:
            view = self if self._run else self.run(run)
            for manifest, steps in view._steps.values():
                yield from ((manifest, step) for step in steps)

    def __repr__(self) -> str:
        lines = [f"<gausslens.Results {self.path}>"]
        for run in self.runs:
            view = self if self._run else self.run(run)
            steps = [step for _, found in view._steps.values() for step in found]
            done = sum(self.finished(step) for step in steps)
            lines.append(f"{run}: {done} of {len(steps)} steps finished, planned {view.manifest().created[:16]}")
            for variant in view.variants:
                lines.append(f"  {variant}: {', '.join(label for v, label in view._steps if v == variant)}")
        return "\n".join(lines if len(lines) > 1 else [*lines, "no run yet"])


class Reader(Protocol):
    """What ``Results`` needs of a store or a pack."""

    path: Path

    def manifests(self) -> list[Manifest]:
        """All that can be read, oldest first."""
        ...

    def finished(self, step: PlannedStep) -> bool:
        """Whether the result of a step is there."""
        ...

    def read(self, step: PlannedStep) -> xr.Dataset:
        """The result of a step."""
        ...

    def facts(self, step: PlannedStep) -> Mapping[str, Any]:
        """What made the result: the attributes of its group."""
        ...


class StoreReader:
    """Reads a store."""

    def __init__(self, path: Path):
        self.path = path.resolve()
        has_index(self.path)

    def manifests(self) -> list[Manifest]:
        """All that can be read, oldest first."""
        return manifests(self.path) if (self.path / RUNS).is_dir() else []

    def finished(self, step: PlannedStep) -> bool:
        """Whether the part is there."""
        return is_file(part_path(self.path, step.analysis, step.key))

    def read(self, step: PlannedStep) -> xr.Dataset:
        """The result of a step."""
        from .read_parts import read_part

        return read_part(self.path, step.analysis, step.key)

    def facts(self, step: PlannedStep) -> Mapping[str, Any]:
        """What made the result."""
        from .read_parts import read_facts

        path = part_path(self.path, step.analysis, step.key)
        return read_facts(self.path, path, entry_of(step.analysis, step.key))


def check_is_store(path: Path) -> None:
    """Raise where there is neither a store nor a file that may be a pack."""
    if not is_store(path) and not path.is_file():
        raise NotAStore(f"{path}: there is no store here" + ("" if path.exists() else "; the path does not exist"))


def open_reader(path: str | os.PathLike[str]) -> Reader:
    """The store or pack at a path."""
    place = Path(path).expanduser()
    check_is_store(place)
    if not place.is_file():
        return StoreReader(place)
    from .pack import PackReader

    return PackReader(place)
