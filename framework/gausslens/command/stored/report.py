"""Draw the page of a store."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import load_host, outside, tell_undrawn, tell_what_is_not_shown

if TYPE_CHECKING:
    from ...report import Undrawn


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("store", metavar="STORE", help="the directory of a store")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--run", metavar="NAME", help="draw this run (default: the newest that finished anything)")
    which.add_argument("--all", action="store_true", help="draw every run, each under its own heading")
    parser.add_argument("--out", metavar="FILE", help="where to write the page (default: report.html in the store)")


def run(arguments: Namespace) -> int:
    """Write the page and print where it is."""
    from ...report import write
    from ...store.read_results import open as open_store

    if arguments.out is not None:
        outside(Path(arguments.out), Path(arguments.store))
    results = open_store(arguments.store)
    if arguments.run is not None:
        results = results.named(arguments.run)
    undrawn: list[Undrawn] = []
    print(write(results, load_host(arguments), arguments.out, every=arguments.all, tell=undrawn.append))
    tell_undrawn(undrawn, arguments.debug)
    if not arguments.all:
        tell_what_is_not_shown(results, arguments.run)
    return 0
