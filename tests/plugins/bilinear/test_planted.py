"""Spectra of a synthetic checkpoint are those that were planted in it, and it opens in transformers."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scripts import script_at

import gausslens

# Rounding to bfloat16 moves a value by some 1e-4 of the largest here; its Frobenius norm bounds it.
NEAR = 2e-3


@pytest.fixture(scope="module")
def synthetic() -> ModuleType:
    return script_at("benchmarks/synthetic.py")


SMALL = {"hidden_size": 128, "intermediate_size": 192, "vocab_size": 64, "num_attention_heads": 4}
SHAPES = {
    "mistral-7b": SMALL | {"num_key_value_heads": 2, "head_dim": 32},
    "gpt2": {"n_embd": 128, "n_head": 4, "vocab_size": 64, "n_positions": 32},  # q, k and v are one tensor
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("plant", ["spikes", "power"])
def test_what_was_planted_is_found(synthetic: ModuleType, tmp_path: Path, shape: str, plant: str) -> None:
    model = tmp_path / "model"
    config = synthetic.config_of(shape, 2, SHAPES[shape])
    synthetic.write(config, model, plant=plant, shard_bytes=100_000)
    assert len(list(model.glob("*.safetensors"))) > 1
    study = {"gausslens": 1, "name": "planted", "model": {"path": str(model), "loader": "weights"}, "report": False}
    store = gausslens.run(study | {"analyses": [{"use": "bilinear.spectrum"}]}, store=tmp_path / "store")
    found = store["trained", "bilinear.spectrum"]
    told = json.loads((model / "planted.json").read_text())["matrices"]
    assert {(e["layer"], e["tensor"]) for e in told} == {(n, t) for n in (0, 1) for t in ("W_Q", "W_K", "W_V", "W_O")}
    for entry in told:
        of = found.sel(layer=entry["layer"], tensor=entry["tensor"])
        planted = synthetic.values(entry)
        away = np.abs(np.sqrt(of.squared.values[: len(planted)]) - planted).max()
        assert away < min(NEAR * planted[0], entry["rounding"])
        if plant == "spikes":
            assert (of.spikes, of.bulk_accepted) == (len(entry["spikes"]), 1)


def test_it_opens_in_transformers_with_the_same_tensors(synthetic: ModuleType, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    for number, most in enumerate((10**9, 50_000)):
        config = synthetic.config_of("mistral-7b", 1, SHAPES["mistral-7b"])
        synthetic.write(config, tmp_path / str(number), shard_bytes=most)
    one, other = (AutoModelForCausalLM.from_pretrained(tmp_path / n).state_dict() for n in ("0", "1"))
    assert one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)
    assert float(one["model.norm.weight"].float().min()) == 1.0
