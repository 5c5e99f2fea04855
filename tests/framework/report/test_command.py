"""``gausslens report STORE``."""

from __future__ import annotations

from pathlib import Path

import pytest

from gausslens.__main__ import main


def test_it_prints_where_the_page_is(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(study)]) == 0
    assert capsys.readouterr().out == f"{study / 'report.html'}\n"
    assert "The strongest departures" in (study / "report.html").read_text(encoding="utf-8")


def test_it_writes_where_it_is_told_to(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert main(["report", str(study), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"


def test_what_is_no_store_is_an_input_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "there is no store here" in capsys.readouterr().err
