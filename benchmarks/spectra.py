"""What spectra cost: every matrix of a model with its law, edges and spikes, beside LAPACK's values alone.

    python benchmarks/spectra.py [MODEL_DIRECTORY [ROUNDS]] [--weightwatcher PYTHON [--watched N]]

Wall time, ratios of minima over interleaved rounds. Without a model the matrices are made: Gaussian, with a few spikes,
of the sizes of a small model's layers. The threads are the subject here, so all cores are used: LAPACK by its own
threads on one matrix after another, ours by a thread for each matrix. WeightWatcher runs in the Python that has it
(--weightwatcher), once: it is slow. Products of a head's factors at d = 4096 and 32 heads, by QR of the factors, are
held against forming the 4096 x 4096 product of one head, times 32.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import gausslens
from gausslens.maths.laws import MarchenkoPastur
from gausslens.maths.spectra import GRAM_TRUST, product_squared_singular_values, squared_singular_values
from gausslens_bilinear.maths.noise_fit import bulk
from gausslens_bilinear.maths.tail import power_law
from gausslens_bilinear.maths.threads import in_threads

NAMES = ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out")
HEADS, WIDTH, INNER = 32, 4096, 128
# A made model, with the sizes of SmolLM2-135M: W_Q, W_K, W_V, W_O, W_in, W_gate, W_out of each layer.
MADE_LAYERS, MADE_SPIKES = 4, 8
MADE_SHAPES = ((576, 576), (576, 192), (576, 192), (576, 576), (576, 1536), (576, 1536), (1536, 576))
# Where the rounds of the baseline spread by more than this, a ratio says nothing.
STEADY = 1.3
WATCHED = """
import sys, time, warnings, logging
warnings.simplefilter("ignore"); logging.disable(logging.CRITICAL)
import numpy as np, torch, weightwatcher as ww
held = np.load(sys.argv[1])
class One(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList()
        for key in held.files:
            W = torch.from_numpy(held[key]); made = torch.nn.Linear(W.shape[1], W.shape[0], bias=False)
            made.weight.data = W; self.layers.append(made)
    def forward(self, x): return x
watcher = ww.WeightWatcher(model=One())
options = dict(min_evals=1, plot=False)
for name, more in (("analyze", {}), ("analyze with mp_fit and randomize", dict(mp_fit=True, randomize=True))):
    start = time.perf_counter(); found = watcher.analyze(**options, **more)
    print(f"{time.perf_counter() - start:.6f}\t{name}\t{len(found)}", file=sys.stderr, flush=True)
    if not more:
        each = [np.sort(watcher.get_ESD(layer=int(i)))[::-1] for i in found.layer_id]
        np.savez(sys.argv[2], alphas=found.alpha.values, **{f"m{i:04}": values for i, values in enumerate(each)})
"""


def matrices(path: str) -> list[np.ndarray]:
    """Every matrix of every layer, heads side by side, as the analysis takes them."""
    model = gausslens.load(path, loader="weights")
    found = []
    for layer in model.info.layers:
        weights = model.weights(layer)
        for name in (n for n in NAMES if n in weights):
            tensor = weights[name].detach().double().numpy()
            if tensor.ndim == 3:
                tensor = tensor.reshape(-1, tensor.shape[-1]) if name == "W_O" else np.concatenate(list(tensor), axis=1)
            found.append(np.ascontiguousarray(tensor))
    return found


def made_matrices() -> list[np.ndarray]:
    """Noise with a few spikes, as trained matrices have them: the seven matrices of each layer of a made model."""
    rng = np.random.default_rng(0)
    found = []
    for rows, columns in [shape for _ in range(MADE_LAYERS) for shape in MADE_SHAPES]:
        spikes = rng.normal(size=(rows, MADE_SPIKES)) @ rng.normal(size=(MADE_SPIKES, columns))
        found.append((rng.normal(size=(rows, columns)) + 0.2 * spikes) / np.sqrt(columns))
    return found


def ours(each: list[np.ndarray]) -> None:
    """Values, law, distance, edges, level and spikes of each."""

    def one(matrix: np.ndarray) -> tuple[float, int]:
        squared = squared_singular_values(matrix)
        law = MarchenkoPastur(*matrix.shape, float(matrix.var()))
        fitted = bulk(squared, *matrix.shape)
        return law.distance(squared) + law.edges[1] + law.level() + fitted.edges[1], len(fitted.spikes)

    in_threads(one, each)


def lapack(each: list[np.ndarray]) -> None:
    """The values alone, one matrix after another, with all cores: the small Gram, or svdvals where it needs it."""
    for matrix in each:
        small = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
        values = np.linalg.eigvalsh(small @ small.T)
        if values[0] <= GRAM_TRUST * values[-1]:
            np.linalg.svd(small, compute_uv=False)


def alone(each: list[np.ndarray]) -> None:
    """The same on one core, which is what other work on the machine may leave."""
    with threadpool_limits(limits=1, user_api="blas"):
        lapack(each)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(cases: dict[str, Callable[[], object]], rounds: int) -> dict[str, tuple[float, float]]:
    """Minimum of each case, and how far its rounds spread: (seconds, slowest/fastest)."""
    for work in cases.values():
        work()
    taken = {name: [] for name in cases}
    for _ in range(rounds):
        for name, work in cases.items():
            taken[name].append(timed(work))
    return {name: (min(each), max(each) / min(each)) for name, each in taken.items()}


def products(rounds: int) -> None:
    """All heads' products by their factors, against one head's formed product times the heads."""
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(2, HEADS, WIDTH, INNER))

    def factors() -> None:
        in_threads(lambda pair: product_squared_singular_values(*pair), zip(A, B, strict=True))

    found = interleaved({"factors": factors}, rounds)["factors"][0]
    formed = timed(lambda: np.linalg.svd(A[0] @ B[0].T, compute_uv=False)) * HEADS
    print(f"products, d = {WIDTH}, {HEADS} heads of {INNER}: by factors {found:.2f} s; formed {formed:.0f} s (one head")
    verdict = "" if formed >= 100 * found else "   MISSED"
    print(f"times {HEADS}): {formed / found:.0f} times as long, at least 100{verdict}")


def watched(python: str, each: list[np.ndarray]) -> None:
    """WeightWatcher on these matrices: its time, and whether its singular values and exponents are ours."""
    reference = min(timed(lambda: lapack(each)) for _ in range(3))
    print(f"WeightWatcher on {len(each)} of them; LAPACK's values alone, all cores, {reference:.2f} s")
    with tempfile.TemporaryDirectory() as directory:
        path, back = Path(directory) / "matrices.npz", Path(directory) / "found.npz"
        np.savez(path, **{f"m{i:04}": matrix.astype(np.float32) for i, matrix in enumerate(each)})
        command = [python, "-c", WATCHED, str(path), str(back)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        theirs = dict(np.load(back)) if back.exists() else {}
    lines = [line.split("\t") for line in ran.stderr.splitlines() if line.count("\t") == 2]
    if not lines:
        print(f"WeightWatcher did not run: {ran.stderr[-500:]}")
    if theirs:
        mine = [squared_singular_values(matrix.astype(np.float32)) for matrix in each]
        values = max(
            np.abs(np.sqrt(theirs[f"m{i:04}"][: len(one)]) - np.sqrt(one)).max() / np.sqrt(one[0])
            for i, one in enumerate(mine)
        )
        alphas = np.abs(theirs["alphas"] - [power_law(one).alpha for one in mine]).max()
        print(f"its singular values are ours to {values:.1e} of the largest, its exponents to {alphas:.1e}")
    for seconds, name, count in lines:
        ratio = float(seconds) / reference
        print(f"WeightWatcher {name:37} {float(seconds):7.2f} s  ratio {ratio:.2f}  ({count} matrices)")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a directory; without it, the matrices are made")
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("--weightwatcher", help="a Python that has it")
    parser.add_argument("--watched", type=int, metavar="N", help="how many matrices WeightWatcher gets: it is slow")
    parser.add_argument("--no-products", action="store_true")
    chosen = parser.parse_args()
    each = made_matrices() if chosen.model is None else matrices(chosen.model)
    whose = "a made model, for none was given" if chosen.model is None else Path(chosen.model).name
    print(f"{len(each)} matrices of {whose}; minima of {chosen.rounds} rounds", flush=True)
    found = interleaved(
        {"LAPACK": lambda: lapack(each), "one": lambda: alone(each), "ours": lambda: ours(each)}, chosen.rounds
    )
    reference = found["LAPACK"][0]
    told = {
        "LAPACK": "LAPACK's values alone, all cores, in turn",
        "one": "LAPACK's values alone, one core",
        "ours": "ours, with law, distance, edges and spikes",
    }
    for name, (taken, spread) in found.items():
        verdict = "   MISSED" if name == "ours" and taken > reference else ""
        if name == "ours" and found["LAPACK"][1] > STEADY:
            verdict += "   (no verdict: other work on this machine)"
        ratio = taken / reference
        print(f"{told[name]:51} {taken:7.2f} s  ratio {ratio:.2f}  (rounds spread by {spread:.2f}){verdict}")
    if chosen.weightwatcher:
        watched(chosen.weightwatcher, each[: chosen.watched])
    if not chosen.no_products:
        products(max(2, chosen.rounds // 2))


if __name__ == "__main__":
    sys.exit(main())
