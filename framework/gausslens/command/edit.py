"""Write an edited twin of a run file as a checkpoint that transformers opens."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..contract.errors import InputError
from . import add_run_file, load_host


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    add_run_file(parser)
    parser.add_argument("variant", metavar="VARIANT", help="a variant of it: all its edits are made")
    parser.add_argument("out", metavar="OUT", help="the directory to make")
    parser.add_argument("--draw", type=int, metavar="N", help="which of its draws, from 0")
    parser.add_argument(
        "--at",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="the value of each parameter that it sweeps, as width=2",
    )
    parser.add_argument("--force", action="store_true", help="overwrite what this command wrote there before")


def run(arguments: Namespace) -> int:
    """Write it, and say what it is and how it is opened."""
    from ..terminal import plain_lines
    from ..write_twin import TOLD, edit

    host = load_host(arguments)
    at = _chosen(arguments.at)
    out = edit(
        arguments.file, arguments.variant, arguments.out, arguments.draw, at, arguments.force, arguments.set, host=host
    )
    told = json.loads((out / TOLD).read_text(encoding="utf-8"))
    base = told["base"]
    print(plain_lines(_summary(told, base, str(out))))
    return 0


def _chosen(given: Sequence[str]) -> dict[str, Any]:
    """{name: value} of NAME=VALUE, values as a run file has them."""
    import yaml

    wrong = next((one for one in given if "=" not in one), None)
    if wrong is not None:
        raise InputError(f"--at {wrong}: NAME=VALUE is wanted, as --at width=2")
    return {name: yaml.safe_load(value) for name, _, value in (one.partition("=") for one in given)}


def _summary(told: dict[str, Any], base: dict[str, Any], out: str) -> str:
    which = [f"draw {told['draw']}"] if told["draw"] is not None else []
    which += [f"{name} {value}" for name, value in told["at"].items()]
    edits = ", ".join(one["edit"] for one in told["edits"]) or "no edits"
    theirs = f", or from_pretrained({out!r}) of transformers" if (Path(out) / "config.json").is_file() else ""
    return "\n".join(
        (
            f"{out}: {base['name']} as {told['variant']} of {told['run']} makes it ({', '.join([edits, *which])})",
            f"weights      {base['dtype']}, read again and found equal to the twin's",
            f"fingerprint  {told['fingerprint']}",
            f"open it      model: {{path: {out}}}{theirs}",
        )
    )
