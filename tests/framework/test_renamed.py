"""What was renamed: old run files and stores go on working, nothing is computed again, and each old name is told."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import probe_analyses
import probes
import pytest
import yaml
from pydantic import Field

import gausslens
from gausslens import Analysis, Formerly, Parameters, ReportSection, plugins
from gausslens.__main__ import main
from gausslens.figures import Source, Table
from gausslens.perform import Ran, perform
from gausslens.runfile import read, schema
from gausslens.runfile.problems import RunFileErrors
from gausslens.testing import check_references, wiring

HERE = __name__


class MatrixNow(Parameters):
    tensor: Annotated[Literal["W_Q", "W_K", "W_V", "W_O"], Formerly("matrix")] = Field("W_Q", description="Which.")


class Inner(Parameters):
    by: Annotated[float, Formerly("factor", "times")] = Field(description="By how much.")


class ScaleNow(Parameters):
    factor: Annotated[float, Formerly("alpha")] = Field(2.0, description="W_Q is multiplied by it.")
    more: list[Inner] = Field([], description="Further factors.")

    def canonical(self) -> dict[str, Any]:
        """Without what the edit did not have at first, unless it is given."""
        return {name: value for name, value in super().canonical().items() if name != "more" or value}


class LinesNow(Parameters):
    texts: Annotated[list[str], Formerly("lines")] = Field(["one two three", "four"], description="One prompt each.")


class OfNow(Parameters):
    label: Annotated[str, Formerly("of")] = Field(description="The label to read.")


class Norm(probe_analyses.Norm):
    def __init__(self, parameters: MatrixNow, context: Any) -> None:
        self.matrix = parameters.tensor


class Doubled(probe_analyses.Doubled):
    def __init__(self, parameters: OfNow, context: Any) -> None:
        self.of = parameters.label


def scaled(weights: Any, parameters: ScaleNow, generators: Any) -> Any:
    factors = [parameters.factor, *(each.by for each in parameters.more)]
    return probe_analyses.scaled(weights, probes.Scale(alpha=float(_product(factors))), generators)


def _product(factors: list[float]) -> float:
    made = 1.0
    for factor in factors:
        made *= factor
    return made


def lines(parameters: LinesNow, context: Any) -> Any:
    return probe_analyses.lines(probes.Lines(lines=parameters.texts), context)


def drawn(results: Any) -> list[Any]:
    """A table of each result that it finds under the new name."""
    found = results.of("probe.size")
    assert found == {} or found.keys() == results.of("probe.norm").keys()
    return [
        Table(title=f"norms of {label}", caption="What was found.", sources=(Source(variant, label, "norm"),),
              columns=("n",), rows=((str(data["norm"].size),),))
        for label, each in found.items() for variant, data in each.items()
    ]  # fmt: skip


def _plugin(**contributed: Any) -> types.SimpleNamespace:
    hooks = {}
    for name, value in contributed.items():
        exec(f"def {name}(): return value", scope := {"value": value})
        hooks[name] = gausslens.hookimpl(scope[name])
    return types.SimpleNamespace(**hooks)


def renamed(what: Any, name: str, parameters: str | None = None, **more: Any) -> Any:
    given = {"parameters": f"{HERE}:{parameters}"} if parameters else {}
    return replace(what, name=name, formerly=(what.name,), **given, **more)


SIZE: Analysis = renamed(probes.NORM, "probe.size", "MatrixNow", analysis=f"{HERE}:Norm")
TWICE: Analysis = renamed(probes.DOUBLED, "probe.twice", "OfNow", analysis=f"{HERE}:Doubled", names=("label",))
SECTION = ReportSection(
    name="probe", version=1, summary="Norms.", section=f"{HERE}:drawn", analyses=("probe.size",), formerly=("norms",)
)
NOW = _plugin(
    analyses=[renamed(probes.POWER, "probe.energy"), SIZE, renamed(probes.DRAWS, "probe.lots"), TWICE],
    edits=[
        renamed(probes.SCALE, "probe.times", "ScaleNow", edit=f"{HERE}:scaled"),
        renamed(probes.REDRAW, "probe.again"),
    ],
    prompt_sources=[renamed(probes.LINES, "rows", "LinesNow", prompts=f"{HERE}:lines")],
    loaders=[renamed(wiring.TINY, "small")],
    captures=[replace(wiring.TINY_ENGINE, name="small-engine", formerly=("tiny",))],
    report_sections=[SECTION],
)
BEFORE = {
    "gausslens": 1,
    "name": "renamed",
    "seed": 3,
    "model": {"path": "builtin:testing", "loader": "tiny"},
    "prompts": {"source": "lines", "lines": ["one two three", "four", "five six"]},
    "variants": {
        "trained": [],
        "dose": [{"edit": "probe.scale", "sweep": {"alpha": [0.5, 2.0]}}],
        "more": [{"edit": "probe.scale", "alpha": 3.0, "heads": [1]}],
        "chance": {"edits": [{"edit": "probe.redraw"}], "draws": 2},
    },
    "analyses": [
        {"use": "probe.power"},
        {"use": "probe.norm"},
        {"use": "probe.norm", "as": "keys", "with": {"matrix": "W_K"}},
        {"use": "probe.draws"},
        {"use": "probe.doubled", "with": {"of": "probe.power"}},
    ],
    "against": "chance",
}
NAMES = {
    "probe.power": "probe.energy", "probe.norm": "probe.size", "probe.draws": "probe.lots", "lines": "rows",
    "probe.doubled": "probe.twice", "probe.scale": "probe.times", "probe.redraw": "probe.again", "tiny": "small",
    "matrix": "tensor", "alpha": "factor", "of": "label",
}  # fmt: skip


def host(now: bool) -> plugins.Host:
    extra: dict[str, Any] = {"probe": NOW} if now else {"tiny": wiring, "probe": probes}
    found = plugins.load(only=[], extra=extra)
    assert not found.broken, found.broken
    return found


def in_new_words(value: Any) -> Any:
    if isinstance(value, Mapping):
        made = {NAMES.get(key, key): in_new_words(held) for key, held in value.items()}
        return made | ({"texts": made.pop("rows")} if isinstance(made.get("rows"), list) else {})
    if isinstance(value, list):
        return [in_new_words(each) for each in value]
    return NAMES.get(value, value) if isinstance(value, str) else value


AFTER = in_new_words(BEFORE) | {"model": {"path": "builtin:testing", "loader": "small"}}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The run as it was made before anything was renamed."""
    return perform(BEFORE, store=tmp_path_factory.mktemp("renamed") / "store", host=host(False))


def keys(ran: Ran) -> list[str]:
    return sorted(step.key for step in ran.plan.steps)


@pytest.mark.parametrize("words", ["old", "new"])
def test_nothing_is_computed_again(words: str, first: Ran) -> None:
    again = perform(BEFORE if words == "old" else AFTER, store=first.path, host=host(True), shown=False)
    assert keys(again) == keys(first)
    assert str(again.outcome) == f"{len(first.plan.steps)} found in the store"
    page = (first.path / "report.html").read_text(encoding="utf-8")
    assert "norms of keys" in page
    results = gausslens.run(BEFORE if words == "old" else AFTER, store=first.path, host=host(True), shown=False)
    label = "probe.norm" if words == "old" else "probe.size"
    assert set(results.of("probe.size")) == set(results.of("probe.norm")) == {label, "keys"}
    assert results["dose", "keys"].sizes["factor"] == 2
    assert {step.analysis for step in results.steps("trained", "keys")} == {"probe.norm"}


def test_new_results_are_those_of_before(first: Ran, tmp_path: Path) -> None:
    """In a store of its own: seeds of twins and analyses come from the first names, so that draws are the same."""
    made = perform(AFTER, store=tmp_path / "store", host=host(True), shown=False)
    assert str(made.outcome) == f"{len(first.plan.steps)} computed"
    old, new = gausslens.open(first.path).run("renamed", first.plan.digest), gausslens.open(made.path)
    for before, after in (("probe.power", "probe.energy"), ("keys", "keys"), ("probe.draws", "probe.lots")):
        for variant in ("trained", "more", "chance"):
            assert old[variant, before].drop_attrs().equals(new[variant, after].drop_attrs())


def test_each_old_name_is_told_once_with_what_to_write(first: Ran, tmp_path: Path, capsys: Any) -> None:
    place = tmp_path / "old.yaml"
    place.write_text(yaml.safe_dump(BEFORE, sort_keys=False), encoding="utf-8")
    lines = place.read_text(encoding="utf-8").splitlines()
    study = read(place, host(True))
    told = {}
    for warning in study.warnings:
        where, _, said = warning.partition(": ")
        line = int(where.split(":")[1])
        told.setdefault(said.split(" is the name that ")[0].rsplit(": ")[-1], []).append(lines[line - 1])
        assert "; write " in said
    assert set(told) == set(NAMES)
    assert len(told["probe.norm"]) == 2
    assert all(old in line for old, found in told.items() for line in found)
    ran = perform(place, store=first.path, host=host(True), shown=False)
    assert ran.notes[: len(study.warnings)] == study.warnings
    assert read(yaml.safe_load(yaml.safe_dump(AFTER)), host(True)).warnings == ()


def test_names_within_names(tmp_path: Path) -> None:
    """A table within parameters; both names at once; the first of several names is that of the key."""
    study = {**BEFORE, "variants": {"a": [{"edit": "probe.times", "more": [{"times": 2.0}, {"by": 3.0}]}]}}
    del study["against"]
    found = read(study, host(True))
    [call] = found.variants[0].points[0].edits
    assert [each.by for each in call.parameters.more] == [2.0, 3.0]  # type: ignore[attr-defined]
    assert call.parameters.keyed() == {"alpha": 2.0, "more": [{"factor": 2.0}, {"factor": 3.0}]}
    assert any(
        "variants.a[0].more[0].times: times is the name that by had before; write by" in w for w in found.warnings
    )
    for both in ({"alpha": 1.0, "factor": 2.0}, {"alpha": 1.0, "sweep": {"factor": [1.0, 2.0]}}):
        study["variants"] = {"a": [{"edit": "probe.times", **both}]}
        with pytest.raises(RunFileErrors, match=r"factor is given too; keep one of the two|is swept here and given"):
            read(study, host(True))


def test_former_names_clash_as_names_do() -> None:
    mine = replace(probes.NORM, name="mine.size")
    for other in (replace(probes.NORM, name="other.size", formerly=("mine.size",)),):
        both = plugins.load(only=[], extra={"mine": _plugin(analyses=[mine]), "other": _plugin(analyses=[other])})
        assert {b.plugin for b in both.broken} == {"mine", "other"}
        assert "'mine.size' is in" in both.broken[0].cause
    for wrong, said in (
        ({"formerly": ("gaussian.moments",)}, "reserved"),
        ({"formerly": ("norms",)}, "not of the form"),
        ({"formerly": ("mine.size",)}, "something has this name"),
        ({"formerly": "mine.norm"}, "not a tuple of names"),
    ):
        [broken] = plugins.load(only=[], extra={"mine": _plugin(analyses=[replace(mine, **wrong)])}).broken
        assert said in broken.cause


class Muddled(Parameters):
    size: int = Field(1, description="How large.")
    width: Annotated[int, Formerly("size", "breadth")] = Field(1, description="How wide.")
    depth: Annotated[int, Formerly("breadth")] = Field(1, description="How deep.")


def test_a_name_that_two_parameters_had_is_found_by_the_check() -> None:
    muddled = replace(probes.SCALE, name="mine.scale", parameters=f"{HERE}:Muddled")
    with pytest.raises(AssertionError) as caught:
        check_references(_plugin(edits=[muddled]))
    assert "parameter width was formerly size, which is the name of another" in str(caught.value)
    assert "parameter depth was formerly breadth, which is the name of another" in str(caught.value)


def test_schemas_take_old_names_as_deprecated() -> None:
    made = schema.run_schema(host(True))
    check = jsonschema.Draft7Validator(made)
    assert not list(check.iter_errors(json.loads(json.dumps(BEFORE))))
    assert not list(check.iter_errors(json.loads(json.dumps(AFTER))))
    wrong = BEFORE | {"analyses": [{"use": "probe.norms"}]}
    assert list(check.iter_errors(wrong))
    without = BEFORE | {"analyses": [{"use": "probe.twice", "with": {}}]}
    assert list(check.iter_errors(without))
    definition = made["$defs"]["edit:probe.times"]["properties"]
    assert definition["alpha"]["deprecated"] is True
    assert definition["alpha"]["description"] == "Now called factor."
    assert "deprecated" not in definition["factor"]
    assert made["$defs"]["analysis"]["properties"]["use"]["anyOf"][1]["deprecated"] is True


def test_plugins_shows_former_names(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("gausslens.command.plugins.load_host", lambda *a, **k: host(True))
    assert main(["plugins", "probe.scale"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "probe.times" in out
    assert "formerly probe.scale" in out
    assert "default 2.0; formerly alpha" in out
    assert main(["plugins", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["plugins"]
    edits = [e for p in found if p["plugin"] == "probe" for e in p["edits"]]
    assert ["probe.scale"] in [e.get("formerly") for e in edits]
