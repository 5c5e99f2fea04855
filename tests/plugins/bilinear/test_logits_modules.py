"""bilinear.logits through real modules: rotation, biases, norms of q and k, soft caps, windows, grouped heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import gausslens

VOCABULARY, LAGS = 61, [1, 3, 6]
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED = SMALL | {"num_key_value_heads": 2, "pad_token_id": 0}
MODELS = {
    "LlamaForCausalLM": ("LlamaConfig", GROUPED | {"attention_bias": True}),
    "Qwen3ForCausalLM": ("Qwen3Config", GROUPED | {"head_dim": 10, "attention_bias": True}),
    "Gemma2ForCausalLM": (
        "Gemma2Config",
        GROUPED
        | {
            "head_dim": 10,
            "attention_bias": True,
            "query_pre_attn_scalar": 7,
            "sliding_window": 5,
            "attn_logit_softcapping": 20.0,
        },
    ),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", SMALL | {"rotary_pct": 0.5}),
    "GPT2LMHeadModel": ("GPT2Config", SMALL | {"n_inner": 40}),
    "BertForMaskedLM": ("BertConfig", SMALL),
}


def _built(name: str) -> Any:
    config, arguments = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(name))
        model = getattr(transformers, name)(getattr(transformers, config)(**arguments))
        for parameter in model.parameters():
            parameter.data += (0.3 if parameter.ndim > 1 else 0.5) * torch.randn(parameter.shape)
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_predictions_meet_what_the_module_scores(name: str, tmp_path: Path) -> None:
    """Means of all pairs, and variances of independent ones, follow from second moments whatever the distribution."""
    ids = np.random.default_rng(0).integers(3, VOCABULARY, (160, 20)).tolist()
    study = {
        "gausslens": 1,
        "name": "modules",
        "model": {},
        "prompts": {"source": "tokens", "ids": ids},
        "analyses": [{"use": "bilinear.logits", "with": {"lags": LAGS, "tokens": "all", "sample": 1200}}],
        "report": False,
    }
    found = gausslens.run(study, store=tmp_path / "store", model=_built(name))["trained", "bilinear.logits"]
    misses = {}
    for what in ("content_mean", "score_mean", "independent_mean", "independent_variance"):
        measured, predicted, error = (found[f"{what}_{end}"].values for end in ("measured", "predicted", "error"))
        # Half of the prompts are fitted on, half measured on: both err alike.
        z = (measured - predicted) / (np.sqrt(2) * error)
        known = np.isfinite(measured)
        assert known.mean() > 0.8 or "Gemma2" in name, what
        assert np.isfinite(z[known]).all(), what
        assert (np.abs(z[known]) < 3.5).mean() > 0.93, what
        misses[what] = np.abs(z[known]).max()
    assert max(misses.values()) < 7
    # Beyond the window there are no pairs, and none are made up.
    if "Gemma2" in name:
        assert np.isnan(found["score_mean_measured"].sel(layer=0, lag=6)).all()
        assert np.isfinite(found["content_mean_measured"].sel(layer=0, lag=6)).all()
    # Where position is rotary the two quantities are two: content does not predict the score.
    rotary = name not in ("GPT2LMHeadModel", "BertForMaskedLM")
    gap = np.abs(found["score_mean_measured"] - found["content_mean_predicted"]).values
    apart = np.nanmax(gap / (np.sqrt(2) * found["score_mean_error"].values))
    assert apart > 6 if rotary else apart < 5
