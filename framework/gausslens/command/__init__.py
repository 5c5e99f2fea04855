"""The commands, one module each.

A command module has ``add(parser)``, which declares its arguments, and ``run(arguments) -> int``, which returns the
exit code. It is imported when it is called, and imports what is heavy inside ``run``.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..plugins import Host
    from ..report import Undrawn
    from ..store.read_results import Results

# In the order in which --help shows them; ``module_of`` has their modules.
COMMANDS = {
    "run": "compute what a run file asks for and the store does not hold yet",
    "check": "check a run file; all mistakes at once",
    "plan": "print the steps of a run file, and what each will need",
    "runs": "list the runs of a store",
    "show": "print results of a store",
    "report": "draw the page of a store",
    "figures": "write the figures of a store for a paper, its tables as CSV and LaTeX",
    "diff": "say why two runs of a store differ, or set their values side by side",
    "edit": "write an edited twin as a checkpoint that transformers opens",
    "store": "verify, pack, copy, reindex or clean a store",
    "model": "prove captured activations against the model's own attention",
    "plugins": "list plugins, or show what one offers",
    "schema": "print JSON Schemas, or with --outputs STORE what its analyses gave",
    "new-plugin": "write a plugin of your own to start from",
    "example": "list the example run files, or copy one",
}
# Those whose module is in the folder of what is done with a store.
_STORED = frozenset({"runs", "show", "report", "figures", "diff", "store"})


def module_of(command: str) -> str:
    """The name of a command's module: that of the command, with '_' for '-'."""
    return f"{__name__}.{'stored.' if command in _STORED else ''}{command.replace('-', '_')}"


def load_host(arguments: Namespace, say: bool = True) -> Host:
    """The host without the plugins that --without names; what was set aside is printed on stderr."""
    from ..plugins import load, loading_troubles

    host = load(without=[name.strip() for value in arguments.without for name in value.split(",") if name.strip()])
    text = loading_troubles(host, debug=arguments.debug) if say else ""
    if text:
        print(text, file=sys.stderr)
    return host


def add_quoted(parser: ArgumentParser) -> None:
    """The option of every command that prints CSV."""
    parser.add_argument(
        "--quoted",
        action="store_true",
        help="with --csv: put a ' before text that a spreadsheet would take for a formula (= + - @), and before a '",
    )


def add_run_file(parser: ArgumentParser) -> None:
    """The arguments of every command that reads a run file."""
    parser.add_argument("file", metavar="FILE", help="a run file (YAML)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a value of the run file, as analyses.values.with.site=v (may be repeated)",
    )


def tell_what_is_not_shown(results: Results, asked: str | None, stream: TextIO | None = None) -> None:
    """Which run is read, and what else the store holds: other runs (unless one was asked for), other plans."""
    from ..terminal import plain

    notes = results.notes(runs=asked is None)
    if not notes:
        return
    which = ", the newest that finished anything" if asked is None else f", plan {results.manifest().plan[:8]}"
    lines = [f"run {results.name}{which}; not shown:", *(f"  {note}" for note in notes)]
    lines.append("  --run NAME or --run PLAN shows one, --all every run; `gausslens runs STORE` lists them")
    print("\n".join(map(plain, lines)), file=stream or sys.stderr)


def tell_undrawn(undrawn: Sequence[Undrawn], debug: bool, most: int = 10) -> None:
    """On the error stream: what of the page's sections could not be drawn. The exit status is none of it."""
    from ..terminal import plain_lines

    lines = [plain_lines(each) for each in undrawn[:most]]
    if len(undrawn) > most:
        lines.append(f"... and {len(undrawn) - most} more")
    if debug:
        import traceback

        lines += [plain_lines("".join(traceback.format_exception(each.error)).rstrip()) for each in undrawn]
    elif undrawn:
        lines.append("results are in the store, and all other figures are drawn; --debug shows where it failed")
    if lines:
        print("\n".join(lines), file=sys.stderr)


def outside(target: Path, store: Path) -> Path:
    """The target, unless it is a store or a pack itself, or where a store keeps its own files."""
    from ..contract.errors import InputError
    from ..store.layout import CLAIMS, INDEX, KEPT, LOCK, PARTS, PROGRESS, RUNS, TEMPORARY

    root, place = store.resolve(), target.resolve()
    if place == root:
        raise InputError(f"{target} is the store itself: choose another name")
    own = (PARTS, RUNS, KEPT, PROGRESS, CLAIMS, TEMPORARY, INDEX, LOCK)
    if place.is_relative_to(root) and place.relative_to(root).parts[0] in own:
        raise InputError(f"{target} is where the store keeps its own files: choose a place outside {store}")
    return target


def silence_stdout() -> None:
    """After the reader of a pipe went away: let nothing fail again when Python flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
