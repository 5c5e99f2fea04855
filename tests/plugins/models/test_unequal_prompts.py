"""One long prompt among short ones: results are what filling up gives, and as large as their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gausslens
from gausslens.maths.ragged import Ragged

LONG = "the long prompt " * 8
TEXTS = [f"ab {i}" for i in range(24)]


def study(texts: list[str], *analyses: dict[str, Any]) -> dict[str, Any]:
    every = [
        {"use": "model.attention", "as": "heads", "with": {"maps": "heads"}},
        {"use": "model.attention", "as": "words", "with": {"level": "word"}},
        {"use": "model.loss"},
        {"use": "model.capture", "as": "raw", "with": {"sites": ["embed", "resid_post", "q", "scores", "pattern"]}},
    ]
    return {
        "gausslens": 1,
        "name": "unequal",
        "model": {"path": "builtin:tiny"},
        "prompts": {"source": "text", "text": texts},
        "variants": {"trained": [], "chance": {"edits": [{"edit": "reinit.gaussian"}], "draws": 2}},
        "analyses": list(analyses or every),
        "report": False,
    }


@contextmanager
def filled_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(Ragged, "wasteful", False)
        yield


def test_results_are_those_of_prompts_that_are_filled_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = study([*TEXTS, LONG])
    found = gausslens.run(whole, store=tmp_path / "ragged")
    with filled_up(monkeypatch):
        expected = gausslens.run(whole, store=tmp_path / "filled")
    for key in expected:
        one, other = found[key], expected[key]
        assert set(one.variables) == set(other.variables)
        assert all(one[name].attrs == other[name].attrs for name in other.data_vars)
        for name in other.variables:
            assert one[name].dims == other[name].dims, name
            np.testing.assert_array_equal(one[name].values, other[name].values, err_msg=str(name))


def size(store: Path) -> int:
    return sum(file.stat().st_size for file in store.rglob("*.h5"))


def test_a_store_is_as_large_as_its_numbers(tmp_path: Path) -> None:
    maps = {"use": "model.attention", "as": "heads", "with": {"maps": "heads"}}
    raw = {"use": "model.capture", "with": {"sites": ["resid_post", "pattern"]}}
    many = [f"{word} {i}" for word in ("ab", "cd", "ef", "gh") for i in range(60)]
    for name, texts in (("short", many), ("both", [*many, LONG])):
        gausslens.run(study(texts, maps, raw), store=tmp_path / name)
    assert size(tmp_path / "both") < 2 * size(tmp_path / "short")


def test_the_losses_of_tokens_are_as_many_as_there_are(tmp_path: Path) -> None:
    results = gausslens.run(study([*TEXTS * 20, LONG], {"use": "model.loss"}), store=tmp_path / "both")
    gausslens.run(study(TEXTS * 20, {"use": "model.loss"}), store=tmp_path / "short")
    assert size(tmp_path / "both") < 1.5 * size(tmp_path / "short")
    loss = results["trained", "model.loss"]["loss"]
    assert loss.dims == ("prompt", "position")
    assert int(loss.isel(prompt=0).notnull().sum()) < 10 < 100 < int(loss.isel(prompt=-1).notnull().sum())


def test_maps_that_are_too_large_are_told_before_anything_runs(tmp_path: Path) -> None:
    maps = {"use": "model.attention", "as": "heads", "with": {"maps": "heads", "most_gigabytes": 1e-6}}
    with pytest.raises(
        gausslens.GausslensError, match=r"GB of maps, more than most_gigabytes: 1e-06; keep `maps: mean`"
    ):
        gausslens.run(study(TEXTS, maps), store=tmp_path / "store")


def test_what_is_allowed_is_no_part_of_a_key(tmp_path: Path) -> None:
    def keys(**more: Any) -> set[str]:
        maps = {"use": "model.attention", "as": "heads", "with": {"maps": "heads"} | more}
        results = gausslens.run(study(TEXTS[:2], maps), store=tmp_path / "store")
        return {str(key) for key in results.steps("trained", "heads")[0].key.split()}

    assert keys() == keys(most_gigabytes=9.0)
