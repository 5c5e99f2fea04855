"""The command check: one line where all is right, every mistake where it is not; and nothing heavy imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gausslens import plugins
from gausslens.__main__ import main
from gausslens.plugins.host import Host

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _probes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "load", lambda **_: host)


def test_what_a_file_holds_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(HERE / "rich.yaml")
    assert main(["check", "--quick", path]) == 0
    assert capsys.readouterr().out == (
        f"{path}: rich: 4 variants (dose: 4 points; chance: 8 draws), 14 twins in all, 5 analyses, against chance\n"
    )
    assert main(["check", "--quick", path, "--set", "variants={trained: []}", "--set", "analyses=[{use: probe.norms}]",
                 "--set", "against="]) == 0  # fmt: skip
    assert capsys.readouterr().out == f"{path}: rich: 1 variant, 1 twin in all, 1 analysis\n"


def test_every_mistake_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(HERE / "mistaken.yaml"), "--set", "seed=three"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--set seed: should be a whole number, is the text 'three'" in captured.err
    assert len(captured.err.splitlines()) > 30


def test_all_that_does_not_fit_the_models_is_told_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()  # our own plugins
    text = """
gausslens: 1
model: {path: builtin:tiny}
prompts: {source: text, text: [A text]}
variants: {trained: [], cut: [{edit: spectrum.drop, k: 1, layers: [9]}]}
analyses:
- {use: bilinear.spectrum, layers: [7]}
- {use: model.loss, heads: [17]}
- {use: gaussian.moments, with: {site: resid_post}}
"""
    path = tmp_path / "run.yaml"
    path.write_text(text)
    assert main(["check", str(path)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "3 mistakes"
    assert [line.split("run.yaml:")[1] for line in told[1:]] == [
        "5:31: builtin:tiny has no layer 9: its layers are 0 to 2",
        "7:3: bilinear.spectrum: builtin:tiny has no layer 7: its layers are 0 to 2",
        "8:3: model.loss: builtin:tiny has no head 17: its heads are 0 to 3",
    ]
    assert main(["check", "--quick", str(path)]) == 0
    path.write_text(
        text.replace("resid_post", "resid_post")
        .replace(", layers: [9]", "")
        .replace("[7]", "[2]")
        .replace("[17]", "[3]")
    )
    assert main(["check", str(path)]) == 0
    assert "3 analyses, 6 steps" in capsys.readouterr().out


LIGHT = """
import sys
from gausslens.__main__ import main
code = main(sys.argv[1:])
print(sorted({"numpy", "torch", "xarray", "pandas", "transformers", "h5py", "scipy"} & set(sys.modules)))
sys.exit(code)
"""


@pytest.mark.parametrize(("text", "code"), [("", 2), ("gausslens: 1\nmodel: {path: .}\nanalyses: [{use: x}]\n", 2)])
def test_nothing_heavy_is_imported(text: str, code: int, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    ran = subprocess.run(
        [sys.executable, "-c", LIGHT, "check", str(path)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (code, "[]"), ran.stderr
