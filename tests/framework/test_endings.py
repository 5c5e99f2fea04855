"""What ends the program where the host merely looks at what a plugin gave fails its step, or the plan by its name."""

from __future__ import annotations

from typing import Any

import endings
import probes
import pytest

from gausslens import GausslensError, plugins
from gausslens.perform import perform
from gausslens.store import Store
from gausslens.testing import wiring


@pytest.fixture(scope="module")
def host():
    return plugins.load(only=["models"], extra={"tiny": wiring, "probe": probes, "ends": endings})


def ran(host: Any, store: Any, use: str, how: str, edits: list[Any] | None = None) -> Any:
    study = {
        "name": "ends",
        "model": {"path": "builtin:testing"},
        "prompts": {"source": "tokens", "ids": [[3, 1, 4, 1], [5, 9, 2, 6]]},
        "variants": {"trained": []} | ({"edited": {"edits": edits}} if edits else {}),
        "analyses": [{"use": "probe.power"}, *([{"use": use, "with": {"how": how}}] if use else [])],
        "report": False,
        "errors": False,
    }
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
