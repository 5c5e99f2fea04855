"""Print the JSON Schema of run files, or of the parameters of one thing that a plugin offers."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ..contract.errors import InputError
from . import load_host


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a plugin, or an analysis, edit, loader or source")
    parser.add_argument("--write", metavar="DIR", help="write the schemas of our own plugins into a directory")


def run(arguments: Namespace) -> int:
    """Print a schema, or write those that the repository holds."""
    from ..runfile import schema

    if arguments.write is not None:
        if arguments.name is not None:
            raise InputError("--write writes all schemas of our own plugins: it takes no NAME")
        for path in schema.write(Path(arguments.write)):
            print(path)
        return 0
    host = load_host(arguments)
    if arguments.name is None:
        print(json.dumps(schema.run_schema(host), indent=2, ensure_ascii=False))
        return 0
    from .plugins import named

    found = [(kind, owned) for kind, owned in named(host, arguments.name) if kind in schema.CHOSEN]
    if not found:
        raise InputError(f"{arguments.name!r} has no parameters that a run file gives")
    schemas = {f"{kind}:{owned.descriptor.name}": schema.parameter_schema(owned) for kind, owned in found}
    print(json.dumps(schemas if len(schemas) > 1 else next(iter(schemas.values())), indent=2, ensure_ascii=False))
    return 0
