"""Reading a store or a pack: results by variant and label, as xarray and pandas. Nothing here writes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from ..contract.errors import InputError, StoreError, did_you_mean
from ..terminal import html_table
from .index import Reader as Reader
from .index import open_reader
from .layout import NotAStore
from .manifest import Manifest, PlannedStep, SweepPoint, by_label, left_out, shown_plan

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from ..verdicts import Explanation, Onset, Statistic


# Digits of a plan's digest that are shown; so few are enough to mean it.
PLAN_DIGITS, FEWEST_DIGITS = 8, 6
MOST_NAMED = 5  # other runs and plans that notes name


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
    compared with it; ``words`` then tell what its twins share with the model, where that is known.
    """

    variant: str
    label: str
    data: xr.Dataset
    draws: int | None = None
    swept: tuple[str, ...] = ()
    nulls: tuple[str, ...] = ()
    is_null: bool = False
    words: str = ""

    @property
    def named(self) -> str:
        """Its variant, and of a null what its twins are: "the model before training (before)"."""
        return f"{self.words} ({self.variant})" if self.words else self.variant

    def points(self) -> list[tuple[str, xr.Dataset]]:
        """("dose, alpha 0.5", its data) for each swept value; the variant itself where nothing is swept."""
        found = []
        for place in product(*(range(self.data.sizes[dim]) for dim in self.swept)):
            at = dict(zip(self.swept, place, strict=True))
            said = [f"{dim} {self.data[dim].values[i]}" for dim, i in at.items()]
            found.append((", ".join([self.variant, *said]), self.data.isel(at)))
        return found


class Results:
    """The results of one run of a store, read-only: of the newest that finished anything, unless another is asked for.

    ``results["trained", "gaussian.moments"]`` is an xarray.Dataset with draws and swept values as leading dimensions.
    ``results.runs`` names all runs, ``results.run("name")`` reads another, ``all_runs()`` each by itself, and
    ``compare`` sets two side by side: nothing else mixes them. Large arrays are read when used.
    """

    names: Mapping[str, str] = {}  # by which ``of`` knows analyses too, and those that are stored

    def __init__(self, found: Reader, known: Sequence[Manifest] | None = None, of: Sequence[Manifest] | None = None):
        self._reader = found
        self._known = tuple(found.manifests() if known is None else known)
        self._plan = shown_plan(self._known if of is None else of, found.finished)
        self._steps = {} if self._plan is None else by_label(self._plan)

    @property
    def path(self) -> str:
        """Where the store is."""
        return str(self._reader.path)

    @property
    def name(self) -> str:
        """The run that is read; nothing where the store holds none."""
        return "" if self._plan is None else self._plan.run

    @property
    def runs(self) -> tuple[str, ...]:
        """Names of all runs of the store, the one planned last at the end; by sequence, not by the clock."""
        return tuple(reversed(dict.fromkeys(m.run for m in reversed(self._known))))

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the variants."""
        return tuple(dict.fromkeys(variant for variant, _ in self._steps))

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the results, without the comparisons with nulls."""
        return tuple(dict.fromkeys(label for (_, label), steps in self._steps.items() if steps[0].against is None))

    def run(self, name: str, plan: str | None = None) -> Results:
        """The results of one run: its newest plan that finished anything, or the one whose digest begins so."""
        mine = [m for m in self._known if m.run == name]
        if not mine:
            name = str(name)
            raise NoResult(f"{self.path} has no run {name!r}{did_you_mean(name, self.runs)}")
        if plan is not None:
            known = dict.fromkeys(m.plan[:8] for m in reversed(mine))
            mine = [m for m in mine if plan and m.plan.startswith(str(plan))][-1:]
            if not mine:
                raise NoResult(f"run {name!r} has no plan that begins with {str(plan)!r}: {', '.join(known)}")
        return Results(self._reader, self._known, mine)

    def all_runs(self) -> dict[str, Results]:
        """The results of each run by themselves, the run planned last at the end."""
        return {name: self.run(name) for name in self.runs}

    def manifest(self) -> Manifest:
        """The plan that is read: ``.resolved`` is its run file, ``.steps`` what it planned."""
        if self._plan is None:
            raise NotAStore(f"{self.path} holds no run yet")
        return self._plan

    def manifests(self) -> tuple[Manifest, ...]:
        """All plans of all runs, oldest first."""
        return self._known

    @property
    def plan_to_name(self) -> str:
        """The first digits of this plan where ``run(name)`` reads another; nothing where the name is enough."""
        if self._plan is None or self.run(self.name)._plan is self._plan:
            return ""
        return self._plan.plan[:PLAN_DIGITS]

    def other_plans(self) -> list[Manifest]:
        """Plans of this run with finished results that this one does not have, the newest first."""
        if self._plan is None:
            return []
        mine = {(step.analysis, step.key) for step in self._plan.steps}
        plans = {m.plan: m for m in self._known if m.run == self.name and m.plan != self._plan.plan}
        newest = sorted(plans.values(), key=lambda m: m.age, reverse=True)
        return [m for m in newest if any((s.analysis, s.key) not in mine and self.finished(s) for s in m.steps)]

    def notes(self, runs: bool = True) -> list[str]:
        """What a reader of this run is not shown, a line each: the other ``runs``, and other plans of this one."""
        notes = []
        others = [self.run(name) for name in reversed(self.runs) if runs and name != self.name]
        if others:
            notes.append(f"other runs in this store: {_some(_in_words(view) for view in others)}")
        plans = self.other_plans()
        if plans:
            words = _some(f"{m.plan[:PLAN_DIGITS]} (model {m.asked_model or 'none'})" for m in plans)
            notes.append(f"run {self.name} has results of other plans too: {words}")
        newest = self._plan and next(m for m in reversed(self._known) if m.run == self.name)
        if newest and newest is not self._plan and not any(map(self.finished, newest.steps)):
            notes.append(f"the newest plan of run {self.name}, {newest.plan[:PLAN_DIGITS]}, has finished nothing yet")
        return notes

    def steps(self, variant: str, label: str) -> tuple[PlannedStep, ...]:
        """What was planned for a variant and label: one step for each draw and swept value."""
        if (variant, label) not in self._steps:
            variant, label = str(variant), str(label)
            if variant not in self.variants:
                hint = f"{did_you_mean(variant, self.variants)}{self._elsewhere(variant, label)}"
                raise NoResult(f"{self._what_is_read} has no variant {variant!r}{hint}")
            known = [known for v, known in self._steps if v == variant]
            hint = f"{did_you_mean(label, known)}{self._elsewhere(variant, label)}"
            raise NoResult(f"{variant} has no result {label!r}{hint}")
        return self._steps[variant, label]

    @property
    def _what_is_read(self) -> str:
        return f"run {self.name} of {self.path}" if len(self.runs) > 1 else self.path

    def _elsewhere(self, variant: str, label: str) -> str:
        """Which other runs have what this one has not."""
        having = [m.run for m in self._known if m.run != self.name and (variant, label) in by_label(m)]
        return f"; it is in run {', '.join(dict.fromkeys(having))}: .run(name) reads it" if having else ""

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
        from .read_parts import recent, stack

        if not isinstance(name, tuple) or len(name) != 2 or not all(isinstance(n, str) for n in name):
            raise NoResult(f"{name!r}: results are named by variant and label, as in results['trained', 'values']")
        done = [step for step in self._steps.get(name, ()) if self.finished(step)]
        if not done or done[0].point == ():
            return stack(self.draws(*name), f"{name[0]}, {name[1]}")
        mark = tuple((step.point, self._reader.mark(step)) for step in done)
        stacked = recent(mark, lambda: stack({s.point: self._reader.pieces(s) for s in done}, f"{name[0]}, {name[1]}"))
        missing = self.unfinished(*name)
        return stacked.assign_attrs(unfinished=missing) if missing else stacked

    def __contains__(self, name: object) -> bool:
        return name in self._steps and any(self.finished(s) for s in self._steps[name])

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter([name for name in self._steps if name in self])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def of(self, analysis: str) -> dict[str, dict[str, xr.Dataset]]:
        """All results of an analysis, ``{label: {variant: dataset}}``: what a report section starts from.

        A variant of which a draw or swept value is not finished yet is left out, and one whose files are damaged, of
        which a warning tells.
        """
        from .read_parts import Gaps

        found: dict[str, dict[str, xr.Dataset]] = {}
        for (variant, label), steps in self._steps.items():
            mine = steps[0].analysis == self.names.get(analysis, analysis) and steps[0].against is None
            if mine and all(self.finished(s) for s in steps):
                with left_out(Gaps):
                    found.setdefault(label, {})[variant] = self[variant, label]
        return {label: by_variant for label, by_variant in found.items() if by_variant}

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
        steps = self._steps[variant, label]
        draws = None if steps[0].draw is None else data.sizes["draw"]
        from ..verdicts import what_twins_are

        words = what_twins_are(variant, self.rungs) if is_null else variant
        told = words if words != variant else ""
        return Result(variant, label, data, draws, tuple(steps[0].sweep), nulls, is_null, told)

    def nulls(self, variant: str, label: str) -> tuple[str, ...]:
        """The nulls that a result is compared with, as far as the comparisons are finished."""
        compared = dict.fromkeys(steps[0].against for (v, _), steps in self._steps.items() if v == variant)
        return tuple(n for n in compared if n is not None and (variant, f"{label}.against.{n}") in self)

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
        from .read_parts import DifferentShapes, Gaps

        found = {}
        for variant, label in self:
            for null in self.nulls(variant, label):
                # What differs in shape, or has gaps in its sweeps, is many statistics and no one.
                with suppress(DifferentShapes, Gaps), left_out():
                    compared = self.against(variant, label, null)
                    if "unfinished" not in compared.attrs:
                        found[variant, label, null] = compared
        return found

    @property
    def rungs(self) -> dict[str, str]:
        """Of each null its place on the ladder of nulls, in words: by what its twins share with the model."""
        return {} if self._plan is None else dict(self._plan.rungs)

    def named_null(self, null: str) -> str:
        """A null by what it is, for people: "the model before training (before)"."""
        from ..verdicts import named_null

        return named_null(null, self.rungs)

    def statistics(self) -> list[Statistic]:
        """Every variable that is compared with a null: whether it departs, over all of the run, and in which cells."""
        return self._statistics

    @cached_property
    def _statistics(self) -> list[Statistic]:
        from ..verdicts import statistics

        return statistics(self.comparisons())

    def explanations(self) -> dict[tuple[str, str, str], Explanation]:
        """What explains each variable that is compared with several nulls, by variant, label and variable."""
        return self._explanations

    @cached_property
    def _explanations(self) -> dict[tuple[str, str, str], Explanation]:
        from ..verdicts import explanations

        return explanations(self.statistics(), self.rungs)

    def onsets(self) -> list[Onset]:
        """From which step of a training on each number is beyond a null: one for each statistic and null."""
        return self._onsets

    @cached_property
    def _onsets(self) -> list[Onset]:
        from ..verdicts import onsets

        along = {v: dim for v in self.variants if (dim := self.manifest().swept_by_number(v)) is not None}
        return onsets(self.statistics(), along, lambda v, label, null: self.draws(v, f"{label}.against.{null}"))

    def sentences(self) -> list[str]:
        """What was found: a sentence for each variant that is compared with a null, and one for each training."""
        from ..verdicts import onset_sentences, sentences

        return [
            *sentences(self.statistics(), self.rungs, self.explanations()),
            *onset_sentences(self.onsets(), self.rungs),
        ]

    def frame(
        self, variant: str, label: str, null: str | None = None, variables: str | Sequence[str] | None = None
    ) -> pd.DataFrame:
        """A result as a table, one row for each cell, with the null's mean, sd, z, p and q where there is a null.

        ``se`` is the value's error over prompts, ``difference_se`` that of its difference from the null's mean.
        Where there are several, ``null`` picks one; else the columns are called ``<null>.z`` and so on.
        """
        from .read_parts import DifferentShapes
        from .tables import frame_of_draws, judged_frame

        variables = [variables] if isinstance(variables, str) else variables
        if null is not None:
            self.against(variant, label, null)
        nulls = self.nulls(variant, label) if null is None else (null,)
        judged = [one for one in (self.statistics() if nulls else []) if one.name[:2] == (variant, label)]
        what = f"{variant}, {label}"
        try:
            compared = {name: self.against(variant, label, name) for name in nulls}
            onsets = [one for one in (self.onsets() if nulls else []) if one.statistic.name[:2] == (variant, label)]
            return judged_frame(self[variant, label], compared, judged, onsets, self.rungs, variables, what)
        except DifferentShapes:
            short = {name: name if len(nulls) > 1 else "" for name in nulls}
            each = {short[name]: self.draws(variant, f"{label}.against.{name}") for name in nulls}
            return frame_of_draws(self.draws(variant, label), each, variables, what)

    def compare(
        self,
        one: str,
        other: str,
        label: str,
        variant: str | None = None,
        variables: str | Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """A result in two runs side by side, a row for each cell: ``<run>.value``, ``difference`` (other - one).

        Where a result holds an error ``v_se`` of ``v``, there are also ``<run>.se`` and ``difference_se``: of the same
        prompts the error of the difference, with the same groups left out of both; of others, or where cells differ,
        sqrt(se_one^2 + se_other^2), that of independent estimates. A run is its name, or the first 6 digits or more of
        a plan. Cells are paired by their coordinates; one that a run lacks is NaN. Variables that cannot be paired are
        named in ``.attrs["left_out"]``.
        """
        from .tables import side_by_side

        if one == other:
            raise StoreError(f"run {one!r} is to be compared with itself: name two")
        pair = {one: self.named(one), other: self.named(other)}
        having = [v for v in pair[one].variants if all((v, label) in view for view in pair.values())]
        if not having and variant is None:
            known = set.intersection(*({name for _, name in view} for view in pair.values()))
            hint = did_you_mean(label, sorted(known))
            raise NoResult(f"no variant has {label!r} finished in both {one} and {other}{hint}")
        wanted = [variables] if isinstance(variables, str) else variables
        chosen = having if variant is None else [variant]
        each = {v: {run: view[v, label] for run, view in pair.items()} for v in chosen}
        return side_by_side(each, wanted, label)

    def named(self, name: str) -> Results:
        """A run by its name, or by the first 6 digits or more of the digest of one of its plans."""
        if name in self.runs:
            return self.run(name)
        found = [m for m in self._known if name and m.plan.startswith(name)]
        if found and len(name) < FEWEST_DIGITS:
            raise InputError(
                f"{self.path} has no run {name!r}; to mean a plan whose digest begins so, "
                f"give {FEWEST_DIGITS} digits or more: {found[-1].plan[:PLAN_DIGITS]}"
            )
        return self.run(found[-1].run, found[-1].plan) if found else self.run(name)

    def table(self) -> pd.DataFrame:
        """What the run planned, a row for each step: run, variant, draw, swept values, label, key, when finished."""
        from .tables import table

        planned = ((self.manifest(), step) for steps in self._steps.values() for step in steps)
        return table(planned, self.finished, self._reader.facts)

    def tree(self) -> xr.DataTree:
        """The run as a tree: run, variant, label; results that differ in shape have a node for each draw."""
        import xarray as xr

        from .read_parts import DifferentShapes, stack

        nodes: dict[str, xr.Dataset | xr.DataTree | None] = {}
        for variant, label in self:
            where = f"/{self.name}/{variant}/{label}"
            each = self.draws(variant, label)
            try:
                nodes[where] = stack(each, f"{variant}, {label}")
            except DifferentShapes:
                members = {step.point: step.member for step in self.steps(variant, label)}
                nodes |= {f"{where}/{members[point]}": dataset for point, dataset in each.items()}
        return xr.DataTree.from_dict(nodes)

    def facts(self, variant: str, label: str) -> list[Mapping[str, Any]]:
        """What made each finished result: plugin, versions, when, and its provenance, one mapping for each draw."""
        return [self._reader.facts(step) for step in self.steps(variant, label) if self.finished(step)]

    def __repr__(self) -> str:
        lines = [f"<gausslens.Results {self.path}>"]
        if self._plan is None:
            return f"{lines[0]}\nno run yet"
        done = sum(map(self.finished, self._plan.steps))
        planned = f"planned {self._plan.created[:16]}, plan {self._plan.plan[:PLAN_DIGITS]}"
        lines.append(f"run {self.name}: {done} of {len(self._plan.steps)} steps finished, {planned}")
        for variant in self.variants:
            lines.append(f"  {variant}: {', '.join(label for v, label in self._steps if v == variant)}")
        return "\n".join([*lines, *self.notes()])

    def _repr_html_(self) -> str:
        """For a notebook: what there is of the run, variant by variant."""
        if self._plan is None:
            return html_table(f"{self.path}: no run yet", ())
        rows = [
            (*name, steps[0].analysis, f"{sum(map(self.finished, steps))} of {len(steps)}")
            for name, steps in self._steps.items()
        ]
        title = "; ".join([f"run {self.name} of {self.path}, planned {self._plan.created[:16]}", *self.notes()])
        return html_table(title, rows, ("variant", "label", "analysis", "finished"))

    def _ipython_key_completions_(self) -> list[tuple[str, str]]:
        return list(self)


def _in_words(view: Results) -> str:
    """A run with its model, and whether it finished nothing."""
    manifest = view.manifest()
    nothing = "" if any(map(view.finished, manifest.steps)) else ", nothing finished"
    return f"{view.name} (model {manifest.asked_model or 'none'}{nothing})"


def _some(words: Iterable[str]) -> str:
    """The first few."""
    found = list(islice(words, MOST_NAMED + 1))
    return ", ".join(found[:MOST_NAMED]) + (" and more" if len(found) > MOST_NAMED else "")
