"""Real weights: what alpha does to attention in every layer, and what truncation does to predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gausslens

pytestmark = pytest.mark.real_model
PROMPTS = {
    "source": "text",
    "text": [
        "The water cycle begins when the sun heats the surface of the sea. Water rises as vapour, cools high in the "
        "air and falls again as rain or snow.",
        "Once upon a time there was a small town at the edge of a dark forest. Every evening the baker closed his shop "
        "and walked to the old bridge.",
    ],
}


def effects(model: Path, store: Path, variants: dict[str, Any], **given: Any) -> Any:
    study = {
        "gausslens": 1,
        "name": "real",
        "model": {"path": str(model)},
        "prompts": PROMPTS,
        "variants": variants,
        "analyses": [{"use": "spectrum.effect", "as": "effect", "with": {"tokens": 0, **given}}],
        "report": False,
    }
    return gausslens.run(study, store=store)


def test_alpha_sharpens_or_flattens_attention_in_every_layer(
    real_models: Path, tmp_path: Path, record_testsuite_property: Any
) -> None:
    scale = {"edit": "spectrum.scale", "matrices": ["W_Q", "W_K"], "sweep": {"alpha": [0.5, 2.0]}}
    found = effects(real_models / "smollm2", tmp_path, {"scaled": [scale]})["scaled", "effect"]
    change = found["layer_entropy_change"]
    assert change.shape == (2, 30)
    for alpha in (0.5, 2.0):
        one = change.sel(alpha=alpha).values
        record_testsuite_property(
            f"change of attention entropy by layer, smollm2, alpha {alpha}",
            f"{one.min():+.3f} to {one.max():+.3f} nats",
        )
    assert (change.sel(alpha=2.0) < 0).all()
    assert (change.sel(alpha=0.5) > 0).all()
    # Either is far from what the model was trained with.
    assert (found["loss_change"] > 0.5).all()
    np.testing.assert_array_equal(found["base_entropy"].sel(alpha=0.5), found["base_entropy"].sel(alpha=2.0))


def test_the_more_directions_are_kept_the_better_and_all_of_them_are_the_model(
    real_models: Path, tmp_path: Path, record_testsuite_property: Any
) -> None:
    ks = [32, 60, 64]
    variants = {
        end: [{"edit": "spectrum.keep", "matrices": ["OV"], "end": end, "sweep": {"k": ks}}]
        for end in ("top", "bottom")
    }
    results = effects(real_models / "smollm2", tmp_path, variants, attention=False)
    for end in variants:
        change = results[end, "effect"]["loss_change"]
        record_testsuite_property(
            f"change of loss, smollm2, {end} k of W_V W_O kept",
            ", ".join(f"{k}: {float(c):+.2f}" for k, c in zip(ks, change.values, strict=True)),
        )
        assert change.values[0] > change.values[1] > change.values[2]
        assert float(change.values[2]) == 0
    # Of the same number the largest say more.
    assert float(results["top", "effect"]["loss_change"][1]) < float(results["bottom", "effect"]["loss_change"][1])
