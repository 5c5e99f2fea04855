"""What the store costs, as ratios to the machine: ``python benchmarks/store.py [ROUNDS] [DIRECTORY]``.

Each line is the ratio of two minima over rounds in which the two are done in turn; where there is nothing to compare
with, the minimum itself. Processor time in a tmpfs (/dev/shm), one thread: what a disk and others do is not counted.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import h5py
import numpy as np
import xarray as xr

from gausslens.store import Store
from gausslens.store.index import listed, open_index
from gausslens.store.pack import pack
from gausslens.store.read_parts import open_checked

META = {"plugin": "benchmark", "plugin_version": "0", "version": 1, "provenance": {"threads": 1}}
MEGA = 1 << 20
Timed = Callable[[], float]


def clock(work: Callable[[], object]) -> float:
    """Processor seconds that some work takes, ours and the system's for us."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def minima(rounds: int, *works: Timed) -> list[float]:
    """The smallest time of each, done in turn; one round before does not count."""
    times = [[work() for work in works] for _ in range(rounds + 1)][1:]
    return [min(column) for column in zip(*times, strict=True)]


def tell(what: str, found: float, target: str, good: bool) -> None:
    print(f"{what:<66} {found:8.3g}   {target:<10} {'' if good else 'MISSED'}")


class Bench:
    """One store, fresh keys."""

    def __init__(self, top: Path):
        self.top = top
        self.store = Store(top / "store").create()
        self.number = 0

    def key(self) -> str:
        self.number += 1
        return hashlib.sha256(str(self.number).encode()).hexdigest()

    def part(self, key: str) -> Path:
        return self.store.path / "parts/bench.x" / f"{key}.h5"

    def forget(self) -> None:
        """Free the memory that parts take."""
        shutil.rmtree(self.store.path / "parts/bench.x", ignore_errors=True)
        self.store = Store(self.store.path)


def bulk(bench: Bench, rounds: int) -> None:
    """A large array, written as it comes and then committed, against one call of tofile."""
    values = np.random.default_rng(0).normal(size=(64, MEGA)).astype("f4")  # 256 MB

    def plain() -> float:
        path = bench.top / "plain"
        path.unlink(missing_ok=True)
        return clock(lambda: values.tofile(path))

    def streamed(order: range, commit: bool) -> float:
        writer = bench.store.begin("bench.x", bench.key(), META)

        def work() -> None:
            writer.create("a", ("x", "y"), values.shape, "float32")
            for start in order:
                writer.write("a", (slice(start, start + 8),), values[start : start + 8])
            if commit:
                writer.commit(xr.Dataset())

        took = clock(work)
        writer.abandon()
        bench.forget()
        return took

    forth, back = range(0, 64, 8), range(56, -8, -8)  # a crc32 is taken along the way, or else at the end
    works = (plain, lambda: streamed(back, False), lambda: streamed(forth, True), lambda: streamed(back, True))
    raw, ours, whole, unordered = minima(rounds, *works)
    (bench.top / "plain").unlink()
    tell("bulk write of 256 MB, speed against tofile", raw / ours, ">= 0.90", raw / ours >= 0.9)
    tell("the same with crc32 and commit", raw / whole, ">= 0.65", raw / whole >= 0.65)
    tell("the same where blocks do not come in order", raw / unordered, "", True)


def durable(bench: Bench, rounds: int) -> None:
    """Commits of 8 MiB against write, fsync and rename."""
    values = np.random.default_rng(0).normal(size=MEGA)
    dataset = xr.Dataset({"a": (("x", "y"), values.reshape(1024, 1024))})

    def plain() -> float:
        def work() -> None:
            with (bench.top / "new").open("wb") as file:
                file.write(values.data)
                file.flush()
                os.fsync(file.fileno())
            (bench.top / "new").rename(bench.top / "plain")

        (bench.top / "plain").unlink(missing_ok=True)
        return clock(work)

    def ours() -> float:
        key = bench.key()
        took = clock(lambda: bench.store.commit("bench.x", key, dataset, META))
        bench.part(key).unlink()
        return took

    raw, mine = minima(rounds * 4, plain, ours)
    tell("durable commit of 8 MiB, speed against write, fsync and rename", raw / mine, ">= 0.55", raw / mine >= 0.55)


def reading(bench: Bench, rounds: int) -> None:
    """Contiguous reads of an open part against numpy's memory map of the same bytes."""
    key = bench.key()
    size = 32 * MEGA
    bench.store.commit("bench.x", key, xr.Dataset({"a": ("x", np.arange(size, dtype="f4"))}), META)
    with open_checked(str(bench.part(key)), str(bench.store.path)) as file:
        array = file[f"bench.x/{key}/a"]
        for block, most in ((MEGA >> 10, 2.0), (MEGA >> 4, 1.5)):
            places = np.random.default_rng(0).integers(0, size - block, 500).tolist()

            def mapped(block: int = block, places: list[int] = places) -> float:
                # A new map each time: its pages are met for the first time, as in an array of any size.
                fresh = np.memmap(bench.part(key), "<f4", "r", array.id.get_offset(), (size,))
                return clock(lambda: [np.array(fresh[p : p + block]) for p in places])

            def ours(block: int = block, places: list[int] = places) -> float:
                return clock(lambda: [array[p : p + block] for p in places])

            plain, mine = minima(rounds * 4, mapped, ours)
            name = f"read of {block * 4 >> 10} KiB, time against a memory map"
            tell(name, mine / plain, f"<= {most}", mine / plain <= most)
    bench.forget()


def small(bench: Bench, rounds: int) -> None:
    """Parts of many and of few small arrays, in milliseconds."""
    coords = {"layer": np.arange(12), "head": np.arange(8)}
    values = np.random.default_rng(0).normal(size=(12, 8))
    attrs = {"units": "nat", "long_name": "an array"}
    many = xr.Dataset({f"a{i}": (("layer", "head"), values, attrs) for i in range(100)}, coords)
    few = many[["a0", "a1", "a2"]]
    one = many[["a0"]]

    def commit(dataset: xr.Dataset) -> Timed:
        return lambda: clock(lambda: bench.store.commit("bench.x", bench.key(), dataset, META))

    def sync() -> float:
        with (bench.top / "synced").open("wb") as file:
            return clock(lambda: [os.fsync(file.fileno()) for _ in range(2)])

    def read(dataset: xr.Dataset) -> Timed:
        key = bench.key()
        bench.store.commit("bench.x", key, dataset, META)
        return lambda: clock(lambda: bench.store.read("bench.x", key))

    hundred, three, single, fsyncs, back = minima(rounds * 6, commit(many), commit(few), commit(one), sync, read(few))
    tell("commit of 100 small arrays, ms each", hundred * 10, "<= 0.4", hundred * 10 <= 0.4)
    tell("commit of 3 small arrays without its fsyncs, ms", (three - fsyncs) * 1e3, "<= 2", three - fsyncs <= 2e-3)
    tell("commit of 1 small array without its fsyncs, ms", (single - fsyncs) * 1e3, "<= 2", single - fsyncs <= 2e-3)
    tell("read of 3 small arrays, ms", back * 1e3, "", True)
    bench.forget()


def index(bench: Bench, rounds: int, count: int = 10_000) -> None:
    """The index of ten thousand parts: made anew, opened, listed."""
    made = [bench.key() for _ in range(count)]
    directory = bench.store.path / "parts/bench.x"
    bench.store.commit("bench.x", made[0], xr.Dataset({"a": ("x", np.zeros(3))}), META)
    for key in made[1:]:  # the index asks only which parts there are
        os.link(directory / f"{made[0]}.h5", directory / f"{key}.h5")
    ingredients = {"model": {"fingerprint": "f" * 64, "dtype": "float32"}, "analysis": {"name": "bench", "version": 1}}
    steps = [
        {"variant": f"v{i // 1000}", "label": "score", "analysis": "bench.x", "key": key, "draw": i % 1000}
        | {"ingredients": ingredients}
        for i, key in enumerate(made)
    ]
    bench.store.manifest("run", {"plan": "p", "steps": steps})

    def opened() -> None:
        with open_index(bench.store.path) as file:
            assert file["run"]

    def users() -> None:
        with h5py.File(bench.store.path / "store.h5") as file:
            assert file["run"]

    def names() -> None:
        with h5py.File(bench.store.path / "store.h5") as file:
            assert sum(len(list(file[f"run/v{i}/score"])) for i in range(10)) == count

    works = (bench.store.reindex, opened, users, names, lambda: listed(bench.store.path))
    rebuild, ours, plain, names_, links = minima(rounds, *((lambda w=w: clock(w)) for w in works))
    tell("index of 10,000 parts made anew, s", rebuild, "<= 0.5", rebuild <= 0.5)
    tell("the same opened by h5py, ms", plain * 1e3, "<= 2", plain <= 2e-3)
    tell("the same checked and opened by us, ms", ours * 1e3, "", True)
    tell("its names listed by h5py, ms", names_ * 1e3, "<= 50", names_ <= 0.05)
    tell("its links checked and listed by us, ms", links * 1e3, "", True)
    bench.forget()
    shutil.rmtree(bench.store.path / "runs")


def packing(bench: Bench, rounds: int) -> None:
    """Packing of 32 parts of 16 MB, in MB/s."""
    values = np.random.default_rng(0).normal(size=(2000, 1000))
    keys = [bench.key() for _ in range(32)]
    for key in keys:
        bench.store.commit("bench.x", key, xr.Dataset({"a": (("x", "y"), values)}), META)
    (bench.store.path / "runs").mkdir(exist_ok=True)
    steps = [{"variant": "v", "label": "a", "analysis": "bench.x", "key": k, "draw": i} for i, k in enumerate(keys)]
    bench.store.manifest("packed", {"plan": "p", "steps": steps})
    target = bench.top / "pack.h5"

    def work() -> float:
        took = clock(lambda: pack(bench.store.path, target))
        target.unlink()
        return took

    (took,) = minima(rounds, work)
    speed = 32 * values.nbytes / 1e6 / took
    tell("pack of 512 MB, MB/s", speed, ">= 300", speed >= 300)
    bench.forget()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    where = sys.argv[2] if len(sys.argv) > 2 else "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=where) as top:
        bench = Bench(Path(top))
        print(f"in {where}, minima over {rounds} rounds and more")
        for measure in (bulk, durable, reading, small, index, packing):
            measure(bench, rounds)


if __name__ == "__main__":
    main()
