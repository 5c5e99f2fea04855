"""Verify, pack, copy, reindex or clean a store."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from ...contract.errors import InputError
from ...progress import progress
from ...terminal import plain, print_table, size
from .. import load_host, outside

if TYPE_CHECKING:
    from ...store.bank import Copied, Copying
    from ...store.maintain import Named, Superseded

ACTIONS = {
    "verify": "check every byte; exit code 1 where something is wrong",
    "pack": "write all results into one portable FILE",
    "copy": "copy results into another store (TO), which then computes them no more",
    "reindex": "make store.h5 anew",
    "gc": "remove superseded results, after showing them",
}


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    words = "; ".join(f"{name}: {text}" for name, text in ACTIONS.items())
    parser.add_argument("action", choices=list(ACTIONS), metavar="|".join(ACTIONS), help=words)
    parser.add_argument("store", metavar="STORE", help="the directory of a store (verify, copy: or a pack)")
    parser.add_argument("file", nargs="?", metavar="FILE|TO", help="of pack: the file to write; of copy: a store")
    parser.add_argument("--json", action="store_true", help="of verify: print JSON")
    parser.add_argument("--yes", action="store_true", help="of gc: do not ask")
    parser.add_argument(
        "--copied", action="store_true", help="of gc: also what `store copy` brought here and no plan needs"
    )
    parser.add_argument("--keys-of", metavar="RUN.yaml", help="of copy: only results that this run file needs")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="with --keys-of: change a value of the run file"
    )
    parser.add_argument(
        "--manifests", action="store_true", help="with --keys-of: the run too, where STORE has it as it is planned now"
    )
    parser.add_argument("--dry-run", action="store_true", help="of copy: say what would be copied, and copy nothing")


# Which action takes which option.
_OPTIONS = {
    "json": "verify",
    "yes": "gc",
    "copied": "gc",
    "keys_of": "copy",
    "set": "copy",
    "manifests": "copy",
    "dry_run": "copy",
}


def run(arguments: Namespace) -> int:
    """Do what was asked."""
    from ...store.index import open_reader

    _check(arguments)
    if arguments.action == "verify":
        return _verify(arguments)
    if arguments.action == "copy":
        return _copy(arguments)
    root = open_reader(arguments.store).path
    if not root.is_dir():
        raise InputError(f"{root} is a pack: {arguments.action} works on a store's directory")
    if arguments.action == "pack":
        return _pack(root, Path(arguments.file))
    if arguments.action == "gc":
        return _gc(root, arguments.yes, arguments.copied)
    from ...store import Store

    print(Store(root).create().reindex())
    return 0


def _check(arguments: Namespace) -> None:
    """Refuse options and names of other actions."""
    second = {"pack": "a FILE to write", "copy": "a store TO copy into"}.get(arguments.action)
    if (second is None) != (arguments.file is None):
        raise InputError(
            f"{arguments.action} needs {second}" if second else "only pack takes a FILE, and copy a store TO"
        )
    for option, action in _OPTIONS.items():
        written = f"--{option.replace('_', '-')}"
        if getattr(arguments, option) and arguments.action != action:
            raise InputError(f"only {action} takes {written}")
        if option in ("set", "manifests") and getattr(arguments, option) and not arguments.keys_of:
            raise InputError(f"{written} goes with --keys-of RUN.yaml")


def _verify(arguments: Namespace) -> int:
    from ...store.layout import check_is_store
    from ...store.maintain import count, verify

    path = Path(arguments.store)
    check_is_store(path)
    with progress("checking", count(path)) as tell:
        found = verify(path, lambda where: tell.one(plain(where)))
    wrong = [f for f in found if not f.harmless]
    if arguments.json:
        print(json.dumps([vars(f) for f in found], indent=1))
        return 1 if wrong else 0
    for finding in found:
        print(f"{'note: ' if finding.harmless else ''}{plain(finding.where)}: {plain(finding.what)}")
    print(f"{count(path)} files checked, {len(wrong)} findings")
    return 1 if wrong else 0


def _pack(root: Path, target: Path) -> int:
    from ...store.pack import pack
    from ...store.read_results import open as open_results

    number = pack(root, outside(target, root).absolute())
    results = open_results(root)
    views = results.all_runs().values()
    missing = sum(len(view.unfinished(*name)) for view in views for name in view.planned)
    left = f"; {missing} that were planned are not finished, and not in it" if missing else ""
    others = sum(len(view.other_plans()) for view in views)
    left += f"; results of {others} other plans of these runs are not in it (gausslens runs)" if others else ""
    print(f"{target}: {number} results, {size(target.stat().st_size)}{left}")
    return 0


def _copy(arguments: Namespace) -> int:
    from ...store.bank import carry_out, intend, open_source

    # The plan first: where the run file is wrong, or its model is not there, nothing is looked at.
    keys, plan = _needed(arguments) if arguments.keys_of else (None, "")
    with open_source(arguments.store) as source:
        target = outside(Path(arguments.file), source.path) if source.path.is_dir() else Path(arguments.file)
        copying = intend(source, target, keys, [plan] if arguments.manifests else [])
        _tell_before(copying, keys, plan if arguments.manifests else "", arguments)
        if arguments.dry_run:
            return 1 if copying.wrong else 0
        try:
            with progress("copying", len(copying.results)) as tell:
                copied = carry_out(copying, lambda where: tell.one(plain(where)[: where.index("/") + 9]))
        except KeyboardInterrupt:
            said = f"interrupted; what was copied is in {target}, and the same command goes on from there"
            print(said, file=sys.stderr)
            return 130
    return _tell_after(copied, target)


def _needed(arguments: Namespace) -> tuple[frozenset[Named], str]:
    """The results that a run file needs, and the digest of its plan."""
    from ...spreading.prepare import prepare

    _, _, models, plan = prepare(arguments.keys_of, arguments.set, host=load_host(arguments))
    models.close()
    return frozenset((step.folder, step.key) for step in plan.steps), plan.digest


def _tell_before(copying: Copying, keys: frozenset[Named] | None, plan: str, arguments: Namespace) -> None:
    """Sizes, before anything is written; and whether they fit."""
    from ...store.bank.copying import check_space

    counted: dict[str, list[int]] = {}
    for (analysis, _), count in copying.results.items():
        counted[analysis] = [a + b for a, b in zip(counted.get(analysis, [0, 0]), (1, count), strict=True)]
    if counted:
        rows = [(analysis, number, size(bytes_)) for analysis, (number, bytes_) in sorted(counted.items())]
        print_table(("analysis", "results", "size"), rows, right=(1, 2))
    there = f", {len(copying.there)} there already" if copying.there else ""
    verb = "would copy" if arguments.dry_run else "to copy"
    print(f"{verb}: {len(copying.results)} results, {size(copying.bytes) or '0 B'}{there}")
    if keys is not None:
        lacking = f"{len(copying.lacking)} of them are not" if copying.lacking else "all of them are"
        print(f"{plain(arguments.keys_of)} needs {len(keys)}; {lacking} in {copying.source.path}")
    elif copying.manifests:
        print(f"with the runs {', '.join(dict.fromkeys(m.run for m, _ in copying.manifests))}")
    if plan and not copying.manifests:
        print(f"note: {copying.source.path} has no run as {plain(arguments.keys_of)} is planned now: none is copied")
    if arguments.dry_run:
        for finding in copying.wrong:
            print(f"left out: {plain(finding.where)}: {plain(finding.what)}")
    check_space(copying)


def _tell_after(copied: Copied, target: Path) -> int:
    """What was copied, what was not and why."""
    from ...store.read_results import open as open_results

    for finding in copied.wrong:
        print(f"left out: {plain(finding.where)}: {plain(finding.what)}")
    for named in copied.vanished:
        print(f"note: {'/'.join(named)} was removed from where it was copied from")
    runs = list(dict.fromkeys(m.run for m in copied.runs))
    if runs:
        shown = open_results(target).name
        behind = [m for m in copied.runs if m.sequence is None]
        print(f"runs that came along: {', '.join(runs)}; `gausslens show {target}` reads run {shown}")
        for manifest in behind:
            print(
                f"note: {target} has newer plans of run {manifest.run}: "
                f"`--run {manifest.plan[:8]}` of `gausslens show` reads the one that was copied"
            )
    print(
        f"{target}: {len(copied.results)} copied ({size(copied.bytes) or '0 B'}), {len(copied.there)} there already, "
        f"{len(copied.wrong)} left out as damaged"
    )
    return 1 if copied.wrong else 0


def _gc(root: Path, yes: bool, copied: bool) -> int:
    from ...store import Store
    from ...store.maintain import remove, superseded

    store = Store(root).create()
    found = superseded(root, copied)
    if found.kept or found.kept_manifests:
        what = [f"{len(found.kept)} results ({size(sum(found.kept.values())) or '0 B'})"] if found.kept else []
        what += [f"{len(found.kept_manifests)} plans"] if found.kept_manifests else []
        print(f"kept: {' and '.join(what)} that were copied here and no plan needs; --copied removes them too")
    if not (found.manifests or found.parts or found.records or found.progress):
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
    rows += [
        ("progress", str(path.relative_to(root))[:60], "of a step that is done, or was left", size(path.stat().st_size))
        for path in found.progress
    ]
    rows += [("record", str(path.relative_to(root)), "of what was copied here", "") for path in found.records]
    print_table(("", "", "what it is", "size"), rows, right=(3,))
    print(f"{len(found.manifests)} plans and {len(found.parts)} results, {size(found.bytes) or '0 B'}")


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise InputError("gc asks before it removes anything: say --yes where nobody can answer")
    return input("remove them? [y/N] ").strip().lower() in ("y", "yes")
