"""Whole runs of different models in one store: each gives its own results, in any order, by any clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from test_run import do, host, parts, study

import gausslens
from gausslens.contract.errors import RunFailed
from gausslens.store import manifest
from gausslens.store.maintain import remove, superseded

NAMES = ("one", "two")


class Backwards(datetime):
    """A clock that goes back a day each time it is asked."""

    at = datetime(2026, 6, 1, tzinfo=UTC)

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        Backwards.at -= timedelta(days=1)
        return Backwards.at


def of_model(name: str, **changes: Any) -> dict[str, Any]:
    strength = 3.0 if name == "one" else 30.0
    model = {"path": "builtin:testing", "planted": [[1, 2, strength]]}
    small = {
        "analyses": [{"use": "probe.power"}],
        "variants": {"trained": [], "chance": {"edits": [{"edit": "probe.redraw"}], "draws": 2}},
    }
    return study(**{"name": name, "model": model, **small, **changes})


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, gausslens.Results]:
    """Each run in a store of its own."""
    return {n: gausslens.run(of_model(n), store=tmp_path_factory.mktemp(n) / "s", host=host()) for n in NAMES}


def same(found: gausslens.Results, wanted: gausslens.Results) -> None:
    assert set(found) == set(wanted)
    for name in found:
        xr.testing.assert_identical(found[name].load(), wanted[name].load())
    assert found.frame("trained", "probe.power").equals(wanted.frame("trained", "probe.power"))
    assert found.table()["key"].tolist() == wanted.table()["key"].tolist()
    assert found.table()["run"].unique().tolist() == [wanted.name]


@pytest.mark.parametrize("order", [("one", "two", "one"), ("two", "one", "two")], ids="-".join)
def test_two_models_in_one_folder_are_not_mixed(
    tmp_path: Path, alone: dict[str, gausslens.Results], order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "datetime", Backwards)
    assert not np.array_equal(*(alone[n]["trained", "probe.power"]["value"].values for n in NAMES))
    store = tmp_path / "store"
    held = []
    for name in order:
        ran = gausslens.run(of_model(name), store=store, host=host())
        assert ran.table()["key"].tolist() == gausslens.open(store).table()["key"].tolist()
        same(gausslens.open(store), alone[name])
        held.append(parts(store))
        remove(store, superseded(store))  # takes no result of either run
        assert parts(store) == held[-1]
    assert len(held[0]) < len(held[1])
    assert held[1] == held[2]  # the third time nothing was computed
    for name in NAMES:
        same(gausslens.open(store).run(name), alone[name])


def test_a_run_returns_its_own_results_whatever_the_store_shows(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = gausslens.run(of_model("one"), store=store, host=host())
    other = gausslens.run(of_model("one", model={"path": "builtin:testing"}), store=store, host=host())
    assert (first.name, other.name) == NAMES[:1] * 2
    assert first.manifest().plan != other.manifest().plan
    assert first["trained", "probe.power"]["value"].values.tolist() != (
        other["trained", "probe.power"]["value"].values.tolist()
    )
    assert other.other_plans()[0].plan == first.manifest().plan


def test_a_run_that_fails_hides_nothing(tmp_path: Path, alone: dict[str, gausslens.Results]) -> None:
    store = tmp_path / "store"
    gausslens.run(of_model("one"), store=store, host=host())
    failing = of_model("two", analyses=[{"use": "probe.fails"}], variants={"trained": []}, against=[])
    with pytest.raises(RunFailed):
        gausslens.run(failing, store=store, host=host())
    results = gausslens.open(store)
    same(results, alone["one"])
    assert results.runs == NAMES
    assert "two (model builtin:testing, nothing finished)" in results.notes()[0]


def test_the_page_that_a_run_writes_is_its_own(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for name in (*NAMES, "one"):
        ran = do(of_model(name, report=True), store)
        text = ran.report.read_text(encoding="utf-8")
        other = next(n for n in NAMES if n != name)
        assert f"<h1>{name}</h1>" in text
        assert f".run(&#x27;{other}&#x27;)" not in text
        assert f".run('{other}')" not in text
    assert "This page is of run one alone. Other runs in this store: two (model builtin:testing)." in text
