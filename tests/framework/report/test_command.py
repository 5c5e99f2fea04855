"""``gausslens report STORE``."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gausslens
from gausslens import ReportSection, hookimpl
from gausslens.__main__ import main
from gausslens.testing import host_of

from . import sections
from .conftest import Written, host_with
from .large import large_study


def test_it_prints_where_the_page_is(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(study)]) == 0
    assert capsys.readouterr().out == f"{study / 'report.html'}\n"
    assert "The largest departures" in (study / "report.html").read_text(encoding="utf-8")


def test_it_writes_where_it_is_told_to(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert main(["report", str(study), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"


def test_where_the_page_cannot_be_written_is_told(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = "`gausslens report STORE --out FILE` writes the page elsewhere\n"
    out = tmp_path / "nowhere" / "page.html"
    assert main(["report", str(study), "--out", str(out)]) == 1
    assert capsys.readouterr().err == f"cannot write {out}: no such file or directory; {elsewhere}"

    opened = os.open

    def refuses(path: str | Path, *more: Any, **named: Any) -> int:
        if str(path).endswith(".tmp"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *more, **named)

    monkeypatch.setattr("gausslens.store.disk.os.open", refuses)
    assert main(["report", str(study)]) == 1
    assert capsys.readouterr().err == f"cannot write {study / 'report.html'}: permission denied; {elsewhere}"


@pytest.mark.parametrize("place", ["store.h5", "index.lock", "parts/page.html", "runs/page.html", "tmp/page.html"])
def test_it_does_not_write_over_the_store(study: Path, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(study), "--out", str(study / place)]) == 2
    assert "where the store keeps its own files" in capsys.readouterr().err


def test_it_does_not_write_over_a_pack(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "pack.h5"
    assert main(["store", "pack", str(study), str(made)]) == 0
    whole = made.read_bytes()
    assert main(["report", str(made), "--out", str(made)]) == 2
    assert "is the store itself" in capsys.readouterr().err
    assert made.read_bytes() == whole


def test_what_is_no_store_is_an_input_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "there is no store here" in capsys.readouterr().err


def test_what_could_not_be_drawn_is_told_and_the_page_is_written(
    study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gausslens.plugins.load", lambda *_, **__: host_with(f"{sections.__name__}:halfway"))
    assert main(["report", str(study)]) == 0
    told = capsys.readouterr()
    assert told.out == f"{study / 'report.html'}\n"
    first, last = told.err.splitlines()
    assert first.startswith("The section probe.section of the plugin probe (")
    assert first.endswith("could not be drawn beyond figure 2: ZeroDivisionError: <i>it broke</i>")
    assert last == "results are in the store, and all other figures are drawn; --debug shows where it failed"
    assert main(["report", str(study), "--debug"]) == 0
    assert "in halfway\n" in capsys.readouterr().err


STUDY = {
    "gausslens": 1,
    "name": "told",
    "model": {"path": "builtin:testing"},
    "prompts": {"source": "text", "text": ["One prompt."]},
    "analyses": [{"use": "model.loss"}],
}


def test_at_the_end_of_a_run_it_is_told_and_the_run_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    described = ReportSection(
        name="broken", version=1, summary="S.", section=f"{sections.__name__}:raises", analyses=("model.loss",)
    )

    @hookimpl
    def report_sections() -> list[ReportSection]:
        return [described]

    host = host_of("models", broken=SimpleNamespace(report_sections=report_sections))
    monkeypatch.setattr("gausslens.plugins.load", lambda *_, **__: host)
    file = tmp_path / "told.yaml"
    file.write_text(json.dumps(STUDY), encoding="utf-8")
    assert main(["run", str(file)]) == 0
    told = capsys.readouterr()
    assert f"report  {tmp_path / 'store' / 'report.html'}" in told.out
    assert told.err.startswith("The section broken of the plugin broken (")
    assert (tmp_path / "store" / "report.html").is_file()
    with pytest.warns(UserWarning, match="The section broken of the plugin broken"):
        results = gausslens.run(file)
    assert results.labels == ("model.loss",)


def test_a_table_of_cells_has_of_each_null_what_a_reader_wants(
    written: Written, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(large_study(written, layers=3, heads=3))
    assert main(["show", store, "scores", "score", "--variant", "trained"]) == 0
    head, *lines, last = capsys.readouterr().out.splitlines()
    assert " ".join(head.split()) == "variant layer head value null mean ± sd effect q called rung"
    assert [line.split()[0] for line in lines] == ["trained", "spectrum"] * 9
    assert len(lines) == 18
    cell = gausslens.open(store).frame("trained", "scores", variables="score").iloc[5]
    words = [f"{cell['before.null_mean']:.3g}", "±", f"{cell['before.null_sd']:.2g}", f"{cell['before.effect']:+.3g}"]
    shown = lines[10].split()
    assert shown[:4] == ["trained", "1", "2", f"{cell['value']:.5g}"]
    assert shown[4:] == ["before", *words, f"{cell['before.q']:.2g}", "yes", cell["rung"]]
    assert last.startswith("--csv and --json have also: null_low, null_high, difference, ratio, z, p,")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["show", store, "scores", "score", "--variant", "trained"]) == 0
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 80
    assert "called" in narrow.split("left out on this narrow terminal: ")[1].splitlines()[0]
    assert all(word in narrow for word in words)
