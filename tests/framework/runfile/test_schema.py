"""The JSON Schemas: they accept what the reader accepts, and refuse what an editor should mark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gausslens import Analysis, hookimpl, plugins
from gausslens.__main__ import main
from gausslens.plugins.host import Host
from gausslens.runfile import read, schema

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def validator(host: Host) -> jsonschema.Draft7Validator:
    found = schema.run_schema(host)
    jsonschema.Draft7Validator.check_schema(found)
    return jsonschema.Draft7Validator(found)


def rich(**changes: Any) -> dict[str, Any]:
    text = (HERE / "rich.yaml").read_text(encoding="utf-8").replace("1e-6", "1.0e-6")  # PyYAML reads 1.1
    return yaml.safe_load(text) | changes


def test_the_rich_file_is_accepted(validator: jsonschema.Draft7Validator, host: Host) -> None:
    assert list(validator.iter_errors(json.loads(json.dumps(rich())))) == []
    resolved = read(HERE / "rich.yaml", host).resolved
    assert list(validator.iter_errors(resolved)) == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"gausslens": 2}, ["gausslens"]),
        ({"sead": 1}, []),
        ({"seed": -1}, ["seed"]),
        ({"name": "a b"}, ["name"]),
        ({"model": {"path": "builtin:tiny", "cahce": True}}, ["model"]),
        ({"model": {"path": "builtin:tiny", "cache": 1}}, ["model", "cache"]),
        ({"model": {"path": "x", "loader": "files", "cache": True}}, ["model"]),
        ({"model": {"path": "x", "loader": "fils"}}, ["model", "loader"]),
        ({"model": {"dtype": "float32"}}, ["model"]),
        ({"prompts": {"source": "text"}}, ["prompts"]),
        ({"prompts": {"source": "text", "text": ["a"], "words": "x"}}, ["prompts"]),
        ({"prompts": {"source": "few-shot", "words": "x", "shots": -1}}, ["prompts", "shots"]),
        ({"variants": {"all": []}}, ["variants"]),
        ({"variants": {"a": [{"edit": "probe.scale"}]}}, ["variants", "a"]),
        ({"variants": {"a": [{"edit": "probe.scale", "alpha": 0}]}}, ["variants", "a"]),
        ({"variants": {"a": [{"edit": "probe.scale", "sweep": {"alpha": []}}]}}, ["variants", "a"]),
        ({"variants": {"a": [{"edit": "probe.scale", "sweep": {"alhpa": [1]}}]}}, ["variants", "a"]),
        ({"variants": {"a": {"edits": [], "draws": 0}}}, ["variants", "a"]),
        ({"analyses": []}, ["analyses"]),
        ({"analyses": [{"use": "probe.moment"}]}, ["analyses", 0, "use"]),
        ({"analyses": [{"use": "probe.moments", "with": {"sit": "q"}}]}, ["analyses", 0, "with"]),
        ({"analyses": [{"use": "probe.moments", "with": {"keep": 0}}]}, ["analyses", 0, "with", "keep"]),
        ({"analyses": [{"use": "probe.moments", "with": {"range": [1]}}]}, ["analyses", 0, "with", "range"]),
        ({"analyses": [{"use": "probe.moments", "with": {"window": {}}}]}, ["analyses", 0, "with", "window"]),
        ({"analyses": [{"use": "probe.norms", "as": "a.against.b"}]}, ["analyses", 0, "as"]),
        ({"analyses": [{"use": "probe.norms", "layers": [-1]}]}, ["analyses", 0, "layers"]),
        ({"analyses": [{"use": "probe.norms", "prompts": {"source": "txt"}}]}, ["analyses", 0, "prompts", "source"]),
        ({"report": "yes"}, ["report"]),
    ],
)
def test_mistakes_are_marked(changes: dict[str, Any], path: list[Any], validator: jsonschema.Draft7Validator) -> None:
    errors = list(validator.iter_errors(rich(**changes)))
    assert errors
    assert [list(error.absolute_path) for error in errors] == [path] * len(errors)


def test_a_swept_parameter_need_not_be_given(validator: jsonschema.Draft7Validator) -> None:
    swept = {"variants": {"a": [{"edit": "probe.scale", "sweep": {"alpha": [1, 2.5]}}]}}
    assert list(validator.iter_errors(rich(**swept, analyses=[{"use": "probe.norms"}], against=None))) == []


def test_names_defaults_and_descriptions_are_there(host: Host) -> None:
    found = schema.run_schema(host)
    uses = found["$defs"]["analysis"]["properties"]["use"]
    assert dict(zip(uses["enum"], uses["enumDescriptions"], strict=True))["probe.moments"] == "A probe of shape stream."
    keep = found["$defs"]["analysis:probe.moments"]["properties"]["keep"]
    assert (keep["default"], keep["description"]) == (8, "How many eigenvalues to keep.")
    assert found["$defs"]["analysis:probe.moments"]["properties"]["title"]["description"] == "A heading."
    assert found["$defs"]["analysis:probe.absent"] == {"description": "A probe of shape weights."}


def test_every_reference_leads_somewhere(host: Host) -> None:
    found = schema.run_schema(host)

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if "$ref" in value else []
            return own + [ref for each in value.values() for ref in references(each)]
        return [ref for each in value for ref in references(each)] if isinstance(value, list) else []

    assert len(references(found)) > 10
    assert {ref.removeprefix("#/$defs/") for ref in references(found)} <= set(found["$defs"])


def test_they_do_not_depend_on_the_order_of_plugins() -> None:
    import runfile_probes

    class Other:
        """One more analysis, which comes before or after."""

        @hookimpl
        def analyses(self) -> list[Analysis]:
            return [replace(runfile_probes.analyses()[0], name="other.moments")]

    both = [("probe", runfile_probes), ("other", Other())]
    one, another = (plugins.load(only=(), extra=dict(order)) for order in (both, both[::-1]))
    assert "analysis:other.moments" in schema.run_schema(one)["$defs"]
    assert schema.files(one) == schema.files(another)


def test_the_command_prints_and_writes(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schema", "--write", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parameters.v1.json", "run.v1.json"]
    assert main(["schema", "--write", str(tmp_path / "absent")]) == 2
    capsys.readouterr()
    monkeypatch.setattr(plugins, "load", lambda **_: host)
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema.run_schema(host)
    assert main(["schema", "probe.scale"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["title"], printed["required"]) == ("probe.scale", ["alpha"])
    assert printed["properties"]["matrices"]["items"]["enum"] == ["W_Q", "W_K", "W_V"]
    assert main(["schema", "probe.scald"]) == 2
    assert "did you mean probe.scale" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prompts", "accepted"),
    [
        ({"shuffle": "tokens"}, True),
        ({"shuffle": "documents", "segments": ["answer"]}, True),
        ({"shuffle": "frequency", "within": "prompt"}, True),
        ({"source": "few-shot", "words": "animals"}, True),
        (None, True),
        ({"shuffle": "letters"}, False),
        ({"shuffle": "tokens", "withn": "all"}, False),
        ({"source": "fewshot"}, False),
    ],
)
def test_prompts_of_a_variant(validator: jsonschema.Draft7Validator, prompts: Any, accepted: bool) -> None:
    whole = rich(variants={"trained": [], "shuffled": {"prompts": prompts, "draws": 2}}, against=None)
    whole["analyses"] = [{"use": "probe.moments"}]
    assert (list(validator.iter_errors(whole)) == []) is accepted


def test_a_resolved_shuffle_reads_as_the_same_study(host: Host) -> None:
    whole = rich(
        variants={"trained": [], "shuffled": {"prompts": {"shuffle": "words"}, "draws": 2}}, against="shuffled"
    )
    whole["analyses"] = [{"use": "probe.moments"}]
    resolved = read(whole, host).resolved
    assert resolved["variants"]["shuffled"]["prompts"] == {"shuffle": "words", "within": "prompt", "segments": []}
    assert read(resolved, host).resolved == resolved
