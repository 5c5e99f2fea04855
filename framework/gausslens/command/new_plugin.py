"""Write a plugin of your own to start from: a whole distribution that installs and passes its tests."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("name", metavar="NAME", help="its name: analyses will be called NAME.something")
    parser.add_argument("--to", metavar="DIR", help="the directory to make (default: gausslens-NAME here)")


def run(arguments: Namespace) -> int:
    """Write it, and say what to do next."""
    from ..new_plugin import new_plugin

    directory = new_plugin(arguments.name, Path(arguments.to) if arguments.to else None)
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        print(path)
    print(f"\nnow: cd {directory}\n     pip install --editable .\n     pytest\n     gausslens run example.yaml")
    return 0
