"""Every reader that a user may have reads a part, the index and a pack, each in a process of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from store.stored import META, every_type, key, manifest, small, step

from gausslens.store import Store
from gausslens.store.pack import pack

Child = Callable[..., "subprocess.CompletedProcess[str]"]
READERS = ["h5py", "netCDF4", "xarray-netcdf4", "xarray-h5netcdf"]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """One result in a part, behind the index, and in a pack (where a second name is a soft link): file and group."""
    where = tmp_path_factory.mktemp("readers")
    store = Store(where / "store").create()
    store.commit("probe.score", key("e"), every_type(), META)
    store.commit("probe.score", key("s"), small(0), META)
    steps = [step("trained", "score", "e", draw=0, sweep={"alpha": 0.5}), step("chance", "score", "s")]
    store.manifest("one", manifest("p1", steps))
    store.manifest("two", manifest("p2", [step("again", "score", "e")], "2026-01-03T00:00:00+00:00"))
    store.reindex()
    pack(store.path, where / "pack.h5")
    entry = "one/trained/score/0,alpha=0.5"
    return {
        "part": (store.path / "parts/probe.score" / f"{key('e')}.h5", f"probe.score/{key('e')}"),
        "index": (store.path / "store.h5", entry),
        "pack": (where / "pack.h5", entry),
        "pack, second name": (where / "pack.h5", "two/again/score/result"),
    }


@pytest.mark.parametrize("place", ["part", "index", "pack", "pack, second name"])
@pytest.mark.parametrize("reader", READERS)
def test_reads_every_array(places: dict[str, tuple[Path, str]], child: Child, reader: str, place: str) -> None:
    path, group = places[place]
    if (reader, place) == ("xarray-h5netcdf", "index"):
        # h5netcdf does not follow links to other files; it must still open the index, and say so in words
        done = child("import sys, xarray as xr; print(xr.open_dataset(sys.argv[1], engine='h5netcdf').attrs)", path)
        assert done.returncode == 0, done.stderr
        assert "store-index" in done.stdout
        return
    done = child("readers.py", reader, path, group)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("reader", ["netcdf4", "h5netcdf"])
def test_a_pack_is_a_tree_for_xarray(places: dict[str, tuple[Path, str]], child: Child, reader: str) -> None:
    code = """
import sys, xarray as xr
tree = xr.open_datatree(sys.argv[1], engine=sys.argv[2])
assert tree["one/trained/score/0,alpha=0.5"]["special"].attrs["units"] == "nat"
assert tree["one/chance/score/result"]["score"].dims == ("layer", "head")
"""
    done = child(code, places["pack"][0], reader)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("h5ls") is None, reason="h5ls is not installed")
@pytest.mark.parametrize("place", ["part", "index", "pack"])
def test_h5ls(places: dict[str, tuple[Path, str]], place: str) -> None:
    path, group = places[place]
    done = subprocess.run(["h5ls", "-r", str(path)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    shown = f"/{group}" if place == "index" else f"/{group}/special"
    assert any(line.startswith(shown) for line in done.stdout.splitlines()), done.stdout
    if place == "index":
        behind = subprocess.run(
            ["h5ls", "-rE", str(path)], capture_output=True, text=True, check=False, timeout=60, cwd=path.parent
        )
        assert behind.returncode == 0, behind.stderr
        for name in ("special", "score"):
            assert f"/{name}" in behind.stdout, behind.stdout  # of both parts: each target has a path of its own


@pytest.mark.skipif(shutil.which("h5dump") is None, reason="h5dump is not installed")
@pytest.mark.parametrize("place", ["part", "index", "pack"])
def test_h5dump(places: dict[str, tuple[Path, str]], place: str) -> None:
    path, group = places[place]
    done = subprocess.run(
        ["h5dump", str(path)], capture_output=True, text=True, check=False, timeout=60, cwd=path.parent
    )
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr.lower()
    assert 'ATTRIBUTE "encoding-type"' in done.stdout
    if place != "index":
        one = subprocess.run(
            ["h5dump", "-d", f"/{group}/special", str(path)], capture_output=True, text=True, check=True, timeout=60
        )
        for value in ("nan", "inf", "-inf", "-0"):
            assert value in one.stdout, one.stdout


def test_the_store_may_be_read_while_ours_has_it_open(tmp_path: Path, child: Child) -> None:
    """HDF5 wants all who have a file open in one process to have asked for the same locking; other processes too."""
    import h5py
    import numpy as np
    import xarray as xr

    store = Store(tmp_path / "s").create()
    store.commit("probe.x", "k", xr.Dataset({"a": ("x", np.arange(300_000.0))}), META)
    path = store.path / "parts/probe.x/k.h5"
    found = store.read("probe.x", "k")
    assert float(found["a"][7]) == 7  # now the file is open
    with h5py.File(path, "r") as file, h5py.File(path, "r") as again:
        assert file["probe.x/k/a"][5] == again["probe.x/k/a"][5] == 5
    done = child("import sys, h5py; print(h5py.File(sys.argv[1], 'r')['probe.x/k/a'][9])", path)
    assert done.stdout.strip() == "9.0", done.stderr
