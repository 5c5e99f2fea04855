"""Verify, pack, reindex or clean a store."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from ..contract.errors import InputError
from ..runs.progress import progress
from ..terminal import plain, print_table, size
from . import outside

if TYPE_CHECKING:
    from ..store.maintain import Superseded

ACTIONS = {
    "verify": "check every byte; exit code 1 where something is wrong",
    "pack": "write all results into one portable FILE",
    "reindex": "make store.h5 anew",
    "gc": "remove superseded results, after showing them",
}


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    words = "; ".join(f"{name}: {text}" for name, text in ACTIONS.items())
    parser.add_argument("action", choices=list(ACTIONS), metavar="|".join(ACTIONS), help=words)
    parser.add_argument("store", metavar="STORE", help="the directory of a store (verify: or a pack)")
    parser.add_argument("file", nargs="?", metavar="FILE", help="of pack: the file to write")
    parser.add_argument("--json", action="store_true", help="of verify: print JSON")
    parser.add_argument("--yes", action="store_true", help="of gc: do not ask")


def run(arguments: Namespace) -> int:
    """Do what was asked."""
    from ..store.read_results import open_reader

    if (arguments.action == "pack") != (arguments.file is not None):
        raise InputError("pack needs a FILE to write" if arguments.file is None else "only pack takes a FILE")
    for option, action in (("json", "verify"), ("yes", "gc")):
        if getattr(arguments, option) and arguments.action != action:
            raise InputError(f"only {action} takes --{option}")
    if arguments.action == "verify":
        return _verify(arguments)
    root = open_reader(arguments.store).path
    if not root.is_dir():
        raise InputError(f"{root} is a pack: {arguments.action} works on a store's directory")
    if arguments.action == "pack":
        return _pack(root, Path(arguments.file))
    if arguments.action == "gc":
        return _gc(root, arguments.yes)
    from ..store import Store

    print(Store(root).create().reindex())
    return 0


def _verify(arguments: Namespace) -> int:
    from ..store.maintain import count, verify
    from ..store.read_results import check_is_store

    path = Path(arguments.store)
    check_is_store(path)
    with progress("checking", count(path)) as tell:
        found = verify(path, lambda where: tell(plain(where)))
    wrong = [f for f in found if not f.harmless]
    if arguments.json:
        print(json.dumps([vars(f) for f in found], indent=1))
        return 1 if wrong else 0
    for finding in found:
        print(f"{'note: ' if finding.harmless else ''}{plain(finding.where)}: {plain(finding.what)}")
    print(f"{count(path)} files checked, {len(wrong)} findings")
    return 1 if wrong else 0


def _pack(root: Path, target: Path) -> int:
    from ..store.pack import pack
    from ..store.read_results import open as open_results

    number = pack(root, outside(target, root).absolute())
    results = open_results(root)
    views = results.all_runs().values()
    missing = sum(len(view.unfinished(*name)) for view in views for name in view.planned)
    left = f"; {missing} that were planned are not finished, and not in it" if missing else ""
    others = sum(len(view.other_plans()) for view in views)
    left += f"; results of {others} other plans of these runs are not in it (gausslens runs)" if others else ""
    print(f"{target}: {number} results, {size(target.stat().st_size)}{left}")
    return 0


def _gc(root: Path, yes: bool) -> int:
    from ..store import Store
    from ..store.maintain import remove, superseded

    store = Store(root).create()
    found = superseded(root)
    if not found.manifests and not found.parts:
        print("nothing is superseded")
        return 0
    _show(root, found)
    if not yes and not _agreed():
        print("nothing was removed")
        return 0
    number = remove(root, found)
    store.reindex()
    print(f"removed {number} files")
    return 0


def _show(root: Path, found: Superseded) -> None:
    rows = [
        ("plan", m.run, f"{len(m.steps)} steps, model {m.asked_model or 'none'}, planned {m.created[:19]}", "")
        for m in found.manifests
    ]
    for path, bytes_ in found.parts.items():
        names = [f"{run}: {s.variant}, {s.label} {s.member}" for run, s in found.steps[path]]
        what = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "") if names else "named by no plan"
        rows.append(("result", str(path.relative_to(root))[:60], what, size(bytes_)))
    print_table(("", "", "what it is", "size"), rows, right=(3,))
    print(f"{len(found.manifests)} plans and {len(found.parts)} results, {size(found.bytes) or '0 B'}")


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise InputError("gc asks before it removes anything: say --yes where nobody can answer")
    return input("remove them? [y/N] ").strip().lower() in ("y", "yes")
