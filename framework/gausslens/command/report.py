"""Draw the page of a store."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from . import load_host, outside


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("store", metavar="STORE", help="the directory of a store")
    parser.add_argument("--out", metavar="FILE", help="where to write the page (default: report.html in the store)")


def run(arguments: Namespace) -> int:
    """Write the page and print where it is."""
    from ..report import write

    if arguments.out is not None:
        outside(Path(arguments.out), Path(arguments.store))
    print(write(arguments.store, load_host(arguments), arguments.out))
    return 0
