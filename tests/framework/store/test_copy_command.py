"""`store copy`, and `store gc` of what was copied, as users call them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from store.stored import fill, key

from gausslens.__main__ import main
from gausslens.store.bank import copy


def test_what_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = fill(tmp_path / "one")
    genuine = os.statvfs

    def small_disk(path: Any) -> Any:
        found = list(genuine(path))
        found[1], found[4] = 4096, 5  # five blocks are free
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", small_disk)
    assert main(["store", "copy", str(store.path), str(tmp_path / "other")]) == 1
    assert "and the disk has 20,480: free some space" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_the_command_says_what_it_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = fill(tmp_path / "one")
    other = str(tmp_path / "other")
    assert main(["store", "copy", str(store.path), other, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "would copy: 14 results, " in out
    assert "with the runs first" in out
    assert not (tmp_path / "other").exists()
    assert main(["store", "copy", str(store.path), other]) == 0
    out = capsys.readouterr().out
    assert "runs that came along: first; `gausslens show" in out
    assert out.splitlines()[-1].startswith(f"{other}: 14 copied (")
    assert out.splitlines()[-1].endswith("kB), 0 there already, 0 left out as damaged")
    assert main(["show", other]) == 0
    capsys.readouterr()
    (tmp_path / "text").mkdir()
    (tmp_path / "text/mine.txt").write_text("mine")
    for wrong, said in (
        (["copy", other], "copy needs a store TO copy into"),
        (["copy", other, other], "is the store itself"),
        (["copy", other, f"{other}/parts/x"], "where the store keeps its own files"),
        (["copy", other, str(tmp_path / "text")], "is not a store and not empty"),
        (["copy", other, str(tmp_path / "text/mine.txt")], "is a file: results are copied into the directory"),
        (["copy", str(tmp_path / "text"), other], "there is no store here"),
        (["copy", other, str(tmp_path / "x"), "--manifests"], "--manifests goes with --keys-of"),
        (["verify", other, "--dry-run"], "only copy takes --dry-run"),
        (["verify", other, "--keys-of", "x.yaml"], "only copy takes --keys-of"),
        (["gc", other, other], "only pack takes a FILE, and copy a store TO"),
        (["copy", other, str(tmp_path / "x"), "--copied"], "only gc takes --copied"),
    ):
        assert main(["store", *wrong]) == 2, wrong
        assert said in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
    assert (tmp_path / "text/mine.txt").read_text() == "mine"


def test_gc_says_what_it_keeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = fill(tmp_path / "one")
    copy(store.path, tmp_path / "bank", {("probe.score", key("t"))})
    assert main(["store", "gc", str(tmp_path / "bank"), "--yes"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("kept: 1 results (")
    assert "nothing is superseded" in out
    record = next((tmp_path / "bank/kept").iterdir())
    record.chmod(0o644)
    record.write_text(record.read_text().replace("probe", "prose"))
    assert main(["store", "verify", str(tmp_path / "bank"), "--json"]) == 1
    assert "is damaged, and does not say what was copied" in json.loads(capsys.readouterr().out)[0]["what"]
    assert main(["store", "gc", str(tmp_path / "bank"), "--yes"]) == 1
    assert "remove it, and copy again" in capsys.readouterr().err
    record.unlink()
    copy(store.path, tmp_path / "bank", {("probe.score", key("t"))})
    assert main(["store", "gc", str(tmp_path / "bank"), "--yes", "--copied"]) == 0
    assert "removed 2 files" in capsys.readouterr().out
    assert list((tmp_path / "bank/parts").glob("*/*")) == []
