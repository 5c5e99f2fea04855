"""What analyses give: listed in outputs.json beside their code, made from results, held against live ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import xarray as xr

import gausslens
from gausslens import Analysis, InputError, variable
from gausslens.__main__ import main
from gausslens.plugins.outputs import Output, as_json, outputs_in, outputs_of
from gausslens.runfile.schema import ours
from gausslens.testing import check_outputs

if TYPE_CHECKING:
    from conftest import Shelf

Captured = pytest.CaptureFixture[str]
LOUD = Analysis(name="loud.loudness", version=1, shape="weights", summary="Loud.", analysis="loudness_here.it:Loudness")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the package that LOUD names, which lists nothing yet."""
    directory = tmp_path / "loudness_here"
    directory.mkdir()
    (directory / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return directory


def _result(dims: tuple[str, ...] = ("layer",), units: str = "nat") -> xr.Dataset:
    return xr.Dataset({"loudness": variable(dims, np.ones((2,) * len(dims)), "how loud", units)})


def test_every_analysis_of_ours_lists_what_it_gives() -> None:
    for name, owned in ours().analyses.items():
        listed = outputs_of(owned.descriptor)
        assert listed, name
        lacking = [each.name for each in listed if not each.meaning or not each.units or not each.dims]
        assert lacking == [], f"{name}: long_name or units"


def test_results_are_listed_with_all_dimensions_that_they_had() -> None:
    found = outputs_in([("loud.loudness", _result()), ("loud.loudness", _result(("layer", "head"))), ("a", _result())])
    assert list(found) == ["a", "loud.loudness"]
    (one,) = found["loud.loudness"]
    assert one == Output("loudness", (("layer",), ("layer", "head")), "nat", "how loud")
    assert one.shape == "[layer] or [layer, head]"


def test_a_list_is_read_as_it_was_written_and_nothing_is_imported(package: Path) -> None:
    assert outputs_of(LOUD) is None
    found = outputs_in([("loud.loudness", _result()), ("loud.other", _result())])
    (package / "outputs.json").write_text(as_json(found), encoding="utf-8")
    assert outputs_of(LOUD) == found["loud.loudness"]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"loud.loudness": {"x": {}}}', '{"loud.loudness": {"x": 3}}', '{"loud.loudness": []}']
)
def test_a_list_that_cannot_be_read_says_how_to_make_it_again(package: Path, text: str) -> None:
    (package / "outputs.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="gausslens schema NAME --outputs STORE"):
        outputs_of(LOUD)


def test_a_result_is_held_against_the_list(package: Path) -> None:
    assert check_outputs(LOUD, _result()) is not None  # nothing is listed: nothing is checked
    (package / "outputs.json").write_text(as_json(outputs_in([(LOUD.name, _result())])), encoding="utf-8")
    check_outputs(LOUD, _result())
    with pytest.raises(AssertionError, match=r"is \[layer, head\], and listed as \[layer\]"):
        check_outputs(LOUD, _result(("layer", "head")))
    with pytest.raises(AssertionError, match="is in bit, and listed in nat"):
        check_outputs(LOUD, _result(units="bit"))
    (package / "outputs.json").write_text('{"loud.loudness": {}}', encoding="utf-8")
    with pytest.raises(AssertionError, match=r"gives loudness, which outputs\.json does not list"):
        check_outputs(LOUD, _result())


def test_plugins_name_shows_what_an_analysis_gives(capsys: Captured) -> None:
    assert main(["plugins", "model.loss"]) == 0
    out = capsys.readouterr().out
    told = out[out.index("  gives\n") :]
    assert "    mean_loss " in told
    assert ", in nat" in told
    assert max(map(len, out.splitlines())) <= 100
    assert main(["plugins", "model.loss", "--json"]) == 0
    record = next(each for each in json.loads(capsys.readouterr().out) if each["kind"] == "analysis")
    assert record["outputs"]["mean_loss"]["units"] == "nat"


def test_of_a_plugin_that_lists_nothing_it_says_how_to_list_it(shelf: Shelf, capsys: Captured) -> None:
    shelf.good("red")
    assert main(["plugins", "red.count"]) == 0
    assert "'gausslens schema red.count --outputs STORE' lists it" in " ".join(capsys.readouterr().out.split())


def test_the_outputs_of_a_store_are_what_is_listed(tmp_path: Path, capsys: Captured) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        "gausslens: 1\nname: study\nmodel: {path: 'builtin:tiny'}\nreport: false\n"
        "variants: {trained: [], twin: {edits: [{edit: reinit.permute}], draws: 2}}\n"
        "analyses: [{use: reinit.check, layers: [0]}, {use: bilinear.spectrum, layers: [0], with: {matrices: [W_Q]}}]\n"
    )
    store = str(tmp_path / "store")
    assert main(["run", str(study), "--store", store]) == 0
    capsys.readouterr()
    assert main(["schema", "reinit.check", "--outputs", store]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["reinit.check"]
    listed = {
        each.name: [list(dims) for dims in each.dims]
        for each in outputs_of(ours().analyses["reinit.check"].descriptor) or ()
    }
    assert {name: told["dims"] for name, told in found["reinit.check"].items()} == listed
    assert main(["schema", "--outputs", store]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"bilinear.spectrum", "reinit.check"}
    assert main(["schema", "model.loss", "--outputs", store]) == 2
    assert "holds no result of model.loss" in capsys.readouterr().err


def test_live_results_are_as_listed(tmp_path: Path) -> None:
    """Of many analyses at once, with their defaults; `make site` holds all of them against the lists, word for word."""
    names = "attention.roles bilinear.alignment bilinear.head-roles bilinear.spectrum gaussian.moments model.attention "
    names += "model.embeddings model.loss reinit.check"
    study = {
        "gausslens": 1,
        "name": "live",
        "model": {"path": "builtin:tiny"},
        "prompts": {"source": "repeated-random", "prompts": 4, "length": 16},
        "variants": {"trained": []},
        "analyses": [{"use": name} for name in names.split()],
        "errors": False,
        "report": False,
    }
    host = ours()
    found = gausslens.run(study, store=tmp_path / "store", shown=False, host=host)
    for name in names.split():
        check_outputs(host.analyses[name].descriptor, found["trained", name])
