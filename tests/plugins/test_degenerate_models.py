"""Models of which much is undefined: every analysis gives numbers, NaN, or a refusal by name, and none crashes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from random_models import ALL, build
from scripts import script_at
from tiny_decoders import VOCABULARY

import gausslens

every_type = script_at("benchmarks/every_type.py")
TIER = os.environ.get("GAUSSLENS_FULL")
# What the sample of CI runs: one of each plugin.
ONE_EACH = ("model.loss", "gaussian.moments", "bilinear.spectrum", "attention.band", "reinit.check")


def small(**changes: Any) -> Any:
    """A LLaMA of another shape, every parameter random."""
    config_class, arguments, model_class = ALL["llama"]
    torch.manual_seed(0)
    return getattr(transformers, model_class)(getattr(transformers, config_class)(**(arguments | changes))).eval()


def filled(kind: str, value: float, only: str = "") -> Any:
    model = build(kind)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if only in name:
                parameter.fill_(value)
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "zero weights": lambda: filled("gpt2", 0.0),
    "constant activations": lambda: filled("llama", 0.5, "embed"),
    "zero attention": lambda: filled("llama", 0.0, "self_attn"),
    "one layer": lambda: small(num_hidden_layers=1),
    "one head": lambda: small(num_attention_heads=1, num_key_value_heads=1),
}
ROWS = {"one token": [[5]] * 12, "the same token": [[5] * 8] * 12}


# What is infinite by its formula: entropies, divergences, informations of Gaussians without spread, the decay of such
# informations, errors as parts of what is zero, and changes of what is zero.
INFINITE = ("entropy", "kl", "mutual_information", "decay", "_off", "_error")
OF_ZERO = "reinit.check"


def infinite(store: Path) -> list[str]:
    """Variables that hold an infinity: what is undefined is NaN, or told."""
    found = []
    results = gausslens.open(store)
    for variant, label in (name for name in results if name[1] != OF_ZERO):
        for dataset in results.draws(variant, label).values():
            for name, values in dataset.data_vars.items():
                if any(word in str(name) for word in INFINITE):
                    continue
                if values.dtype.kind == "f" and np.isinf(values.values).any():
                    found.append(f"{variant} {label} {name}")
    return sorted(set(found))


@pytest.mark.parametrize("kind", [*MODELS, *ROWS])
def test_every_analysis_on_a_degenerate_model(
    kind: str, tmp_path: Path, cache_of_tests: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not TIER and kind not in ("zero weights", "one token"):
        pytest.skip("the long tier runs where GAUSSLENS_FULL=1")
    MODELS.get(kind, lambda: build("llama"))().save_pretrained(tmp_path / "model")
    every_type.tokenizer(VOCABULARY).save_pretrained(tmp_path / "model")
    monkeypatch.setattr(every_type, "ROWS", ROWS.get(kind, every_type.ROWS))
    labels = () if TIER else ONE_EACH
    count, refused, crashed = every_type.tried(tmp_path / "model", tmp_path / "store", labels)
    assert crashed == []
    assert count >= len(labels) or refused, refused
    found = infinite(tmp_path / "store")
    assert found == [], "\n".join(found)


def test_what_float16_cannot_hold_is_told_by_its_layer(tmp_path: Path, cache_of_tests: Any) -> None:
    model = build("llama")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layers.1.mlp" in name:
                parameter.mul_(3000)
    model.save_pretrained(tmp_path / "model")
    every_type.tokenizer(VOCABULARY).save_pretrained(tmp_path / "model")
    study = every_type.study(tmp_path / "model", ["gaussian.moments"]) | {"variants": {"trained": []}, "against": []}
    study["model"]["dtype"] = "float16"
    with pytest.raises(gausslens.GausslensError, match=r"of layer [12]: .* not finite: float16 ends"):
        every_type.perform(study, store=tmp_path / "store", shown=False)
