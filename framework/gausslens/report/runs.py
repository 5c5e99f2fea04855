"""A run on the page: at its top what was run, on what, when and how long, and what else there is; every step."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..store.manifest import left_out
from .markup import Markup, element, joined

if TYPE_CHECKING:
    from ..store.manifest import Manifest, PlannedStep
    from ..store.read_results import Results

# So many part files of a result are named; with many draws the others are beside them.
NAMED = 3
# A name, what stands there, and what stands small below it.
Fact = tuple[str, str, str]


def page_title(views: Sequence[Results]) -> str:
    """The name of the page: the runs it shows, the newest first."""
    names = [view.name for view in views]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} earlier runs" if len(names) > 3 else "")


def run_facts(results: Results, alone: bool = True) -> Markup:
    """The facts of a run, and (``alone``) what else the store holds that a page of this run does not show."""
    if not results.runs:
        return Markup("")
    notes = results.notes(runs=alone)
    facts = _facts(results, results.manifest())
    if not notes:
        return facts
    about = f"This page is of run {results.name} alone. " if alone else ""
    said = " ".join(f"{note[0].upper()}{note[1:]}." for note in notes)
    command = element("code", f"gausslens report {shlex.quote(Path(results.path).name)} --run NAME")
    how = element("p", f"{about}{said} ", command, " draws one of them, ", element("code", "--all"), " every run.")
    return joined([facts, element("div", how, class_="note")])


def kv_of_head(views: Sequence[Results]) -> dict[str, str]:
    """{"5": "1"}: the key/value head that each head reads; nothing unless all models of the runs tell the same."""
    found: dict[str, tuple[int, ...]] = {}
    for view in views:
        for name in view:
            facts_of: list[Mapping[str, Any]] = []
            with left_out():
                facts_of = view.facts(*name)
            for facts in facts_of:
                model = _mapping(facts["provenance"].get("model"))
                told = model.get("kv_of_head")
                heads = tuple(told) if isinstance(told, list) and all(isinstance(head, int) for head in told) else ()
                if model and (heads or str(model.get("fingerprint")) not in found):
                    found[str(model.get("fingerprint"))] = heads
    if len(set(found.values())) != 1:
        return {}
    return {str(head): str(read) for head, read in enumerate(next(iter(found.values())))}


def step_anchor(variant: str, label: str, run: str = "") -> str:
    """The anchor of a result, with its run on a page of several: any name becomes one that has no white space."""
    return "step-" + re.sub(r"[^\w.-]", "_", "-".join(name for name in (run, variant, label) if name))


def step_table(results: Results, run: str = "") -> Markup:
    """A table: each result that was planned, how much of it is finished, and in which files of the store it is."""
    head = element("tr", *(element("th", name, scope="col") for name in ("result", "analysis", "finished", "files")))
    rows = [_row(results, variant, label, run) for variant, label in results.planned]
    table = element("table", element("thead", head), element("tbody", *rows))
    return element("div", table, class_="scroll", tabindex="0", role="region", aria_label="steps")


def _facts(results: Results, manifest: Manifest) -> Markup:
    done = [step for step in manifest.steps if results.finished(step)]
    made = _made(results, done)
    shown = [
        _model(manifest.resolved, made),
        _prompts(manifest.resolved),
        _variants(manifest.resolved, manifest.steps),
        _analyses(manifest.steps),
        _time(made),
        _when(manifest, made, len(done)),
    ]
    cells = [
        element("div", element("dt", name), element("dd", value, element("small", more) if more else None))
        for name, value, more in shown
    ]
    return element("dl", *cells, class_="facts")


def _made(view: Results, done: Iterable[PlannedStep]) -> list[tuple[PlannedStep, Mapping[str, Any]]]:
    """Each finished step with what made it."""
    found: list[tuple[PlannedStep, Mapping[str, Any]]] = []
    for variant, label in dict.fromkeys((step.variant, step.label) for step in done):
        steps = [s for s in view.steps(variant, label) if view.finished(s)]
        with left_out():
            found += zip(steps, view.facts(variant, label), strict=True)
    return found


def _model(resolved: Mapping[str, Any], made: Sequence[tuple[PlannedStep, Mapping[str, Any]]]) -> Fact:
    models = [m for m in (_mapping(f["provenance"].get("model")) for _, f in made) if m]
    asked = _mapping(resolved.get("model"))
    # That of the run first, where one was computed on it.
    told = next((m for m in models if m.get("path") == asked.get("path")), models[0] if models else {})
    several = len({str(m.get("fingerprint")) for m in models})
    name = str(told.get("name") or asked.get("path") or "none")
    if several > 1:
        return "Models", name, f"{several} in all"
    more = [str(told[k]) for k in ("family", "dtype") if told.get(k)]
    if told.get("fingerprint"):
        more.append(f"fingerprint {str(told['fingerprint'])[:12]}")
    return "Model", name, ", ".join(more)


def _prompts(resolved: Mapping[str, Any]) -> Fact:
    asked = _mapping(resolved.get("prompts"))
    if not asked:
        return "Prompts", "none", ""
    settings = []
    for name, value in asked.items():
        if isinstance(value, list | tuple):
            settings.append(f"{name}: {len(value)}")
        elif name != "source" and value not in (None, "") and not isinstance(value, Mapping):
            settings.append(f"{name} {value}")
    more = ", ".join(s if len(s) <= 40 else s[:39] + "…" for s in settings[:4])
    return "Prompts", str(asked.get("source", "given")), more


def _variants(resolved: Mapping[str, Any], steps: Sequence[PlannedStep]) -> Fact:
    # What concerns the whole run is stored under a name that no variant of the run file has.
    named = resolved.get("variants") or {step.variant for step in steps}
    twins: dict[str, set[Any]] = {}
    for step in steps:
        if step.variant in named:
            twins.setdefault(step.variant, set()).add(step.point)
    return (
        "Variants",
        ", ".join(v if len(p) < 2 else f"{v} \N{MULTIPLICATION SIGN} {len(p)}" for v, p in twins.items()),
        _against(steps),
    )


def _against(steps: Sequence[PlannedStep]) -> str:
    nulls = dict.fromkeys(step.against for step in steps if step.against)
    return f"compared with {', '.join(map(str, nulls))}" if nulls else "compared with no null"


def _analyses(steps: Sequence[PlannedStep]) -> Fact:
    labels = dict.fromkeys(step.label for step in steps if step.against is None)
    kinds = dict.fromkeys(step.analysis for step in steps if step.against is None)
    return "Analyses", ", ".join(labels), ", ".join(k for k in kinds if k not in labels)


def _time(made: Sequence[tuple[PlannedStep, Mapping[str, Any]]]) -> Fact:
    """Time of computing. The clock of a step starts with its twin's, so of each twin the last step counts."""
    twins: dict[Any, float] = {}
    memory, threads = 0, 0
    for step, facts_of_step in made:
        told = facts_of_step["provenance"]
        twin = (step.variant, step.point, step.label if step.against else "")
        twins[twin] = max(twins.get(twin, 0.0), float(told.get("wall_seconds", 0.0)))
        memory = max(memory, int(told.get("peak_memory_bytes", 0)))
        threads = max(threads, int(told.get("threads", 0)))
    more = [f"{threads} thread{'s' if threads != 1 else ''}"] if threads else []
    more += [f"{memory / 2**30:.1f} GiB at most"] if memory else []
    return "Computing", _duration(sum(twins.values())), ", ".join(more)


def _when(manifest: Manifest, made: Sequence[tuple[PlannedStep, Mapping[str, Any]]], done: int) -> Fact:
    last = max((str(f["created"]) for _, f in made), default=manifest.created)
    day = datetime.fromisoformat(last).strftime("%Y-%m-%d %H:%M UTC")
    left = len(manifest.steps) - done
    return (
        "Last result",
        day,
        f"{done:,} results" + (f", {left:,} not finished: the table Steps names them" if left else ""),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    """The value, if it is a mapping; the resolved run file is data, and anyone may have written it."""
    return value if isinstance(value, Mapping) else {}


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _row(results: Results, variant: str, label: str, run: str) -> Markup:
    planned = results.steps(variant, label)
    done = [step for step in planned if results.finished(step)]
    files = [element("code", f"{_file(step)}\n") for step in done[:NAMED]]
    more = f"and {len(done) - NAMED} more" if len(done) > NAMED else None
    cells = (f"{variant}, {label}", planned[0].analysis, f"{len(done)} of {len(planned)}")
    return element(
        "tr", *(element("td", cell) for cell in cells), element("td", *files, more), id=step_anchor(variant, label, run)
    )


def _file(step: PlannedStep) -> str:
    """Where the part is, as STORE.md has it; the page may have been moved, so it is no link."""
    return f"parts/{step.analysis}/{step.key}.h5"
