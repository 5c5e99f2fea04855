"""``gausslens plugins``: the list, one thing in full, and what was set aside."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import BaseModel, Field

from gausslens import Parameters
from gausslens.__main__ import main
from gausslens.runfile.wording import Parameter, parameters

if TYPE_CHECKING:
    from conftest import Shelf

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def peopled(shelf: Shelf) -> Shelf:
    shelf.good("red")
    shelf.good("blue-green")
    shelf.five_broken()
    return shelf


def test_the_list(peopled: Shelf, capsys: Captured) -> None:
    assert main(["plugins"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    lines = said.out.splitlines()
    at = lines.index("red   gausslens-red 1.0   hooks: analyses, edits, prompt_sources, run_started")
    kinds = [line.split(maxsplit=2) for line in lines[at + 1 : at + 4]]
    assert kinds == [
        ["analysis", "red.count", "Counts."],
        ["edit", "red.halve", "Halves."],
        ["source", "red-text", "Texts."],
    ]
    note = (
        "  note: written for version 1 of the interface; it works, but look at its edits: with heads, tensors without"
    )
    assert lines[at + 4].startswith(note)
    assert sum("note: written for" in line for line in lines) == 2  # not of ours
    assert len({line.index(kind[2]) for line, kind in zip(lines[at + 1 : at + 4], kinds, strict=True)}) == 1
    order = [line.split()[0] for line in lines if "   hooks: " in line]
    ours = [name for name in order if name not in ("red", "blue-green")]
    assert order == [*sorted(ours), "blue-green", "red"]


def test_the_broken_are_at_the_end_with_cause_and_switch(peopled: Shelf, capsys: Captured) -> None:
    assert main(["plugins"]) == 0
    out = capsys.readouterr().out
    told = out[out.index("5 set aside") :]
    for name, cause in {
        "bad-import": "ModuleNotFoundError: No module named 'no_such_module_anywhere'",
        "bad-exit": "SystemExit: goodbye",
        "bad-hook": "there is no hook 'analysises': did you mean analyses?",
        "bad-argument": "run_started asks for 'colour', which is not there: it may ask for run",
        "bad-name": "PromptSource 'text' is in gausslens 0.",
    }.items():
        module = name.replace("-", "_")
        head = f"set aside: plugin {name} of gausslens-{name} 1.0 (entry point {module}_plugin)\n  {cause}"
        assert head in told
        assert f"  leave it out with --without {name} or GAUSSLENS_WITHOUT={name}\n" in f"{told}\n"
    assert (
        main(["plugins", *(f"--without={n}" for n in ("bad-import", "bad-exit,bad-hook", "bad-argument,bad-name"))])
        == 0
    )
    out = capsys.readouterr().out
    assert "set aside:" not in out
    assert "left out: bad-argument, bad-exit, bad-hook, bad-import, bad-name" in out


def test_the_list_as_json(peopled: Shelf, capsys: Captured) -> None:
    assert main(["plugins", "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    found = json.loads(said.out)
    [red] = [p for p in found["plugins"] if p["plugin"] == "red"]
    assert red["distribution"] == "gausslens-red"
    assert red["edits"] == [{"name": "red.halve", "version": 2, "summary": "Halves."}]
    assert {b["plugin"] for b in found["broken"]} == {"bad-import", "bad-exit", "bad-hook", "bad-argument", "bad-name"}
    assert all({"cause", "switch", "distribution", "version", "entry_point"} <= set(b) for b in found["broken"])


def test_the_list_fits_the_terminal(peopled: Shelf, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["plugins"]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("  analysis", "  edit"))]
    assert max(map(len, shown)) <= 60
    assert any(line.endswith("...") for line in shown)


RED = """\
red.count   analysis, version 1, of plugin red (gausslens-red 1.0)
  Counts.
  shape stream
  code red_counting:Count

    of     string; default tokens
           What to count.
    least  integer >= 1; default 3
           Fewer are not told.

  what it gives is not listed; 'gausslens schema red.count --outputs STORE' lists it from results

  in a run file:  analyses: [{use: red.count}]
"""


def test_one_thing_in_full(peopled: Shelf, capsys: Captured) -> None:
    assert main(["plugins", "red.count"]) == 0
    said = capsys.readouterr()
    assert said.out == RED
    assert said.err.count("set aside: plugin ") == 5


def test_a_plugin_in_full(peopled: Shelf, capsys: Captured) -> None:
    assert main(["plugins", "red"]) == 0
    out = capsys.readouterr().out
    assert RED in out
    assert "red.halve   edit, version 2, of plugin red" in out
    assert "touches W_Q" in out
    assert "variants: {edited: [{edit: red.halve}]}" in out
    assert "prompts: {source: red-text}" in out


def test_one_thing_as_json(peopled: Shelf, capsys: Captured) -> None:
    assert main(["plugins", "red.count", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["name"], found["version"], found["shape"]) == ("analysis", "red.count", 1, "stream")
    assert (found["plugin"], found["distribution"], found["distribution_version"]) == ("red", "gausslens-red", "1.0")
    assert found["schema"]["properties"]["least"]["minimum"] == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "red.cuont",
            "there is no plugin, analysis, edit, loader, engine or source 'red.cuont': did you mean red.count",
        ),
        ("bad-import", "'bad-import' would come from plugin bad-import, which was set aside: ModuleNotFoundError"),
        ("bad-import.thing", "'bad-import.thing' would come from plugin bad-import, which was set aside"),
    ],
)
def test_a_name_that_is_not_there(name: str, said: str, peopled: Shelf, capsys: Captured) -> None:
    assert main(["plugins", name]) == 2
    assert said in capsys.readouterr().err


def test_a_plugin_without_descriptors_and_one_left_out(shelf: Shelf, capsys: Captured) -> None:
    shelf.plugin("ear", "from gausslens import hookimpl\n@hookimpl\ndef run_started(run): pass\n")
    assert main(["plugins", "ear"]) == 2
    assert "plugin 'ear' offers nothing to use in a run file" in capsys.readouterr().err
    assert main(["plugins", "ear", "--without", "ear"]) == 2
    assert "plugin 'ear' was left out" in capsys.readouterr().err


def test_parameters_that_cannot_be_read_are_told_of(shelf: Shelf, capsys: Captured) -> None:
    shelf.good("ruby")
    (shelf.directory / "ruby_parameters.py").write_text("import no_such_module_anywhere\n")
    assert main(["plugins", "ruby"]) == 0
    out = capsys.readouterr().out
    assert "its parameters cannot be read: ModuleNotFoundError: No module named 'no_such_module_anywhere'" in out
    assert "ruby.halve" in out
    assert main(["plugins", "ruby.count", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert found["schema"] is None
    assert found["trouble"].startswith("ModuleNotFoundError")


class Inner(BaseModel):
    """An inner one."""

    tolerance: float = Field(1e-5, gt=0, lt=1, description="When to stop.")
    kind: Literal["a", "b"] | None = Field(None, description="Which.")


class Everything(Parameters):
    """All types that there are."""

    of: str = Field(description="A label.")
    count: int = Field(3, ge=1, le=9, description="How\nmany.")
    share: float = Field(0.5, description="How much.")
    on: bool = Field(True, description="Whether.")
    yes: str = Field("no", description="Text that YAML 1.1 would misread.")
    spaced: str = Field("a b: c", description="Text with signs.")
    pair: tuple[str, int] = Field(("x", 1), description="Two.")
    some: list[Literal["u", "v"]] = Field(["u"], min_length=1, max_length=2, description="A few.")
    exactly: list[float] = Field([1.0, 2.0], min_length=2, max_length=2, description="Two.")
    least: tuple[int, ...] = Field((), min_length=0, description="Any.")
    named: dict[str, int] = Field({"a": 1}, description="By name.")
    anything: Any = Field(None, description="Anything.")
    inner: Inner = Field(Inner(), description="More.")


def test_parameters_in_words() -> None:
    assert [(p.name, p.type, p.default) for p in parameters(Everything)] == [
        ("of", "string", None),
        ("count", "integer >= 1 and <= 9", "3"),
        ("share", "number", "0.5"),
        ("on", "true | false", "true"),
        ("yes", "string", "no"),
        ("spaced", "string", '"a b: c"'),
        ("pair", "[string, integer]", "[x, 1]"),
        ("some", "list of 1 to 2 (u | v)", "[u]"),
        ("exactly", "list of 2 number", "[1.0, 2.0]"),
        ("least", "list of integer", "[]"),
        ("named", "mapping to integer", "{a: 1}"),
        ("anything", "anything", "null"),
        ("inner", "mapping", "{tolerance: 1e-05, kind: null}"),
        ("inner.tolerance", "number > 0 and < 1", "1e-05"),
        ("inner.kind", "a | b | null", "null"),
    ]
    assert parameters(Everything)[1] == Parameter("count", "integer >= 1 and <= 9", "3", "How many.")
    assert parameters(Everything)[-3].text == "More."
