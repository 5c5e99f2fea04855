"""The commands run and plan, as a user meets them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import probes
import pytest

import gausslens
from gausslens import plugins
from gausslens.__main__ import main
from gausslens.command import plan as plan_command
from gausslens.command import run as run_command
from gausslens.command.stored import store as store_command
from gausslens.testing import TinyEngine, wiring

RUN = """\
gausslens: 1
name: small
model: {path: builtin:testing, planted: [[1, 2, 3.0]]}
prompts: {source: lines}
variants:
  trained: []
  chance: {edits: [{edit: probe.redraw}], draws: 3}
analyses:
  - {use: probe.power}
  - {use: probe.norm}
against: chance
report: false
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    host = plugins.load(only=[], extra={"tiny": wiring, "probe": probes})
    monkeypatch.setattr(run_command, "load_host", lambda _arguments: host)
    monkeypatch.setattr(plan_command, "load_host", lambda _arguments: host)
    monkeypatch.setattr(store_command, "load_host", lambda _arguments: host)
    path = tmp_path / "small.yaml"
    path.write_text(RUN)
    return path


def test_a_run_ends_with_tables(file, capsys):
    assert main(["run", str(file)]) == 0
    out = capsys.readouterr().out
    assert "small: 10 steps: 10 computed" in out
    assert "probe.power  probe.power  trained, chance x 3" in out
    assert "Nothing can be said: 3 draws of chance tell no probability, 5 or more do." in out
    assert str(file.parent / "store") in out
    assert main(["run", str(file)]) == 0
    assert "10 found in the store" in capsys.readouterr().out


def test_a_run_ends_with_what_was_found(file, capsys):
    assert main(["run", str(file), "--set", "variants.chance.draws=8"]) == 0
    out = capsys.readouterr().out
    assert "depart" in out.split("statistic", 1)[1].split(" from chance (8 draws). The largest effect: ")[0]
    assert "the largest departures from chance" in out
    assert "layer 1, head 2" in out


def test_store_is_chosen_by_option_then_environment(file, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("GAUSSLENS_STORE", str(tmp_path / "from-environment"))
    assert main(["run", str(file)]) == 0
    assert (tmp_path / "from-environment" / "parts").is_dir()
    assert main(["run", str(file), "--store", str(tmp_path / "chosen")]) == 0
    assert (tmp_path / "chosen" / "parts").is_dir()
    assert not (tmp_path / "store").exists()


def test_a_second_store_computes_nothing_again(file, capsys, tmp_path):
    """From a store and from a pack; with other draws, only what those need is left."""
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    assert main(["run", str(file), "--store", first]) == 0
    assert main(["run", str(file), "--store", first, "--set", "name=other", "--set", "variants.chance.draws=5"]) == 0
    capsys.readouterr()
    assert main(["store", "copy", first, second, "--keys-of", str(file)]) == 0
    out = capsys.readouterr().out
    assert "needs 10; all of them are in" in out
    assert out.splitlines()[-1].startswith(f"{second}: 10 copied (")
    assert gausslens.open(second).runs == ()
    assert main(["run", str(file), "--store", second]) == 0
    assert "small: 10 steps: 10 found in the store" in capsys.readouterr().out
    assert gausslens.open(second).runs == ("small",)
    assert main(["store", "pack", first, str(tmp_path / "pack.h5")]) == 0
    more = ["--set", "variants.chance.draws=7", "--set", "name=more"]
    assert main(["store", "copy", str(tmp_path / "pack.h5"), third, "--keys-of", str(file), *more]) == 0
    # Of chance five draws of seven are there; both comparisons are with all seven.
    assert "needs 18; 6 of them are not in" in capsys.readouterr().out
    assert main(["run", str(file), "--store", third, *more]) == 0
    assert "more: 18 steps: 6 computed, 12 found in the store" in capsys.readouterr().out


def test_a_run_comes_along_where_it_is_the_one_that_is_planned(file, capsys, tmp_path):
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert main(["run", str(file), "--store", first]) == 0
    other = ["--set", "variants.chance.draws=2"]
    assert main(["store", "copy", first, second, "--keys-of", str(file), *other, "--manifests"]) == 0
    assert "has no run as" in capsys.readouterr().out
    assert gausslens.open(second).runs == ()
    assert main(["store", "copy", first, second, "--keys-of", str(file), "--manifests"]) == 0
    assert "runs that came along: small" in capsys.readouterr().out
    assert len(gausslens.open(second)) == len(gausslens.open(first))
    assert main(["store", "copy", first, second, "--keys-of", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err


def test_set_changes_the_run(file, capsys):
    assert main(["run", str(file), "--set", "name=other", "--set", "analyses.probe.norm.with.matrix=W_V"]) in (0, 2)
    assert main(["run", str(file), "--set", "variants.chance.draws=4"]) == 0
    assert "4 draws" in capsys.readouterr().out


def test_wrong_input_is_2_and_says_where(file, capsys):
    file.write_text(RUN.replace("probe.power", "probe.powr"))
    assert main(["run", str(file)]) == 2
    error = capsys.readouterr().err
    assert "small.yaml:9:" in error
    assert "probe.power" in error
    assert not (file.parent / "store").exists()


def test_a_failed_step_is_1_and_says_which(file, capsys):
    file.write_text(RUN.replace("probe.power}", "probe.fails}"))
    assert main(["run", str(file)]) == 1
    shown = capsys.readouterr()
    assert "told to fail at update" in shown.err
    assert "small.yaml:9:" in shown.err
    assert "Traceback" not in shown.err
    assert "5 computed, 5 failed" in shown.out
    assert main(["run", str(file), "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupted_run_is_130_and_says_how_to_go_on(file, capsys, monkeypatch):
    def stops(*_arguments: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TinyEngine, "run", stops)
    assert main(["run", str(file)]) == 130
    assert "the same command goes on from there" in capsys.readouterr().err


def test_plan_tells_steps_and_writes_nothing(file, capsys):
    assert main(["plan", str(file)]) == 0
    out = capsys.readouterr().out
    assert "small: 10 steps, 0 of them in" in out
    assert "against chance" in out
    assert "\nleft    10 steps, by one process under 1 s" in out
    assert "2 layers of 4 heads over 2" in out
    assert not (file.parent / "store").exists()
    assert main(["plan", str(file), "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert len(steps) == 10
    assert steps[0]["ingredients"]["analysis"]["name"] == "probe.power"
    assert main(["run", str(file)]) == 0
    assert main(["plan", str(file)]) == 0
    out = capsys.readouterr().out
    assert "10 of them in" in out
    assert "\nleft" not in out


def test_control_c_ends_a_real_process_cleanly(tmp_path):
    path = tmp_path / "long.yaml"
    path.write_text(
        "gausslens: 1\nmodel: {path: builtin:tiny}\n"
        "variants:\n  chance: {edits: [{edit: reinit.config}], draws: 100000}\n"
        "analyses: [{use: bilinear.spectrum}]\nreport: false\n"
    )
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "gausslens", "run", str(path), "--set", "variants.chance.draws=400"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # A shell that runs the tests in the background lets its children ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 300
    while not list((tmp_path / "store").rglob("parts/*/*.h5")) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "the same command goes on from there" in error
    assert "Traceback" not in error
    assert not list((tmp_path / "store" / "tmp").iterdir())
