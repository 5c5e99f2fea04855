"""Four writers race for the same keys, one after another is killed with kill -9, and a reader polls.

race.py STORE KILLS SEED. Prints one JSON line: how many results were said to be finished, and the reader's errors.
"""

import json
import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path

import h5py
import xarray as xr
from store.stored import META, key, manifest, small, step

import gausslens
from gausslens.store import Store

WRITERS = 4
KEYS = 1000


def write(root: Path, number: int, said: int) -> None:
    """Finish one key after another, as a run does; now and then make the index anew."""
    store = Store(root).create()
    for i in range(KEYS):
        if not store.has("probe.score", key(i)):
            store.commit("probe.score", key(i), small(i), {**META, "object_id": f"{number}"})
            os.write(said, f"{i}\n".encode())  # below PIPE_BUF: never mixed with another's
        if i % 40 == 10 * number:
            store.reindex()


def read(root: Path, failed: int) -> None:
    """Open the store again and again; whatever is there is whole."""
    rng = random.Random(0)
    while True:
        try:
            results = gausslens.open(root)
            there = [s for s in results.steps("trained", "score") if results.finished(s)]
            for found in rng.sample(there, min(5, len(there))) + there[-3:]:
                xr.testing.assert_identical(Store(root).read("probe.score", found.key).load(), small(found.draw))
            with h5py.File(root / "store.h5", "r") as index:
                for link in list(index.get("run/trained/score", {}))[-2:]:
                    assert index[f"run/trained/score/{link}"].attrs["encoding-type"] == "step-result"
        except BaseException as error:
            os.write(failed, f"{type(error).__name__}: {error}\n".replace("\n", " ").encode()[:4000] + b"\n")


def fork(work: partial) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def main() -> None:
    root, kills, rng = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    store = Store(root).create()
    steps = [step("trained", "score", str(i), draw=i) for i in range(KEYS)]
    store.manifest("run", manifest("p", [{**s, "key": key(s["draw"])} for s in steps]))
    said = os.open(root.parent / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    failed = os.open(root.parent / "failed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    small(0)
    reader = fork(partial(read, root, failed))
    writers = {n: fork(partial(write, root, n, said)) for n in range(WRITERS)}
    for _ in range(kills):
        time.sleep(rng.uniform(0.001, 0.06))
        number = rng.randrange(WRITERS)
        os.kill(writers[number], signal.SIGKILL)
        os.waitpid(writers[number], 0)
        writers[number] = fork(partial(write, root, number, said))
    for pid in [reader, *writers.values()]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    errors = (root.parent / "failed").read_text().splitlines()
    print(
        json.dumps(
            {"said": len((root.parent / "said").read_text().split()), "errors": errors[:5], "count": len(errors)}
        )
    )


if __name__ == "__main__":
    main()
