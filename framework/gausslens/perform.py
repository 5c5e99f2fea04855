"""A run, from top to bottom: read, open, plan, compute, index, report."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .contract.errors import RunFailed
from .runs.execute import Execution, Outcome
from .runs.open import Opened, open_model
from .runs.plan import Plan, make_plan
from .runs.provenance import distributions, now

if TYPE_CHECKING:
    from .plugins import Host
    from .runs.study import Study
    from .store.results import Results

# A run file: a path, or the same as plain data.
Source = str | os.PathLike[str] | Mapping[str, Any]


def run(
    source: Source,
    store: str | os.PathLike[str] | None = None,
    sets: Sequence[str] = (),
    without: Iterable[str] = (),
    model: Any = None,
    tokenizer: Any = None,
    host: Host | None = None,
    shown: bool | None = None,
) -> Results:
    """Run a study and return its store, opened for reading.

    ``source`` is a run file or the same as a dict; ``store`` a directory (default: GAUSSLENS_STORE, else ``store``
    beside the run file). ``model`` and ``tokenizer`` pass live objects in place of ``model: {path: ...}``. What is in
    the store already is not computed again. Steps that fail do not take the others with them: RunFailed is raised at
    the end.
    """
    from .store.results import open as open_store

    ran = perform(source, store, sets, without, model, tokenizer, host, shown)
    if ran.outcome.failed:
        raise RunFailed(ran.told_failures(), ran.outcome.failed)
    return open_store(ran.path)


class Ran:
    """A run that came to its end: its plan, what became of the steps, and where they are."""

    def __init__(self, plan: Plan, outcome: Outcome, path: Path, report: Path | None, notes: Sequence[str]) -> None:
        self.plan, self.outcome, self.path, self.report, self.notes = plan, outcome, path, report, tuple(notes)

    def told_failures(self) -> str:
        """What failed, in a screen."""
        failed, steps = self.outcome.failed, len(self.plan.steps)
        lines = [str(f) for f in failed[:10]]
        if len(failed) > 10:
            lines.append(f"... and {len(failed) - 10} more")
        lines.append(f"{len(failed)} of {steps} steps failed; the other results are in {self.path}")
        return "\n".join(lines)


def perform(
    source: Source,
    store: str | os.PathLike[str] | None = None,
    sets: Sequence[str] = (),
    without: Iterable[str] = (),
    model: Any = None,
    tokenizer: Any = None,
    host: Host | None = None,
    shown: bool | None = None,
) -> Ran:
    """``run``, for the command line: returns what happened instead of raising for steps that failed."""
    from .store import Store

    host, study, opened, plan = prepare(source, sets, without, model, tokenizer, host)
    with_store = Store(chosen_store(study, store))
    try:
        with_store.create()
        with_store.manifest(study.name, manifest(plan))
        execution = Execution(plan, opened, with_store, host, shown)
        host.announce("run_started", run=execution.news)
        try:
            execution.all_steps()
        except BaseException as error:
            host.announce("run_failed", run=execution.news, step=None, error=error)
            raise
        finally:
            with_store.reindex()
        host.announce("run_finished", run=execution.news, summary=execution.outcome.counts())
        page = (
            _report(with_store.path, host) if study.report and len(execution.outcome.failed) < len(plan.steps) else None
        )
        return Ran(plan, execution.outcome, with_store.path, page, [*plan.notes, *execution.outcome.notes])
    finally:
        if opened is not None:
            opened.model.close()


def prepare(
    source: Source,
    sets: Sequence[str] = (),
    without: Iterable[str] = (),
    model: Any = None,
    tokenizer: Any = None,
    host: Host | None = None,
) -> tuple[Host, Study, Opened | None, Plan]:
    """Everything before computing: plugins, run file, model, plan."""
    from . import plugins, runfile

    host = host or plugins.load(without=without)
    study = runfile.read(source, host, sets, live=None if model is None else type(model).__name__)
    opened = open_model(study.model, host, model, tokenizer) if study.model is not None else None
    return host, study, opened, make_plan(study, opened)


def manifest(plan: Plan) -> dict[str, Any]:
    """The manifest of a plan: the resolved run file, and each step with its key."""
    return {
        "format": "gausslens-run",
        "version": 1,
        "run": plan.study.name,
        "plan": plan.digest,
        "created": now(),
        "resolved": dict(plan.study.resolved),
        "distributions": dict(distributions()),
        "steps": [
            {
                "variant": step.ref.variant,
                "draw": step.ref.draw,
                "sweep": dict(step.ref.sweep),
                "label": step.ref.label,
                "analysis": step.ref.analysis,
                "key": step.key,
                "ingredients": dict(step.ingredients),
                "against": step.against,
            }
            for step in plan.steps
        ],
    }


def chosen_store(study: Study, path: str | os.PathLike[str] | None) -> Path:
    """Where results go: as asked, else GAUSSLENS_STORE, else ``store`` beside the run file."""
    return Path(path or os.environ.get("GAUSSLENS_STORE") or study.directory / "store")


def _report(path: Path, host: Host) -> Path | None:
    from .report import write

    return write(path, host)
