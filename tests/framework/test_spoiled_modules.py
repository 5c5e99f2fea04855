"""What an outside plugin leaves on the live module of a model: hooks, numbers, buffers, or no module at all."""

from __future__ import annotations

from typing import Any

import probes
import pytest
import spoilers
import spoilers_at_work
import torch
import transformers
import xarray as xr

from gausslens import plugins
from gausslens.perform import perform
from gausslens.store import Store
from gausslens.testing import wiring
from gausslens_models.loading.config_and_tokenizer import directory_of_builtin


def module_of(at: Any) -> Any:
    return at.runner.twin.base.module


def linear(at: Any) -> Any:
    return next(m for m in module_of(at).modules() if isinstance(m, torch.nn.Linear))


def another_forward(at: Any) -> None:
    one = linear(at)
    before = one.forward
    one.forward = lambda x: before(x) * 2


def epsilon(at: Any) -> None:
    [norm, *_] = [m for m in module_of(at).modules() if hasattr(m, "variance_epsilon")]
    norm.variance_epsilon = 1.0


def closed_and_read(at: Any) -> None:
    at.runner.twin.base.close()
    at.runner.forward(at.prompts.ids[0][None])


def tokenizer(at: Any) -> None:
    of_model = at.runner.twin.base.tokenizer
    of_model.decode = lambda *_, **__: "spoiled"
    of_model.add_tokens(["one two"])


LEFT = {
    "a hook": lambda at: linear(at).register_forward_hook(lambda _m, _i, found: found * 1.5),
    "another forward": another_forward,
    "epsilon": epsilon,
    "config": lambda at: setattr(module_of(at).config, "sliding_window", 1),
    "buffer": lambda at: [b.mul_(0) for n, b in module_of(at).named_buffers() if "inv_freq" in n],
    "closed": lambda at: at.runner.twin.base.close(),
    "closed and read": closed_and_read,
    "tokenizer": tokenizer,
}
HARMLESS = {"closed", "closed and read", "tokenizer"}


@pytest.fixture(scope="module")
def host() -> plugins.Host:
    extra = {"tiny": wiring, "probe": probes, "aspoil": spoilers}
    return plugins.load(only=["models", "reinit", "bilinear"], extra=extra)


def ran(host: plugins.Host, store: Any, how: str, model: Any = None) -> Any:
    ours = ["model.loss", "bilinear.spectrum", "probe.power"] + ["model.generate"] * (model is None)  # live: no text
    study = {
        "name": "left",
        "model": {} if model is not None else {"path": "builtin:tiny"},
        "prompts": {"source": "tokens", "ids": [[3, 1, 4, 1], [5, 9, 2, 6]]},
        "variants": {"trained": [], "chance": {"edits": [{"edit": "reinit.gaussian"}], "draws": 1}},
        "analyses": [
            {"use": "spoil.forward", "with": {"how": how}},
            *({"use": name} for name in ours),
        ],
        "report": False,
        "errors": {"groups": 2},
    }
    return perform(study, store=store, host=host, model=model)


def results(found: Any) -> dict[Any, xr.Dataset]:
    store = Store(found.path)
    kept = [s for s in found.plan.steps if s.ref.label != "spoil.forward"]
    return {s.ref: store.read(s.folder, s.key).load() for s in kept}


@pytest.fixture(scope="module")
def plain(host, tmp_path_factory):
    return results(ran(host, tmp_path_factory.mktemp("plain") / "store", "nothing"))


@pytest.mark.parametrize("how", LEFT)
def test_what_is_left_on_a_module_changes_no_other_result(host, plain, tmp_path, monkeypatch, how):
    monkeypatch.setitem(spoilers_at_work.FORWARD, how, LEFT[how])
    found = ran(host, tmp_path / "store", how)
    now = results(found)
    assert now.keys() == plain.keys()
    for ref, dataset in now.items():
        xr.testing.assert_identical(dataset, plain[ref])
    failed = {failure.step.ref.label for failure in found.outcome.failed}
    assert failed == (set() if how in HARMLESS else {"spoil.forward"})
    assert how in HARMLESS or "plugin aspoil" in found.failures_in_words()


def test_hooks_are_taken_off_a_live_module(host, tmp_path, monkeypatch):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory_of_builtin("builtin:tiny"))
    mine = linear_hook(model)
    plain = results(ran(host, tmp_path / "plain", "nothing", model))
    for how in ("a hook", "another forward", "epsilon"):
        monkeypatch.setitem(spoilers_at_work.FORWARD, how, LEFT[how])
        found = ran(host, tmp_path / how.replace(" ", "-"), how, model)
        for ref, dataset in results(found).items():
            xr.testing.assert_identical(dataset, plain[ref])
        assert {failure.step.ref.label for failure in found.outcome.failed} == {"spoil.forward"}
    assert mine.id in next(m for m in model.modules() if isinstance(m, torch.nn.Linear))._forward_hooks


def linear_hook(model: Any) -> Any:
    """A hook of the caller's own, which stays."""
    one = next(m for m in model.modules() if isinstance(m, torch.nn.Linear))
    return one.register_forward_hook(lambda *_: None)
