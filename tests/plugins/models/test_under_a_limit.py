"""Results under a limit of a third of a model's size: those in memory, every weight read once in a pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planted_adapters import plant
from random_models import build
from scripts import script_at
from tiny_decoders import VOCABULARY

from gausslens import Intervention, ModelSpec, Twin
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.config_and_tokenizer import DIRECTORY
from gausslens_models.loading.pretrained import open_pretrained
from gausslens_models.parameters import TransformersParameters

for needed in ("calibration_ladder", "calibration"):
    script_at(f"benchmarks/{needed}.py")
every_type = script_at("benchmarks/every_type.py")
under_a_limit = script_at("benchmarks/under_a_limit.py")
Case = under_a_limit.Case

FEW = ("queries", "attention", "loss", "effect")
IDS = [[3 + (7 * i * i + 5 * i * n + row) % 50 for i in range(n)] for row, n in enumerate([9, 8, 11, 12] * 4)]
# One of each way to be unlike: norms, windows, rotation, experts, an encoder, positions in scores.
KINDS = ("gpt2", "olmo2", "gemma3", "mixtral", "gpt_neox", "bert-masked", "bloom")


@pytest.mark.parametrize("null", ["before", "spectrum"])
def test_results_are_the_same_and_every_weight_is_read_once_in_a_pass(null: str, tmp_path: Path, capsys: Any) -> None:
    assert under_a_limit.tried(Case("builtin:tiny", null, labels=FEW), tmp_path), capsys.readouterr().out


@pytest.mark.parametrize(("edits", "reads"), [(["lora"], "1.00"), (["graft"], "2.00"), (["lora", "drop"], "1.00")])
def test_edits_that_read_other_tensors(edits: list[str], reads: str, tmp_path: Path, capsys: Any) -> None:
    """An adapter, and values that are taken from another layer, whose matrix is then read once more."""
    plant(tmp_path / "adapter", DIRECTORY / "tiny", ("q_proj", "o_proj", "up_proj"))
    known: dict[str, dict[str, Any]] = {
        "lora": {"edit": "model.lora", "path": str(tmp_path / "adapter")},
        "graft": {"edit": "spectrum.graft", "source": 1, "layers": [0]},
        "drop": {"edit": "spectrum.drop", "energy": 0.9},
    }
    case = Case("builtin:tiny", "edited", [known[name] for name in edits], labels=("attention", "loss"))
    met = under_a_limit.tried(case, tmp_path / "store")
    told = capsys.readouterr().out
    assert met == (reads == "1.00"), told
    assert f"reads of a tensor at most {reads}, of embedding and head 1.00" in told or reads == "2.00"
    assert "differs" not in told
    assert "failed" not in told


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("null", ["trained", "before", "scale"])
def test_other_types(kind: str, null: str, cache_of_tests: Any, tmp_path: Path, capsys: Any) -> None:
    build(kind).save_pretrained(tmp_path / "model")
    every_type.tokenizer(VOCABULARY).save_pretrained(tmp_path / "model")
    labels = FEW if kind != "bert-masked" else FEW[:2]
    case = Case(str(tmp_path / "model"), null, labels=labels, prompts={"source": "tokens", "ids": IDS})
    assert under_a_limit.tried(case, tmp_path / "store"), capsys.readouterr().out


@pytest.mark.soak
@pytest.mark.parametrize("null", ["trained", *under_a_limit.NULLS])
def test_all_analyses(null: str, tmp_path: Path, capsys: Any) -> None:
    assert under_a_limit.tried(Case("builtin:clue-tiny", null), tmp_path), capsys.readouterr().out


def test_ablation_of_heads_and_neurons(directory: Callable[[str], Path]) -> None:
    """Heads and neurons that are zeroed, or held at their mean: a layer at a time, each weight read once."""

    def zeroed(tensor: torch.Tensor, _where: Any) -> torch.Tensor:
        return torch.zeros_like(tensor)

    def meaned(tensor: torch.Tensor, _where: Any) -> torch.Tensor:
        return tensor.mean((0, 1), keepdim=True).expand_as(tensor)

    ids = np.array([[3, 4, 5, 6], [9, 8, 7, 6]])
    for change in (zeroed, meaned):
        given = [Intervention("z", n, change, heads=[1]) for n in (0, 1)]
        given += [Intervention("mlp_post", 1, change), Intervention("attn_out", 0, change)]
        answers = []
        for most in (None, 1):
            model = open_pretrained(ModelSpec(str(directory("llama")), TransformersParameters(), max_memory=most))
            runner = TransformersEngine().runner(Twin(model))
            runner.forward(ids, interventions=given)  # each is proved to act before it is first used
            before = model.checkpoint.reads.copy()
            answers.append(runner.forward(ids, interventions=given)["logits"])
            if most is not None:
                assert max((model.checkpoint.reads - before).values()) == 1
            plain = runner.forward(ids)["logits"]
        assert torch.equal(*answers)
        assert not torch.equal(answers[1], plain)
