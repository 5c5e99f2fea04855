"""What each form of attention costs by its own code: flops and bytes counted as it runs, exponents, time beside exact.

One head of 64 numbers, n = 128 to 4096 tokens, causal where the form can be, double precision, one thread. Counts are
of every operation (gausslens_attention.maths.costs); an exponent is the slope of log cost on log n. Top-k masks, exact
bands of a head's own pattern and truncated decompositions start from the exact map and save nothing: they are oracles,
not listed.

    python benchmarks/attention_cost.py [ROUNDS]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from gausslens_attention.maths.costs import Cost, counted, exponent
from gausslens_attention.maths.kernels import (
    Features,
    elu,
    least_squares,
    linear,
    orthogonal,
    performer,
    taylor1,
    taylor2,
)
from gausslens_attention.maths.lowrank import linformer
from gausslens_attention.maths.masks import attend, bigbird, longformer, window

SIZES = (128, 256, 512, 1024, 2048, 4096)
D = 64
SCALE = D**-0.5
WITHIN = 0.05
Form = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def exact(n: int) -> Form:
    """softmax(q k' scale) v, causal."""
    mask = torch.ones(n, n, dtype=torch.bool).triu(1)
    return lambda q, k, v: (q @ k.T * SCALE).masked_fill(mask, -torch.inf).softmax(-1) @ v


def kernel(features: Features) -> Callable[[int], Form]:
    """Linear attention with these features, causal."""

    def form(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return linear(features(q * SCALE**0.5, True), features(k * SCALE**0.5, False), v, causal=True)

    return lambda _: form


def masked(make: Callable[[int], Any]) -> Callable[[int], Form]:
    """Attention over the cells of a mask."""

    def of(n: int) -> Form:
        rows, columns = map(torch.from_numpy, np.nonzero(make(n)))
        return lambda q, k, v: attend(q, k, v, rows, columns, SCALE)

    return of


def projected(n: int) -> Form:
    """Linformer of rank 64; it is not causal."""
    E = torch.randn(64, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 8
    return lambda q, k, v: linformer(q, k, v, E, E, SCALE)


FORMS: dict[str, tuple[int, Callable[[int], Form]]] = {
    "exact": (2, exact),
    "band, 33 keys": (1, masked(lambda n: window(n, 32, causal=True))),
    "longformer, 32 + 1 keys": (1, masked(lambda n: longformer(n, 31, 1, causal=True))),
    "bigbird, 16 + 1 + 16 keys": (1, masked(lambda n: bigbird(n, 15, 1, 16, np.random.default_rng(0), causal=True))),
    "linformer, rank 64": (1, projected),
    "elu": (1, kernel(elu)),
    "taylor-1": (1, kernel(taylor1)),
    "taylor-2": (1, kernel(taylor2)),
    "performer, 64 features": (1, kernel(performer(orthogonal(64, D, 0)))),
    "performer, 256 features": (1, kernel(performer(orthogonal(256, D, 0)))),
    "least squares": (1, lambda _: lambda q, k, v: least_squares(q, k, v, 1.0, causal=True)),
}


def tensors(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v of one head."""
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(n, D, generator=draw, dtype=torch.float64) for _ in range(3))
    return q, k, v


def seconds(form: Form, given: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> float:
    """Processor time of one run."""
    start = time.process_time()
    form(*given)
    return time.process_time() - start


def main(rounds: int) -> None:
    """Count and time every form at every size, and print."""
    torch.set_num_threads(1)
    costs: dict[str, list[Cost]] = {name: [] for name in FORMS}
    best: dict[tuple[str, int], float] = {}
    with torch.no_grad():
        for n in SIZES:
            given = tensors(n)
            made = {name: make(n) for name, (_, make) in FORMS.items()}
            for name, form in made.items():
                with counted() as cost:
                    form(*given)
                costs[name].append(cost)
            for _ in range(rounds):
                for name, form in made.items():
                    best[name, n] = min(best.get((name, n), np.inf), seconds(form, given))
    print(f"flops of one head of {D} numbers, in millions; exponents over all n; seconds over those of exact attention")
    print(f"{'':26}" + "".join(f"{n:>9,}" for n in SIZES) + "   flops  bytes   time at 128, at 4096")
    for name, (wanted, _) in FORMS.items():
        of_flops = exponent(SIZES, [c.flops for c in costs[name]])
        of_bytes = exponent(SIZES, [c.bytes for c in costs[name]])
        ratios = [best[name, n] / best["exact", n] for n in (SIZES[0], SIZES[-1])]
        verdict = "" if abs(of_flops - wanted) <= WITHIN else f"   MISSED {wanted}"
        counts = "".join(f"{c.flops / 1e6:9.1f}" for c in costs[name])
        print(f"{name:26}{counts}   {of_flops:5.2f}  {of_bytes:5.2f}   {ratios[0]:8.2f} {ratios[1]:8.2f}{verdict}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 3)
