"""List the runs of a store, in the order in which they were planned."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from ...terminal import plain, print_table

if TYPE_CHECKING:
    from ...store.manifest import Manifest
    from ...store.read_results import Results


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("store", metavar="STORE", help="the directory of a store, or a pack")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Namespace) -> int:
    """Print a row for each plan of each run."""
    from ...store.read_results import open as open_store

    results = open_store(arguments.store)
    rows = list_of_runs(results)
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0
    print(plain(results.path))
    if not rows:
        print("no run yet")
        return 0
    head = ("sequence", "run", "plan", "model", "planned", "finished", "")
    names = ("run", "plan", "model", "planned", "finished", "note")
    for row in rows:
        row |= {"plan": row["plan"][:8], "planned": row["planned"][:19], "model": row["model"] or "none"}
        row["finished"] = f"{row['finished']} of {row['steps']}"
    shown = [(row["sequence"] or "-", *(row[name] for name in names)) for row in rows]
    print_table(head, shown, right=(0, 5))
    return 0


def list_of_runs(results: Results) -> list[dict[str, Any]]:
    """Each plan of each run as data, the one planned last at the end; one that was planned again stands once."""
    read = {name: view.manifest() for name, view in results.all_runs().items()}
    plans = {(m.run, m.plan): m for m in results.manifests()}
    return [
        {
            "sequence": manifest.sequence,
            "run": manifest.run,
            "plan": manifest.plan,
            "model": manifest.asked_model,
            "planned": manifest.created,
            "steps": len(manifest.steps),
            "finished": sum(map(results.finished, manifest.steps)),
            "note": _note(manifest, results, read[manifest.run]),
        }
        for manifest in sorted(plans.values(), key=lambda m: m.age)
    ]


def _note(manifest: Manifest, results: Results, read: Manifest) -> str:
    """What readers get of this plan."""
    if manifest is results.manifest():
        return "newest: shown unless another is asked for"
    return "" if manifest is read else f"another plan of the run: --run {manifest.plan[:8]} shows it"
