"""Disks that fill up, cannot be written to, or go away: one clear error, and nothing finished is lost."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from store.attacks import edited
from store.stored import META, fill, key, small

import gausslens
from gausslens.contract.errors import StoreError
from gausslens.store import Store
from gausslens.store.maintain import verify

Child = Callable[..., "subprocess.CompletedProcess[str]"]
CAN_MOUNT = os.geteuid() == 0 and shutil.which("mount") is not None


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "tiny"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(reason="this machine may not mount a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def check_finished(root: Path, told: dict[str, Any]) -> None:
    assert told["left"] == []
    store = Store(root)
    xr.testing.assert_identical(store.read("probe.score", key("first")).load(), small(0))
    for number in range(told["finished"]):
        xr.testing.assert_identical(store.read("probe.score", key(number)).load(), small(number))
    assert not store.has("probe.score", key("large"))
    assert not store.has("probe.score", key("bulk"))
    assert [f for f in verify(root) if not f.harmless] == []


@pytest.mark.skipif(not CAN_MOUNT, reason="this machine may not mount a small disk")
def test_a_full_disk(tiny_disk: Path, child: Child) -> None:
    done = child("full_disk.py", tiny_disk / "store", 0)
    assert done.returncode == 0, done.stderr  # HDF5 by itself would crash here
    told = json.loads(done.stdout)
    assert 20 < told["finished"] < 149
    assert len(told["told"]) == 4
    assert all("the disk is full" in message and "\n" not in message for message in told["told"][:3])
    assert "would take 160,016,384 bytes and the disk has" in told["told"][3]
    check_finished(tiny_disk / "store", told)
    # With space again, work goes on where it stopped.
    store = Store(tiny_disk / "store").create()
    (store.path / "parts/probe.score" / f"{key(0)}.h5").unlink()
    (store.path / "parts/probe.score" / f"{key(1)}.h5").unlink()
    assert store.commit("probe.score", key("next"), small(5), META)


def test_a_limit_on_the_size_of_files(tmp_path: Path, child: Child) -> None:
    done = child("full_disk.py", tmp_path / "store", 1 << 16, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["finished"] == 149
    assert len(told["told"]) == 3
    assert all("larger than this disk or process allows" in message for message in told["told"])
    check_finished(tmp_path / "store", told)


def bulk(store: Store, name: str) -> bool:
    writer = store.begin("probe.x", name, META)
    try:
        writer.create("a", ("x",), (100,), "float32")
        writer.write("a", (slice(10, 20),), np.ones(10))
        return writer.commit(small(0))
    finally:
        writer.abandon()


def part(store: Store, name: str) -> bool:
    return store.commit("probe.x", name, small(0), META)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize(
    ("call", "work"),
    [(c, w) for c in ("pwrite", "fsync", "link", "ftruncate") for w in (bulk, part)],
)
def test_an_error_of_any_call(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str, work: Callable[[Store, str], bool], number: int
) -> None:
    """Each call that writes fails in turn: a StoreError, nothing half-written, no temporary file; then it goes on."""
    part(store, "before")  # whatever is made once is there
    genuine = getattr(os, call)
    met = 0
    for nth in range(1, 20):
        calls = itertools.count(1)

        def failing(*arguments: Any, nth: int = nth, calls: Iterator[int] = calls) -> Any:
            if next(calls) == nth:
                raise OSError(number, os.strerror(number))
            return genuine(*arguments)

        monkeypatch.setattr(os, call, failing)
        with suppress(StoreError):
            work(store, f"k{nth}")
        monkeypatch.setattr(os, call, genuine)
        if next(calls) <= nth:
            break  # it makes no so many calls
        met += 1
        # A fsync of the directory may fail after the result has its name: then it is there, whole.
        assert store.has("probe.x", f"k{nth}") <= (call == "fsync")
        assert list((store.path / "tmp").iterdir()) == []
        assert [f for f in verify(store.path) if not f.harmless] == []
        assert work(store, f"k{nth}") or call == "fsync"
        assert store.read("probe.x", f"k{nth}")["mass"] == 0
    assert met > 0


@pytest.mark.skipif(not CAN_MOUNT, reason="this machine may not mount a small disk")
def test_a_read_only_disk(tiny_disk: Path) -> None:
    store = fill(tiny_disk / "store")
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    again = Store(store.path)
    for work in (
        lambda: again.create(),
        lambda: again.commit("probe.score", key("new"), small(0), META),
        lambda: again.reindex(),
        lambda: again.manifest("new", {"plan": "p", "steps": []}),
    ):
        with pytest.raises(StoreError, match="the disk is read-only"):
            work()
    results = gausslens.open(store.path)  # reading goes on
    assert results["chance", "score"].sizes["draw"] == 3
    assert verify(store.path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission(tmp_path: Path) -> None:
    store = fill(tmp_path / "store")
    for directory in (store.path, store.path / "tmp", store.path / "parts/probe.score"):
        directory.chmod(0o555)
    with pytest.raises(StoreError, match="no permission"):
        Store(store.path).commit("probe.score", key("new"), small(0), META)
    assert gausslens.open(store.path)["chance", "score"].sizes["draw"] == 3
    for directory in (store.path, store.path / "tmp", store.path / "parts/probe.score"):
        directory.chmod(0o755)


def test_a_directory_that_vanished(tmp_path: Path) -> None:
    store = fill(tmp_path / "store")
    results = gausslens.open(store.path)
    writer = store.begin("probe.score", key("bulk"), META)
    writer.create("a", ("x",), (100,))
    store.path.rename(tmp_path / "moved")
    with pytest.raises(StoreError, match="vanished"):
        store.commit("probe.score", key("new"), small(0), META)
    with pytest.raises(StoreError, match="vanished"):
        writer.commit(xr.Dataset())
    with pytest.raises(StoreError, match=r"not finished|is missing"):
        results["chance", "score"]
    assert not store.path.exists()  # nobody made it anew elsewhere
    (tmp_path / "moved").rename(store.path)
    assert results["chance", "score"].sizes["draw"] == 3
    assert store.commit("probe.score", key("new"), small(0), META)


def test_a_part_that_vanished_while_it_was_looked_at(store: Store) -> None:
    store.commit("probe.x", "k", xr.Dataset({"a": ("x", np.zeros(1_000_000))}), META)
    found = store.read("probe.x", "k")
    (store.path / "parts/probe.x/k.h5").unlink()
    with pytest.raises(StoreError, match="is missing"):
        found["a"].values  # noqa: B018


def test_a_store_of_a_newer_version(tmp_path: Path) -> None:
    store = fill(tmp_path / "store")
    with edited(store.path / "store.h5") as file:
        file.attrs["encoding-version"] = 2
    for work in (lambda: Store(store.path).create(), lambda: gausslens.open(store.path)):
        with pytest.raises(StoreError, match=r"version 2; this gausslens reads up to 1: upgrade gausslens"):
            work()


def test_a_manifest_of_a_newer_version(tmp_path: Path) -> None:
    from store.attacks import rewrite

    store = fill(tmp_path / "store")
    rewrite(store.path, lambda body: body.update(version=2))
    with pytest.raises(StoreError, match="upgrade gausslens"):
        gausslens.open(store.path)


def test_an_interrupt_while_writing_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, calls = os.pwrite, iter(range(1000))

    def interrupted(*arguments: Any) -> int:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return genuine(*arguments)

    monkeypatch.setattr(os, "pwrite", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.commit("probe.x", "k", small(0), META)
    assert not store.has("probe.x", "k")
    assert list((store.path / "tmp").iterdir()) == []
    assert store.commit("probe.x", "k", small(0), META)
