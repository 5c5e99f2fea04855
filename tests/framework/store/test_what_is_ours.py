"""Only a store is written to; what is derived or damaged takes no result with it; what is shown belongs together."""

from __future__ import annotations

import copy
import pickle
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from store.stored import META, key, manifest, small, step

import gausslens
from gausslens import GausslensError
from gausslens.__main__ import main
from gausslens.store import Store
from gausslens.store.layout import NewerStore, StoreWarning
from gausslens.store.maintain import superseded, verify


def filled(root: Path) -> Store:
    store = Store(root).create()
    store.manifest("run", manifest("p", [step("trained", "score", str(i), draw=i) for i in range(3)]))
    for i in range(3):
        store.commit("probe.score", key(i), small(i), META)
    store.reindex()
    return store


FOREIGN = {
    "runs of another program": ("runs/exp1/events.bin", "tmp/data.txt"),
    "parts of another program": ("parts/wing/mesh.h5", "tmp/data.txt"),
    "empty places beside other files": ("notes.txt", "runs/"),
    "an index of another program": ("store.h5", "runs/a.txt", "tmp/0123456789abcdef.h5"),
}


@pytest.mark.parametrize("files", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("what", ["create", "gc", "reindex"])
def test_another_program_s_directory_is_left_as_it_is(tmp_path: Path, files: tuple[str, ...], what: str) -> None:
    root = tmp_path / "theirs"
    for name in files:
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            place.mkdir()
        else:
            place.write_text("precious")
    before = sorted(root.rglob("*"))
    if what == "create":
        with pytest.raises(GausslensError, match="is not a store and not empty"):
            Store(root).create()
    else:
        assert main(["store", what, str(root), *(["--yes"] if what == "gc" else [])]) == 2
    assert sorted(root.rglob("*")) == before
    assert all(p.read_text() == "precious" for p in before if p.is_file())


def test_what_lies_in_tmp_under_another_name_stays(tmp_path: Path) -> None:
    root = filled(tmp_path / "s").path  # its writer is gone
    (root / "tmp/notes.txt").write_text("mine")
    (root / "tmp/0123456789abcdef.h5").write_bytes(b"half")
    Store(root).create()
    assert [p.name for p in (root / "tmp").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("damage", ["empty", "flipped", "a link"])
def test_a_damaged_index_stops_nobody_and_is_made_anew(tmp_path: Path, damage: str) -> None:
    store = filled(tmp_path / "s")
    index = store.path / "store.h5"
    data = bytearray(index.read_bytes())
    index.unlink()
    if damage == "a link":
        outside = tmp_path / "outside"
        outside.write_bytes(bytes(data))
        index.symlink_to(outside)
    else:
        data[len(data) // 2] ^= 1
        index.write_bytes(b"" if damage == "empty" else bytes(data))
    assert gausslens.open(store.path)["trained", "score"].sizes["draw"] == 3
    assert [f for f in verify(store.path) if "store.h5" in f.where] != []
    assert main(["store", "reindex", str(store.path)]) == 0
    assert verify(store.path) == []
    assert not index.is_symlink()


def test_the_index_of_a_newer_gausslens_is_not_replaced(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    index = store.path / "store.h5"
    data = index.read_bytes().replace(b"gausslens-seal-1", b"gausslens-seal-2")
    index.chmod(0o644)
    index.write_bytes(data)
    with pytest.raises(NewerStore):
        Store(store.path).create()
    with pytest.raises(NewerStore):
        gausslens.open(store.path)
    assert index.read_bytes() == data


def test_gc_removes_nothing_where_a_plan_cannot_be_read(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    (path,) = (store.path / "runs/run").iterdir()
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data.replace(b'"draw": 1', b'"draw": 7'))
    parts = sorted((store.path / "parts").rglob("*.h5"))
    with pytest.raises(GausslensError, match="gc removes nothing while a plan cannot be read"):
        superseded(store.path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        assert main(["store", "gc", str(store.path), "--yes"]) == 1
    shutil.rmtree(store.path / "runs")
    assert main(["store", "gc", str(store.path), "--yes"]) == 1
    assert sorted((store.path / "parts").rglob("*.h5")) == parts


def test_gc_leaves_files_that_are_no_parts(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    foreign = store.path / "parts/wing/mesh.h5"
    foreign.parent.mkdir()
    foreign.write_text("precious")
    assert superseded(store.path).parts == {}


def test_a_store_whose_empty_places_were_dropped_works(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    (store.path / "tmp").rmdir()
    assert main(["store", "reindex", str(store.path)]) == 0
    assert verify(store.path) == []


@pytest.mark.parametrize("how", [lambda d: d.copy(deep=True), copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))])
def test_large_results_can_be_copied_and_pickled(tmp_path: Path, how) -> None:  # type: ignore[no-untyped-def]
    store = Store(tmp_path / "s").create()
    store.manifest("run", manifest("p", [step("v", "x", "k")]))
    values = np.random.default_rng(0).normal(size=300_000)
    store.commit("probe.score", key("k"), xr.Dataset({"a": ("x", values)}), META)
    found = how(gausslens.open(store.path)["v", "x"])
    np.testing.assert_array_equal(found["a"][5:9], values[5:9])
    np.testing.assert_array_equal(found["a"], values)


def compared(of: str, null: list[str]) -> dict[str, object]:
    found = step("trained", "score.against.chance", f"{of} against {null}")
    return {**found, "against": "chance", "ingredients": {"of": key(of), "null": [key(n) for n in null]}}


def test_a_comparison_of_another_plan_is_not_shown_beside_these(tmp_path: Path) -> None:
    store = Store(tmp_path / "s").create()

    def planned(plan: str, run: str, day: int, trained: str, chance: str, against: bool) -> None:
        steps = [step("trained", "score", trained), step("chance", "score", chance, draw=0)]
        steps += [compared(trained, [chance])] if against else []
        store.manifest(run, {**manifest(plan, steps), "created": f"2026-01-0{day}T00:00:00+00:00"})
        for name in (trained, chance):
            store.commit("probe.score", key(name), small(len(name)), META)
        store.commit("probe.score", key(f"{trained} against {[chance]}"), small(0), META)

    planned("p1", "one", 1, "a", "b", against=True)
    assert gausslens.open(store.path).nulls("trained", "score") == ("chance",)
    planned("p2", "two", 2, "a", "b", against=False)  # the same results, and this run compares nothing
    assert gausslens.open(store.path).nulls("trained", "score") == ()
    planned("p3", "two", 3, "a", "bb", against=False)  # another null goes by that name now
    assert gausslens.open(store.path).nulls("trained", "score") == ()
    planned("p4", "three", 4, "aa", "b", against=False)  # another result does
    results = gausslens.open(store.path)
    assert results.nulls("trained", "score") == ()
    assert "z" not in results.frame("trained", "score")
    assert results.run("one").nulls("trained", "score") == ("chance",)
    with pytest.raises(GausslensError, match="compared with no null"):
        results.against("trained", "score")


def test_names_that_are_no_text_are_told(tmp_path: Path) -> None:
    results = gausslens.open(filled(tmp_path / "s").path)
    for ask in (lambda: results[None, None], lambda: results[["trained"], "score"], lambda: results.run(None)):  # type: ignore[index, arg-type]
        with pytest.raises(GausslensError, match=r"None|trained"):
            ask()
    assert set(results.frame("trained", "score", variables="mass")["variable"]) == {"mass"}
    assert results.unfinished("trained", "score") == []
