"""What the proof sees, and for whom: long prompts, sites that are read, what is left out, and what can be done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from gausslens import Finding, ModelError, ModelSpec, run
from gausslens_models.capture.bridge_engine import BridgeEngine
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.bridge import open_bridge
from gausslens_models.loading.eager_answer import BEYOND, PROMPT, long_prompt, proof_batches, unseen_windows
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.maths.rounding import allowed, softmax_moved
from gausslens_models.parameters import TransformersParameters

Directory = Callable[[str], Path]


def opened(path: Path, **how: str) -> PretrainedModel:
    return open_pretrained(ModelSpec(str(path), TransformersParameters(), **how))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mistral whose window is wider than the short prompts, with rotary tables for a longer text."""
    path = tmp_path_factory.mktemp("wide")
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=61,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=50,
        max_position_embeddings=400,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = transformers.MistralForCausalLM(config)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape)
    model.save_pretrained(path)
    return path


class TestLongPrompts:
    def test_a_window_is_gone_beyond(self, wide: Path) -> None:
        model = opened(wide)
        assert [ids.shape[1] for ids, _ in proof_batches(model)] == [PROMPT, 50 + BEYOND]
        assert unseen_windows(model) == []
        assert [f for f in TransformersEngine().prove(model) if not f.holds] == []

    @pytest.mark.parametrize("window", [None, 51, 49])
    def test_a_wrong_window_that_short_prompts_do_not_see_is_found(self, window: int | None, wide: Path) -> None:
        model = opened(wide)
        answer = proof_batches(model)
        model.__dict__["info"] = replace(model.info, facts={**model.info.facts, "sliding_window": (window,) * 2})
        with pytest.MonkeyPatch.context() as patch:  # the prompts are those of the true window
            for module in ("gausslens_models.loading.eager_answer", "gausslens_models.capture.parity_proof"):
                patch.setattr(f"{module}.proof_batches", lambda _: answer)
            wrong = {site for f in TransformersEngine().prove(model) if not f.holds for site in f.sites}
        assert "scores" in wrong

    def test_rotary_tables_of_a_long_text_are_seen(self, directory: Directory) -> None:
        """llama-tied has those of Llama 3 and 64 positions."""
        found = long_prompt(opened(directory("llama-tied")))
        assert found is not None
        assert found[0].shape == (1, 64)
        assert long_prompt(opened(directory("llama"))) is None

    def test_what_would_cost_too_much_is_told_instead(self, wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gausslens_models.loading.eager_answer.PATTERNS", 8 * 40**2)
        model = opened(wide)
        assert long_prompt(model) is None
        left = [f for f in TransformersEngine().prove(model) if f.left_out]
        assert [f.what for f in left] == ["a window of 50 tokens"]
        assert all(f.holds for f in left)


class TestSites:
    @pytest.mark.parametrize("engine", [TransformersEngine(), BridgeEngine()])
    @pytest.mark.parametrize(
        ("sites", "seen"),
        [
            (("resid_post",), {"resid_post"}),
            (("pattern",), {"pattern"}),
            (("q", "mlp_out"), {"q", "mlp_out"}),
            (("logits",), {"logits"}),
            ((), set()),
        ],
    )
    def test_only_what_is_read_is_proved(
        self, sites: tuple[str, ...], seen: set[str], engine: TransformersEngine, directory: Directory
    ) -> None:
        spec = ModelSpec(str(directory("qwen2")), TransformersParameters())
        model = open_bridge(spec) if isinstance(engine, BridgeEngine) else open_pretrained(spec)
        findings = engine.prove(model, sites)
        assert {site for f in findings for site in f.sites} == seen
        assert all(f.holds for f in findings)
        assert any(f.what == "logits" and not f.sites for f in findings)  # the whole pass is the model's own

    def test_a_run_goes_on_where_nothing_reads_what_is_wrong(self, directory: Directory, tmp_path: Path) -> None:
        """W_out is read wrongly: patterns do not care."""
        study = {
            "name": "reads",
            "model": {"path": str(directory("llama"))},
            "prompts": {"source": "tokens", "ids": [[3, 4, 5, 6], [7, 8, 9]]},
            "errors": False,
            "report": False,
        }
        plain = PretrainedModel.tensor

        def misread(self: PretrainedModel, layer: int | None, name: str) -> torch.Tensor:
            found = plain(self, layer, name)
            return found.flip(0) if name == "W_out" else found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PretrainedModel, "tensor", misread)
            attention = {"use": "model.attention"}
            assert run({**study, "analyses": [attention]}, store=tmp_path / "one") is not None
            reads = {"use": "model.capture", "with": {"sites": ["mlp_out"]}}
            with pytest.raises(ModelError, match=r"mlp_out of layer \d from weights: differs") as raised:
                run({**study, "analyses": [attention, reads]}, store=tmp_path / "two")
        lines = str(raised.value).splitlines()
        assert len(lines) < 20
        assert "leave out what reads mlp_out" in lines[-1]


class TestRemedies:
    """Only what may work for the model at hand."""

    def ways(self, model: PretrainedModel, *wrong: Finding) -> str:
        return "\n".join(TransformersEngine().remedies(model, wrong))

    def test_a_capture_that_differs(self, directory: Directory) -> None:
        """Weights are as they are, and another engine may do."""
        said = self.ways(opened(directory("llama")), Finding("pattern of layer 0", 2e-4, 1e-5, ("pattern",)))
        for way in ("dtype: float64", "loader: weights", "loader: transformer-lens", "leave out what reads pattern"):
            assert way in said

    def test_a_table_that_is_wrong(self, directory: Directory) -> None:
        """It is so in every loader and type."""
        said = self.ways(opened(directory("llama")), Finding("q of layer 0 from weights", 1.0, 1e-5, ("q",)))
        assert "loader" not in said
        assert "dtype" not in said
        assert "leave out what reads q" in said

    def test_a_model_without_a_head_has_no_bridge(self, directory: Directory) -> None:
        said = self.ways(opened(directory("bert")), Finding("pattern of layer 0", 1.0, 1e-5, ("pattern",)))
        assert "transformer-lens" not in said
        assert "loader: weights" in said

    @pytest.mark.parametrize(("dtype", "wider"), [("bfloat16", "float32"), ("float32", "float64"), ("float64", "")])
    def test_a_wider_type(self, dtype: str, wider: str, directory: Directory) -> None:
        said = self.ways(opened(directory("llama"), dtype=dtype), Finding("logits", 2e-4, 1e-4, ("logits",)))
        assert (f"dtype: {wider}" in said) if wider else ("dtype" not in said)

    def test_from_a_bridge_the_way_is_plain_transformers(self, directory: Directory) -> None:
        model = open_bridge(ModelSpec(str(directory("llama")), TransformersParameters()))
        said = "\n".join(BridgeEngine().remedies(model, [Finding("logits", 1.0, 1e-4, ("logits",))]))
        assert "{loader: transformers}" in said

    def test_a_live_module_is_not_a_path(self, directory: Directory) -> None:
        module = opened(directory("llama")).module
        live = open_pretrained(ModelSpec("live:LlamaForCausalLM", TransformersParameters(), model=module))
        said = self.ways(live, Finding("logits", 2e-4, 1e-4, ("logits",)))
        assert "loader" not in said
        assert "attn_implementation" not in said
        assert "dtype" not in said

    def test_a_live_module_may_be_built_with_eager_attention(self) -> None:
        """Falcon keeps the implementation that it was built with, whatever its config says later."""
        from transformers import FalconConfig, FalconForCausalLM

        config = FalconConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, bos_token_id=1)
        wrong = Finding("pattern of layer 0", 1.0, 1e-5, ("pattern",))
        for how in ("sdpa", "eager"):
            module = FalconForCausalLM._from_config(config, attn_implementation=how)
            live = open_pretrained(ModelSpec("live:FalconForCausalLM", TransformersParameters(), model=module))
            assert ('attn_implementation="eager"' in self.ways(live, wrong)) == (how == "sdpa")


class TestRounding:
    """The bounds against what rounding does."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("width", [8, 512, 8192])
    @pytest.mark.parametrize("level", [0.0, 2.0])
    def test_sums_are_within_and_not_far_within(self, dtype: torch.dtype, width: int, level: float) -> None:
        """A matrix product in a type and in float64: off by at most half of what is allowed, not by 1/300."""
        draw = torch.Generator().manual_seed(width)
        x, w = (torch.randn(64, width, generator=draw) + level, torch.randn(width, 64, generator=draw) + level)
        x, w = x.to(dtype), w.to(dtype)
        exact = x.double() @ w.double()
        size = (x.double().square() @ w.double().square()).sqrt()
        share = ((x @ w).double() - exact).abs() / allowed(exact, size, width, dtype)
        assert 1 / 300 < float(share.max()) < 0.5

    @pytest.mark.parametrize("spread", [1.0, 30.0, 1500.0])
    @pytest.mark.parametrize("moved", [1e-6, 1e-2, 3.0])
    def test_a_softmax_moves_by_no_more(self, spread: float, moved: float) -> None:
        draw = torch.Generator().manual_seed(1)
        scores = spread * torch.randn(200, 30, generator=draw, dtype=torch.float64)
        pattern = scores.softmax(-1)
        bound = softmax_moved(pattern, torch.full((200, 1), moved, dtype=torch.float64))
        for sign in (torch.randn(200, 30, generator=draw).sign() for _ in range(20)):
            apart = ((scores + moved * sign).softmax(-1) - pattern).abs()
            assert bool((apart <= bound * (1 + 1e-6) + 1e-15).all())
        # It is reached where one score goes up and all others go down.
        worst = scores.clone()
        place = pattern[:, :1] * 0 + torch.nn.functional.one_hot(torch.zeros(200, dtype=torch.long), 30)
        reached = ((worst + moved * (2 * place - 1)).softmax(-1) - pattern).abs()[:, 0]
        sure = bound[:, 0] > 1e-12
        assert bool((reached[sure] >= 0.3 * bound[:, 0][sure]).any()) or not sure.any()
