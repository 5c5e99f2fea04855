"""Each hook is called through the host; announcements reach every listener, whatever one of them does."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from gausslens import hookimpl
from gausslens.contract import hooks as hookspecs
from gausslens.contract.descriptors import Analysis, Edit, Engine, Loader, PromptSource, ReportSection
from gausslens.contract.hooks import RunNews, StepNews
from gausslens.plugins import Host, load

RUN = RunNews("study", "store", "0" * 64, 2)
STEP = StepNews("trained", "label", "mine.one", "1" * 64, draw=3)
NEWS: dict[str, dict[str, Any]] = {
    "run_started": {"run": RUN},
    "step_started": {"run": RUN, "step": STEP},
    "step_finished": {"run": RUN, "step": STEP},
    "run_failed": {"run": RUN, "step": None, "error": ValueError("x")},
    "run_finished": {"run": RUN, "summary": {"computed": 2}},
}
SAID = {"version": 1, "summary": "A probe."}
DESCRIPTORS = {
    "loaders": ("loaders", Loader(name="p", claims="m:c", open="m:o", **SAID)),
    "captures": ("engines", Engine(name="p", engine="m:E", serves=("p",), **SAID)),
    "prompt_sources": ("sources", PromptSource(name="p", prompts="m:p", **SAID)),
    "edits": ("edits", Edit(name="p.e", edit="m:e", touches=("W_Q",), **SAID)),
    "analyses": ("analyses", Analysis(name="p.a", shape="weights", analysis="m:A", **SAID)),
    "report_sections": ("sections", ReportSection(name="p", section="m:s", analyses=("p.a",), **SAID)),
}


def probe(heard: list[Any], **replaced: Any) -> SimpleNamespace:
    """A plugin that implements every hook, and writes down what it hears."""

    def descriptors(hook: str) -> Any:
        return hookimpl(lambda: [DESCRIPTORS[hook][1]], specname=hook)

    @hookimpl
    def run_started(run: Any) -> None:
        heard.append(("run_started", {"run": run}))

    @hookimpl
    def step_started(run: Any, step: Any) -> None:
        heard.append(("step_started", {"run": run, "step": step}))

    @hookimpl
    def step_finished(run: Any, step: Any) -> None:
        heard.append(("step_finished", {"run": run, "step": step}))

    @hookimpl
    def run_failed(run: Any, step: Any, error: Any) -> None:
        heard.append(("run_failed", {"run": run, "step": step, "error": error}))

    @hookimpl
    def run_finished(run: Any, summary: Any) -> None:
        heard.append(("run_finished", {"run": run, "summary": summary}))

    made = {f.__name__: f for f in (run_started, step_started, step_finished, run_failed, run_finished)}
    return SimpleNamespace(**{hook: descriptors(hook) for hook in DESCRIPTORS} | made | replaced)


def host_of(**plugins: Any) -> Host:
    host = load(only=(), extra=plugins)
    assert not host.broken
    return host


def test_every_hook_is_called_through_the_host() -> None:
    heard: list[Any] = []
    host = host_of(probe=probe(heard))
    for hook, (kind, descriptor) in DESCRIPTORS.items():
        assert [owned.descriptor for owned in getattr(host, kind).values()] == [descriptor]
        assert getattr(host.hook, hook)() == [[descriptor]]
    for hook, news in NEWS.items():
        assert host.announce(hook, **news) == []
        getattr(host.hook, hook)(**news)
    assert heard == [(hook, news) for hook, news in NEWS.items() for _ in range(2)]
    [record] = host.plugins
    assert set(record.hooks) == {n for n, f in vars(hookspecs).items() if hasattr(f, "gausslens_spec")}


@pytest.mark.parametrize("hook", NEWS)
def test_the_news_are_those_of_the_signature(hook: str) -> None:
    assert list(NEWS[hook]) == list(inspect.signature(getattr(hookspecs, hook)).parameters)


def test_listeners_hear_in_the_order_of_their_names() -> None:
    heard: list[str] = []

    def listener(name: str, **options: Any) -> SimpleNamespace:
        return SimpleNamespace(run_started=hookimpl(lambda run: heard.append(name), specname="run_started", **options))

    host = host_of(c=listener("c", tryfirst=True), a=listener("a", trylast=True), b=listener("b"))
    assert host.announce("run_started", run=RUN) == []
    assert heard == ["a", "b", "c"]


def test_a_listener_may_ask_for_less() -> None:
    heard: list[Any] = []

    @hookimpl
    def step_finished(step: Any, colour: str = "blue") -> None:
        heard.append((step, colour))

    @hookimpl
    def run_failed() -> None:
        heard.append("failed")

    host = host_of(mine=SimpleNamespace(step_finished=step_finished, run_failed=run_failed))
    assert host.announce("step_finished", run=RUN, step=STEP) == []
    assert host.announce("run_failed", **NEWS["run_failed"]) == []
    assert heard == [(STEP, "blue"), "failed"]


@pytest.mark.parametrize("error", [ValueError("no\nway"), SystemExit(3), AssertionError()])
def test_one_that_raises_takes_nobody_along(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Any] = []

    @hookimpl
    def run_started(run: Any) -> None:
        raise error

    host = host_of(a=probe(heard, run_started=run_started), b=SimpleNamespace(run_started=probe(heard).run_started))
    [failure] = host.announce("run_started", run=RUN)
    assert failure.startswith(f"plugin a, run_started: {type(error).__name__}")
    assert "test_announcements.py:" in failure
    assert "\n" not in failure
    assert heard == [("run_started", {"run": RUN})]
    assert host.announce("run_started", run=RUN) == [failure]
    assert [record.getMessage() for record in caplog.records] == [f"warning: {failure}"]  # once


def test_ctrl_c_in_a_listener_is_the_users() -> None:
    @hookimpl
    def run_started(run: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        host_of(a=SimpleNamespace(run_started=run_started)).announce("run_started", run=RUN)
