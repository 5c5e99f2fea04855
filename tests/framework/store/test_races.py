"""Writers that race, are killed, and are watched meanwhile; runs and processes that share a store."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from store.stored import META, key, manifest, small, step

import gausslens
from gausslens.store import Store
from gausslens.store.maintain import verify

Child = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("kills", [40, pytest.param(300, marks=pytest.mark.full)])
def test_kill_9_at_random_with_racing_writers_and_a_polling_reader(tmp_path: Path, child: Child, kills: int) -> None:
    root = tmp_path / "store"
    done = child("race.py", root, kills, kills, timeout=500)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["count"] == 0, told["errors"]
    said = [int(n) for n in (tmp_path / "said").read_text().split()]
    assert len(set(said)) > kills / 4
    store = Store(root)
    for number in said:
        xr.testing.assert_identical(store.read("probe.score", key(number)).load(), small(number))
    assert [f for f in verify(root) if not f.harmless] == []
    assert list((root / "tmp").iterdir()) != [] or kills < 100  # killed writers did leave files
    Store(root).create()
    assert list((root / "tmp").iterdir()) == []


WRITE = """
import sys, time
from store.stored import *
store = Store(sys.argv[1]).create()
name = sys.argv[2]
keys = [f"shared{i}" for i in range(30)] + [f"{name}{i}" for i in range(30)]
store.manifest(name, manifest(name, [step("trained", "score", k, draw=i) for i, k in enumerate(keys)]))
missing = [(i, k) for i, k in enumerate(keys) if not store.has("probe.score", key(k))]
made = sum(store.commit("probe.score", key(k), small(i), META) for i, k in missing)
store.reindex()
print(made)
"""


def test_two_runs_at_once_share_what_is_the_same(tmp_path: Path, child: Child) -> None:
    from concurrent.futures import ThreadPoolExecutor

    root = tmp_path / "store"
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda name: child(WRITE, root, name), ["one", "two"]))
    assert [d.returncode for d in done] == [0, 0], done
    assert sum(int(d.stdout) for d in done) == 90
    assert len(list((root / "parts/probe.score").iterdir())) == 90
    results = gausslens.open(root)
    assert sorted(results.runs) == ["one", "two"]
    for run in results.runs:
        assert results.run(run)["trained", "score"].sizes["draw"] == 60
    assert verify(root) == []


def test_a_store_is_read_while_it_is_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "s").create()
    store.manifest("run", manifest("p", [step("trained", "score", str(i), draw=i) for i in range(3)]))
    results = gausslens.open(store.path)
    with pytest.raises(gausslens.GausslensError, match="not finished"):
        results["trained", "score"]
    writer = store.begin("probe.score", key("1"), META)
    writer.create("large", ("x",), (1000,))
    store.commit("probe.score", key("0"), small(0), META)
    found = results["trained", "score"]
    assert found.sizes["draw"] == 1
    assert found.attrs["unfinished"] == ["draw 1", "draw 2"]
    writer.abandon()
    assert list((store.path / "tmp").iterdir()) == []


def test_threads_share_a_store(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    store = Store(tmp_path / "s").create()
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda i: store.commit("probe.score", key(i % 50), small(i % 50), META), range(200)))
        read = list(pool.map(lambda i: store.read("probe.score", key(i % 50)).load(), range(200)))
    assert sum(made) == 50
    for i, found in enumerate(read):
        xr.testing.assert_identical(found, small(i % 50))


READ = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
import h5py
from store.stored import *
store = Store(sys.argv[1]).create()
for i in range(20):
    store.commit("probe.score", key(i), small(i), META)
parts = sorted((store.path / "parts/probe.score").iterdir())

def plainly(i):
    with h5py.File(parts[i % 20], "r") as file:
        file.visititems(lambda name, found: None)

def ours(i):
    store.read("probe.score", key(i % 20)).load()

end = time.monotonic() + 4
with ThreadPoolExecutor(4) as pool:
    while time.monotonic() < end:
        jobs = [pool.submit(job, i) for i in range(40) for job in (ours, plainly)]
        for job in jobs:
            job.result()
"""


def test_threads_read_beside_others_that_use_h5py(tmp_path: Path, child: Child) -> None:
    done = child(READ, tmp_path / "s")
    assert done.returncode == 0, done.stderr


def test_where_plugins_are_is_left_alone_while_another_thread_is_inside_hdf5() -> None:
    """Else HDF5's own state breaks: calls of the other thread fail, or the process does."""
    from io import BytesIO
    from threading import Event, Thread

    import h5py

    from gausslens.store.safety import no_plugins

    inside, go_on, changed = Event(), Event(), Event()

    class Slow(BytesIO):
        def write(self, data: Any) -> int:
            inside.set()
            assert go_on.wait(20)
            return super().write(data)

    def others() -> None:
        with h5py.File(Slow(), "w") as file:
            file["a"] = 1

    def ours() -> None:
        with no_plugins():
            changed.set()

    threads = [Thread(target=others), Thread(target=ours)]
    threads[0].start()
    assert inside.wait(20)
    threads[1].start()
    waits = not changed.wait(0.5)
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert waits
    assert changed.is_set()


def test_a_store_that_appears_while_it_is_looked_for_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, iterdir = tmp_path / "s", Path.iterdir
    root.mkdir()

    def others_first(path: Path) -> Iterator[Path]:
        (root / "parts").mkdir(exist_ok=True)
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", others_first)
    Store(root).create()
    assert verify(root) == []


def test_a_live_writer_s_files_are_left_alone(tmp_path: Path, child: Child) -> None:
    store = Store(tmp_path / "s").create()
    writer = store.begin("probe.score", key(0), META)
    writer.create("large", ("x",), (1000,))
    (store.path / "tmp" / "0123456789abcdef.h5").write_bytes(b"half")
    done = child("import sys; from gausslens.store import Store; Store(sys.argv[1]).create()", store.path)
    assert done.returncode == 0, done.stderr
    assert writer.commit(xr.Dataset())
    assert store.read("probe.score", key(0))["large"].shape == (1000,)
    del writer, store
    Store(tmp_path / "s").create()
    assert list((tmp_path / "s" / "tmp").iterdir()) == []
