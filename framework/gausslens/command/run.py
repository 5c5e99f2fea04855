"""Compute what a run file asks for and the store does not hold yet."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from . import add_run_file, load_host


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    add_run_file(parser)
    parser.add_argument(
        "--store", metavar="DIR", help="where results go (default: GAUSSLENS_STORE, else store/ beside the run file)"
    )


def run(arguments: Namespace) -> int:
    """Run it; print the table at the end."""
    from ..perform import perform
    from ..summary import summary

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
        print(f"\n{ran.told_failures()}", file=sys.stderr)
        if arguments.debug:
            import traceback

            for failure in ran.outcome.failed:
                traceback.print_exception(failure.error)
        return 1
    return 0
