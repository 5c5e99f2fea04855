"""Nothing that can be spoiled: whatever an outside plugin does, all other results are bit-equal to those without it.

Each way fails the step that does it, by name, or harms nobody.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import probes
import pytest
import spoilers
import spoilers_at_work
import torch
import xarray as xr

import gausslens
from gausslens import plugins
from gausslens.contract.errors import InputError
from gausslens.contract.twin import Copies, DifferenceModel, Twin
from gausslens.guard import calls
from gausslens.guard.process_state import Random
from gausslens.perform import perform
from gausslens.runs.lending import same_bits
from gausslens.store import Store
from gausslens.testing import TinyModel, TinyParameters, wiring

OURS = [
    {"use": "gaussian.moments", "with": {"site": "q"}},
    {"use": "bilinear.spectrum"},
    {"use": "model.loss"},
    {"use": "probe.power"},
    {"use": "probe.norm"},
    {"use": "probe.next"},
    {"use": "probe.doubled"},
]
VARIANTS = {"trained": [], "chance": {"edits": [{"edit": "reinit.gaussian"}], "draws": 1}}


@pytest.fixture(scope="module")
def host() -> plugins.Host:
    """Ours, a probe that is not, and the spoiler, whose listeners hear first of all."""
    extra = {"tiny": wiring, "probe": probes, "aspoil": spoilers}
    return plugins.load(only=["models", "gaussian", "bilinear", "reinit"], extra=extra)


def study(*spoiling: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": "spoiled",
        "model": {"path": "builtin:testing", "loader": "tiny"},
        "prompts": {"source": "text", "text": ["one two", "four five six", "seven", "eight"]},
        "variants": VARIANTS,
        "analyses": [*spoiling, *OURS],
        "report": False,
        "errors": {"groups": 2},
    } | more


def results(ran: Any) -> dict[Any, xr.Dataset]:
    """All results but the spoiler's, as they are stored."""
    store = Store(ran.path)
    mine = [s for s in ran.plan.steps if not s.use.analysis.descriptor.name.startswith("spoil.")]
    mine = [s for s in mine if s.ref.variant in VARIANTS]
    return {step.ref: store.read(step.folder, step.key).load() for step in mine}


@pytest.fixture(scope="module")
def plain(host: plugins.Host, tmp_path_factory: pytest.TempPathFactory) -> dict[Any, xr.Dataset]:
    return results(perform(study(), store=tmp_path_factory.mktemp("plain") / "store", host=host))


def equal(found: dict[Any, xr.Dataset], plain: dict[Any, xr.Dataset]) -> None:
    assert found.keys() == plain.keys()
    for ref, dataset in found.items():
        xr.testing.assert_identical(dataset, plain[ref])
        for name, variable in dataset.variables.items():
            assert variable.values.tobytes() == plain[ref].variables[name].values.tobytes() or variable.dtype == "O"


def process() -> Any:
    """What of the process is looked at before and after."""
    state = Random.now()
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    of_torch = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(), str(torch.zeros(1).device))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TORCHINDUCTOR"))
    }
    return environment, Path.cwd(), handlers, of_torch, np.geterr(), state.python, state.torch.tolist()


@pytest.fixture(autouse=True)
def untouched(host: plugins.Host, plain: Any) -> Any:
    """The process is as it was, whatever a plugin set."""
    spoilers.TOLD["how"] = "nothing"
    spoilers_at_work.KEPT.clear()
    host.warned.clear()
    before = process()
    yield
    after = process()
    assert set(after[0].items()) ^ set(before[0].items()) == set()
    assert [i for i, (now, was) in enumerate(zip(after, before, strict=True)) if now != was] == []
    spoilers.TOLD["how"] = "nothing"


ENDING = ["sys.exit", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException", "RecursionError"]
SETTING = ["seeds", "torch settings", "torch device", "torch hooks", "settings", "surroundings", "alarms", "said"]
SETTING += ["an alarm that kills", "traces", "flood", "modes", "rounding"]
# What tokens hand out is made anew for whoever reads it.
OF_TOKENS = {"ids", "spans", "text of tokens", *(f"in {where}: ids" for where in ("init", "request", "result"))}
HARMLESS_IN_STREAM = {"arrays", "layer", "later", "blame", *SETTING, "parameters", "facts", "context", *OF_TOKENS}
STREAM = [*spoilers_at_work.STREAM, *ENDING, "MemoryError", *SETTING, "hang", "hang and catch"]
STREAM += ["parameters", "facts", "context"]
STREAM += [f"in {w}: sys.exit" for w in ("init", "request", "deepcopy", "merge", "result")]
STREAM += ["in init: ids", "in request: ids", "in result: ids", "in result: KeyboardInterrupt", "in merge: hang"]
WAYS = [("stream", how, how not in HARMLESS_IN_STREAM) for how in STREAM]
WAYS += [("layers", how, False) for how in ("data", "text", "memory")]
SLOW = [("forward", "deterministic", False)]
WAYS += [("rows", "data", True), ("estimated", "nothing", False)]
WAYS += [("weights", how, how == "model") for how in (*spoilers_at_work.WEIGHTS, "one array", "facts")]
WAYS += [("weights", how, True) for how in ("sys.exit", "KeyboardInterrupt", "hang")]
SAFE = {"weights", "weights outside", "logits", "sites", "replace", "info", "ids", "prompts", "overlay", "edits"}
SAFE |= {"info of the twin", "methods", "tokens", "other tokens"}
WAYS += [("forward", how, how not in SAFE) for how in spoilers_at_work.FORWARD]
WAYS += [("forward", how, how in (*ENDING, "hang")) for how in (*ENDING, "hang", "seeds", "torch settings", "facts")]
WAYS += [("forward", "modes", False), ("forward", "rounding", False), ("forward", "untold", True)]
WAYS += [("derived", how, how == "coordinates") for how in spoilers_at_work.DERIVED]
WAYS += [("derived", how, how in ("sys.exit", "hang")) for how in ("sys.exit", "hang", "seeds", "torch settings")]


def long(how: str) -> Any:
    """For the long tier."""
    return pytest.param(how, marks=pytest.mark.full)


ALSO = {"stream": ("layers", "rows", "estimated")}


def ran_with(host: plugins.Host, tmp_path: Path, whole: dict[str, Any]) -> Any:
    return perform(whole, store=tmp_path / "store", host=host)


def entry(shape: str, how: str, **more: Any) -> dict[str, Any]:
    limit = {"limit": 0.2} if "hang" in how else {}
    return {"use": f"spoil.{shape}", "with": {"how": how}, **limit, **more}


@pytest.mark.full
@pytest.mark.parametrize(("shape", "how", "fails"), [*WAYS, *SLOW])
def test_no_other_result_is_changed(host, plain, tmp_path, shape, how, fails):
    analyses = [*OURS, entry(shape, how)] if shape == "derived" else [entry(shape, how), *OURS]
    ran = ran_with(host, tmp_path, study(analyses=analyses))
    equal(results(ran), plain)
    failed = {failure.step.ref for failure in ran.outcome.failed}
    mine = {step.ref for step in ran.plan.steps if step.use.analysis.descriptor.name == f"spoil.{shape}"}
    assert failed == (mine if fails else set())
    said = ran.failures_in_words()
    assert not fails or "plugin aspoil ((given) )" in said
    assert "hang" not in how or "longer than its limit of 0.2 s" in said


@pytest.mark.parametrize("shape", ["stream", "weights", "forward", "derived"])
def test_all_of_a_shape_at_once(host, plain, tmp_path, shape):
    ways = {f"way-{n}": way for n, way in enumerate(WAYS) if way[0] in (shape, *ALSO.get(shape, ()))}
    entries = [entry(way[0], way[1], **{"as": label}) for label, way in ways.items()]
    ran = ran_with(host, tmp_path, study(analyses=[OURS[0], *entries, *OURS[1:]]))
    equal(results(ran), plain)
    failed = {ways[failure.step.ref.label] for failure in ran.outcome.failed}
    assert failed == {way for way in ways.values() if way[2]}
    assert len(ran.outcome.failed) == 2 * len(failed)


# A model of files, and a module that is passed from Python, of which nothing can be read again.
OF_A_MODULE = [("stream", "data"), ("stream", "facts"), ("stream", "memory")]
OF_A_MODULE += [("weights", how) for how in ("W_V", "base", "memory of W_K", "embeddings", "info")]
OF_A_MODULE += [("forward", how) for how in ("weights", "weights outside", "module", "info")]


def plain_module() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": 90, "n_positions": 32}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()


@pytest.mark.parametrize("model", ["builtin:tiny", long("live")])
def test_models_of_our_own_loaders_are_put_back(host, tmp_path, model):
    live = {"model": plain_module()} if model == "live" else {}
    of = {"prompts": {"source": "repeated-random", "prompts": 4, "length": 6}, "model": {} if live else {"path": model}}
    entries = [entry(*way) | {"as": f"way-{n}"} for n, way in enumerate(OF_A_MODULE)]
    before = perform(study(**of), store=tmp_path / "before", host=host, **live)
    ran = perform(study(*entries, **of), store=tmp_path / "store", host=host, **live)
    again = perform(study(**of), store=tmp_path / "again", host=host, **live)
    equal(results(ran), results(before))
    equal(results(again), results(before))
    failed = {OF_A_MODULE[int(f.step.ref.label.removeprefix("way-"))] for f in ran.outcome.failed}
    assert failed == {("stream", "data"), ("stream", "memory"), ("forward", "module")}


EDITS = [*spoilers_at_work.EDITS, "later", *ENDING, "hang", *SETTING, "parameters"]


def test_edits_spoil_their_twins_alone(host, plain, tmp_path):
    edited = {f"edited-{n}": how for n, how in enumerate(EDITS)}
    variants = {name: [{"edit": "spoil.edit", "how": how}] for name, how in edited.items()} | VARIANTS
    ran = ran_with(host, tmp_path, study(variants=variants, limit=1))
    equal(results(ran), plain)
    said = {failure.step.ref.variant: str(failure) for failure in ran.outcome.failed if not failure.step.inputs}
    assert {edited[name] for name in said} == {*ENDING, "hang", "model"}
    for text in said.values():
        assert "edit spoil.edit" in text
        assert "plugin aspoil" in text


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_bits_are_compared_and_not_numbers(kind):
    """Who leaves NaN alone is blamed for nothing, and who turns 0 into -0 is found."""
    held = torch.tensor([torch.nan, 0.0, 1.0], dtype=kind)
    assert same_bits(held, held.clone())
    assert not same_bits(held, torch.tensor([torch.nan, -0.0, 1.0], dtype=kind))
    assert not same_bits(held, torch.tensor([torch.nan, 0.0, 1.5], dtype=kind))
    assert not same_bits(held, held.reshape(3, 1))
    assert not same_bits(held, held.to(torch.complex128))


def test_what_a_difference_takes_away_is_lent_as_copies():
    one, other = (Twin(TinyModel(TinyParameters(seed=seed))) for seed in (1, 2))
    less = other.weights(0).W_Q.clone()
    lent = Copies.of(Twin(DifferenceModel(one, other, "of both")).weights(0))
    lent.base(0).W_Q.zero_()
    lent.W_Q.zero_()
    assert torch.equal(other.weights(0).W_Q, less)
    assert torch.equal(lent.base(0).W_Q, less)


def test_what_is_said(host, tmp_path):
    ran = ran_with(host, tmp_path, study(entry("stream", "data"), entry("forward", "module"), entry("weights", "hang")))
    said = ran.failures_in_words()
    assert "analysis spoil.stream of plugin aspoil ((given) ): it changes batch['q'] in place" in said
    assert "work on a copy, as `batch['q'].clone()`" in said
    assert "it changes weights of the model itself (1.W_V) in place" in said
    assert "it took longer than its limit of 0.2 s" in said


@pytest.mark.parametrize("how", ["facts", "torch settings", "surroundings", *map(long, SETTING), "parameters"])
def test_a_source_and_a_loader_change_nothing(host, plain, tmp_path, how):
    other = {"source": "spoiled", "how": how}
    variants = VARIANTS | {"other": {"prompts": other}}
    if how != "facts":
        variants["loaded"] = {"model": {"path": "builtin:testing", "loader": "spoiled", "how": how}}
    host = plugins.load(
        only=["models", "gaussian", "bilinear", "reinit"],
        extra={"tiny": wiring, "probe": probes, "aspoil": spoilers},
    )
    uses = [use | {"variants": ["trained", "chance", "other"]} for use in OURS]
    uses[1] = OURS[1]
    ran = ran_with(host, tmp_path, study(variants=variants, analyses=uses))
    equal(results(ran), plain)
    assert not ran.outcome.failed


@pytest.mark.parametrize("how", ["sys.exit", *map(long, ENDING[1:5])])
def test_what_ends_in_a_source_a_loader_or_a_plan_is_refused_by_name(host, tmp_path, how):
    source = study(prompts={"source": "spoiled", "how": how})
    loader = study(model={"path": "builtin:testing", "loader": "spoiled", "how": how})
    derived = study(analyses=[*OURS, {"use": "spoil.derived", "with": {"how": f"in inputs: {how}"}}])
    for whole in (source, loader, derived):
        with pytest.raises(gausslens.GausslensError, match="aspoil") as caught:
            ran_with(host, tmp_path, whole)
        assert "ended the program" in str(caught.value)
        assert isinstance(caught.value, InputError | gausslens.ModelError)


@pytest.mark.parametrize("how", ["news", "results", "sys.exit", *map(long, [*ENDING, *SETTING])])
def test_listeners_and_sections_change_nothing(host, plain, tmp_path, how):
    spoilers.TOLD["how"] = how
    ran = ran_with(host, tmp_path, study(entry("stream", "RecursionError"), report=True))
    equal(results(ran), plain)
    assert {failure.step.ref.label for failure in ran.outcome.failed} == {"spoil.stream"}
    assert "deep" in ran.failures_in_words()
    page = ran.report.read_text()
    assert ("The section spoiled of the plugin aspoil" in page) == (how in ENDING)
    assert "gaussian.moments" in page


def test_an_interruption_ends_the_run(host, tmp_path):
    spoilers_at_work.STREAM["real"] = caught_interrupt
    try:
        with pytest.raises(KeyboardInterrupt):
            ran_with(host, tmp_path, study(entry("stream", "real")))
    finally:
        del spoilers_at_work.STREAM["real"]


def caught_interrupt(_at: Any) -> None:
    """A plugin that catches Ctrl-C."""
    try:
        signal.raise_signal(signal.SIGINT)
    except BaseException:
        print("no")


def test_what_is_printed_is_shown_in_part(host, tmp_path, capsys):
    ran = ran_with(host, tmp_path, study(entry("stream", "flood")))
    out, err = capsys.readouterr()
    assert "spoil 0\n" in out
    assert len(out) + len(err) < 50_000
    assert any("more lines, which are not shown" in note for note in ran.notes)


@pytest.mark.parametrize("plugin", ["gaussian", "spectrum", "reinit", *map(long, ["model", "bilinear", "attention"])])
def test_ours_change_nothing_of_what_they_are_given(monkeypatch, tmp_path, plugin):
    """Where an outside plugin shares a pass ours are given the arrays themselves: here they are held as strictly."""
    host = plugins.load()
    needed = {"model.capture": {"sites": ["q", "pattern"]}}
    names = [name for name, owned in host.analyses.items() if looks_at_a_model(owned) and name.startswith(plugin)]
    uses = [{"use": name, "with": needed.get(name, {})} for name in names]
    whole = {
        "name": "strict",
        "model": {"path": "builtin:tiny"},
        "prompts": {"source": "repeated-random", "prompts": 4, "length": 8},
        "variants": {"trained": []},
        "analyses": uses,
        "report": False,
        "errors": {"groups": 2},
    }
    before = perform(whole, store=tmp_path / "before", host=host)
    monkeypatch.setattr(calls, "OURS", "nobody")
    strict = perform(whole, store=tmp_path / "strict", host=host)
    assert before.outcome.computed
    assert str(strict.outcome) == str(before.outcome)
    # Some ask for more prompts when all are seen: alike in both.
    assert strict.failures_in_words().splitlines()[:-1] == before.failures_in_words().splitlines()[:-1]
    plain = {step.ref: Store(before.path).read(step.folder, step.key).load() for step in before.outcome.computed}
    equal({s.ref: Store(strict.path).read(s.folder, s.key).load() for s in strict.outcome.computed}, plain)


def looks_at_a_model(owned: Any) -> bool:
    return owned.descriptor.shape != "derived" and owned.descriptor.differences != "only"


def test_an_update_that_ends_when_it_is_looked_up_fails_its_step_alone(host, plain, tmp_path, monkeypatch):
    monkeypatch.setattr(spoilers_at_work.Stream, "update", property(lambda _: sys.exit(3)))
    ran = ran_with(host, tmp_path, study(entry("stream", "nothing")))
    equal(results(ran), plain)
    assert {failure.step.ref.label for failure in ran.outcome.failed} == {"spoil.stream"}
