"""Files that nobody here wrote: HDF5 gets them in a child with limits first, once; and what else a store may say."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scripts import script_at
from store.attacks import edited, part_of, result, rewrite
from store.stored import META, fill, key

import gausslens
from gausslens import GausslensError
from gausslens.__main__ import main as command
from gausslens.store import Store
from gausslens.store.layout import StoreWarning
from gausslens.store.maintain import verify
from gausslens.store.read_parts import _RECENT
from gausslens.store.strangers import asking, known


@pytest.fixture
def forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Nothing is known from here on, and again whenever it is called."""

    def forget() -> None:
        monkeypatch.setattr(known, "_KNOWN", known._Known())
        monkeypatch.setenv("GAUSSLENS_KNOWN_FILES", str(tmp_path / "cache" / os.urandom(8).hex()))
        _RECENT.held.clear()

    forget()
    return forget


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that the child is asked for."""
    names: list[str] = []
    ask = asking._Asking.wrong

    def counted(self: Any, identity: str, path: Path) -> str | None:
        names.append(path.name)
        return ask(self, identity, path)

    monkeypatch.setattr(asking._Asking, "wrong", counted)
    return names


def values(root: Path) -> None:
    results = gausslens.open(root)
    for name in results:
        for dataset in results.draws(*name).values():
            dataset.load()


def test_what_was_written_here_is_read_at_once(tmp_path: Path, forgotten: Any, asked: list[str]) -> None:
    store = fill(tmp_path / "store")
    values(store.path)
    assert [f for f in verify(store.path) if not f.harmless] == []
    assert asked == []


def test_what_comes_from_elsewhere_is_examined_once(tmp_path: Path, forgotten: Any, asked: list[str]) -> None:
    store = fill(tmp_path / "store")
    forgotten()
    values(store.path)
    files = {p.name for p in store.path.rglob("*.h5")}
    assert sorted(asked) == sorted(files)
    known._KNOWN.names.clear()  # as in another process of this user
    known._KNOWN.read_up_to = 0
    _RECENT.held.clear()
    values(store.path)
    assert sorted(asked) == sorted(files)


def test_without_any_place_for_the_list_files_are_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: Any
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GAUSSLENS_KNOWN_FILES", str(tmp_path / "file" / "below"))
    values(fill(tmp_path / "store").path)


def test_the_list_forgets_its_older_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: Any) -> None:
    monkeypatch.setattr(known, "MOST_BYTES", 650)
    names = [f"{i:064x}" for i in range(100)]
    for name in names:
        known.add(name)
    place = known.place()
    assert place is not None
    assert place.stat().st_size <= 650 + 65
    monkeypatch.setattr(known, "_KNOWN", known._Known())
    assert known.has(names[-1])
    assert not known.has(names[0])


@pytest.fixture
def bomb(tmp_path: Path) -> Path:
    """A store with a part of 200,000 texts that are all the same 100,000 letters of its file."""
    store = fill(tmp_path / "store")
    many = 200_000
    with result(store.path) as group:
        made = group.create_dataset("more", (many,), h5py.string_dtype())
        made.attrs.update({"encoding-type": "array", "encoding-version": 1, "crc32": 0})
        made[0] = "x" * 100_000
        made[1:] = ""
        place = made.id.get_offset()
    with part_of(store.path).open("r+b") as raw:
        raw.seek(place)
        first = raw.read(16)
        raw.seek(place)
        raw.write(first * many)
    with edited(part_of(store.path)):
        pass  # it is sealed again
    return store.path


def test_text_that_claims_more_than_the_file_holds_is_one_bad_entry(bomb: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(GausslensError, match=r"the text of 'more' claims 20000000000 bytes"):
        Store(bomb).read("probe.score", key("t"))
    assert [Path(f.where).stem for f in verify(bomb) if not f.harmless] == [key("t")]
    assert command(["show", str(bomb), "score", "--variant", "dose"]) == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # kilobytes


def test_the_child_ends_with_what_hangs_or_takes_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to the child is said of the file, and the next file has a child of its own."""
    store = fill(tmp_path / "store")
    path = part_of(store.path)
    for code, said in {
        "import time\nwhile True: pass": "comes to no end",
        "import os; os.abort()": "does not survive",
        "bytearray(1 << 40)": "does not survive",
        "print('null', end='', flush=True); import os; os._exit(0)": "does not survive",
    }.items():
        limits = "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 9)); import sys; sys.stdin.readline()"
        with monkeypatch.context() as patch:
            patch.setattr(asking, "_CHILD", f"{limits}\n{code}  # {{}}")
            assert said in str(asking._Child().ask(path))
    assert asking._Child().ask(path) is None


def test_a_seal_that_leaves_out_more_than_values_is_refused(tmp_path: Path) -> None:
    from gausslens.store import checksums as seal

    store = fill(tmp_path / "store")
    path = part_of(store.path)
    path.chmod(0o644)
    with path.open("r+b") as raw:
        size = seal._read(raw.fileno())[0]
        raw.truncate(size)  # type: ignore[arg-type]
        seal.seal(raw.fileno(), [(0, 96, 0)])
    with pytest.raises(GausslensError, match="values where there are none"):
        store.read("probe.score", key("t"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("provenance", "[1]"), ("provenance", '"text"'), ("provenance", '{"wall_seconds": "long"}'),
        ("provenance", '{"threads": [1]}'), ("provenance", '{"peak_memory_bytes": 1e999}'), ("created", "yesterday"),
    ],
)  # fmt: skip
def test_provenance_of_wrong_types_is_one_bad_entry(tmp_path: Path, name: str, said: str) -> None:
    store = fill(tmp_path / "store")
    with result(store.path) as group:
        group.attrs[name] = said
    found = [f for f in verify(store.path) if not f.harmless]
    assert [Path(f.where).stem for f in found] == [key("t")]
    with pytest.warns(StoreWarning, match=f"a result is left out: .*{key('t')}"):
        assert command(["report", str(store.path)]) == 0


def test_a_damaged_result_is_left_out_and_the_rest_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = fill(tmp_path / "store")
    path = part_of(store.path)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(StoreWarning, match="a result is left out"):
        assert command(["show", str(store.path), "score"]) == 1
    shown = capsys.readouterr().out
    assert "chance, score" in shown
    assert "dose, score" in shown


def test_a_grid_larger_than_any_memory_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = fill(tmp_path / "store")

    def add(body: dict[str, Any]) -> None:
        swept = [{f"n{name}": value for name in range(12)} for value in range(30)]
        body["steps"] += [{**body["steps"][0], "variant": "grid", "sweep": each} for each in swept]

    rewrite(store.path, add)
    with pytest.raises(GausslensError, match="grid, score is not finished at n0 0"):
        gausslens.open(store.path)["grid", "score"]
    assert command(["show", str(store.path), "score"]) == 0
    assert "grid, score, n0 29" in capsys.readouterr().out
    assert command(["report", str(store.path)]) == 0


def test_a_draw_larger_than_any_table_takes_is_a_bad_run(tmp_path: Path) -> None:
    store = fill(tmp_path / "store")
    rewrite(store.path, lambda body: body["steps"][0].update(draw=10**30))
    with pytest.warns(StoreWarning, match="a run is left out"):
        assert gausslens.open(store.path).runs == ()


def test_a_time_without_zone_stands_beside_others(tmp_path: Path) -> None:
    store = fill(tmp_path / "store")
    rewrite(store.path, lambda body: (body.update(created="2026-01-02T03:04:05"), body.pop("sequence")))
    store.manifest("second", {"plan": "p", "steps": [], "created": "2026-01-02T03:04:05+00:00"})
    assert gausslens.open(store.path).runs == ("first", "second")
    assert command(["runs", str(store.path)]) == 0


def test_every_limit_of_reading_is_one_of_writing(tmp_path: Path) -> None:
    """What a reader refuses is refused before it is written, and what lies just within is read again."""
    import xarray as xr

    from gausslens.store import manifest
    from gausslens.store.layout import MOST_ARRAYS, MOST_DIMENSIONS

    store = Store(tmp_path / "store").create()
    many = {f"v{i}": float(i) for i in range(MOST_ARRAYS)}
    deep = {n: (tuple(f"d{i}" for i in range(n)), np.zeros((1,) * n)) for n in (MOST_DIMENSIONS, MOST_DIMENSIONS + 1)}
    assert store.commit("probe.x", "most", xr.Dataset(many), META)
    assert len(store.read("probe.x", "most")) == MOST_ARRAYS
    assert store.commit("probe.x", "deepest", xr.Dataset({"v": deep[MOST_DIMENSIONS]}), META)
    assert store.read("probe.x", "deepest")["v"].ndim == MOST_DIMENSIONS
    refused = {
        "10,001 arrays": xr.Dataset(many | {"more": 0.0}),
        "10,001 arrays in one result, with the coordinates": xr.Dataset(many | {"v0": ("dim", [1.0, 2.0])}),
        "33 dimensions": xr.Dataset({"v": deep[MOST_DIMENSIONS + 1]}),
        "a name is": xr.Dataset({"v" * 201: 0.0}),
    }
    for said, dataset in refused.items():
        with pytest.raises(GausslensError, match=said):
            store.commit("probe.x", "refused", dataset, META)
        with pytest.raises(GausslensError, match=said):
            store.begin("probe.x", "refused", META).commit(dataset)
    with pytest.raises(GausslensError, match="33 dimensions"):
        store.begin("probe.x", "refused", META).create("v", *(each for each in (deep[33][0], (1,) * 33)))
    assert not store.has("probe.x", "refused")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "MOST_BYTES", 1000)
        with pytest.raises(GausslensError, match="readers take 1,000"):
            store.manifest("run", {"plan": "p", "steps": [], "resolved": {"long": "x" * 1000}})
    assert [f for f in verify(store.path) if not f.harmless] == []


@pytest.mark.parametrize("count", [40, pytest.param(10_000, marks=pytest.mark.soak)])
def test_files_changed_at_random_neither_hang_nor_crash_nor_fill_the_memory(
    count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    fuzz = script_at("tests/framework/store/fuzz.py")
    counts = fuzz.run(count)
    with capsys.disabled():
        print("\n" + "; ".join(f"{name} {counts[name]}" for name in fuzz.COUNTED))
    assert counts["tried"] == count
    assert counts["refused"] > count / 10
    assert {name: counts[name] for name in fuzz.BAD} == dict.fromkeys(fuzz.BAD, 0)
