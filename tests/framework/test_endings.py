"""What ends the program where the host merely looks at what a plugin gave fails its step, or the plan by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import endings
import probes
import pytest

from gausslens import GausslensError, plugins
from gausslens.__main__ import main
from gausslens.perform import perform
from gausslens.store import Store
from gausslens.testing import wiring


@pytest.fixture(scope="module")
def host():
    return plugins.load(only=["models"], extra={"tiny": wiring, "probe": probes, "ends": endings})


def ran(host: Any, store: Any, use: str, how: str, edits: list[Any] | None = None, **more: Any) -> Any:
    study = {
        "name": "ends",
        "model": {"path": "builtin:testing"},
        "prompts": {"source": "tokens", "ids": [[3, 1, 4, 1], [5, 9, 2, 6]]},
        "variants": {"trained": []} | ({"edited": {"edits": edits}} if edits else {}),
        "analyses": [{"use": "probe.power"}, *([{"use": use, "with": {"how": how}}] if use else [])],
        "report": False,
        "errors": False,
    } | more
    return perform(study, store=store, host=host)


FAILS = [
    *(("ends.stream", how) for how in ("state", "end_pass", "request", "asked", "getattr")),
    *(("ends.weights", how) for how in ("join", "class", "getattr")),
    ("ends.derived", "compute"),
]


@pytest.mark.parametrize(("use", "how"), FAILS)
def test_an_ending_where_the_host_looks_fails_its_step(host, tmp_path, use, how):
    found = ran(host, tmp_path / "store", use, how)
    store = Store(found.path)
    there = {step.ref.label for step in found.plan.steps if store.has(step.folder, step.key)}
    assert "probe.power" in there
    failed = {failure.step.ref.label for failure in found.outcome.failed}
    assert failed == (set() if how == "class" else {use})  # its class is not kept
    assert not failed or "plugin ends" in found.failures_in_words()


REFUSED = [
    ("ends.stream", "validator", "KeyboardInterrupt"),
    ("ends.fingered", "nothing", "its fingerprint cannot be had: it raised SystemExit"),
    ("ends.derived", "refs", "cannot say what it reads"),
]


@pytest.mark.parametrize(("use", "how", "said"), REFUSED)
def test_an_ending_before_the_run_is_told_by_name(host, tmp_path, use, how, said):
    with pytest.raises(GausslensError, match=said) as told:
        ran(host, tmp_path / "store", use, how)
    assert use in str(told.value)


def test_an_edit_that_ends_when_it_is_asked_what_it_touches_is_named(host, tmp_path):
    with pytest.raises(GausslensError, match=r"edit ends\.touches cannot say what it touches"):
        ran(host, tmp_path / "store", "", "", [{"edit": "ends.touches"}])


def test_tensors_of_a_class_of_their_own_are_laid_over_as_plain_ones(host, tmp_path):
    found = ran(host, tmp_path / "store", "", "", [{"edit": "ends.edit", "how": "tensor"}])
    plain = ran(host, tmp_path / "plain", "", "", [{"edit": "ends.edit", "how": "plain"}])
    assert not found.outcome.failed
    store, other = Store(found.path), Store(plain.path)
    for one, two in zip(found.plan.steps, plain.plan.steps, strict=True):
        assert store.read(one.folder, one.key).load().equals(other.read(two.folder, two.key).load())


def of_loader(host: Any, store: Any, how: str) -> Any:
    model = {"path": "builtin:testing", "loader": "ending", "how": how}
    return ran(host, store, "", "", model=model, analyses=[{"use": "ends.weights"}])


def test_a_model_that_cannot_be_closed_costs_no_result(host, tmp_path):
    assert not of_loader(host, tmp_path / "store", "close").outcome.failed


def test_a_model_without_facts_is_told_with_its_loader(host, tmp_path):
    with pytest.raises(GausslensError, match="loader ending"):
        of_loader(host, tmp_path / "store", "info")


def of_source(host: Any, store: Any, how: str) -> Any:
    return ran(host, store, "", "", prompts={"source": "ending", "how": how})


def test_text_of_a_class_of_its_own_is_read_as_plain_text(host, tmp_path):
    plain = [step.key for step in of_source(host, tmp_path / "plain", "nothing").plan.steps]
    assert [step.key for step in of_source(host, tmp_path / "store", "text").plan.steps] == plain


def test_numbers_that_are_no_tokens_are_told_with_their_source(host, tmp_path):
    with pytest.raises(GausslensError, match="the prompt source ending of plugin ends gave cannot be made tokens"):
        of_source(host, tmp_path / "store", "numbers")


def test_who_interrupts_prompts_without_end_is_told_how_many_there_were(host, tmp_path):
    with pytest.raises(KeyboardInterrupt) as stopped:
        of_source(host, tmp_path / "store", "endless")
    assert "2048 prompts were read of the source ending" in stopped.value.__notes__[0]


AT_IMPORT = {
    "exits": ("import sys\nsys.exit(3)", "SystemExit: 3"),
    "interrupts": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "moves": ("import os\nos.chdir('/')\nraise ValueError('there')", "ValueError: there"),
}


@pytest.mark.parametrize("how", AT_IMPORT)
def test_what_a_module_does_when_it_is_imported_sets_its_plugin_aside_alone(tmp_path, monkeypatch, capsys, how):
    code, said = AT_IMPORT[how]
    (tmp_path / f"at_import_{how}.py").write_text(code, encoding="utf-8")
    about = tmp_path / "at_import-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: at-import\nVersion: 1.0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text(f"[gausslens]\nat-import = at_import_{how}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    here = Path.cwd()
    assert main(["plugins"]) == 0
    assert Path.cwd() == here
    told = capsys.readouterr()
    assert "set aside: plugin at-import" in told.out + told.err
    assert said in told.out + told.err
