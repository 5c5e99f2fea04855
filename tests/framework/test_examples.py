"""gausslens example: lists and copies the run files that are in the wheel, and overwrites nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gausslens import InputError
from gausslens.__main__ import main
from gausslens.command.example import copied, examples


def test_all_run_files_are_listed_with_what_they_are(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {path.stem for path in (root / "examples").glob("*.yaml")}
    assert set(examples()) == names
    assert main(["example"]) == 0
    out = capsys.readouterr().out
    for example in examples().values():
        assert example.summary
        assert "$schema" not in example.summary
        assert re.search(rf"^{example.name} +{re.escape(example.summary)}$", out, flags=re.MULTILINE)


def test_a_copy_is_the_same_study_and_names_no_place_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["example", "demo"]) == 0
    text = (tmp_path / "demo.yaml").read_text(encoding="utf-8")
    assert text == examples()["demo"].text.split("\n", 1)[1]
    assert "$schema" not in text
    assert main(["check", "demo.yaml"]) == 0
    assert "gausslens run demo.yaml" in capsys.readouterr().out


def test_data_of_an_example_are_copied_beside_it(tmp_path: Path) -> None:
    copied("matrices", tmp_path / "mine.yaml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["matrices.npz", "mine.yaml"]
    assert main(["check", str(tmp_path / "mine.yaml")]) == 0


def test_a_text_of_an_example_is_copied_beside_it(tmp_path: Path) -> None:
    copied("bigrams", tmp_path / "mine.yaml")
    assert (tmp_path / "bigrams" / "prose.txt").stat().st_size > 50_000
    assert main(["check", str(tmp_path / "mine.yaml")]) == 0


def test_a_checkpoint_of_an_example_is_copied_beside_it(tmp_path: Path) -> None:
    copied("fine-tuning", tmp_path / "mine.yaml")
    assert (tmp_path / "fine-tuning" / "model.safetensors").stat().st_size > 100_000
    assert main(["check", str(tmp_path / "mine.yaml")]) == 0
    (tmp_path / "mine.yaml").unlink()
    with pytest.raises(InputError, match="fine-tuning is there already"):
        copied("fine-tuning", tmp_path / "mine.yaml")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    target.write_text("mine")
    with pytest.raises(InputError, match="is there already"):
        copied("demo", target)
    assert target.read_text() == "mine"


def test_an_unknown_name_gets_the_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example", "demmo"]) == 2
    assert "did you mean demo?" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        copied("demo", tmp_path / "no" / "such" / "demo.yaml")
