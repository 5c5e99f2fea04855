"""The command edit, as a user meets it: what it writes, what it asks for, and what it never overwrites."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import gausslens
from gausslens.__main__ import main

RUN = """\
gausslens: 1
name: small
seed: 3
model: {path: builtin:tiny}
prompts: {source: repeated-random, prompts: 2, length: 8}
variants:
  trained: []
  chance: {edits: [{edit: reinit.config}], draws: 4}
  once: {edits: [{edit: reinit.config}], draws: 1}
  band: [{edit: reinit.band, layers: [1], sweep: {width: [2, 32]}}]
  one: [{edit: spectrum.scale, matrices: [W_Q], sweep: {alpha: [0.5]}}]
analyses:
  - {use: bilinear.spectrum}
"""
Edit = Callable[..., tuple[int, str, str]]


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Edit:
    """``edit(variant, ...)``: the exit code, and what it printed."""
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(RUN)

    def call(variant: str, *more: str, out: str = "out") -> tuple[int, str, str]:
        code = main(["edit", "small.yaml", variant, out, *more])
        return code, *capsys.readouterr()

    return call


def test_it_writes_a_checkpoint_and_says_what_it_is(edit: Edit) -> None:
    code, said, _ = edit("chance", "--draw", "2")
    assert code == 0
    told = json.loads(Path("out/gausslens.json").read_text())
    assert (told["run"], told["variant"], told["draw"], told["at"], told["seed"]) == ("small", "chance", 2, {}, 3)
    assert [one["edit"] for one in told["edits"]] == ["reinit.config"]
    assert told["base"]["name"] == "builtin:tiny"
    assert told["fingerprint"] in said
    assert "builtin:tiny as chance of small makes it (reinit.config, draw 2)" in said
    files = {path.name for path in Path("out").iterdir()}
    assert files >= {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert sorted(path.name for path in Path().iterdir()) == ["out", "small.yaml"]
    assert gausslens.load("out").info.fingerprint == told["fingerprint"]


def test_equal_choices_give_equal_weights_and_others_do_not(edit: Edit) -> None:
    for number, draw in enumerate(("1", "1", "0")):
        assert edit("chance", "--draw", draw, out=f"made/{number}")[0] == 0
    made = [Path(f"made/{number}/model.safetensors").read_bytes() for number in range(3)]
    assert made[0] == made[1]
    assert made[0] != made[2]


def test_a_swept_value_is_chosen(edit: Edit) -> None:
    code, said, _ = edit("band", "--at", "width=32")
    assert code == 0
    assert "(reinit.band, width 32)" in said
    told = json.loads(Path("out/gausslens.json").read_text())
    assert told["at"] == {"width": 32}
    assert told["edits"][0]["with"]["width"] == 32
    assert told["edits"][0]["layers"] == [1]


def test_what_is_the_only_one_need_not_be_chosen(edit: Edit) -> None:
    assert edit("once", out="a")[0] == 0
    assert json.loads(Path("a/gausslens.json").read_text())["draw"] == 0
    assert edit("one", out="b")[0] == 0
    assert json.loads(Path("b/gausslens.json").read_text())["at"] == {"alpha": 0.5}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["chanse"], "the run small has no variant 'chanse': did you mean chance?"),
        (["chance"], "small.yaml:8:3: the variant chance has 4 draws, 0 to 3: choose one with --draw"),
        (["chance", "--draw", "4"], "has 4 draws, 0 to 3, and no draw 4: choose one with --draw"),
        (["trained", "--draw", "0"], "the variant trained has no draws: leave --draw out"),
        (["band"], "the variant band sweeps width (2, 32): choose with --at width=2"),
        (["band", "--at", "widht=2"], "--at widht: the variant band sweeps width: did you mean width?"),
        (["band", "--at", "width=3"], "--at width=3: the variant band sweeps width (2, 32)"),
        (["band", "--at", "width"], "--at width: NAME=VALUE is wanted, as --at width=2"),
        (["trained", "--at", "width=2"], "--at width: the variant trained sweeps nothing"),
    ],
)
def test_what_is_not_chosen_or_not_there_is_told(edit: Edit, arguments: list[str], told: str) -> None:
    code, _, said = edit(*arguments)
    assert code == 2
    assert told in said
    assert not Path("out").exists()


def test_nothing_is_overwritten_unless_it_was_written_so(edit: Edit) -> None:
    Path("out").mkdir()
    Path("out/thesis.tex").write_text("years of work")
    for force in ([], ["--force"]):
        code, _, said = edit("trained", *force)
        assert code == 2
        assert "out is there already: choose another place (it holds no gausslens.json" in said
    assert Path("out/thesis.tex").read_text() == "years of work"
    assert edit("trained", out="other")[0] == 0
    before = Path("other/model.safetensors").read_bytes()
    code, _, said = edit("once", out="other")
    assert code == 2
    assert "--force overwrites it" in said
    assert Path("other/model.safetensors").read_bytes() == before
    assert edit("once", "--force", out="other")[0] == 0
    assert Path("other/model.safetensors").read_bytes() != before
    assert sorted(path.name for path in Path().iterdir()) == ["other", "out", "small.yaml"]


def test_a_loader_that_cannot_write_is_told_by_name(tmp_path: Path) -> None:
    gausslens.edit(_small("builtin:tiny"), "trained", tmp_path / "model")
    with pytest.raises(gausslens.ModelError, match=r"of the loader 'weights' \(plugin models\) have no save\(\)"):
        gausslens.edit(_small(str(tmp_path / "model"), loader="weights"), "trained", tmp_path / "out")
    with pytest.raises(gausslens.ModelError, match="a bridge cannot"):
        gausslens.edit(_small(str(tmp_path / "model"), loader="transformer-lens"), "trained", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_edit_that_fails_leaves_nothing(tmp_path: Path) -> None:
    run = _small("builtin:tiny") | {"variants": {"far": [{"edit": "reinit.gaussian", "layers": [7]}]}}
    with pytest.raises(gausslens.ModelError, match="has no layer 7"):
        gausslens.edit(run, "far", tmp_path / "deep" / "out")
    assert list(tmp_path.iterdir()) == []


def _small(path: str, **more: str) -> dict[str, object]:
    return {
        "model": {"path": path, **more},
        "variants": {"trained": []},
        "analyses": [{"use": "bilinear.spectrum"}],
    }
