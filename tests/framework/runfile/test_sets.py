"""What --set changes, in the order given, before anything is checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens.plugins.host import Host
from gausslens.runfile import Problem, RunFileErrors, read

RICH = Path(__file__).parent / "rich.yaml"
Mistakes = Callable[..., list[Problem]]


def at(resolved: Any, *path: str | int) -> Any:
    for step in path:
        resolved = resolved[step]
    return resolved


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("seed=5", ("seed",), 5),
        ("seed= 5 # five", ("seed",), 5),
        ("name=0x", ("name",), "0x"),
        ("name=", ("name",), "rich"),
        ("model.dtype=float64", ("model", "dtype"), "float64"),
        ("model.dtype=null", ("model", "dtype"), None),
        ("model={path: builtin:tiny2, cache: false}", ("model", "path"), "builtin:tiny2"),
        ("analyses.values.with.site=k", ("analyses", 1, "with", "site"), "k"),
        ("analyses.probe.moments.with.keep=9", ("analyses", 0, "with", "keep"), 9),
        ("analyses.1.with.keep=9", ("analyses", 1, "with", "keep"), 9),
        ("analyses.values.with.windows.0.start=7", ("analyses", 1, "with", "windows", 0, "start"), 7),
        ("analyses.values.with.by_segment.new.length=7", ("analyses", 1, "with", "by_segment", "new", "length"), 7),
        ("analyses.values.as=renamed", ("analyses", 1, "as"), "renamed"),
        ("analyses.4={use: probe.norms, as: x}", ("analyses", 4, "as"), "x"),
        ("variants.chance.draws=16", ("variants", "chance", "draws"), 16),
        ("variants.sharper.0.alpha=3", ("variants", "sharper", "edits", 0, "alpha"), 3.0),
        ("variants.sharper.probe.scale.alpha=3", ("variants", "sharper", "edits", 0, "alpha"), 3.0),
        ("variants.dose.0.sweep.alpha=[7, 8]", ("variants", "dose", "edits", 0, "sweep", "alpha"), [7.0, 8.0]),
        ("variants.more=[]", ("variants", "more", "draws"), None),
        ("prompts.text=['a: b', c]", ("prompts", "text"), ["a: b", "c"]),
        ("against=", ("against",), []),
        ("report=false", ("report",), False),
    ],
)
def test_a_setting(setting: str, path: tuple[str | int, ...], value: Any, host: Host) -> None:
    assert at(read(RICH, host, [setting]).resolved, *path) == value


def test_later_settings_win_and_see_earlier_ones(host: Host) -> None:
    resolved = read(RICH, host, ["seed=5", "seed=6", "analyses.values.as=v", "analyses.v.with.keep=3"]).resolved
    assert (resolved["seed"], at(resolved, "analyses", 1, "with", "keep")) == (6, 3)


def test_a_setting_can_mend_a_file(mistakes: Mistakes) -> None:
    text = "gausslens: 1\nmodel: {path: builtin:absent}\nanalyses: [{use: probe.norms}]\n"
    assert len(mistakes(text)) == 1
    assert mistakes(text, "model.path=builtin:tiny") == []
    assert mistakes("gausslens: 1\nmodel:\nanalyses: [{use: probe.norms}]\n", "model.path=builtin:tiny") == []


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("seed=three", "--set seed: should be a whole number, is the text 'three'; the default is 0"),
        ("sead=3", "--set sead: unknown key; did you mean seed?"),
        ("model.cahce=true", "--set model.cahce: unknown key; did you mean cache?"),
        ("model={}", "--set model: model.path: missing: a text"),
        (
            "analyses.values.with.sit=v",
            "--set analyses.values.with.sit: analyses[1].with.sit: unknown key; did",
        ),
        ("analyses.values.with.site=x", "--set analyses.values.with.site: analyses[1].with.site: should be one of"),
        (
            "analyses.vales.with.site=v",
            "--set analyses.vales.with.site: analyses: there is no entry 'vales'; did you",
        ),
        ("analyses.9.with.site=v", "--set analyses.9.with.site: analyses: there is no entry '9'"),
        ("seed.x=3", "--set seed.x: seed: is 3: there is nothing to set in it"),
        ("seed", "--set seed: should be key=value; as --set model.dtype=float64"),
        ("=3", "--set =3: should be key=value"),
        ("a..b=3", "--set a..b: should be key=value"),
        ("seed=[1", "--set seed: this '[' is never closed"),
        ("seed={a: 1, a: 2}", "--set seed: a: this key is given twice"),
        ("seed=!!int 3", "--set seed: the tag '!!int' is not read"),
        ("seed=*x", "--set seed: the alias *x stands for no anchor above it"),
        ("seed=1\n---\n2", "--set seed: a second document starts here"),
        ("seed=\x1b", "--set seed: holds the control character U+001B"),
        ("seed=\udcff", "--set seed: holds the control character U+DCFF"),
        ("report=no", "write false (YAML 1.2 reads no as text)"),
    ],
)
def test_a_wrong_setting_is_told_as_it_was_given(setting: str, said: str, host: Host) -> None:
    with pytest.raises(RunFileErrors) as caught:
        read(RICH, host, [setting])
    assert said in str(caught.value)


def test_two_entries_of_one_name_need_a_number(mistakes: Mistakes) -> None:
    text = (
        "gausslens: 1\nmodel: {path: builtin:tiny}\nanalyses: [{use: probe.norms}]\n"
        "variants: {a: [{edit: probe.scale, alpha: 2}, {edit: probe.scale, alpha: 3}]}\n"
    )
    assert mistakes(text, "variants.a.1.alpha=4") == []
    [problem] = mistakes(text, "variants.a.probe.scale.alpha=4")
    assert "2 entries are called 'probe.scale'; say which by its number, from 0" in str(problem)


def test_mistakes_of_the_file_come_first(mistakes: Mistakes) -> None:
    problems = mistakes("gausslens: 1\nnmae: x\nmodel: {}\nanalyses: [{use: probe.norms}]", "seed=x", "report=x")
    assert [str(p).split(": ")[0].rsplit("/", 1)[-1] for p in problems] == [
        "run.yaml:2:1",
        "run.yaml:3:1",
        "--set seed",
        "--set report",
    ]


@given(st.text() | st.builds(lambda key, value: f"{key}={value}", st.text("ab.01aseed", min_size=1), st.text()))
def test_any_setting_is_used_or_told(host: Host, setting: str) -> None:
    try:
        read(RICH, host, [setting])
    except RunFileErrors as errors:
        told = errors
    else:
        return
    assert told.problems
    assert all(line.isprintable() for line in str(told).splitlines())
