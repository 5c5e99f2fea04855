"""A run, from top to bottom: read, open, plan, compute, index, report."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .contract.errors import InputError, RunFailed
from .contract.hooks import RunNews, StepNews
from .contract.reference import resolve
from .guard import unshown, watched_interrupts
from .measuring.execute import not_in_store
from .progress import TimeLeft, before, progress
from .runs.open import Models
from .runs.outcome import Began, Noted, Outcome, Progress, Said, Settled, failures_in_words, in_words, twin_in_words
from .runs.steps import Plan, Step, manifest_of
from .spreading.cluster import Workers, computed_by_workers
from .spreading.here import Leading, computed_here
from .spreading.in_worker import Order
from .spreading.prepare import RunFile, prepare
from .spreading.tasks import Part
from .store.disk import Claims

if TYPE_CHECKING:
    from .plugins import Host
    from .report import Undrawn
    from .runs.study import Study
    from .store import Store
    from .store.read_results import Results

# What a page takes by itself, and for each step that it shows or compares.
PAGE_SECONDS, PAGE_STEP_SECONDS = 1.0, 0.03


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
    workers: int | None = None,
    scheduler: str | None = None,
    plugins: Mapping[str, Any] | None = None,
) -> Results:
    """Run a study and return its results, opened for reading.

    ``source`` is a run file or the same as a dict; ``store`` a directory (default: GAUSSLENS_STORE, else ``store``
    beside the run file). ``model`` and ``tokenizer`` pass live objects in place of ``model: {path: ...}``; ``mapping``
    are keys of ``model:`` that say where a plain torch module has what (docs/models.md). What is in the store already
    is not computed again. Steps that fail do not take the others with them: RunFailed is raised at the end. What of the
    report could not be drawn is a warning.

    ``workers`` is how many processes of this machine compute in place of this one, ``scheduler`` the address or the
    file of a Dask scheduler whose workers do: as ``gausslens run --workers`` and ``--scheduler``.

    ``plugins`` adds plugins that are not installed, by name, as modules or objects with hooks: one that is being
    written in a notebook, whose descriptors name its classes as ``"__main__:Name"``.
    """
    from .plugins import load, loading_troubles
    from .store.read_results import open as open_store

    by = Workers.asked(workers, scheduler)
    if plugins is not None:
        if host is not None or by is not None:
            raise InputError("plugins= are objects of this process: leave out host=, workers= and scheduler=")
        resolve.cache_clear()  # a class may have been defined again since
        host = load(without=without, extra=plugins)
        if host.broken:
            raise InputError(loading_troubles(host))
    ran = perform(source, store, sets, without, model, tokenizer, host, shown, mapping, workers=by)
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
    part: Part | None = None,
    workers: Workers | None = None,
) -> Ran:
    """``run``, for the command line: returns what happened instead of raising for steps that failed.

    With a ``part`` its share of the twins is computed, and no report is drawn. ``workers`` are processes that compute
    the steps in place of this one.
    """
    if workers is not None:
        workers.check()
        if model is not None:
            raise InputError("model= is a live object, which workers cannot see: save it, and name its directory")
    with watched_interrupts():
        title = Path(source).stem if isinstance(source, str | os.PathLike) else "run"
        with before(title, "opens models and plans", shown):
            host, study, models, plan = prepare(source, sets, without, model, tokenizer, host, mapping)
        how = How(shown, part, workers, source, tuple(sets))
        return _performed(host, study, models, plan, store, how)


@dataclass(frozen=True)
class How:
    """How steps are computed: with a bar or not, which share, by whom; workers read the run file again."""

    shown: bool | None = None
    part: Part | None = None
    workers: Workers | None = None
    source: RunFile = ""
    sets: tuple[str, ...] = ()


def _performed(
    host: Host, study: Study, models: Models, plan: Plan, store: str | os.PathLike[str] | None, how: How
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
            outcome, left = carry_out(plan, with_store, host, news, how)
        except BaseException as error:
            host.announce("run_failed", run=news, step=None, error=error)
            raise
        finally:
            with_store.reindex()
        host.announce("run_finished", run=news, summary=outcome.counts())
        drawn = study.report and how.part is None and len(outcome.failed) < len(plan.steps)
        undrawn: list[Undrawn] = []
        done = (len(plan.steps) - len(outcome.failed), len(plan.steps))
        page = _report(with_store.path, study.name, host, undrawn.append, how.shown, done, left) if drawn else None
        return Ran(plan, outcome, with_store.path, page, undrawn)
    finally:
        models.close()


def carry_out(plan: Plan, store: Store, host: Host, news: RunNews, how: How) -> tuple[Outcome, TimeLeft]:
    """Compute what the store does not hold; each result is committed and announced the moment it is there.

    The time that is left then is that of the page.
    """
    todo, found = not_in_store(plan, store)
    outcome = Outcome(found=found)
    with Claims(store.writer) as claims:
        leading = Leading(plan, todo, store, claims, how.part)
        outcome.left = leading.left
        if how.workers is None:
            events = computed_here(leading)
        else:
            order = Order.of(how.source, how.sets, host, plan, claims)
            events = computed_by_workers(leading, order, how.workers)
        page = {"page": page_seconds(len(plan.steps))} if plan.study.report and how.part is None else {}
        left = TimeLeft(leading.estimated() | page, time.monotonic())
        with progress(plan.study.name, len(todo) - len(outcome.left), left, how.shown) as bar:
            for event in events:
                if isinstance(event, Progress):
                    bar(event.text, event.estimate, event.kind, event.found)
                elif isinstance(event, Said):
                    bar.say(event.text)
                elif isinstance(event, Noted):
                    if event.text not in outcome.notes:
                        outcome.notes.append(event.text)
                elif isinstance(event, Began):
                    ref = event.step.ref
                    bar.doing = in_words(ref) if event.step.inputs else f"{twin_in_words(ref)}: begins"
                    host.announce("step_started", run=news, step=_news_of(event.step))
                else:
                    bar.step(in_words(event.step.ref))
                    _note(event, outcome, host, news)
    outcome.notes += unshown()
    return outcome, left


def page_seconds(steps: int) -> float:
    """What drawing the page of so many steps takes, on the imagined machine of other estimates."""
    return PAGE_SECONDS + PAGE_STEP_SECONDS * steps


def _note(event: Settled, outcome: Outcome, host: Host, news: RunNews) -> None:
    """What became of a step, for the end of the run and for plugins."""
    if event.failure is not None:
        outcome.failed.append(event.failure)
        host.announce("run_failed", run=news, step=_news_of(event.step), error=event.failure.error)
    elif event.computed:
        outcome.computed.append(event.step)
        host.announce("step_finished", run=news, step=_news_of(event.step))
    else:
        outcome.found.append(event.step)


def _news_of(step: Step) -> StepNews:
    ref = step.ref
    return StepNews(ref.variant, ref.label, ref.analysis, step.key, ref.draw, dict(ref.sweep))


def chosen_store(study: Study, path: str | os.PathLike[str] | None) -> Path:
    """Where results go: as asked, else GAUSSLENS_STORE, else ``store`` beside the run file."""
    return Path(path or os.environ.get("GAUSSLENS_STORE") or study.directory / "store")


def _report(
    path: Path,
    run: str,
    host: Host,
    tell: Callable[[Undrawn], object],
    shown: bool | None,
    done: tuple[int, int],
    left: TimeLeft,
) -> Path | None:
    """Draw the page; where that takes long, it is told what is being done, with what is ``left`` of the whole run."""
    from .report import write
    from .store.read_results import open as open_store

    with progress(run, done[1], left, shown) as bar:
        bar.settled, bar.doing = done[0], "drawing the page"
        return write(open_store(path).run(run), host, tell=tell)
