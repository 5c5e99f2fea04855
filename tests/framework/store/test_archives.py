"""Stores written by each version of the format open for ever: nothing in tests/archives is ever written again."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import xarray as xr
from scripts import script_at

import gausslens
from gausslens.store import Store
from gausslens.store.maintain import verify

ARCHIVES = Path(__file__).parents[2] / "archives"


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    """The script that wrote the archive of version 1: it knows what is in it."""
    return script_at("tests/archives/write_store_v1.py")


def test_there_is_an_archive_of_every_version() -> None:
    versions = {p.name.split(".")[1] for p in (ARCHIVES.parents[1] / "schemas").glob("store.v*.json")}
    assert versions == {p.name.split(".")[1] for p in ARCHIVES.glob("store.v*") if p.is_dir()}
    assert "v1" in versions


@pytest.mark.parametrize("place", ["store.v1", "store.v1.pack.h5"])
def test_version_1_opens_and_says_what_it_said(writer: ModuleType, place: str) -> None:
    results = gausslens.open(ARCHIVES / place)
    xr.testing.assert_identical(results["trained", "whole"].load(), writer.whole())
    xr.testing.assert_identical(results["trained", "score"].load(), writer.drawn(0))
    xr.testing.assert_identical(results.against("trained", "score").load(), writer.comparison())
    drawn = results["chance", "score"]
    assert drawn["score"].dims == ("draw", "alpha", "layer", "head")
    assert drawn["score"].sel(draw=1, alpha=0.5).values.tolist() == writer.drawn(1)["score"].values.tolist()
    bulk = results["trained", "bulk"].load()
    for dtype in ("bfloat16", "float16", "float32"):
        assert np.array_equal(bulk[dtype].values[0], writer.bulk()[0])
        assert np.isnan(bulk[dtype].values[1]).all()
    assert results.manifest().resolved == {"gausslens": 1}
    assert results.facts("trained", "whole")[0]["provenance"] == writer.META["provenance"]
    assert [f for f in verify(ARCHIVES / place) if not f.harmless] == []


def test_version_1_can_be_written_on(writer: ModuleType, tmp_path: Path) -> None:
    shutil.copytree(ARCHIVES / "store.v1", tmp_path / "store")
    store = Store(tmp_path / "store").create()
    assert store.has("probe.score", writer.KEYS["bulk"])
    assert not store.commit("probe.score", writer.KEYS["whole"], writer.whole(), writer.META)
    assert store.commit("probe.score", "new", writer.whole(), writer.META)
    store.reindex()
    assert verify(store.path) == []


def test_what_is_written_today_has_the_content_of_the_archive(writer: ModuleType, tmp_path: Path) -> None:
    """Equal inputs have equal content digests, whatever the version of the writer."""
    writer.write(tmp_path / "store")
    old, new = gausslens.open(ARCHIVES / "store.v1"), gausslens.open(tmp_path / "store")
    for name in old:
        assert [f["content"] for f in old.facts(*name)] == [f["content"] for f in new.facts(*name)], name
