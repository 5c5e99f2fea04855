"""Where a store lies does not matter, nor what lies around it; and it may hold many parts."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from store.stored import META, fill, key, manifest, small, step

import gausslens
from gausslens.contract.errors import StoreError
from gausslens.store import Store
from gausslens.store.maintain import verify

Child = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_store_is_moved_and_copied_whole(tmp_path: Path) -> None:
    store = fill(tmp_path / "store")
    shutil.copytree(store.path, tmp_path / "a copy é")
    store.path.rename(tmp_path / "moved")
    for place in ("moved", "a copy é"):
        root = tmp_path / place
        assert verify(root) == []
        xr.testing.assert_identical(gausslens.open(root)["trained", "score"].load(), small(0))
        with h5py.File(root / "store.h5") as index:  # its links are relative
            assert index["first/trained/score/result/score"].shape == (3, 4)
    assert Store(tmp_path / "moved").create().commit("probe.score", key("new"), small(1), META)


def test_a_link_to_a_store_is_a_store(tmp_path: Path) -> None:
    store = fill(tmp_path / "store")
    (tmp_path / "link").symlink_to(store.path)
    xr.testing.assert_identical(gausslens.open(tmp_path / "link")["trained", "score"].load(), small(0))
    assert Store(tmp_path / "link").create().commit("probe.score", key("new"), small(1), META)
    assert [f for f in verify(tmp_path / "link") if not f.harmless] == []


def test_a_relative_path_holds_when_the_process_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    store, results = Store("store"), gausslens.open("store")
    monkeypatch.chdir("/")
    assert store.has("probe.score", key("t"))
    assert results["chance", "score"].sizes["draw"] == 3


def test_a_decoy_in_the_current_directory_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 looks in the reader's directory for what a link leads to and is missing."""
    store = fill(tmp_path / "store")
    decoys = tmp_path / "elsewhere"
    other = Store(decoys).create()
    other.commit("probe.score", key("t"), small(99), META)
    missing = store.path / "parts/probe.score" / f"{key('t')}.h5"
    missing.rename(tmp_path / "kept.h5")
    monkeypatch.chdir(decoys)
    with h5py.File(store.path / "store.h5") as index:  # the trap is real
        assert index["first/trained/score/result/mass"][()] == 99
    with pytest.raises(StoreError, match="is missing"):
        store.read("probe.score", key("t"))
    with pytest.raises(StoreError, match="not finished"):
        gausslens.open(store.path)["trained", "score"]
    assert ["is missing" in f.what for f in verify(store.path)] == [True]
    (tmp_path / "kept.h5").rename(missing)
    assert verify(store.path) == []


def test_a_missing_part_is_an_unfinished_step(tmp_path: Path) -> None:
    store = fill(tmp_path / "store")
    (store.path / "parts/probe.score" / f"{key('c1')}.h5").unlink()
    results = gausslens.open(store.path)
    found = results["chance", "score"]
    assert found["draw"].values.tolist() == [0, 2]
    assert found.attrs["unfinished"] == ["draw 1"]
    table = results.table()
    assert table[~table["finished"]][["variant", "draw"]].values.tolist() == [["chance", 1]]


MANY = """
import sys, resource
parts, limit = int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
import gausslens, gausslens.store.read_parts
gausslens.store.read_parts.EAGER_BYTES = 0  # nothing is read at once: every array needs its file later
found = gausslens.open(sys.argv[1])["trained", "score"]
assert found["large"].shape == (parts, 1000)
assert found["large"][:, 5].values.tolist() == [5.0] * parts
assert found["large"][::-1, -1].values.tolist() == [999.0] * parts
"""


@pytest.mark.parametrize(("parts", "limit"), [(400, 200), pytest.param(2000, 1024, marks=pytest.mark.full)])
def test_more_parts_than_file_descriptors(tmp_path: Path, child: Child, parts: int, limit: int) -> None:
    store = Store(tmp_path / "store").create()
    steps = [step("trained", "score", str(i), draw=i) for i in range(parts)]
    store.manifest("run", manifest("p", steps))
    dataset = xr.Dataset({"large": ("x", np.arange(1000.0))})
    for one in steps:
        store.commit("probe.score", one["key"], dataset, META)
    done = child(MANY, store.path, parts, limit, timeout=300)
    assert done.returncode == 0, done.stderr
