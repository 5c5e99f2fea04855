"""Execution of a plan: what is not in the store is computed, twin by twin, and committed as soon as it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..contract.errors import ModelError
from ..contract.hooks import RunNews, StepNews
from ..contract.model import ModelInfo
from ..contract.protocols import Context, StepRef
from ..contract.reference import resolve
from ..contract.seeds import digest
from .compare import against
from .measure import measure, units
from .outcome import Failure, labelled
from .plan import Plan, Step, step_seed
from .progress import progress
from .provenance import Stopwatch, of_step
from .twin import Twin

if TYPE_CHECKING:
    import xarray as xr

    from ..plugins import Host
    from ..store import Store
    from ..store.write import PartWriter
    from .open import Opened
    from .progress import Told


@dataclass
class Outcome:
    """What became of the steps: computed now, found in the store, failed."""

    computed: list[Step] = field(default_factory=list)
    found: list[Step] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """How many of each."""
        return {"computed": len(self.computed), "found": len(self.found), "failed": len(self.failed)}

    def __str__(self) -> str:
        said = {"computed": "computed", "found": "found in the store", "failed": "failed"}
        return ", ".join(f"{n} {said[what]}" for what, n in self.counts().items() if n) or "nothing to do"


class Execution:
    """One run of a plan into a store."""

    def __init__(self, plan: Plan, opened: Opened | None, store: Store, host: Host, shown: bool | None = None) -> None:
        self.plan, self.opened, self.store, self.host, self.shown = plan, opened, store, host, shown
        self.news = RunNews(plan.study.name, str(store.path), plan.digest, len(plan.steps))
        self.outcome = Outcome()
        self.missing: set[str] = set()  # keys of steps that failed, and of those that read them
        self.parity: dict[str, float] | None = None  # what the engine's proof found; None before it was asked

    def all_steps(self) -> Outcome:
        """Compute every step; those that read results come after what they read."""
        todo = self._not_in_store()
        measured = [s for s in todo if not s.inputs]
        reading = [s for s in todo if s.inputs]
        groups: dict[str, list[Step]] = {}
        for step in measured:
            groups.setdefault(digest(step.ingredients["twin"]), []).append(step)
        total = len(reading) + sum(units(g, self._info()) for g in groups.values())
        with progress(self.plan.study.name, total, self.shown) as told:
            for steps in groups.values():
                self._twin(steps, told)
            for step in reading:
                self._reading(step)
                told(step.ref.label)
        return self.outcome

    def _info(self) -> ModelInfo:
        assert self.opened is not None
        return self.opened.model.info

    def _not_in_store(self) -> list[Step]:
        todo: dict[str, Step] = {}
        for step in self.plan.steps:
            if step.key in todo or self.store.has(step.folder, step.key):
                self.outcome.found.append(step)  # computed before, or for another label of this run
            else:
                todo[step.key] = step
        return list(todo.values())

    def _twin(self, steps: list[Step], told: Told) -> None:
        """All steps of one twin: it is made once, and dropped afterwards."""
        assert self.opened is not None
        study = self.plan.study
        twin = Twin(self.opened.model, steps[0].point.edits, study.seed, steps[0].ref.draw)
        watch = Stopwatch()
        if any(step.tokens for step in steps):
            self._prove()
        for step in steps:
            self._announce("step_started", step)

        def begin(step: Step) -> PartWriter:
            return self.store.begin(step.folder, step.key, self._meta(step, watch, len(steps)))

        def finished(step: Step, found: xr.Dataset | Failure, writer: PartWriter | None, sharing: int) -> None:
            self._note_skipped(step, found)
            if isinstance(found, Failure):
                if writer is not None:
                    writer.abandon()
                self._failed(found)
            elif writer is not None:
                self._committing(step, lambda: writer.commit(found))
            else:
                meta = self._meta(step, watch, sharing)
                self._committing(step, lambda: self.store.commit(step.folder, step.key, found, meta))

        measure(self.opened, twin, steps, study.seed, begin, finished, told)

    def _prove(self) -> None:
        """Before the first capture of a run: what the engine captures is what the model computes, or nothing runs."""
        assert self.opened is not None
        if self.parity is not None:
            return
        proof = getattr(self.opened.running, "prove", None)
        findings = list(proof(self.opened.model)) if proof else []
        self.parity = {f.what: f.difference for f in findings}
        wrong = [
            f"  {f.what}: differs by {f.difference:.2g}, allowed is {f.tolerance:.2g}" for f in findings if not f.holds
        ]
        if wrong:
            name = self.opened.model.info.name
            raise ModelError(
                f"what is captured of {name} is not what the model computes (gausslens model shows all):\n"
                + "\n".join(wrong)
            )

    def _reading(self, step: Step) -> None:
        """A derived step or a comparison."""
        self._announce("step_started", step)
        watch = Stopwatch()
        lost = [ref for ref in step.inputs if self.plan.by_ref[ref].key in self.missing]
        if lost:
            names = ", ".join(sorted({f"{r.label} on {r.variant}" for r in lost}))
            self._failed(Failure(step, _InputFailed(f"not computed, because {names} failed")))
            return
        try:
            results = {ref: self._read(ref) for ref in step.inputs}
            found = self._compared(step, results) if step.against else self._derived(step, results)
        except Exception as error:
            self._failed(Failure(step, error))
            return
        meta = self._meta(step, watch, 1)
        self._committing(step, lambda: self.store.commit(step.folder, step.key, found, meta))

    def _read(self, ref: StepRef) -> xr.Dataset:
        step = self.plan.by_ref[ref]
        return self.store.read(step.folder, step.key)

    def _derived(self, step: Step, results: dict[StepRef, xr.Dataset]) -> xr.Dataset:
        info = self.opened.model.info if self.opened else None
        context = Context(info, step_seed(step, self.plan.study.seed))  # type: ignore[arg-type]
        analysis = resolve(step.use.analysis.descriptor.analysis)(step.use.parameters, context)
        return labelled(analysis.compute(results), info)

    def _compared(self, step: Step, results: dict[StepRef, xr.Dataset]) -> xr.Dataset:
        of, *null = [results[ref] for ref in step.inputs]
        return against(of, null, step.use.analysis.descriptor.exchangeable)

    def _committing(self, step: Step, commit: Callable[[], Any]) -> None:
        """Commit; a result that cannot be written fails its step, a store that cannot be written fails the run."""
        try:
            commit()
        except (TypeError, ValueError) as error:
            self._failed(Failure(step, error))
            return
        self.outcome.computed.append(step)
        self._announce("step_finished", step)

    def _note_skipped(self, step: Step, found: xr.Dataset | Failure) -> None:
        told = None if isinstance(found, Failure) else found.attrs.get("skipped_layers")
        note = f"{step.ref.label} skips {told}"
        if told and note not in self.outcome.notes:
            self.outcome.notes.append(note)

    def _failed(self, failure: Failure) -> None:
        self.missing.add(failure.step.key)
        self.outcome.failed.append(failure)
        self.host.announce("run_failed", run=self.news, step=_news(failure.step), error=failure.error)

    def _announce(self, what: str, step: Step) -> None:
        self.host.announce(what, run=self.news, step=_news(step))

    def _meta(self, step: Step, watch: Stopwatch, sharing: int) -> dict[str, Any]:
        owner = step.use.analysis.owner
        return {
            "object_id": step.key[:32],
            "analysis": step.ref.analysis,
            "version": step.use.analysis.descriptor.version,
            "plugin": owner.plugin,
            "plugin_version": owner.version,
            "provenance": of_step(self.plan, step, watch, sharing, self.parity if step.tokens else None),
        }


class _InputFailed(Exception):
    """What a step reads was not computed."""


def _news(step: Step) -> StepNews:
    ref = step.ref
    return StepNews(ref.variant, ref.label, ref.analysis, step.key, ref.draw, dict(ref.sweep))
