"""Compute what a run file asks for and the store does not hold yet."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from . import add_run_file, load_host
from .terminal import table

if TYPE_CHECKING:
    from ..perform import Ran


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    add_run_file(parser)
    parser.add_argument(
        "--store", metavar="DIR", help="where results go (default: GAUSSLENS_STORE, else store/ beside the run file)"
    )


def run(arguments: Namespace) -> int:
    """Run it; print the table at the end."""
    from ..perform import perform

    host = load_host(arguments)
    try:
        ran = perform(arguments.file, store=arguments.store, sets=arguments.set, host=host)
    except KeyboardInterrupt:
        print(
            "interrupted; what was finished is in the store, and the same command goes on from there", file=sys.stderr
        )
        return 130
    print(summary(ran))
    if ran.outcome.failed:
        print(f"\n{ran.failures_in_words()}", file=sys.stderr)
        if arguments.debug:
            import traceback

            for failure in ran.outcome.failed:
                traceback.print_exception(failure.error)
        return 1
    return 0


def summary(ran: Ran) -> str:
    """The end of a run in words and two tables."""
    plan = ran.plan
    lines = [f"{plan.study.name}: {len(plan.steps)} steps: {ran.outcome}", ""]
    lines += table(("label", "analysis", "variants"), _labels(ran))
    for null in plan.study.against:
        lines += _against(ran, null)
    lines += [f"note: {note}" for note in ran.notes]
    lines += ["", f"store   {ran.path}   (gausslens show {ran.path})"]
    if ran.report is not None:
        lines.append(f"report  {ran.report}")
    return "\n".join(lines)


def _labels(ran: Ran) -> list[tuple[str, str, str]]:
    seen: dict[tuple[str, str], dict[str, int]] = {}
    for step in ran.plan.steps:
        if step.against is None:
            counted = seen.setdefault((step.ref.label, step.ref.analysis), {})
            counted[step.ref.variant] = counted.get(step.ref.variant, 0) + 1
    return [
        (label, analysis, ", ".join(f"{v} x {n}" if n > 1 else v for v, n in variants.items()))
        for (label, analysis), variants in seen.items()
    ]


def _against(ran: Ran, null: str, most: int = 10) -> list[str]:
    from ..report.departures import LEVEL, departures
    from ..store import Store

    store = Store(ran.path)
    nulls = ran.plan.study.against
    steps = [s for s in ran.plan.steps if s.against == null and store.has(s.folder, s.key)]
    every = departures(
        (s.ref.label, _twin(s.ref), store.read(s.folder, s.key)) for s in steps if s.ref.variant not in nulls
    )
    found = [d for d in every if d.tells(nulls)]
    if not found:
        return ["", f"against {null}: nothing could be compared"]
    draws = sum(len(v.points) * (v.draws or 1) for v in ran.plan.study.variants if v.name == null)
    rows = [
        (
            d.label,
            d.variant,
            d.variable,
            d.place,
            f"{d.value:.4g}",
            f"{d.null_mean:.4g} +- {d.null_sd:.2g}",
            f"{d.z:+.1f}",
            f"{d.q:.2g}",
            f"{d.called} of {d.cells}",
        )
        for d in found[:most]
    ]
    head = ("label", "variant", "variable", "strongest at", "value", "null", "z", "q", f"q < {LEVEL}")
    left = f" (of {len(found)} variables)" if len(found) > most else ""
    return [
        "",
        f"against {null}, {draws} draws: the strongest departures{left}",
        *table(head, rows, right=(4, 6, 7, 8)),
    ]


def _twin(ref: object) -> str:
    from ..contract.analyses import StepRef

    assert isinstance(ref, StepRef)
    draw = [] if ref.draw is None else [f"draw {ref.draw}"]
    return " ".join([ref.variant, *draw, *(f"{name}={value}" for name, value in ref.sweep)])
