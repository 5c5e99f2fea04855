"""Run a job once for each of its calls of one system call, in processes of its own; strace kills each at that call.

kill_points.py JOB SYSTEM-CALL DIRECTORY. strace kills whoever makes ``when`` calls, counting each process by itself; so
the process that is to die at its k-th call first makes ``when`` - k calls that do nothing. What a process says is
finished goes to DIRECTORY/<k>.finished. The last line printed is the number of points at which one was killed.
"""

import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import h5py
import numpy as np
from store.stored import META, key, manifest, small, step

from gausslens.store import Store
from gausslens.store.bank import copy

# More calls than the job makes, and than the imports of this process do before it.
WHEN = {"openat": 4000}
OTHERWISE = 250
PARTS = 3


def durable(where: Path, say) -> None:
    """What a run does: plan, compute what is not there, index."""
    store = Store(where).create()
    steps = [step("trained", "score", i, draw=i) for i in range(PARTS)]
    store.manifest("run", manifest("p", steps))
    for i in range(PARTS):
        if not store.has("probe.score", key(i)):
            store.commit("probe.score", key(i), small(i), META)
        say(i)
    if not store.has("probe.bulk", key("bulk")):
        writer = store.begin("probe.bulk", key("bulk"), META)
        writer.create("score", ("layer", "head"), (3, 4), "float64")
        for layer in range(2):
            writer.write("score", (layer,), small(9)["score"].values[layer])
        writer.commit(small(9)[["mass"]])
    say("bulk")
    store.reindex()
    say("index")


def copied(where: Path, say) -> None:
    """What `store copy` does, of a store with a run and a result that no plan names (and of what is there already)."""
    source = where.parent / "source"
    if not source.exists():
        durable(source, say)
        Store(source).commit("probe.score", key("loose"), small(5), META)
    copy(source, where)
    say("copied")


def naive(where: Path, say) -> None:
    """The control: one file, appended to and flushed after each result."""
    where.mkdir(exist_ok=True)
    with h5py.File(where / "all.h5", "a", libver="latest") as file:
        for i in range(PARTS):
            if str(i) not in file:
                group = file.create_group(str(i))
                for name, variable in small(i).variables.items():
                    values = variable.values
                    group[name] = np.array(values, dtype=h5py.string_dtype()) if values.dtype.kind == "U" else values
                file.flush()
                os.fsync(file.id.get_vfd_handle())
            say(i)


_JOBS = {"durable": durable, "copied": copied, "naive": naive}
NULL = os.open("/dev/null", os.O_RDWR)
# Calls that change nothing; most of them fail, which strace does not mind.
NOTHING = {
    "openat": lambda: os.open("/nowhere/at/all", os.O_RDONLY),
    "pwrite64": lambda: os.pwrite(NULL, b"x", 0),
    "ftruncate": lambda: os.ftruncate(NULL, 0),
    "fsync": lambda: os.fsync(NULL),
    "fchmod": lambda: os.fchmod(-1, 0),
    "link": lambda: os.link("/nowhere/a", "/nowhere/b"),
    "unlink": lambda: Path("/nowhere/a").unlink(),
    "rename": lambda: Path("/nowhere/a").rename("/nowhere/b"),
    "mkdir": lambda: Path("/nowhere/a/b").mkdir(),
}


def _say(report: int, what: object) -> None:
    os.writev(report, [f"{what}\n".encode()])


def main() -> None:
    job, name, directory = _JOBS[sys.argv[1]], sys.argv[2], Path(sys.argv[3])
    when = WHEN.get(name, OTHERWISE)
    small(0)  # whatever is imported late is imported now
    job(directory / "warm", lambda _: None)
    for k in range(1, when):
        pid = os.fork()
        if pid == 0:
            report = os.open(directory / f"{k}.finished", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            for _ in range(when - k - (name == "openat")):
                with suppress(OSError):
                    NOTHING[name]()
            job(directory / str(k), partial(_say, report))
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        if not os.WIFSIGNALED(status):
            assert status == 0, status
            print(k - 1)
            return
    raise SystemExit("more points than were thought of")


if __name__ == "__main__":
    main()
