"""A run, from top to bottom: read, open, plan, compute, index, report."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .contract.errors import RunFailed
from .contract.hooks import RunNews, StepNews
from .guard import unshown, wait_quietly, watched_interrupts
from .measuring.execute import execute, not_in_store, work
from .runs.open import Models
from .runs.outcome import Began, Failure, Finished, Noted, Outcome, Progress, failures_in_words, progress
from .runs.plan import make_plan
from .runs.steps import Plan, Step, manifest_of

if TYPE_CHECKING:
    from .plugins import Host
    from .report import Undrawn
    from .runs.study import Study
    from .store import Store
    from .store.read_results import Results

# A run file: a path, or the same as plain data.
RunFile = str | os.PathLike[str] | Mapping[str, Any]


def run(
    source: RunFile,
    store: str | os.PathLike[str] | None = None,
    sets: Sequence[str] = (),
    without: Iterable[str] = (),
    model: Any = None,
    tokenizer: Any = None,
    host: Host | None = None,
    shown: bool | None = None,
    mapping: Mapping[str, Any] | None = None,
) -> Results:
    """Run a study and return its results, opened for reading.

    ``source`` is a run file or the same as a dict; ``store`` a directory (default: GAUSSLENS_STORE, else ``store``
    beside the run file). ``model`` and ``tokenizer`` pass live objects in place of ``model: {path: ...}``; ``mapping``
    are keys of ``model:`` that say where a plain torch module has what (docs/models.md). What is in the store already
    is not computed again. Steps that fail do not take the others with them: RunFailed is raised at the end. What of the
    report could not be drawn is a warning.
    """
    from .store.read_results import open as open_store

    ran = perform(source, store, sets, without, model, tokenizer, host, shown, mapping)
    for undrawn in ran.undrawn:
        warnings.warn(str(undrawn), stacklevel=2)
    if ran.outcome.failed:
        raise RunFailed(ran.failures_in_words(), ran.outcome.failed)
    used = [use.analysis.descriptor for use in ran.plan.study.uses]
    found = open_store(ran.path).run(ran.plan.study.name, ran.plan.digest)
    found.names = {name: each.first_name for each in used for name in each.every_name}
    return found


class Ran:
    """A run that came to its end: its plan, what became of the steps, where they are, what could not be drawn."""

    def __init__(
        self, plan: Plan, outcome: Outcome, path: Path, report: Path | None, undrawn: Sequence[Undrawn] = ()
    ) -> None:
        self.plan, self.outcome, self.path, self.report, self.undrawn = plan, outcome, path, report, undrawn
        self.notes = (*plan.notes, *outcome.notes)

    def failures_in_words(self) -> str:
        """What failed, in a screen."""
        return failures_in_words(self.outcome.failed, len(self.plan.steps), self.path)


def perform(
    source: RunFile,
    store: str | os.PathLike[str] | None = None,
    sets: Sequence[str] = (),
    without: Iterable[str] = (),
    model: Any = None,
    tokenizer: Any = None,
    host: Host | None = None,
    shown: bool | None = None,
    mapping: Mapping[str, Any] | None = None,
) -> Ran:
    """``run``, for the command line: returns what happened instead of raising for steps that failed."""
    with watched_interrupts():
        return _performed(*prepare(source, sets, without, model, tokenizer, host, mapping), store, shown)


def _performed(
    host: Host, study: Study, models: Models, plan: Plan, store: str | os.PathLike[str] | None, shown: bool | None
) -> Ran:
    from .store import Store

    with_store = Store(chosen_store(study, store))
    unshown()  # of a run before
    news = RunNews(study.name, str(with_store.path), plan.digest, len(plan.steps))
    try:
        with_store.create()
        with_store.manifest(study.name, manifest_of(plan))
        host.announce("run_started", run=news)
        try:
            outcome = carry_out(plan, with_store, host, news, shown)
        except BaseException as error:
            host.announce("run_failed", run=news, step=None, error=error)
            raise
        finally:
            with_store.reindex()
        host.announce("run_finished", run=news, summary=outcome.counts())
        drawn = study.report and len(outcome.failed) < len(plan.steps)
        undrawn: list[Undrawn] = []
        page = _report(with_store.path, study.name, host, undrawn.append) if drawn else None
        return Ran(plan, outcome, with_store.path, page, undrawn)
    finally:
        models.close()


def carry_out(plan: Plan, store: Store, host: Host, news: RunNews, shown: bool | None = None) -> Outcome:
    """Compute what the store does not hold; each result is committed and announced the moment it is handed out."""
    todo, found = not_in_store(plan, store)
    outcome = Outcome(found=found)
    with progress(plan.study.name, work(plan, todo), shown) as advance:
        for event in execute(plan, todo, store):
            if isinstance(event, Progress):
                advance(event.text)
            elif isinstance(event, Noted):
                outcome.notes.append(event.text)
            elif isinstance(event, Began):
                host.announce("step_started", run=news, step=_news_of(event.step))
            else:
                failure = _committed(event, store)
                if failure is None:
                    outcome.computed.append(event.step)
                    host.announce("step_finished", run=news, step=_news_of(event.step))
                else:
                    outcome.failed.append(failure)
                    host.announce("run_failed", run=news, step=_news_of(event.step), error=failure.error)
                if not event.step.inputs:
                    _note_left_out(event, outcome.notes)
    outcome.notes += unshown()
    return outcome


def _committed(done: Finished, store: Store) -> Failure | None:
    """Commit; a result that cannot be written fails its step, a store that cannot be written fails the run."""
    if isinstance(done.result, Failure):
        return done.result
    step = done.step
    try:
        if done.writer is not None:
            done.writer.commit(done.result)
        else:
            store.commit(step.folder, step.key, done.result, done.made_by)
    except (TypeError, ValueError) as error:
        return Failure(step, error)
    return None


def _note_left_out(done: Finished, notes: list[str]) -> None:
    told = {} if isinstance(done.result, Failure) else done.result.attrs
    label = done.step.ref.label
    for attribute, words in (("skipped_layers", "skips"), ("no_errors", "has no errors over prompts of")):
        note = f"{label} {words} {told.get(attribute)}"
        if attribute in told and note not in notes:
            notes.append(note)


def _news_of(step: Step) -> StepNews:
    ref = step.ref
    return StepNews(ref.variant, ref.label, ref.analysis, step.key, ref.draw, dict(ref.sweep))


def prepare(
    source: RunFile,
    sets: Sequence[str] = (),
    without: Iterable[str] = (),
    model: Any = None,
    tokenizer: Any = None,
    host: Host | None = None,
    mapping: Mapping[str, Any] | None = None,
) -> tuple[Host, Study, Models, Plan]:
    """Everything before computing: plugins, run file, models, plan."""
    from . import plugins, runfile
    from .contract.errors import InputError

    if mapping is not None and (model is None or not isinstance(mapping, Mapping)):
        raise InputError("mapping= is a dict that says where the live module has what, which is given as model=")

    wait_quietly()
    host = host or plugins.load(without=without)
    live = None if model is None else live_name(model, mapping)
    study = runfile.read(source, host, sets, live, mapping)
    models = Models(study, host, model, tokenizer)
    try:
        return host, study, models, make_plan(study, models)
    except BaseException:
        models.close()
        raise


def live_name(model: Any, mapping: Mapping[str, Any] | None) -> str:
    """What stands behind ``live:`` in the path of a live model."""
    return f"mapped:{type(model).__name__}" if mapping is not None else type(model).__name__


def chosen_store(study: Study, path: str | os.PathLike[str] | None) -> Path:
    """Where results go: as asked, else GAUSSLENS_STORE, else ``store`` beside the run file."""
    return Path(path or os.environ.get("GAUSSLENS_STORE") or study.directory / "store")


def _report(path: Path, run: str, host: Host, tell: Callable[[Undrawn], object]) -> Path | None:
    from .report import write
    from .store.read_results import open as open_store

    return write(open_store(path).run(run), host, tell=tell)
