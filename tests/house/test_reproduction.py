"""What the sources contain, the rows of REPRODUCTION.md, the run files and tests behind them, and the page agree."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
HERE = ROOT / "docs/reproduction"
SOURCES: dict[str, Any] = yaml.safe_load((HERE / "sources.yaml").read_text(encoding="utf-8"))
ROWS: list[dict[str, Any]] = [
    row for name in (*SOURCES, "trained") for row in yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8"))
]
FORMULAS: list[dict[str, Any]] = yaml.safe_load((HERE / "formulas.yaml").read_text(encoding="utf-8"))
PLACES = [(name, place) for name, source in SOURCES.items() for place in source["places"]]
STORED = [row for row in ROWS if "numbers" in row]


@pytest.fixture
def remake(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, whose modules lie beside it."""
    monkeypatch.syspath_prepend(str(HERE))
    import remake

    return remake


def test_every_place_has_rows_or_says_why_not() -> None:
    for name, place in PLACES:
        assert set(place) <= {"at", "what", "rows", "left", "asks"}, f"{name} {place}"
        assert all((place["at"], place["what"])), f"{name} {place}"
        assert ("rows" in place) != ("left" in place), f"{name} {place['at']}: rows, or left and why"
        assert all(isinstance(at, str) for at in place["at"]), f"{name} {place['at']}: numbers of sections in quotes"
    for name in SOURCES:
        seen = Counter(at for of, place in PLACES if of == name for at in place["at"])
        assert [at for at, times in seen.items() if times > 1] == [], name


def test_rows_and_places_name_each_other() -> None:
    known = [each["id"] for each in (*ROWS, *FORMULAS)]
    assert [name for name, times in Counter(known).items() if times > 1] == []
    named = {row for _, place in PLACES for row in place.get("rows", ())}
    assert named - set(known) == set(), "places name rows that there are not"
    assert set(known) - named == set(), "rows that no place of a source names"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_what_a_row_rests_on_is_there(row: dict[str, Any]) -> None:
    assert sum(key in row for key in ("numbers", "held", "by_hand")) == 1
    assert row.get("run") or row.get("tests") or row.get("scripts")
    files = [f"examples/{name}" for name in row.get("run", ())] + row.get("tests", []) + row.get("scripts", [])
    assert [name for name in files if not (ROOT / name).is_file()] == []
    assert isinstance(row["verdict"], list) == ("numbers" in row)


@pytest.mark.parametrize("row", STORED, ids=lambda row: row["id"])
def test_numbers_are_of_labels_and_variants_that_the_run_file_has(row: dict[str, Any]) -> None:
    study = yaml.safe_load((ROOT / "examples" / row["run"][0]).read_text(encoding="utf-8"))
    labels = {each.get("as", each["use"]) for each in study["analyses"]}
    variants = {*study.get("variants", {"trained": []}), "all"}  # what compares variants is of all
    for name, number in row["numbers"].items():
        assert number["says"], name
        if "is" in number:
            continue
        assert number["of"].rpartition(".")[0] in labels, name
        assert number.get("variant", next(iter(variants))) in variants, name


def test_every_row_of_numbers_was_read_on_each_of_its_models(remake: ModuleType) -> None:
    kept = remake.kept()
    assert set(kept) == {row["id"] for row in STORED}
    for row in STORED:
        # A row may wait for a real model, never for the one that CI has; the page's first line counts them.
        assert "builtin" in kept[row["id"]] or "builtin" not in remake.models_of(row), row["id"]
        for model, read in kept[row["id"]].items():
            assert model in remake.models_of(row)
            assert list(read["numbers"]) == list(row["numbers"]), f"{row['id']} on {model}: read it anew"


def test_the_page_is_what_its_data_say(remake: ModuleType) -> None:
    """Verdicts hold of the numbers too: no sentence whose condition fails gets onto the page."""
    text = remake.written(remake.kept())
    assert remake.PAGE.read_text(encoding="utf-8") == text, "run docs/reproduction/remake.py"
    assert "not yet run" not in text.lower()


def test_settings_are_of_run_files_that_rows_rest_on(remake: ModuleType) -> None:
    assert set(remake.settings()) <= {name for row in ROWS for name in row.get("run", ())}


def _test_functions() -> set[str]:
    tests = (ROOT / "tests/plugins").rglob("test_*.py")
    return {name for path in tests for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)}


def test_what_scripts_make_is_of_run_files_that_there_are(remake: ModuleType) -> None:
    for name, how in remake.made().items():
        study = (ROOT / "examples" / name).read_text(encoding="utf-8")
        assert f"{how['into']}/" in study, name
        assert (ROOT / "examples" / how["script"]).is_file()
        assert how["small"], f"{name}: options of seconds for CI"


def test_formulas_name_tests_that_there_are() -> None:
    functions = _test_functions()
    files = {str(path.relative_to(ROOT / "tests/plugins")) for path in (ROOT / "tests/plugins").rglob("*.py")}
    for table in FORMULAS:
        for row in table["rows"]:
            assert len(row) == 4
            assert row[3], f"{row[0]}: names no test, and does not say why"
            for named in re.findall(r"`([^`]+)`", row[3]):
                word = named.rstrip(".")
                known = (
                    (ROOT / word).exists()
                    or any(file.endswith(f"/{word}") or file == word for file in files)
                    or any(word.strip("_") in function for function in functions)
                    or word.startswith("gausslens ")
                )
                assert known, f"{row[0]}: {named}"
