"""Every operation of a store, stopped at each of its steps for another to be done there, in processes of their own.

    interleave.py DIRECTORY ONE-IN SEED [control]

An operation is stopped before each call by which Python opens, links, renames, removes or locks a file of the store.
The other then runs to its end; where it waits for a lock of the first, the first goes on. ONE-IN takes that share of
all places, by SEED. Prints a line for each pair, and last how many places were tried; what is wrong goes to stderr, and
1 is returned. ``control`` stops a gc that holds no lock and does not look again for runs: it must lose results.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xarray as xr
from store.stored import META, key, manifest, small, step

import gausslens
from gausslens.store import Store
from gausslens.store.bank import copy
from gausslens.store.disk import Claims, Writer
from gausslens.store.maintain import remove, superseded, verify
from gausslens.store.pack import pack

WATCHED = {"open", "os.link", "os.rename", "os.remove", "os.mkdir", "os.scandir", "os.listdir", "os.utime"}
# How long the other may take before it is taken to wait for a lock.
PATIENCE = 0.25
Say = Callable[[str], None]


def prepared(root: Path) -> None:
    """A store with x, which a newer plan of its run does without, a and b; another run wants c and a large result."""
    store = Store(root).create()
    store.manifest("run", manifest("old", [step("v", "a", "x")], "2026-01-01T00:00:00+00:00"))
    for name in ("x", "a", "b"):
        store.commit("probe.score", key(name), small(ord(name)), META)
    store.manifest("run", manifest("new", [step("v", name, name) for name in ("a", "b")]))
    store.manifest("next", manifest("more", [step("v", name, name) for name in ("a", "c", "large")]))
    store.reindex()
    assert [path.stem for path in superseded(root).parts] == [key("x")]
    other = Store(root.parent / "source").create()
    other.manifest("elsewhere", manifest("far", [step("v", "d", "d")]))
    other.commit("probe.score", key("d"), small(ord("d")), META)


def commit(root: Path, say: Say) -> None:
    """What a worker does: claim, look, compute, commit."""
    store = Store(root).create()
    with Claims(Writer(root)) as claims:
        if claims.take([key("c")]) is None and not store.has("probe.score", key("c")):
            store.commit("probe.score", key("c"), small(ord("c")), META)
            say("c")


def in_pieces(root: Path, say: Say) -> None:
    """A large result, written block by block."""
    store = Store(root).create()
    writer = store.begin("probe.score", key("large"), META)
    writer.create("score", ("layer", "head"), (3, 4), "float64")
    for layer in range(3):
        writer.write("score", (layer,), small(1)["score"].values[layer])
    writer.commit(small(1).drop_vars("score"))
    say("large")


def again(root: Path, say: Say) -> None:
    """A run of the old plan: what nothing wanted is wanted again, and is not computed where it is there."""
    store = Store(root).create()
    store.manifest("again", manifest("back", [step("v", "a", "x"), step("v", "b", "b")]))
    for name in ("x", "b"):
        if not store.has("probe.score", key(name)):
            store.commit("probe.score", key(name), small(ord(name)), META)
        say(name)
    store.reindex()


def reindex(root: Path, say: Say) -> None:
    Store(root).reindex()
    say("a")


def clean(root: Path, say: Say) -> None:
    remove(root, superseded(root))
    say("a")


def careless(root: Path, say: Say) -> None:
    """The control."""
    gone = superseded(root)
    for path in (*(m.path for m in gone.manifests), *gone.parts):
        path.unlink()


def copied(root: Path, say: Say) -> None:
    done = copy(root.parent / "source", root)
    assert done.wrong == [], done.wrong
    say("d")


def packed(root: Path, say: Say) -> None:
    target = root.parent / f"pack-{os.getpid()}.h5"
    pack(root, target)
    assert [f for f in verify(target) if not f.harmless] == []
    xr.testing.assert_identical(gausslens.open(target).run("run")["v", "a"].load(), small(ord("a")))
    say("b")


def read(root: Path, say: Say) -> None:
    results = gausslens.open(root).run("run")
    for name in ("a", "b"):
        xr.testing.assert_identical(results["v", name].load(), small(ord(name)))
        say(name)


def verified(root: Path, say: Say) -> None:
    wrong = [f for f in verify(root) if not f.harmless]
    assert wrong == [], wrong
    say("b")


OPERATIONS: list[Callable[[Path, Say], None]] = [
    commit, in_pieces, again, reindex, clean, copied, packed, read, verified,
]  # fmt: skip
_STOP: list[Callable[[], None]] = []


def _hook(event: str, given: tuple[object, ...]) -> None:
    if not _STOP or (event != "fcntl.flock" and event not in WATCHED):
        return
    stop = _STOP.pop()
    try:
        if event == "fcntl.flock" or any(isinstance(one, str | bytes | Path) and ROOT in str(one) for one in given):
            stop()
    finally:
        _STOP.append(stop)


ROOT = ""


def places(operation: Callable[[Path, Say], None], root: Path) -> int:
    """How many places an operation can be stopped at."""
    count = [0]

    def counted() -> None:
        count[0] += 1

    _STOP.append(counted)
    operation(root, lambda _: None)
    _STOP.clear()
    return count[0]


def at(place: int, first: Callable[[Path, Say], None], other: Callable[[Path, Say], None], root: Path) -> None:
    """Run the first, and at this place of it the other in a process of its own; what both say goes to a file."""
    go, done = os.pipe(), os.pipe()
    said = os.open(root.parent / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(name: str) -> None:
        os.write(said, f"{name}\n".encode())

    pid = os.fork()
    if pid == 0:
        os.read(go[0], 1)
        code = _guarded(lambda: other(root, say))
        os.write(done[1], b".")
        os._exit(code)
    left = [place]

    def stop() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.write(go[1], b".")
            select.select([done[0]], [], [], PATIENCE)

    _STOP.append(stop)
    code = _guarded(lambda: first(root, say))
    _STOP.clear()
    if left[0] > 0:  # what it found made it stop earlier
        os.write(go[1], b".")
    os._exit(code or os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _guarded(work: Callable[[], None]) -> int:
    try:
        work()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def wrong(root: Path) -> str:
    """What is wrong with the store, and with what was said; empty where nothing is."""
    names = {*(root.parent / "said").read_text().split(), "a", "b"}
    store = Store(root)
    try:
        for name in sorted(names - {"large"}):
            xr.testing.assert_identical(store.read("probe.score", key(name)).load(), small(ord(name)))
        if "large" in names:
            assert np.array_equal(store.read("probe.score", key("large"))["score"].values, small(1)["score"].values)
    except Exception as error:
        return f"{sorted(names)}: {error!r}"
    found = [f for f in verify(root) if not f.harmless]
    return f"verify: {found}" if found else ""


def tried(first: Callable[[Path, Say], None], other: Callable[[Path, Say], None], place: int, top: Path) -> str:
    """What is wrong after a pair at a place; empty where nothing is."""
    here = top / "here"
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(top / "prepared", here)
    (here / "said").touch()
    pid = os.fork()
    if pid == 0:
        signal.alarm(300)
        at(place, first, other, here / "store")
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return f"exit code {code}" if code else wrong(here / "store")


def main() -> int:
    global ROOT
    top, one_in, draw = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    (top / "prepared").mkdir(parents=True)
    prepared(top / "prepared/store")
    sys.addaudithook(_hook)
    count, failed = 0, 0
    pairs = [([careless], [again])] if "control" in sys.argv else [([first], OPERATIONS) for first in OPERATIONS]
    for (first,), others in pairs:
        shutil.rmtree(top / "here", ignore_errors=True)
        shutil.copytree(top / "prepared", top / "here")
        ROOT = str(top / "here/store")
        every = places(first, top / "here/store")
        for other in others:
            chosen = [place for place in range(1, every + 1) if draw.randrange(one_in) == 0]
            found = {place: what for place in chosen if (what := tried(first, other, place, top))}
            count, failed = count + len(chosen), failed + len(found)
            print(f"{first.__name__} {other.__name__}: {len(chosen)} of {every} places, {len(found)} wrong", flush=True)
            for place, what in found.items():
                print(f"{first.__name__}, {other.__name__} at {place}: {what}", file=sys.stderr, flush=True)
    print(count)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
