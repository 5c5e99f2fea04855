"""List the example run files, or copy one."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="which one to copy; without it they are listed")
    parser.add_argument("--to", metavar="FILE", help="where to copy it (default: NAME.yaml here)")


def run(arguments: Namespace) -> int:
    """Print the list, or copy NAME."""
    from ..examples import copied, examples

    if arguments.name is None:
        known = examples()
        broad = max(map(len, known), default=0)
        for example in known.values():
            print(f"{example.name:<{broad}}  {example.summary}")
        print("\n'gausslens example NAME' copies one here; then 'gausslens run NAME.yaml'.")
        return 0
    path = copied(arguments.name, Path(arguments.to) if arguments.to else None)
    print(f"{path}\nnow: gausslens run {path}")
    return 0
