"""Nulls that answer different questions give different answers, as examples/nulls.yaml and its page say."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import gausslens

NULLS = ("before", "gains", "scale", "entries", "spectrum")


@pytest.fixture(scope="module")
def found(root: Path, tmp_path_factory: pytest.TempPathFactory) -> gausslens.Results:
    """The example itself."""
    return gausslens.run(
        root / "examples" / "nulls.yaml", store=tmp_path_factory.mktemp("nulls"), sets=["report=false"]
    )


def table(results: gausslens.Results, label: str, variable: str) -> pd.DataFrame:
    frame = results.frame("trained", label, variables=variable)
    assert len(frame) == 12
    return frame


def called(frame: pd.DataFrame, null: str) -> tuple[int, int]:
    """Heads that depart, above and below their null."""
    departs, difference = frame[f"{null}.called"], frame[f"{null}.difference"]
    return int((departs & (difference > 0)).sum()), int((departs & (difference < 0)).sum())


def test_every_null_has_its_word(found: gausslens.Results) -> None:
    assert found.rungs == {null: null for null in NULLS}


def test_few_directions_are_mostly_those_of_the_spectrum(found: gausslens.Results) -> None:
    frame = table(found, "queries", "effective_rank")
    for null in ("before", "gains", "scale", "entries"):
        assert called(frame, null)[1] >= 6
        assert frame[f"{null}.share"].median() < 0.3
    assert called(frame, "spectrum")[1] <= 3
    assert frame["spectrum.share"].median() > 0.5


def test_sharp_attention_needs_the_vectors(found: gausslens.Results) -> None:
    frame = table(found, "attention", "entropy_deficit")
    for null in NULLS:
        assert called(frame, null)[1] == 0
        assert called(frame, null)[0] >= 9
        assert frame[f"{null}.share"].median() < 0.25
    assert set(frame["rung"]) <= {"arrangement", "undecided"}
    assert (frame["rung"] == "arrangement").sum() >= 6


def test_what_is_much_by_one_null_is_little_by_another(found: gausslens.Results) -> None:
    frame = table(found, "queries", "entropy")
    assert called(frame, "before") == (12, 0)
    assert called(frame, "entries")[1] >= 1
    assert frame["scale.share"].median() > 0.8
