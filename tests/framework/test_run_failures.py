"""What goes wrong in a run, and what it leaves: failures, interruptions, and the proof that guards it."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from test_run import do, host, parts, study

import gausslens
from gausslens.contract.errors import InputError, RunFailed
from gausslens.testing import TinyEngine


class TestFailures:
    @pytest.mark.parametrize("at", ["update", "merge", "result"])
    def test_a_failed_step_leaves_the_others(self, tmp_path, at):
        lines = {"source": "lines", "lines": [f"line {i} {'x' * 6 * i}" for i in range(30)]}
        uses = [{"use": "probe.power"}, {"use": "probe.fails", "with": {"at": at, "layer": 1}}, {"use": "probe.norm"}]
        uses.append({"use": "probe.doubled", "with": {"of": "probe.fails"}})
        ran = do(study(analyses=uses, prompts=lines, variants={"trained": []}, against=[]), tmp_path / "store")
        assert {s.ref.label for s in ran.outcome.computed} == {"probe.power", "probe.norm"}
        said = ran.failures_in_words()
        assert f"told to fail at {at}" in said
        assert "plugin probe" in said
        assert "not computed, because probe.fails on trained failed" in said
        assert "_InputFailed" not in said
        assert ("layer 1" in said) == (at == "update")
        assert "2 of 4 steps failed" in said

    @pytest.mark.parametrize("at", ["init", "request"])
    def test_an_analysis_that_cannot_be_made(self, tmp_path, at):
        uses = [{"use": "probe.power"}, {"use": "probe.fails", "with": {"at": at}}]
        ran = do(study(analyses=uses, variants={"trained": []}, against=[]), tmp_path / "store")
        assert [s.ref.label for s in ran.outcome.computed] == ["probe.power"]
        assert f"told to fail at {at}" in ran.failures_in_words()

    def test_a_writer_that_cannot_be_opened_fails_its_step_alone(self, tmp_path, monkeypatch):
        from gausslens.contract.errors import StoreError
        from gausslens.store import Store

        def refused(*_: Any, **__: Any) -> Any:
            raise StoreError("no room for large arrays")

        monkeypatch.setattr(Store, "begin", refused)
        uses = [{"use": "probe.power"}, {"use": "probe.copy"}]
        ran = do(study(analyses=uses, variants={"trained": []}, against=[]), tmp_path / "store")
        assert [s.ref.label for s in ran.outcome.computed] == ["probe.power"]
        assert "probe.copy on trained" in ran.failures_in_words()
        assert "no room for large arrays" in ran.failures_in_words()

    def test_python_gets_an_exception_with_what_failed(self, tmp_path):
        whole = study(analyses=[{"use": "probe.fails"}], variants={"trained": []}, against=[])
        with pytest.raises(RunFailed, match="told to fail") as caught:
            gausslens.run(whole, store=tmp_path / "store", host=host())
        assert len(caught.value.failures) == 1
        assert isinstance(caught.value.failures[0].error, RuntimeError)

    def test_an_edit_that_fails_takes_its_twin_only(self, tmp_path, monkeypatch):
        import probe_analyses

        def broken(weights: Any, parameters: Any, generators: Any) -> Any:
            raise ValueError("no such luck")

        from gausslens.contract import reference

        monkeypatch.setattr(probe_analyses, "redrawn", broken)
        reference.resolve.cache_clear()
        ran = do(study(), tmp_path / "store")
        reference.resolve.cache_clear()
        failed = {s.step.ref.variant for s in ran.outcome.failed if not s.step.inputs}
        assert failed == {"chance"}
        assert {s.ref.variant for s in ran.outcome.computed} >= {"trained", "dose"}
        assert "no such luck" in ran.failures_in_words()

    def test_a_random_edit_that_changes_nothing_is_an_error(self, tmp_path, monkeypatch):
        import probe_analyses

        from gausslens.contract import reference

        monkeypatch.setattr(probe_analyses, "redrawn", lambda w, p, g: {"W_Q": w.W_Q.clone()})
        reference.resolve.cache_clear()
        ran = do(study(analyses=[{"use": "probe.norm"}]), tmp_path / "store")
        reference.resolve.cache_clear()
        assert "random and left the tensor bit-equal" in ran.failures_in_words()

    def test_interrupted_runs_go_on(self, tmp_path, monkeypatch):
        real = TinyEngine.run

        def stops(self: Any, twin: Any, tokens: Any, shard: Any, request: Any, sink: Any) -> None:
            if twin.draw == 1:
                signal.raise_signal(signal.SIGINT)
            real(self, twin, tokens, shard, request, sink)

        monkeypatch.setattr(TinyEngine, "run", stops)
        with pytest.raises(KeyboardInterrupt):
            do(study(), tmp_path / "store")
        done = parts(tmp_path / "store")
        monkeypatch.setattr(TinyEngine, "run", real)
        again = do(study(), tmp_path / "store")
        assert done
        assert again.outcome.failed == []
        assert done.items() <= parts(tmp_path / "store").items()
        assert len(again.outcome.found) >= len(done)


class TestProof:
    """An engine's own proof guards the first capture of a run."""

    def proving(self, monkeypatch: pytest.MonkeyPatch, difference: float) -> list[str]:
        asked: list[str] = []

        def prove(_self: Any, model: Any) -> list[gausslens.Finding]:
            asked.append(model.info.name)
            return [gausslens.Finding("logits against eager", difference, 1e-5)]

        monkeypatch.setattr(TinyEngine, "prove", prove, raising=False)
        return asked

    def test_it_is_asked_once_and_kept(self, tmp_path, monkeypatch):
        asked = self.proving(monkeypatch, 1e-7)
        ran = do(study(), tmp_path / "store")
        assert asked == ["tiny"]
        facts = gausslens.open(ran.path).facts("trained", "probe.power")
        assert "1e-07" in json.dumps(facts[0], default=str)
        do(study(), tmp_path / "store")
        assert asked == ["tiny"]

    def test_a_model_that_is_captured_wrongly_stops_the_run(self, tmp_path, monkeypatch):
        self.proving(monkeypatch, float("nan"))
        with pytest.raises(gausslens.ModelError, match="logits against eager: differs by nan"):
            do(study(), tmp_path / "store")

    def findings(self, monkeypatch: pytest.MonkeyPatch, *found: gausslens.Finding) -> list[Any]:
        """An engine whose proof takes the sites that are read."""
        asked: list[Any] = []

        def prove(_self: Any, _model: Any, sites: Any = None) -> list[gausslens.Finding]:
            asked.append(sites)
            return list(found)

        monkeypatch.setattr(TinyEngine, "prove", prove, raising=False)
        return asked

    def test_a_finding_on_a_site_that_no_step_reads_refuses_nothing(self, tmp_path, monkeypatch):
        asked = self.findings(monkeypatch, gausslens.Finding("q of layer 0", 1.0, 1e-5, ("q", "k")))
        plain = {
            "analyses": [{"use": "probe.power", "with": {"site": "resid_post"}}],
            "variants": {"trained": {}},
            "against": [],
        }
        assert do(study(**plain), tmp_path / "store").outcome.failed == []
        assert asked == [("resid_post",)]

    @pytest.mark.parametrize("analysis", [{"use": "probe.norm"}, {"use": "probe.power", "with": {"site": "q"}}])
    def test_it_refuses_what_depends_on_it(self, analysis, tmp_path, monkeypatch):
        """A step that reads the site; analyses of weights depend on all that is proved of them."""
        self.findings(monkeypatch, gausslens.Finding("q of layer 0", 1.0, 1e-5, ("q",)))
        read = {"use": "probe.power", "with": {"site": "resid_post"}, "as": "other"}
        with pytest.raises(gausslens.ModelError, match=r"q of layer 0: .* \(sites: q\)"):
            do(study(analyses=[read, analysis], variants={"trained": {}}, against=[]), tmp_path / "store")

    def test_edits_depend_on_all(self, tmp_path, monkeypatch):
        asked = self.findings(monkeypatch, gausslens.Finding("q of layer 0", 1.0, 1e-5, ("q",)))
        with pytest.raises(gausslens.ModelError, match="q of layer 0"):
            do(study(), tmp_path / "store")
        assert asked == [None]

    def test_what_was_left_out_holds_and_is_not_kept(self, tmp_path, monkeypatch):
        left = gausslens.Finding("mlp_post", 0.0, 0.0, ("mlp_post",), "its activation is not known")
        self.findings(monkeypatch, left, gausslens.Finding("logits", 1e-7, 1e-5))
        ran = do(study(), tmp_path / "store")
        parity = gausslens.open(ran.path).facts("trained", "probe.power")[0]["provenance"]["parity"]
        assert parity == {"logits": 1e-7}

    def test_the_error_is_one_screen_with_the_worst_first_and_what_can_be_done(self, tmp_path, monkeypatch):
        found = [gausslens.Finding(f"v of layer {n}", n * 1e-3, 1e-4, ("v",)) for n in range(40)]
        self.findings(monkeypatch, *found, gausslens.Finding("logits", float("nan"), 1.0))
        ways = ["model: {dtype: float64}: try that"]
        monkeypatch.setattr(TinyEngine, "remedies", lambda _self, _model, wrong: ways[: len(wrong)], raising=False)
        with pytest.raises(gausslens.ModelError) as raised:
            do(study(), tmp_path / "store")
        lines = str(raised.value).splitlines()
        assert len(lines) < 20
        assert "40 of 41 comparisons differ" in lines[0]
        assert lines[1].startswith("  logits: differs by nan")
        assert lines[2].startswith("  v of layer 39: differs by 0.039, allowed is 0.0001 (sites: v)")
        assert lines[-2:] == ["what can be done:", f"  {ways[0]}"]

    def test_weights_alone_need_no_proof(self, tmp_path, monkeypatch):
        asked = self.proving(monkeypatch, 1.0)
        assert do(study(analyses=[{"use": "probe.norm"}]), tmp_path / "store").outcome.failed == []
        assert asked == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"analyses": [{"use": "probe.power", "layers": [7]}]}, "has no layer 7: its layers are 0 to 1"),
        ({"analyses": [{"use": "probe.power", "heads": [9]}]}, "has no head 9: its heads are 0 to 3"),
        ({"analyses": [{"use": "probe.power", "with": {"site": "patern"}}]}, "did you mean pattern"),
        ({"analyses": [{"use": "probe.doubled", "with": {"of": "nothing"}}]}, "finds none of the results it reads"),
        ({"prompts": {"source": "lines", "lines": []}}, "gave no prompts"),
        ({"prompts": {"source": "lines", "lines": ["x" * 300]}}, "has 301 tokens, the model takes 256"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(tmp_path, change, said):
    with pytest.raises(InputError, match=said):
        do(study(**change), tmp_path / "store")
    assert not (tmp_path / "store").exists()
