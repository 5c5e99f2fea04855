"""Packs equal the parts they are made of; gc removes what is superseded and nothing else; the index follows."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from store.stored import META, every_type, fill, key, manifest, small, step

import gausslens
from gausslens import GausslensError
from gausslens.store import Store
from gausslens.store.index import links, listed
from gausslens.store.maintain import remove, superseded, verify
from gausslens.store.pack import pack

DAYS = [f"2026-01-0{i}T00:00:00+00:00" for i in range(1, 9)]


def test_a_pack_says_what_the_store_says(tmp_path: Path) -> None:
    store = fill(tmp_path / "store")
    large = xr.Dataset({"a": (("x", "y"), np.random.default_rng(0).normal(size=(5000, 2000)))}, {"x": np.arange(5000)})
    store.manifest(
        "second", manifest("p2", [step("v", "every", "e"), step("v", "large", "l"), step("v", "again", "t")])
    )
    store.commit("probe.score", key("e"), every_type(), META)
    store.commit("probe.score", key("l"), large, META)
    target = tmp_path / "whole.h5"
    assert pack(store.path, target) == 16
    assert verify(target) == []
    before, after = gausslens.open(store.path), gausslens.open(target)
    assert set(after) == set(before)
    assert after.runs == before.runs
    for name in before:
        one, other = before.draws(*name), after.draws(*name)
        assert list(one) == list(other)
        for point in one:
            xr.testing.assert_identical(one[point].load(), other[point].load())
        assert after.facts(*name) == before.facts(*name)
    assert after.table().equals(before.table())
    with h5py.File(target) as file:  # real scales, and one group for two names
        array = file["second/v/every/result/eigenvalue"]
        assert [d[0].name.rsplit("/", 1)[1] for d in array.dims] == ["x", "y", "real_imag"]
        names = ("second/v/again/result", "first/trained/score/result")
        assert sorted(type(file.get(n, getlink=True)).__name__ for n in names) == ["HardLink", "SoftLink"]
        assert file["second/v/again/result"] == file["first/trained/score/result"]


def test_a_pack_of_compressed_parts(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", compression="gzip").create()
    dataset = xr.Dataset({"a": (("x", "y"), np.arange(6e6).reshape(3000, 2000))})
    store.manifest("run", manifest("p", [step("v", "x", "k")]))
    store.commit("probe.score", key("k"), dataset, META)
    part = store.path / "parts/probe.score" / f"{key('k')}.h5"
    assert part.stat().st_size < 24e6
    pack(store.path, tmp_path / "p.h5")
    xr.testing.assert_identical(gausslens.open(tmp_path / "p.h5")["v", "x"].load(), dataset)
    assert verify(tmp_path / "p.h5") == []


def test_a_pack_does_not_replace_a_file_and_does_not_pack_damage(tmp_path: Path) -> None:
    store = Store(tmp_path / "store").create()
    store.manifest("run", manifest("p", [step("v", "x", "k")]))
    store.commit("probe.score", key("k"), xr.Dataset({"a": ("x", np.zeros(300_000))}), META)
    part = store.path / "parts/probe.score" / f"{key('k')}.h5"
    part.chmod(0o644)
    with part.open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"\x01")
    with pytest.raises(GausslensError, match="does not match its crc32"):
        pack(store.path, tmp_path / "p.h5")
    assert [p.name for p in tmp_path.iterdir()] == ["store"]
    (tmp_path / "p.h5").write_text("mine")
    with pytest.raises(GausslensError, match="exists: choose another name"):
        pack(store.path, tmp_path / "p.h5")
    assert (tmp_path / "p.h5").read_text() == "mine"


def test_a_pack_of_nothing(store: Store, tmp_path: Path) -> None:
    assert pack(store.path, tmp_path / "p.h5") == 0
    assert gausslens.open(tmp_path / "p.h5").runs == ()


@pytest.fixture
def grown(store: Store) -> Store:
    """A store whose run was changed twice, beside another run that shares a step, and a part that no plan names."""
    store.manifest("a", manifest("p1", [step("v", "x", "x1"), step("v", "y", "shared")], DAYS[0]))
    store.manifest("a", manifest("p2", [step("v", "x", "x2"), step("v", "y", "shared")], DAYS[1]))
    store.manifest("b", manifest("p3", [step("v", "x", "x1b"), step("v", "only", "once")], DAYS[2]))
    store.manifest("b", manifest("p4", [step("v", "x", "x2b")], DAYS[3]))
    for i, name in enumerate(("x1", "x2", "shared", "x1b", "x2b", "once", "orphan")):
        store.commit("probe.score", key(name), small(i), META)
    store.reindex()
    return store


def there(store: Store) -> set[str]:
    names = {key(n): n for n in ("x1", "x2", "shared", "x1b", "x2b", "once", "orphan")}
    return {names[p.stem] for p in (store.path / "parts/probe.score").iterdir()}


def test_gc_removes_what_no_plan_needs(grown: Store) -> None:
    found = superseded(grown.path)
    assert [m.plan for m in found.manifests] == [key("p1")]
    assert {p.stem for p in found.parts} == {key("x1"), key("orphan")}
    assert found.bytes == sum(p.stat().st_size for p in found.parts)
    before = {name: gausslens.open(grown.path)[name].load() for name in gausslens.open(grown.path)}
    assert remove(grown.path, found) == 3
    grown.reindex()
    # no newer plan of b has 'only' finished: p3 stays, and gc keeps what any plan names
    assert there(grown) == {"x2", "shared", "x1b", "x2b", "once"}
    after = gausslens.open(grown.path)
    assert {name: after[name].load() for name in after} == before
    assert verify(grown.path) == []
    assert not superseded(grown.path).parts


def test_gc_keeps_what_was_planned_after_it_was_shown(grown: Store) -> None:
    found = superseded(grown.path)
    grown.manifest("a", manifest("p1", [step("v", "x", "x1"), step("v", "y", "shared")], DAYS[5]))
    remove(grown.path, found)
    assert "x1" in there(grown)
    assert "orphan" not in there(grown)
    assert gausslens.open(grown.path).run("a")["v", "x"]["mass"] == 0


def test_the_index_is_what_it_should_be_and_can_be_lost(grown: Store) -> None:
    assert listed(grown.path) == links(grown.path)
    assert set(listed(grown.path)) == {"a/v/x/result", "a/v/y/result", "b/v/x/result"}
    (grown.path / "store.h5").unlink()
    assert gausslens.open(grown.path)["v", "x"]["mass"] == 4
    Store(grown.path).create()
    assert listed(grown.path) == links(grown.path)


def test_a_reader_of_the_old_index_is_not_disturbed(grown: Store) -> None:
    with h5py.File(grown.path / "store.h5") as index:
        grown.reindex()
        assert index["b/v/x/result/mass"][()] == 4


@pytest.mark.parametrize("value", ["a/b", "..", "é", [1, "x/y"], {"scale": 2}, None, True, 1e-30])
def test_swept_values_of_any_kind_have_a_place(store: Store, tmp_path: Path, value: object) -> None:
    steps = [step("v", "x", "k", sweep={"how": value}), step("v", "x", "l", sweep={"how": "other"})]
    store.manifest("run", manifest("p", steps))
    for i, name in enumerate("kl"):
        store.commit("probe.score", key(name), small(i), META)
    store.reindex()
    pack(store.path, tmp_path / "p.h5")
    for place in (store.path, tmp_path / "p.h5"):
        assert gausslens.open(place)["v", "x"]["mass"].values.tolist() == [0, 1]
        assert verify(place) == []
