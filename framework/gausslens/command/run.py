"""Compute what a run file asks for and the store does not hold yet."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..terminal import columns, table, tell
from . import add_run_file, load_host, tell_undrawn

if TYPE_CHECKING:
    from ..perform import Ran
    from ..spreading.tasks import Part


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    add_run_file(parser)
    parser.add_argument(
        "--store", metavar="DIR", help="where results go (default: GAUSSLENS_STORE, else store/ beside the run file)"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--workers", metavar="N", type=int, help="compute with N processes of this machine (needs Dask)")
    how.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="compute with the workers of a Dask scheduler: tcp://host:8786, or the scheduler's file",
    )
    how.add_argument(
        "--part",
        metavar="K/N",
        help="compute the Kth of N shares of the twins, as a job of an array; then `gausslens run FILE` does the rest",
    )


def run(arguments: Namespace) -> int:
    """Run it; print the table at the end."""
    from ..guard import Terminated
    from ..perform import perform
    from ..spreading.cluster import Workers
    from ..spreading.tasks import Part

    part = None if arguments.part is None else Part.read(arguments.part)
    workers = Workers.asked(arguments.workers, arguments.scheduler)
    if workers is not None:
        workers.check()
    host = load_host(arguments)
    try:
        how: dict[str, Any] = {"store": arguments.store, "sets": arguments.set, "host": host}
        ran = perform(arguments.file, **how, part=part, workers=workers)
    except KeyboardInterrupt as stopped:
        what, code = ("told to end", 128 + stopped.number) if isinstance(stopped, Terminated) else ("interrupted", 130)
        with suppress(OSError):  # after SIGHUP there may be no terminal any more
            print(
                f"{what}; what was finished is in the store, and the same command goes on from there", file=sys.stderr
            )
        return code
    tell(summary(ran, columns()) if part is None else summary_of_part(ran, part, arguments.file))
    tell_undrawn(ran.undrawn, arguments.debug)
    if ran.outcome.failed:
        tell(f"\n{ran.failures_in_words()}", sys.stderr)
        if arguments.debug:
            import traceback

            for failure in ran.outcome.failed:
                traceback.print_exception(failure.error)
        return 1
    return 0


def summary(ran: Ran, width: int | None = None) -> str:
    """The end of a run in words and two tables."""
    plan = ran.plan
    lines = [f"{plan.study.name}: {len(plan.steps)} steps: {ran.outcome}", ""]
    lines += table(("label", "analysis", "variants"), _labels(ran), width=width)
    lines += _found(ran, width)
    lines += [f"note: {note}" for note in ran.notes]
    lines += ["", f"store   {ran.path}   (gausslens show {ran.path})"]
    if ran.report is not None:
        lines.append(f"report  {ran.report}")
    return "\n".join(lines)


def summary_of_part(ran: Ran, part: Part, file: str) -> str:
    """The end of a part of a run: what it did, and what comes after it."""
    plan = ran.plan
    lines = [f"{plan.study.name}, part {part}: {len(plan.steps)} steps: {ran.outcome}"]
    lines += [f"note: {note}" for note in ran.notes]
    if ran.outcome.left:
        lines.append(
            f"when all parts are done, `gausslens run {file}` computes what waits for them, and draws the report"
        )
    return "\n".join([*lines, f"store   {ran.path}"])


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


def _found(ran: Ran, width: int | None, most: int = 10) -> list[str]:
    """What was found: a sentence, and the largest departures from the null that shares least with the model."""
    from ..report.departures import columns, departures, rows
    from ..report.numbers import written_cell
    from ..store.read_results import open as open_store

    if not ran.plan.study.against or not any(step.against for step in ran.plan.steps):
        return []
    results = open_store(ran.path).run(ran.plan.study.name, ran.plan.digest)
    lines = ["", *results.sentences()]
    for null, found in departures(results).items():
        written = [tuple(map(written_cell, row)) for row in rows(found, most)]
        left = f" ({most} of {len(found)})" if len(found) > most else ""
        head = columns(found)
        lines += ["", f"the largest departures from {null}{left}", *table(head, written, (4, 6, 7, 8), width)]
    return lines if len(lines) > 1 else ["", "against the nulls: nothing could be compared"]
