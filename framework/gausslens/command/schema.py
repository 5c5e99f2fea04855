"""Print the JSON Schema of run files, of the parameters of one thing that a plugin offers, or what analyses give."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from ..contract.errors import InputError
from . import load_host

if TYPE_CHECKING:
    from ..plugins.host import Host


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a plugin, or an analysis, edit, loader or source")
    parser.add_argument("--write", metavar="DIR", help="write the schemas of our own plugins into a directory")
    parser.add_argument(
        "--outputs",
        metavar="STORE",
        help="print instead what the analyses of NAME gave in a store, as a plugin's outputs.json lists it",
    )


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
    if arguments.outputs is not None:
        print(_outputs(host, arguments.outputs, arguments.name), end="")
        return 0
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


def _outputs(host: Host, store: str, name: str | None) -> str:
    """What all runs of a store hold of a plugin or an analysis: every variable, its dimensions, unit and meaning."""
    from ..plugins.outputs import as_json, outputs_in
    from ..store.read_results import open as open_store
    from .plugins import named

    wanted = {o.descriptor.name for kind, o in named(host, name) if kind == "analysis"} if name else set(host.analyses)
    first = {host.analyses[each].descriptor.first_name: each for each in wanted}
    found = outputs_in(
        (first[step.analysis], next(iter(view.draws(variant, label).values())))
        for view in open_store(store).all_runs().values()
        for variant, label in view
        if (step := view.steps(variant, label)[0]).against is None and step.analysis in first
    )
    if not found:
        raise InputError(f"{store} holds no result of {', '.join(sorted(wanted)) or name}")
    return as_json(found)
