"""Read stores that were changed at random: fuzzed.py CORPUS NUMBER [--in-process].

Numbers of changes come on stdin; what came of each goes out. CORPUS holds stores by name, with ``store`` or
``pack.h5``.
What is done with each is all that a reader does.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import sys
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
from store.mutations import changed_file, changed_json, write_digested, write_sealed

import gausslens
from gausslens import GausslensError
from gausslens.__main__ import main as command
from gausslens.store import checksums as seal
from gausslens.store import safety
from gausslens.store.maintain import verify
from gausslens.store.read_parts import _RECENT, DifferentShapes

if "--in-process" in sys.argv:
    safety.examined = lambda path: None
CORPUS = Path(sys.argv[1])
HERE = CORPUS.parent / f"at-{sys.argv[2]}"
ALLOWED = 400 << 20  # bytes more at the peak than before


def main() -> None:
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    sources = sorted(p for p in CORPUS.iterdir())
    right = {source.name: values(source / target(source)) for source in sources}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        rng = random.Random(int(line))
        source = rng.choice(sources)
        told = {"number": int(line), "of": source.name, **tried(source, rng, right[source.name])}
        print(json.dumps(told), flush=True)


def target(source: Path) -> str:
    return "pack.h5" if (source / "pack.h5").exists() else "store"


def tried(source: Path, rng: random.Random, right: dict[str, Any]) -> dict[str, Any]:
    """Change one file of a copy of a store, and read it."""
    shutil.rmtree(HERE, ignore_errors=True)
    shutil.copytree(source, HERE)
    root = HERE / target(source)
    what = change(root, rng)
    _RECENT.held.clear()
    before = peak(anew=True)
    told: dict[str, Any] = {"changed": what}
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            found = {f.where: f.what for f in verify(root) if not f.harmless}
            try:
                after = values(root)
                same = after.keys() == right.keys() and all(after[name].identical(right[name]) for name in right)
                told["came"] = "right" if same else "otherwise"
                told["differs"] = [str(name) for name in after.keys() | right.keys() if not _same(name, after, right)]
            except GausslensError as error:
                told["came"] = "refused"
                told["said"] = str(error)[:300]
            codes = [command(["show", str(root)]), command(["show", str(root), "score"]), command(["runs", str(root)])]
        told["verify"] = bool(found)
        if any("check itself stopped" in f for f in found.values()):
            told["defect"] = json.dumps(found)
        if not set(codes) <= {0, 1, 2}:
            told["defect"] = str(codes)
    except MemoryError:
        told["came"] = "memory"
    except Exception as error:
        told["defect"] = "".join(traceback.format_exception(error))[-700:]
    told["grown"] = peak() - before
    if told["grown"] > ALLOWED:
        told["came"] = "memory"
    return told


def _same(name: str, after: dict[str, Any], right: dict[str, Any]) -> bool:
    return name in after and name in right and after[name].identical(right[name])


def change(root: Path, rng: random.Random) -> str:
    if root.is_file():
        path = root
    else:
        manifests = sorted(root.glob("runs/*/*.json"))
        path = rng.choice([*sorted(root.glob("parts/*/*.h5")), root / "store.h5", *manifests])
    if path.suffix == ".json":
        write_digested(path, changed_json(json.loads(path.read_text()), rng))
    else:
        whole = path.read_bytes()
        path.chmod(0o644)
        write_sealed(path, changed_file(whole[: unsealed(path)], rng))
    return path.name


def unsealed(path: Path) -> int:
    """How long the file is without its seal."""
    with path.open("rb") as file:
        found = seal._read(file.fileno())
    assert not isinstance(found, str), found
    return found[0]


def values(root: Path) -> dict[str, Any]:
    results = gausslens.open(root)
    found = {}
    for variant, label in results:
        with suppress(DifferentShapes):
            results[variant, label].load()
        for point, dataset in results.draws(variant, label).items():
            found[f"{variant} {label} {point}"] = dataset.load()
        results.facts(variant, label)
    str(results), results.tree(), results.table()
    return found


def peak(anew: bool = False) -> int:
    """The largest memory of this process so far (since the last ``anew``)."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


main()
