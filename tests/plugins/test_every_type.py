"""Every type of model through whole runs: nothing crashes; what an analysis cannot do there it refuses by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_models import ALL, OTHERS, build
from scripts import script_at
from tiny_decoders import VOCABULARY

from gausslens import ModelSpec, Twin
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.pretrained import open_pretrained
from gausslens_models.parameters import TransformersParameters

every_type = script_at("benchmarks/every_type.py")

TIER = os.environ.get("GAUSSLENS_FULL")
KINDS: dict[str, Any] = ALL | OTHERS
# Of each way to be unlike: norms, rotation, experts, sinks, latent attention, hybrids, encoders, what is not watched.
SAMPLE = (
    *("olmo2", "deepseek_v3", "gpt_oss", "qwen3_next", "mpnet", "gemma3", "gpt_neox", "modernbert", "jamba", "bloom"),
)
# One of each plugin.
ONE_EACH = (
    "model.attention",
    "gaussian.moments",
    "bilinear.spectrum",
    "attention.band",
    "spectrum.effect",
    "reinit.check",
)


@pytest.fixture
def saved(tmp_path: Path, cache_of_tests: Any) -> Callable[[str], Path]:
    def of(kind: str) -> Path:
        build(kind).save_pretrained(tmp_path / "model")
        every_type.tokenizer(VOCABULARY).save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return of


@pytest.mark.parametrize("kind", SAMPLE if TIER else SAMPLE[:2])
def test_all_analyses(kind: str, saved: Callable[[str], Path], tmp_path: Path) -> None:
    count, _, crashed = every_type.tried(saved(kind), tmp_path / "store")
    assert crashed == []
    assert count > 60


@pytest.mark.full
@pytest.mark.parametrize("kind", sorted(KINDS)[:: 1 if TIER == "soak" else 6])
def test_one_of_each_plugin(kind: str, saved: Callable[[str], Path], tmp_path: Path) -> None:
    count, refused, crashed = every_type.tried(saved(kind), tmp_path / "store", ONE_EACH)
    assert crashed == []
    assert count > 8, refused


@pytest.mark.parametrize("kind", ["gpt2", "olmo2", "recurrent_gemma", "jamba"])
def test_text_is_generated_as_if_every_step_saw_all_of_it(kind: str, saved: Callable[[str], Path]) -> None:
    """With the keys and values of what was before where the model gives them, and where it keeps a state of its own."""
    model = open_pretrained(ModelSpec(str(saved(kind)), TransformersParameters()))
    runner = TransformersEngine().runner(Twin(model))
    start = [5, 9, 11, 7]
    found = runner.generate(np.array([start]), 5, stop=[])[0].tolist()
    ids = list(start)
    for _ in range(5):
        ids.append(int(runner.forward(np.array([ids]))["logits"][0, -1].argmax()))
    assert found == ids[len(start) :]
