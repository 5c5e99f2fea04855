"""A store of 1,000 parts: stacking a null, its table, what `show` prints, and the page. Processor seconds.

    python benchmarks/many_parts.py [DRAWS [DIRECTORY]]

A small study is run with 8 draws of its null; the other draws are copies of these with other numbers, committed and
planned as any result. Each line runs in a process of its own, with one thread, so that nothing was read before; what
importing takes is left out. DIRECTORY keeps the store, and is used again where it holds one.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

DRAWS, REAL = 500, 8
STUDY: dict[str, Any] = {
    "gausslens": 1,
    "name": "many",
    "model": {"path": "builtin:tiny"},
    "prompts": {"source": "repeated-random", "prompts": 4, "length": 8},
    "variants": {"trained": [], "before": {"edits": [{"edit": "reinit.config"}], "draws": REAL}},
    "analyses": [{"use": "model.attention", "with": {"maps": "none"}}, {"use": "bilinear.spectrum"}],
    "against": ["before"],
    "errors": False,
    "report": False,
}
OPEN = "import gausslens, xarray, pandas, h5py, gausslens.store.read_parts, gausslens.store.tables"
LINES = {
    "stack 27 arrays of 500 draws": "gausslens.open(path)['before', 'bilinear.spectrum']",
    "stack 10 arrays of 500 draws": "gausslens.open(path)['before', 'model.attention']",
    "frame of 500 draws": "gausslens.open(path).frame('before', 'bilinear.spectrum')",
    "frame of a result with its null": "gausslens.open(path).frame('trained', 'bilinear.spectrum')",
    "gausslens show STORE": "main(['show', path])",
    "gausslens show STORE LABEL": "main(['show', path, 'bilinear.spectrum'])",
    "gausslens show STORE LABEL ARRAY": "main(['show', path, 'bilinear.spectrum', 'maximum'])",
    "gausslens report": "main(['report', path, '--out', path + '/report.html'])",
}


def made(directory: Path, draws: int) -> None:
    """The store: a real run, and copies of its draws."""
    import gausslens
    from gausslens.store import Store

    results = gausslens.run(STUDY, store=directory)
    store, manifest = Store(directory), results.manifest()
    rng = np.random.default_rng(0)
    steps = [{k: v for k, v in asdict(step).items() if k != "ingredients"} for step in manifest.steps]
    of_null = [step for step in manifest.steps if step.variant == "before"]
    for step in of_null:
        (found,) = (d for p, d in results.draws(step.variant, step.label).items() if dict(p)["draw"] == step.draw)
        facts = next(f for f in results.facts(step.variant, step.label) if f["key"] == step.key)
        meta = {name: facts[name] for name in ("plugin", "plugin_version", "version", "provenance")}
        for draw in range(step.draw + REAL, draws, REAL):
            key = hashlib.sha256(f"{step.key} {draw}".encode()).hexdigest()
            other = found.map(lambda v: v * (1 + 1e-3 * rng.normal(size=v.shape)) if v.dtype.kind == "f" else v)
            store.commit(step.analysis, key, other.assign_attrs(found.attrs), meta)
            steps.append(
                {"variant": "before", "label": step.label, "analysis": step.analysis, "key": key, "draw": draw}
            )
    told = {
        "plan": hashlib.sha256(f"{draws}".encode()).hexdigest(),
        "steps": steps,
        "nulls": [{"name": "before", "rung": "before"}],
    }
    store.manifest("many", told | {"resolved": manifest.resolved})
    store.reindex()


def seconds(line: str, path: Path) -> float:
    """Processor time of a process that does this."""
    begin = f"{OPEN}\nfrom gausslens.__main__ import main\nimport time, sys\npath = {str(path)!r}\n"
    program = f"{begin}start = time.process_time()\n{line}\nprint('took', time.process_time() - start, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = (ran.stderr.splitlines() or [""])[-1]
    if not last.startswith("took"):
        raise SystemExit(ran.stderr[-2000:])
    return float(last.split()[1])


def main() -> None:
    """Make it, and print a row for each."""
    os.environ["OMP_NUM_THREADS"] = "1"
    draws = int(sys.argv[1]) if sys.argv[1:] else DRAWS
    with tempfile.TemporaryDirectory() as top:
        path = Path(sys.argv[2]) if sys.argv[2:] else Path(top) / "store"
        if not (path / "runs").is_dir():
            made(path, draws)
        parts = len(list(path.glob("parts/*/*.h5")))
        print(f"{parts} parts", flush=True)
        for name, line in LINES.items():
            print(f"{name:36} {seconds(line, path):7.2f} s", flush=True)


if __name__ == "__main__":
    main()
