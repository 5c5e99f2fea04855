"""Reading weights holds one tensor at a time, however large the checkpoint; measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

D_MODEL, HEADS, KV_HEADS = 1024, 8, 2

READS = """
import resource, sys
import torch
torch.set_num_threads(1)
own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
from gausslens import LayerWeights, ModelSpec
from gausslens_models.parameters import WeightsParameters
from gausslens_models.loading.weights import open_weights
model = open_weights(ModelSpec(sys.argv[1], WeightsParameters()))
total = 0
for layer in (None, *model.info.layers):  # the fingerprint reads everything once, this once more
    weights = LayerWeights(model, layer)
    for name in weights.names:
        total += weights[name].numel() * 4
largest = max(4 * weights.info.vocabulary * weights.info.d_model, 4 * weights.info.d_mlp * weights.info.d_model)
print(own * 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, largest, total)
"""


def synthetic(path: Path, layers: int, d_mlp: int, vocabulary: int) -> None:
    """A sharded Llama checkpoint: a shard for each layer, and one for the rest; keys out of order."""
    d_head = D_MODEL // HEADS
    shards = [
        {
            f"model.layers.{layer}.mlp.down_proj.weight": (D_MODEL, d_mlp),
            f"model.layers.{layer}.self_attn.q_proj.weight": (D_MODEL, D_MODEL),
            f"model.layers.{layer}.mlp.gate_proj.weight": (d_mlp, D_MODEL),
            f"model.layers.{layer}.self_attn.k_proj.weight": (KV_HEADS * d_head, D_MODEL),
            f"model.layers.{layer}.self_attn.v_proj.weight": (KV_HEADS * d_head, D_MODEL),
            f"model.layers.{layer}.self_attn.o_proj.weight": (D_MODEL, D_MODEL),
            f"model.layers.{layer}.mlp.up_proj.weight": (d_mlp, D_MODEL),
            f"model.layers.{layer}.input_layernorm.weight": (D_MODEL,),
            f"model.layers.{layer}.post_attention_layernorm.weight": (D_MODEL,),
        }
        for layer in reversed(range(layers))
    ]
    outside = (vocabulary, D_MODEL)
    shards.append({"lm_head.weight": outside, "model.embed_tokens.weight": outside, "model.norm.weight": (D_MODEL,)})
    noise = np.random.default_rng(0).normal(size=2**20).astype(np.float32)
    index = {}
    for number, tensors in enumerate(shards):
        name = f"model-{number:05}.safetensors"
        _write(path / name, tensors, noise)
        index |= dict.fromkeys(tensors, name)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": D_MODEL,
        "intermediate_size": d_mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
    }
    (path / "config.json").write_text(json.dumps(config))


def _write(file: Path, tensors: dict[str, tuple[int, ...]], noise: np.ndarray) -> None:
    """A safetensors file, written piece by piece: this process must not hold it either."""
    header, place = {}, 0
    for name, shape in tensors.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        while place > 0:
            place -= stream.write(noise[: min(len(noise), place // 4)].tobytes())


def _peak(path: Path) -> tuple[int, int, int, int]:
    printed = subprocess.run([sys.executable, "-c", READS, str(path)], capture_output=True, text=True, check=True)
    own, peak, largest, total = map(int, printed.stdout.split())
    return own, peak, largest, total


def test_a_small_one(tmp_path: Path) -> None:
    synthetic(tmp_path, layers=1, d_mlp=2048, vocabulary=24_000)
    own, peak, largest, total = _peak(tmp_path)
    assert total > 200e6
    assert peak <= own + 3 * largest


@pytest.mark.full
def test_two_gigabytes(tmp_path: Path) -> None:
    synthetic(tmp_path, layers=18, d_mlp=8192, vocabulary=32_000)
    own, peak, largest, total = _peak(tmp_path)
    assert total > 2e9
    assert peak <= own + 3 * largest
