"""What exact attention approximation costs, one thread, as ratios of minima over interleaved rounds.

1. The exact projection of one head of 16 tokens onto bands, at all widths at once, to Conti's (2024) random search
   (11^3 coefficients, 30 draws of each of three sets: 119,790 draws), with the distances that both reach.
2. Distances of all heads of a model at 256 tokens to band plus sparse error, for all widths and 8 budgets, to the
   forward pass that made the patterns.

    python benchmarks/attention.py [MODEL] [ROUNDS]

Processor time, so what else the machine does is not counted. Without a MODEL only the first.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

SEARCH_TARGET, WIDTHS_TARGET = 10_000, 1.0
TOKENS = 256
BUDGETS = (0, 16, 64, 256, 512, 1024, 2048, 4096)
# So many projections are timed together: one takes as long as a clock ticks.
TOGETHER = 1000


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one run."""
    start = time.process_time()
    work()
    return time.process_time() - start


def patterns(heads: int, n: int) -> Any:
    """Causal maps of Gaussian scores [head, n, n]."""
    scores = 3 * np.random.default_rng(0).normal(size=(heads, n, n))
    weights = np.tril(np.exp(scores - scores.max()))
    return weights / weights.sum(axis=-1, keepdims=True)


def search(rounds: int) -> None:
    """One head of 16 tokens: all widths exactly, and the search at width 3."""
    from gausslens_attention.maths.band_plus_sparse import project
    from gausslens_attention.maths.random_search import random_search

    [H] = patterns(1, 16)
    widths = list(range(16))
    found = random_search(H, np.random.default_rng(0))
    exact, drawn = [], []
    for round_ in range(rounds):
        drawn.append(seconds(lambda: random_search(H, np.random.default_rng(round_))))  # noqa: B023
        exact.append(seconds(lambda: [project(H, widths) for _ in range(TOGETHER)]) / TOGETHER)
    ratio = min(drawn) / min(exact)
    verdict = "met" if ratio >= SEARCH_TARGET else "MISSED"
    print(f"random search, {found.draws:,} draws       {min(drawn):10.3f} s   nearest at {float(found.distance):.3f}")
    with_errors = float(project(H, 3, 16, stochastic=True)[1])
    text = f"exact at {with_errors:.3f} with as many errors at width 3"
    print(f"exact projection, 16 widths          {1e6 * min(exact):10.1f} us  {text}")
    print(f"ratio {ratio:,.0f}, at least {SEARCH_TARGET:,}: {verdict}", flush=True)


def widths(path: str, rounds: int) -> None:
    """All heads of a model: distances for all widths and budgets, and the passes that made the patterns."""
    import torch

    from gausslens import ModelSpec, Twin
    from gausslens_attention.maths.widths import distances
    from gausslens_models.capture.engine import TransformersEngine
    from gausslens_models.loading.pretrained import open_pretrained
    from gausslens_models.parameters import TransformersParameters

    torch.set_num_threads(1)
    model = open_pretrained(ModelSpec(path, TransformersParameters()))
    runner = TransformersEngine().runner(Twin(model))
    ids = np.random.default_rng(0).integers(0, model.info.vocabulary, (1, TOKENS))
    found = runner.forward(ids, sites=("pattern",))
    maps = np.concatenate([found[layer, "pattern"][0].numpy() for layer in model.info.layers])
    work: dict[str, Callable[[], object]] = {
        "bare forward pass": lambda: runner.forward(ids),
        "forward pass that captures patterns": lambda: runner.forward(ids, sites=("pattern",)),
        f"distances of {len(maps)} heads": lambda: distances(maps, BUDGETS, stochastic=True),
    }
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, run in work.items():
            taken[name].append(seconds(run))
    least = {name: min(times) for name, times in taken.items()}
    for name, best in least.items():
        print(f"{name:<38} {best:8.3f} s", flush=True)
    bare, _, ours = least.values()
    verdict = "met" if ours < WIDTHS_TARGET * bare else "MISSED"
    print(f"{TOKENS} widths by {len(BUDGETS)} budgets, ratio to the bare pass {ours / bare:.2f}, below 1: {verdict}")


def main(arguments: list[str]) -> None:
    """Both, with a model; else the first."""
    rounds = int(arguments.pop()) if arguments and arguments[-1].isdigit() else 5
    search(rounds)
    if arguments:
        widths(arguments[0], rounds)


if __name__ == "__main__":
    main(sys.argv[1:])
