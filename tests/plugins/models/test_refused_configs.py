"""Configs of types that are listed and still cannot be read: the reason, and the loader that shows what can be seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from tiny_decoders import SMALL, THIRTY_TWO

from gausslens import ModelError, ModelSpec
from gausslens.__main__ import main
from gausslens_models.families.layout import FAMILIES
from gausslens_models.loading.pretrained import open_pretrained
from gausslens_models.loading.weights import open_weights
from gausslens_models.parameters import TransformersParameters, WeightsParameters

MPT = {"vocab_size": 61, "d_model": 24, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}
# name: (config class, arguments, class, what the reason says, whether TransformerLens shows its patterns)
REFUSED: dict[str, tuple[str, dict[str, Any], str, str, bool]] = {
    "stablelm": (
        "StableLmConfig",
        THIRTY_TWO | {"qk_layernorm": True},
        "StableLmForCausalLM",
        "norms of q and k",
        True,
    ),
    "bloom": (
        "BloomConfig",
        SMALL | {"apply_residual_connection_post_layernorm": True},
        "BloomForCausalLM",
        "goes on as the stream",
        True,
    ),
    "mpt": ("MptConfig", MPT | {"attn_config": {"clip_qkv": 0.3}}, "MptForCausalLM", "clipped", True),
    "albert": ("AlbertConfig", SMALL | {"num_hidden_groups": 2}, "AlbertForMaskedLM", "several layers", False),
}


@pytest.mark.parametrize("name", REFUSED)
def test_they_are_refused_with_the_loader_that_is_left(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config_class, arguments, model_class, why, bridged = REFUSED[name]
    config = getattr(transformers, config_class)(**arguments)
    getattr(transformers, model_class)(config).save_pretrained(tmp_path)
    said = "loader: transformer-lens" if bridged else "no loader opens it"
    with pytest.raises(ModelError, match=rf"{name} with \S+=\S+ is not served: .*{why}.*; .*{said}"):
        open_pretrained(ModelSpec(str(tmp_path), TransformersParameters()))
    with pytest.raises(ModelError, match=rf"{name} with \S+=\S+ is not served: .*{why}.*; .*{said}"):
        open_weights(ModelSpec(str(tmp_path), WeightsParameters()))
    found = main(["model", str(tmp_path), "--loader", "transformer-lens"])
    printed = capsys.readouterr()
    if bridged:
        assert found == 0, printed.out + printed.err
        assert "comparisons hold" in printed.out
        assert f"tensors      none: {tmp_path}: {name} with" in printed.out
        assert main(["model", str(tmp_path), "--loader", "transformer-lens", "--json"]) == 0
        assert '"proof"' in capsys.readouterr().out
    else:
        assert found == 1
        assert "no loader opens it" in printed.err


def test_each_reason_says_what_can_be_done() -> None:
    for family in FAMILIES:
        for key, _, why in (*family.refused, *family.weights_alone):
            assert any(way in why for way in ("loader", " opens", "open the model")), (family.name, key)
