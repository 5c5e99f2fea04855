"""What capture costs, on the model named or else on one made here with random weights; one thread.

Time as ratios of minima over interleaved rounds, memory as peaks.

1. Streaming the float64 covariance of resid_pre of all layers, to the bare forward pass over the same tokens (the body
   alone, with the attention that the checkpoint prefers), for short and for long prompts. TransformerBridge's
   run_with_cache doing the same stands beside it.
2. Peak memory at ten times the tokens, to the peak before: in one process, as peaks of two differ by some per cent.

    python benchmarks/capture.py [MODEL [ROUNDS]]

The made model has the shape of SmolLM2-135M, with 8 of its 30 layers.

Processor time, so what else the machine does is not counted. No verdict where the baseline spreads by more than 1.3.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import torch

from gausslens import Batch, ModelSpec, Prompt, Request, Tokens, Twin
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.bridge import BridgedModel, open_bridge
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.parameters import TransformersParameters

TIME_TARGET, MEMORY_TARGET = 1.15, 1.05
SHARD = 2048
SMALL, LARGE = 2, 20  # shards, for memory


class Covariance:
    """The sum of x x^T of a site of each layer, in float64: what every analysis of moments does at heart."""

    def __init__(self, layers: int, width: int) -> None:
        self.sums = np.zeros((layers, width, width))

    def add(self, layer: int, values: np.ndarray) -> None:
        """Add rows [prompt, position, d_model]; numpy's product of a matrix with itself is a syrk."""
        wide = values.reshape(-1, values.shape[-1]).astype(np.float64)
        self.sums[layer] += wide.T @ wide

    def __call__(self, batch: Batch) -> None:
        assert batch.layer is not None
        self.add(batch.layer, batch.numpy("resid_pre"))


def tokens_of(model: PretrainedModel, shards: int, length: int) -> Tokens:
    """Random tokens: so many shards of prompts of this length."""
    draw = np.random.default_rng(0).integers(10, model.info.vocabulary - 10, size=(shards * SHARD // length, length))
    return model.tokenise([Prompt(ids=tuple(map(int, row))) for row in draw])


def bare(model: PretrainedModel, tokens: Tokens) -> None:
    """The body of the model, nothing watched."""
    for shard in tokens.shards(SHARD):
        ids, _, mask = (torch.from_numpy(a) for a in tokens.padded(shard))
        with torch.no_grad():
            model.module.base_model(input_ids=ids, attention_mask=mask.long(), use_cache=False)


def streamed(model: PretrainedModel, tokens: Tokens) -> np.ndarray:
    """Through the engine, layer by layer."""
    engine, found = TransformersEngine(), Covariance(model.info.n_layers, model.info.d_model)
    for shard in tokens.shards(SHARD):
        engine.run(Twin(model), tokens, shard, Request(("resid_pre",)), found)
    return found.sums


def cached(model: BridgedModel, tokens: Tokens) -> np.ndarray:
    """Through TransformerBridge.run_with_cache."""
    found = Covariance(model.info.n_layers, model.info.d_model)
    names = {f"blocks.{layer}.hook_in": layer for layer in model.info.layers}
    for shard in tokens.shards(SHARD):
        ids = torch.from_numpy(tokens.padded(shard)[0])
        with torch.no_grad():
            _, cache = model.bridge.run_with_cache(ids, names_filter=lambda name: name in names)
        for name, layer in names.items():
            found.add(layer, cache[name].numpy())
    return found.sums


def timed(rounds: int, **work: Callable[[], object]) -> dict[str, list[float]]:
    """Seconds of each piece of work, all of them once in each round."""
    found: dict[str, list[float]] = {name: [] for name in work}
    for run in work.values():
        run()  # warm: memory and libraries
    for _ in range(rounds):
        for name, run in work.items():
            start = time.process_time()
            run()
            found[name].append(time.process_time() - start)
    return found


def times(path: str, rounds: int) -> None:
    """Ratios of time, for short and long prompts."""
    spec = ModelSpec(path, TransformersParameters())
    model, bridge = open_pretrained(spec), open_bridge(spec)
    for length in (128, 512):
        tokens = tokens_of(model, 1, length)
        found = timed(
            rounds,
            bare=lambda t=tokens: bare(model, t),
            streamed=lambda t=tokens: streamed(model, t),
            cached=lambda t=tokens: cached(bridge, t),
        )
        base = min(found["bare"])
        ratio, beside = min(found["streamed"]) / base, min(found["cached"]) / base
        spread = np.median(found["bare"]) / base
        verdict = "no verdict, the baseline spreads" if spread > 1.3 else "met" if ratio <= TIME_TARGET else "MISSED"
        print(
            f"prompts of {length}: bare {base:.2f} s, streamed {ratio:.2f} (target {TIME_TARGET}: {verdict}), ", end=""
        )
        print(f"run_with_cache {beside:.2f}", flush=True)
        difference = (
            np.abs(streamed(model, tokens) - cached(bridge, tokens)).max() / np.abs(streamed(model, tokens)).max()
        )
        print(f"  largest difference of the covariances: {difference:.1e} of the largest entry", flush=True)


def peaks(path: str, how: str) -> None:
    """Print the peak memory of this process after SMALL shards, and after LARGE."""
    import resource

    spec = ModelSpec(path, TransformersParameters())
    model, run = (open_pretrained(spec), streamed) if how == "streamed" else (open_bridge(spec), cached)
    for shards in (SMALL, LARGE):
        run(model, tokens_of(model, shards, 128))  # type: ignore[operator]
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def memory(path: str) -> None:
    """Ratios of peaks; each way in its own process."""
    for how, what in (("streamed", "streamed"), ("cached", "run_with_cache")):
        command = [sys.executable, __file__, path, how]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        small, large = map(float, printed[-2:])
        verdict = f" (target {MEMORY_TARGET}: {'met' if large / small <= MEMORY_TARGET else 'MISSED'})"
        print(f"peak memory, {what}: {small:.0f} MB at {SMALL * SHARD} tokens, {large:.0f} MB at ", end="")
        print(f"{LARGE * SHARD}: {large / small:.3f}{verdict if how == 'streamed' else ''}", flush=True)


def make_model(directory: str) -> None:
    """Write a model of random weights, in the shape of SmolLM2-135M but for the number of layers and tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3}
    config = LlamaConfig(vocab_size=4096, hidden_size=576, intermediate_size=1536, num_hidden_layers=8, **heads)
    LlamaForCausalLM(config).save_pretrained(directory)


def main() -> None:
    """Time and memory, of the model named or of a made one; called with a way of capture it is one of the processes."""
    if sys.argv[2:] in (["streamed"], ["cached"]):
        peaks(sys.argv[1], sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as made:
        path = sys.argv[1] if len(sys.argv) > 1 else made
        if path == made:
            make_model(made)
            print("model: made here, random weights in the shape of SmolLM2-135M, 8 layers", flush=True)
        times(path, int(sys.argv[2]) if len(sys.argv) > 2 else 5)
        memory(path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
