"""Nulls that answer different questions give different answers, as examples/nulls.yaml and its page say."""

from __future__ import annotations

from pathlib import Path

import pytest
import xarray as xr

import gausslens


@pytest.fixture(scope="module")
def found(root: Path, tmp_path_factory: pytest.TempPathFactory) -> gausslens.Results:
    """The example itself, with fewer twins."""
    sets = ["report=false", *(f"variants.{null}.draws=4" for null in ("fresh", "shuffled", "turned"))]
    return gausslens.run(root / "examples" / "nulls.yaml", store=tmp_path_factory.mktemp("nulls"), sets=sets)


def called(results: gausslens.Results, label: str, variable: str, null: str) -> tuple[int, int]:
    """Heads above and below their null at q < 0.05."""
    compared: xr.Dataset = results["trained", f"{label}.against.{null}"]
    z, q = (compared[f"{variable}_{column}"].values for column in ("z", "q"))
    assert z.shape == (3, 4)
    return int(((q < 0.05) & (z > 0)).sum()), int(((q < 0.05) & (z < 0)).sum())


def test_few_directions_are_those_of_the_spectrum(found: gausslens.Results) -> None:
    for null in ("fresh", "shuffled"):
        assert called(found, "queries", "effective_rank", null)[1] >= 4
    assert called(found, "queries", "effective_rank", "turned")[1] == 0


def test_sharp_attention_needs_the_vectors(found: gausslens.Results) -> None:
    for null in ("fresh", "shuffled", "turned"):
        above, below = called(found, "attention", "entropy", null)
        assert above == 0
        assert below >= 10


def test_what_is_much_by_one_null_is_little_by_another(found: gausslens.Results) -> None:
    assert called(found, "queries", "entropy", "fresh") == (12, 0)
    assert called(found, "queries", "entropy", "shuffled")[1] >= 1
