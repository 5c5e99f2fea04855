"""Read stores that were changed at random: python tests/framework/store/fuzz.py [--count N] [--first SEED].

Each number is one change of one file (a part, an index, a manifest, a pack) of one of a few small stores, with all
checksums made good again. It is read in a process with limits of memory and time, as a user would: verified, opened,
all results, facts, ``show`` and ``runs``. What is counted: refused by name; read right; read otherwise (who writes a
file may say what he likes in it) and told by ``verify`` or not; hung, crashed, over memory, and defects: of these
there may be none. Everything that is not as it should be is printed with its number: ``--first NUMBER --count 1``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SECONDS = 600.0  # for one change, by the clock: on a busy machine the few seconds of the processor take long
MEMORY = 4 << 30
BAD = ("hung", "crashed", "over memory", "defect")
COUNTED = ("tried", "refused", "read right", "read otherwise, told by verify", "read otherwise", *BAD)


def corpus(where: Path) -> Path:
    """Small stores of all that a store may hold."""
    import numpy as np
    import xarray as xr
    from store.stored import META, every_type, fill, key, manifest, small, step

    from gausslens.store import Store
    from gausslens.store.pack import pack

    fill(where / "run" / "store")
    pack(where / "run" / "store", where / "packed.h5")
    (where / "pack").mkdir()
    (where / "packed.h5").rename(where / "pack" / "pack.h5")
    for name, dataset, how in (
        ("types", every_type(), None),
        ("gzip", xr.Dataset({"score": (("x", "y"), np.arange(40_000.0).reshape(200, 200))}), "gzip"),
        ("lzf", small(3).assign(map=(("q", "k"), np.ones((300, 300)))), "lzf"),
    ):
        store = Store(where / name / "store", how).create()
        store.manifest("first", manifest("p", [step("trained", "score", name)]))
        store.commit("probe.score", key(name), dataset, META)
        store.reindex()
    return where


class Worker:
    """A process that reads changed stores, within limits."""

    def __init__(self, where: Path, number: int, options: list[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(HERE / "children" / "fuzzed.py"), str(where), str(number), *options]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
        )  # fmt: skip
        assert self.told(300) == "ready", self.process.communicate()[1]

    def told(self, seconds: float) -> Any:
        """The next line, as it is JSON; None where there is none in time or at all."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            if not waiting.select(seconds):
                return None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def ask(self, number: int) -> dict[str, Any]:
        """What came of a change."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"%d\n" % number)
        self.process.stdin.flush()
        found = self.told(SECONDS)
        if found is not None:
            return found
        hung = self.process.poll() is None and not self._ended()
        self.process.kill()
        assert self.process.stderr is not None
        last = self.process.stderr.read().decode(errors="replace")[-300:]
        self.close()
        return {"number": number, "came": "hung" if hung else "crashed", "code": self.process.returncode, "last": last}

    def _ended(self) -> bool:
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """End it."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        self.process.kill()
        self.process.wait()


def what_came(told: dict[str, Any]) -> str:
    """The column in which a change is counted."""
    if "defect" in told:
        return "defect"
    came = {"memory": "over memory", "right": "read right"}.get(told["came"], told["came"])
    if came == "otherwise":
        return "read otherwise, told by verify" if told["verify"] else "read otherwise"
    return came


def run(
    count: int, first: int = 0, options: list[str] | None = None, seconds: float = float("inf"), shown: Any = BAD
) -> Counter[str]:
    """Try ``count`` changes, or as many as go into the seconds; prints what is not as it should be."""
    counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as top:
        where = corpus(Path(top) / "corpus")
        worker = Worker(where, 0, options or [])
        for number in range(first, first + count):
            if time.monotonic() - began > seconds:
                break
            told = worker.ask(number)
            came = what_came(told)
            counts["tried"] += 1
            counts[came] += 1
            if came in shown:
                print(json.dumps(told), flush=True)
            if told.get("came") in ("hung", "crashed"):
                worker = Worker(where, number, options or [])
        worker.close()
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--all", action="store_true", help="print what came of each")
    parser.add_argument("--in-process", action="store_true", help="without the examination in a child: the control")
    asked = parser.parse_args()
    sys.path.insert(0, str(HERE.parent))
    options = ["--in-process"] if asked.in_process else []
    counts = run(asked.count, asked.first, options, asked.seconds, COUNTED if asked.all else BAD)
    print("; ".join(f"{name} {counts[name]}" for name in COUNTED))
    return int(any(counts[name] for name in BAD))


if __name__ == "__main__":
    sys.exit(main())
