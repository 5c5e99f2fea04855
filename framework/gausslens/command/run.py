"""Compute what a run file asks for and the store does not hold yet."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from ..terminal import table
from . import add_run_file, load_host, tell_undrawn

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
    tell_undrawn(ran.undrawn, arguments.debug)
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
    lines += _found(ran)
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


def _found(ran: Ran, most: int = 10) -> list[str]:
    """What was found: a sentence, and the largest departures from the null that shares least with the model."""
    from ..report.departures import columns, departures, rows
    from ..report.numbers import written_cell
    from ..store.read_results import open as open_store

    if not ran.plan.study.against or not any(step.against for step in ran.plan.steps):
        return []
    results = open_store(ran.path).run(ran.plan.study.name, ran.plan.digest)
    lines = ["", *results.sentences()]
    for null, found in departures(results.statistics(), results.rungs).items():
        written = [tuple(map(written_cell, row)) for row in rows(found, most)]
        left = f" ({most} of {len(found)})" if len(found) > most else ""
        head = columns(found)
        lines += ["", f"the largest departures from {null}{left}", *table(head, written, right=(4, 6, 7, 8))]
    return lines if len(lines) > 1 else ["", "against the nulls: nothing could be compared"]
