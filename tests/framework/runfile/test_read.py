"""A run file as the study that it means."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens.contract.errors import InputError
from gausslens.plugins.host import Host
from gausslens.runfile import RunFileErrors, read, read_model

HERE = Path(__file__).parent
LEAST: dict[str, Any] = {"model": {"path": "builtin:tiny"}, "analyses": [{"use": "probe.norms"}]}


def test_the_rich_file(host: Host) -> None:
    study = read(HERE / "rich.yaml", host)
    assert (study.name, study.seed, study.against, study.report) == ("rich", 3, ("chance",), True)
    assert study.directory == HERE
    model = study.model
    assert model is not None
    assert (model.path, model.loader.descriptor.name) == ("builtin:tiny", "tiny")
    assert (model.dtype, model.device) == ("float32", "cpu")
    assert (model.mark.line, model.parameters.canonical()) == (5, {"revision": "main", "cache": True})
    assert [use.label for use in study.uses] == [
        "probe.moments",
        "values",
        "probe.norms",
        "probe.replace",
        "probe.summary",
    ]
    values = study.uses[1]
    assert (values.layers, values.heads, values.variants, values.mark.line) == ((0, 1), (2,), ("trained", "chance"), 38)
    assert values.parameters.canonical()["region"] == {"shape": "box", "sides": [2.0, 3.5]}
    assert values.parameters.canonical()["by_layer"] == {"0": 1.5, "1": 2.0}
    prompts = [use.prompts.source.descriptor.name if use.prompts else None for use in study.uses]
    assert prompts == ["text", "few-shot", None, "text", None]


def test_draws_and_sweeps(host: Host) -> None:
    trained, sharper, dose, chance = read(HERE / "rich.yaml", host).variants
    assert (trained.name, trained.draws, trained.points[0].edits) == ("trained", None, ())
    assert (sharper.points[0].values, sharper.points[0].edits[0].layers) == ((), (0, 1))
    assert [point.values for point in dose.points] == [(("alpha", alpha),) for alpha in (0.25, 0.5, 1.0, 2.0)]
    assert [point.edits[0].parameters.canonical()["alpha"] for point in dose.points] == [0.25, 0.5, 1.0, 2.0]
    assert dose.points[0].edits[0].heads == (0,)
    assert (chance.draws, len(chance.points), chance.mark.line) == (8, 1, 32)


def test_several_sweeps_multiply_over_all_edits(host: Host) -> None:
    edits = [
        {"edit": "probe.scale", "sweep": {"alpha": [2, 3], "centre": [0, 1]}},
        {"edit": "probe.redraw", "sweep": {"keep": ["nothing", "moments"]}},
    ]
    study = read(LEAST | {"variants": {"grid": {"edits": edits, "draws": 3}}}, host)
    points = study.variants[0].points
    assert [name for name, _ in points[0].values] == ["alpha", "centre", "keep"]
    assert [tuple(value for _, value in point.values) for point in points] == [
        (alpha, centre, keep) for alpha in (2.0, 3.0) for centre in (0.0, 1.0) for keep in ("nothing", "moments")
    ]
    for point in points:
        held = point.edits[0].parameters.canonical() | point.edits[1].parameters.canonical()
        assert all(held[name] == value for name, value in point.values)


def test_defaults(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "a study, no. 7.yaml"
    path.write_text("gausslens: 1\nmodel: {path: builtin:tiny}\nanalyses: [{use: probe.norms}]")
    study = read(path, host)
    assert (study.name, study.seed, study.against, study.report, study.prompts) == ("a-study-no-7", 0, (), True, None)
    assert [(v.name, v.draws, len(v.points)) for v in study.variants] == [("trained", None, 1)]
    assert study.model is not None
    assert (study.model.dtype, study.model.device) == (None, "cpu")
    assert (study.uses[0].layers, study.uses[0].variants) == (None, ("trained",))
    assert study.resolved == {
        "gausslens": 1,
        "name": "a-study-no-7",
        "seed": 0,
        "model": {
            "path": "builtin:tiny", "loader": "tiny", "dtype": None, "device": "cpu", "revision": "main", "cache": True,
        },
        "prompts": None,
        "variants": {"trained": {"edits": [], "draws": None}},
        "analyses": [
            {"use": "probe.norms", "as": "probe.norms", "with": {}, "layers": None, "heads": None,
             "variants": ["trained"], "prompts": None, "errors": None}
        ],
        "against": [],
        "errors": {"groups": 10},
        "report": True,
    }  # fmt: skip


def test_what_was_resolved_reads_as_itself(host: Host) -> None:
    resolved = read(HERE / "rich.yaml", host).resolved
    assert read(resolved, host).resolved == resolved


@pytest.mark.parametrize("text", ["layers: [2, 0, 2]", "layers: [0, 2]", "layers: [0, 2], heads: null"])
def test_layers_are_in_order_and_none_is_all(text: str, host: Host, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"gausslens: 1\nmodel: {{path: builtin:tiny}}\nanalyses: [{{use: probe.norms, {text}}}]")
    [use] = read(path, host).uses
    assert (use.layers, use.heads) == ((0, 2), None)


def test_paths_are_relative_to_the_run_file(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "one").mkdir(parents=True)
    (tmp_path / "runs").mkdir()
    path = tmp_path / "runs" / "run.yaml"
    path.write_text("gausslens: 1\nmodel: {path: ../models/./one}\nanalyses: [{use: probe.norms}]")
    model = read(path, host).model
    assert model is not None
    assert model.path == str(tmp_path / "models" / "one")
    assert model.loader.descriptor.name == "files"
    monkeypatch.chdir(tmp_path / "runs")
    assert read("run.yaml", host).directory == tmp_path / "runs"
    from_dict = read(LEAST | {"model": {"path": Path("../models/one")}}, host).model
    assert from_dict is not None
    assert from_dict.path == model.path
    monkeypatch.setenv("HOME", str(tmp_path))
    at_home = read(LEAST | {"model": {"path": "~/models/one"}}, host).model
    assert at_home is not None
    assert at_home.path == model.path


def test_a_named_loader_is_not_asked_whether_it_claims(host: Host, tmp_path: Path) -> None:
    study = read(LEAST | {"model": {"path": str(tmp_path), "loader": "tiny"}}, host)
    assert study.model is not None
    assert study.model.loader.descriptor.name == "tiny"


def test_a_live_model_stands_in_for_the_path(host: Host) -> None:
    for model in ({}, {"path": "builtin:absent"}, {"path": "live:Tiny"}):
        study = read(LEAST | {"model": model}, host, live="Tiny")
        assert study.model is not None
        assert (study.model.path, study.model.loader.descriptor.name) == ("live:Tiny", "tiny")
    without_block = read({"analyses": LEAST["analyses"]}, host, live="Tiny")
    assert without_block.model is not None


def test_a_model_alone(host: Host, tmp_path: Path) -> None:
    call = read_model({"path": tmp_path, "dtype": "float64"}, host)
    assert (call.path, call.loader.descriptor.name, call.dtype) == (str(tmp_path), "files", "float64")
    assert read_model({"path": "live:Tiny"}, host).path == "live:Tiny"
    with pytest.raises(RunFileErrors, match=r"model\.dtype: should be one of .* did you mean float64"):
        read_model({"path": "builtin:tiny", "dtype": "flota64"}, host)


def test_a_dict_takes_what_notebooks_hold(host: Host) -> None:
    import numpy as np

    edit = {"edit": "probe.scale", "sweep": {"alpha": np.linspace(0.5, 2, 4)}}
    use = {"use": "probe.norms", "layers": range(3), "heads": (np.int64(1),)}
    study = read(LEAST | {"variants": {"dose": [edit]}, "analyses": [use]}, host)
    assert [point.values for point in study.variants[0].points] == [(("alpha", a),) for a in (0.5, 1.0, 1.5, 2.0)]
    assert (study.uses[0].layers, study.uses[0].heads) == ((0, 1, 2), (1,))
    assert (study.name, study.directory) == ("run", Path.cwd())


def test_a_dict_that_holds_itself_is_refused(host: Host) -> None:
    endless: dict[str, Any] = dict(LEAST)
    endless["prompts"] = endless
    with pytest.raises(InputError, match="nested more than 32 deep"):
        read(endless, host)


def _a_name(text: str) -> bool:
    """Not `all`, which stands for every analysis, and no number: PyYAML writes 0E0 without quotes, we read a number."""
    with contextlib.suppress(ValueError):
        return not math.isfinite(float(text))
    return text != "all"


NAMES = st.text("abcEXYZ019_-", min_size=1, max_size=12).filter(_a_name)
SCALES = st.fixed_dictionaries(
    {"edit": st.just("probe.scale"), "alpha": st.floats(1e-3, 1e3)},
    optional={
        "matrices": st.lists(st.sampled_from(["W_Q", "W_K", "W_V"]), min_size=1),
        "centre": st.floats(-10, 0),
        "layers": st.lists(st.integers(0, 99), min_size=1),
    },
)
VARIANTS = st.one_of(
    st.lists(SCALES, max_size=3),
    st.fixed_dictionaries({"edits": st.just([{"edit": "probe.redraw"}]), "draws": st.integers(2, 99)}),
)
STUDIES = st.fixed_dictionaries(
    {
        "gausslens": st.just(1),
        "model": st.just({"path": "builtin:tiny"}),
        "prompts": st.builds(
            lambda text: {"source": "text", "text": text},
            st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1, max_size=4),
        ),
        "analyses": st.lists(
            st.fixed_dictionaries(
                {"use": st.sampled_from(["probe.moments", "probe.norms", "probe.replace"]), "as": NAMES},
                optional={"heads": st.lists(st.integers(0, 99), min_size=1)},
            ),
            min_size=1,
            max_size=4,
            unique_by=lambda use: use["as"],
        ),
    },
    optional={
        "name": NAMES,
        "seed": st.integers(0, 2**63 - 1),
        "variants": st.dictionaries(NAMES, VARIANTS, min_size=1),
    },
)


@given(study=STUDIES)
def test_valid_data_round_trip_through_dict_and_yaml(
    study: dict[str, Any], host: Host, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import yaml

    resolved = read(study, host).resolved
    assert read(resolved, host).resolved == resolved
    path = tmp_path_factory.getbasetemp() / "run.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    assert read(path, host).resolved == resolved
