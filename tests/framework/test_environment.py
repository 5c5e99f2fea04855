"""Where a command is started: planted files, no home, closed streams, masks, names without UTF-8, no asserts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store.stored import fill

import gausslens
from gausslens.__main__ import main
from gausslens.guard import Terminated, watched_interrupts
from gausslens.store.disk import replace_whole
from gausslens.store.strangers import known
from gausslens.terminal import print_frame, quoted_cell


def started(*arguments: str, where: Path, **how: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=where, text=True, capture_output=True, timeout=300, check=False, **how)


def test_what_is_planted_where_python_m_is_started_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("open('ran', 'w')")
    (tmp_path / "evil.py").write_text("open('ran', 'w')")
    about = tmp_path / "evil-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[gausslens]\nevil = evil\n")
    (tmp_path / "run.yaml").write_text("gausslens: 1\n")
    done = started("-m", "gausslens", "check", "--quick", "run.yaml", where=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "mistakes in run.yaml" in done.stdout + done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("option", ["-O", pytest.param("-OO", marks=pytest.mark.full)])
def test_python_without_asserts_reads_a_store_that_came_from_elsewhere(tmp_path: Path, option: str) -> None:
    fill(tmp_path / "store")
    environment = {**os.environ, "GAUSSLENS_KNOWN_FILES": str(tmp_path / "none")}
    done = started(option, "-m", "gausslens", "show", "store", "score", where=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "trained, score" in done.stdout


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_stream_may_be_closed(tmp_path: Path, closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "store")
    monkeypatch.setattr(sys, closed, None)
    assert main(["runs", str(tmp_path / "store")]) == 0
    assert main(["runs", str(tmp_path / "nothing")]) == 2
    getattr(sys, closed).close()


def test_without_a_home_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a container of a user whom the system does not know."""

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("GAUSSLENS_KNOWN_FILES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    monkeypatch.setattr(known, "_KNOWN", known._Known())
    assert known.place() is None
    assert list(gausslens.open(fill(tmp_path / "store").path))
    from gausslens_models.loading.fingerprint import cached

    assert cached(tmp_path, [], lambda: "computed") == "computed"


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_the_mask_of_the_user_says_who_may_read_a_page(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        replace_whole(tmp_path / "page.html", b"page")
    finally:
        os.umask(before)
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_store_may_lie_where_names_are_no_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / os.fsdecode(b"caf\xe9")
    fill(root)
    monkeypatch.setattr(known, "_KNOWN", known._Known())
    monkeypatch.setenv("GAUSSLENS_KNOWN_FILES", str(tmp_path / "none"))
    for command in (["show", str(root), "score"], ["store", "verify", str(root)], ["report", str(root)]):
        assert main(command) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_what_asks_a_run_to_end_is_an_interrupt(number: signal.Signals, code: int) -> None:
    with pytest.raises(Terminated) as caught, watched_interrupts():
        os.kill(os.getpid(), number)
    assert 128 + caught.value.number == code
    assert signal.getsignal(number) is signal.SIG_DFL


@given(st.text(alphabet="=+-@'\t\rab", max_size=4))
def test_quoting_can_be_taken_back_and_leaves_no_formula(text: str) -> None:
    quoted = quoted_cell(text)
    assert not quoted.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert (quoted[1:] if quoted.startswith("'") else quoted) == text


def test_csv_is_quoted_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.DataFrame({"=name": ["=1+1", "ok", None], "value": [-1.0, 2.0, 3.0]})
    print_frame(frame, False)
    assert "\n=1+1,-1.0" in capsys.readouterr().out
    print_frame(frame, False, quoted=True)
    out = capsys.readouterr().out
    assert out.startswith("'=name,value\n'=1+1,-1.0\nok,2.0")
