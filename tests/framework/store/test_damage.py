"""Damage: every flipped bit is reported, no flip changes a small value in silence, nothing hangs or crashes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from store.stored import META, every_type, fill, key, manifest, small, step

from gausslens import GausslensError
from gausslens.store import Store
from gausslens.store.maintain import Damage, verify
from gausslens.store.pack import pack

Child = Callable[..., "subprocess.CompletedProcess[str]"]


def wrong(path: Path) -> list[Damage]:
    return [f for f in verify(path) if not f.harmless]


@pytest.mark.parametrize(
    "count", [50, pytest.param(200, marks=pytest.mark.full), pytest.param(600, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("what", ["part", "pack", "store.h5", "manifest"])
def test_every_flipped_bit_is_reported(tmp_path: Path, child: Child, what: str, count: int) -> None:
    store = Store(tmp_path / "store").create()
    store.commit("probe.score", key("e"), every_type(), META)
    store.manifest("run", manifest("p", [step("trained", "score", "e")]))
    store.reindex()
    pack(store.path, tmp_path / "pack.h5")
    path = {
        "part": store.path / "parts/probe.score" / f"{key('e')}.h5",
        "pack": tmp_path / "pack.h5",
        "store.h5": store.path / "store.h5",
        "manifest": next((store.path / "runs").glob("*/*.json")),
    }[what]
    done = child("flips.py", store.path, path, 0, count, timeout=500)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told == {"flips": count, "unreported": [], "unnoticed": []}


def test_a_flip_in_a_large_array_is_reported(store: Store) -> None:
    store.commit("probe.x", "k", xr.Dataset({"a": ("x", np.arange(300_000.0))}), META)
    path = store.path / "parts/probe.x/k.h5"
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\x55")
    assert [f.where for f in wrong(store.path)] == ["parts/probe.x/k.h5"]
    assert "crc32" in wrong(store.path)[0].what


@pytest.mark.parametrize("cut", [0, 1, 100, 0.5, -1])
def test_a_part_cut_short_is_refused_and_reported(store: Store, cut: float) -> None:
    store.commit("probe.x", "k", small(0), META)
    path = store.path / "parts/probe.x/k.h5"
    path.chmod(0o644)
    size = path.stat().st_size
    os.truncate(path, int(size * cut) if isinstance(cut, float) else cut % size if cut < 0 else cut)
    with pytest.raises(GausslensError, match="refused"):
        store.read("probe.x", "k")
    assert len(wrong(store.path)) == 1


def test_all_findings_come_at_once(tmp_path: Path) -> None:
    store = fill(tmp_path / "store")
    parts = sorted((store.path / "parts/probe.score").iterdir())
    for part in parts[:3]:
        part.chmod(0o644)
        part.write_bytes(part.read_bytes()[:-1])
    parts[3].unlink()
    parts[4].chmod(0o644)
    parts[4].write_bytes(parts[5].read_bytes())  # whole, and of another key
    (store.path / "parts/probe.score/notes.txt").write_text("mine")
    (store.path / "runs/first/notes.txt").write_text("mine")
    (store.path / "runs/first/half.json").write_text("{")
    found: dict[str, str] = {}
    for finding in wrong(store.path):
        found[finding.where] = f"{found.get(finding.where, '')}\n{finding.what}"
    assert set(found) == {
        *(f"parts/probe.score/{p.name}" for p in (*parts[:3], parts[4])),
        "parts/probe.score/notes.txt",
        "runs/first/notes.txt",
        "runs/first/half.json",
        *(w for w in found if w.startswith("store.h5/")),
    }
    assert "says that it is" in found[f"parts/probe.score/{parts[4].name}"]
    missing = [w for w in found if w.startswith("store.h5/")]
    assert len(missing) == 1
    assert "is missing" in found[missing[0]]


def test_a_value_changed_under_a_good_seal_is_reported(tmp_path: Path, store: Store) -> None:
    """Whoever changes a value with a tool and seals the file again is found out by the digests inside."""
    import h5py

    from gausslens.store import checksums as seal

    for name, change in {
        "value": lambda g: g["score"].__setitem__((0, 0), 7.0),
        "attribute": lambda g: g["score"].attrs.__setitem__("units", "bit"),
        "text": lambda g: g["name"].__setitem__(0, "z"),
        "array": lambda g: g.__delitem__("mass"),
        "dimension": lambda g: g.move("score", "other"),
    }.items():
        store.commit("probe.x", name, small(0), META)
        path = store.path / f"parts/probe.x/{name}.h5"
        path.chmod(0o644)
        with h5py.File(path, "r+") as file:
            change(file[f"probe.x/{name}"])
        with path.open("r+b") as raw:
            seal.seal(raw.fileno(), [])
        assert [f.where for f in wrong(store.path)] == [f"parts/probe.x/{name}.h5"], name
        path.unlink()
        store.commit("probe.x", name, small(0), META)
    assert wrong(store.path) == []


def test_a_clean_store_has_no_findings(tmp_path: Path) -> None:
    store = fill(tmp_path / "store")
    assert verify(store.path) == []
    (store.path / "store.h5").unlink()
    assert [f.harmless for f in verify(store.path)] == [True]
