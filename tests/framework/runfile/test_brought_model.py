"""A source of prompts may bring the model that reads them, for a run file without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gausslens import plugins
from gausslens.contract.descriptors import PromptSource
from gausslens.plugins.check_descriptors import problems
from gausslens.plugins.host import Host
from gausslens.runfile import RunFileErrors, read, schema

RUN = "gausslens: 1\nprompts: {{source: saved, {0}}}\nanalyses: [{{use: probe.stream}}]\n"


@pytest.fixture(scope="module")
def bringing() -> Host:
    import runfile_probes
    import saved_probes

    return plugins.load(only=(), extra={"probe": runfile_probes, "saved": saved_probes})


def _said(host: Host, directory: Path, text: str, *settings: str) -> list[str]:
    (directory / "run.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(RunFileErrors) as caught:
        read(directory / "run.yaml", host, settings)
    return [str(problem).removeprefix(f"{directory / 'run.yaml'}:") for problem in caught.value.problems]


@pytest.fixture
def stream(bringing: Host) -> str:
    return next(name for name, owned in bringing.analyses.items() if owned.descriptor.shape == "stream")


def test_a_model_is_brought_where_there_is_none(bringing: Host, tmp_path: Path, stream: str) -> None:
    (tmp_path / "maps").mkdir()
    path = tmp_path / "run.yaml"
    path.write_text(RUN.format("path: maps, causal: true").replace("probe.stream", stream), encoding="utf-8")
    study = read(path, bringing)
    assert study.model is not None
    assert (study.model.path, study.model.loader.descriptor.name) == (str(tmp_path / "maps"), "saved")
    assert study.resolved["model"]["causal"] is True
    # What is resolved says it all, and is the same study.
    again = read(study.resolved, bringing)
    assert again.resolved == study.resolved
    other = read(path, bringing, ["model.path=builtin:tiny"])
    assert other.model is not None
    assert (other.model.path, other.model.loader.descriptor.name) == ("builtin:tiny", "tiny")


def test_mistakes_are_told_where_the_prompts_are_and_once(bringing: Host, tmp_path: Path, stream: str) -> None:
    run = RUN.replace("probe.stream", stream)
    [said] = _said(bringing, tmp_path, run.format("path: maps"))
    assert said.startswith("2:32: prompts.path: there is nothing at ")
    (tmp_path / "maps").mkdir()
    [said] = _said(bringing, tmp_path, run.format("path: maps, cuasal: true"))
    assert "did you mean causal?" in said
    [said] = _said(bringing, tmp_path, run.format("fails: true"))
    assert "cannot say which model its prompts bring: ZeroDivisionError: no model" in said
    [said] = _said(bringing, tmp_path, run.format("causal: true"))
    assert "model: missing" in said


def test_the_schema_wants_a_model_or_prompts_that_bring_one(bringing: Host, host: Host, stream: str) -> None:
    valid = jsonschema.Draft7Validator(schema.run_schema(bringing))
    run: dict[str, Any] = {"gausslens": 1, "analyses": [{"use": stream}]}
    assert not list(valid.iter_errors(run | {"prompts": {"source": "saved", "path": "maps"}}))
    for wrong in (run, run | {"prompts": {"source": "text", "text": ["a"]}}, run | {"prompts": None}):
        assert list(valid.iter_errors(json.loads(json.dumps(wrong))))
    assert "model" in schema.run_schema(host)["required"]


def test_the_field_names_a_function() -> None:
    source = PromptSource(name="p", version=1, summary="P.", prompts="m:p", model="not a reference")
    [said] = problems("prompt_sources", [source], ours=False)
    assert "model is 'not a reference', not of the form" in said
