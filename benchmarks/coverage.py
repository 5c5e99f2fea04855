"""How often 95 % intervals of errors over prompts hold the truth, one thread.

1. Planted streams, fresh in each repetition: vectors of 12 coordinates with unequal variances, the sum of an effect of
   their prompt and of their token. Light tails are Gaussian; heavy ones multiply all of a prompt by exp(0.6 z).
2. A real model: its residual stream over prompts drawn anew from the sentences of this project's documents.

    python benchmarks/coverage.py [MODEL] [REPETITIONS]

Groups of prompts are left out one at a time, their states merged as a run does it; the interval is Student's, of G - 1
degrees. The truth is the mean of the estimates over all repetitions: what an error is about is the spread of estimates,
not their bias. `unsure` is the share of intervals in which one group makes most of the error. `error` is the mean error
over the spread of the estimates. A share of 300 repetitions that is 0.95 is known to 0.013, of 200 to
0.015: only what is further outside is called so.
"""

from __future__ import annotations

import copy
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy.stats import t as student

import gausslens
from gausslens.maths.moments import RunningMoments
from gausslens.maths.resampling import delete_group_error, owned_by_one
from gausslens.maths.spectra import effective_rank, spectrum
from gausslens.measuring.errors import leave_one_out, merged

NAMES = ("trace", "effective rank", "log determinant", "norm of mean", "kurtosis")
WIDTH, TOKENS = 12, 20
HEAVY = 0.6
DOCUMENTS = Path(__file__).parent.parent


class State:
    """What is kept of some prompts: moments, and fourth powers along fixed directions."""

    def __init__(self, width: int) -> None:
        self.moments = RunningMoments()
        self.along = np.random.default_rng(1).normal(size=(width, 16)) / np.sqrt(width)
        self.powers = np.zeros((5, 16))

    def update(self, vectors: np.ndarray) -> None:
        self.moments.add(vectors)
        x = vectors @ self.along
        self.powers += np.stack([(x**order).sum(axis=0) for order in range(5)])

    def merge(self, other: State) -> None:
        self.moments.merge(other.moments)
        self.powers = self.powers + other.powers

    def result(self) -> np.ndarray:
        values = spectrum(self.moments.covariance)
        kept = values[: min(len(values), 12)]
        n, m, s, c, q = self.powers / self.powers[0] * np.array([[self.powers[0, 0]], [1], [1], [1], [1]])
        variance = s - m**2
        kurtosis = (q - 4 * m * c + 6 * m**2 * s - 3 * m**4) / variance**2 - 3
        assert n.min() > 0
        mean = np.linalg.norm(self.moments.mean)
        return np.array([values.sum(), effective_rank(values), np.log(kept).sum(), mean, kurtosis.mean()])


def one(prompts: list[np.ndarray], groups: int) -> tuple[np.ndarray, np.ndarray]:
    """The statistics of some prompts' vectors, and the same without each group."""
    states = [State(prompts[0].shape[-1]) for _ in range(groups)]
    for place, vectors in enumerate(prompts):
        states[place % groups].update(vectors)
    without = np.array([state.result() for state in leave_one_out(states, copy.deepcopy)])
    return merged(states).result(), without


def told(what: str, draw: Callable[[], list[np.ndarray]], groups: int, repetitions: int) -> None:
    """A line for each statistic."""
    found = [one(draw(), groups) for _ in range(repetitions)]
    values = np.array([value for value, _ in found])
    errors = np.array([delete_group_error(without) for _, without in found])
    unsure = np.array([owned_by_one(without) for _, without in found]).mean(axis=0)
    inside = np.abs(values - values.mean(axis=0)) < student.ppf(0.975, groups - 1) * errors
    ratio = np.sqrt(np.square(errors).mean(axis=0)) / values.std(axis=0, ddof=1)
    for place, name in enumerate(NAMES):
        share = inside[:, place].mean()
        own = np.sqrt(0.95 * 0.05 / repetitions)
        verdict = "" if 0.92 - own <= share <= 0.98 + own else "  outside 0.92 .. 0.98"
        print(f"{what:<34} {name:<16} {share:6.3f} {ratio[place]:6.2f} {unsure[place]:7.2f}{verdict}", flush=True)


def planted(prompts: int, heavy: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Vectors [token, coordinate] of each prompt."""
    scale = np.sqrt(np.linspace(0.2, 2, WIDTH))
    offset = np.linspace(1, 0, WIDTH)
    made = []
    for _ in range(prompts):
        vectors = offset + scale * (0.7 * rng.normal(size=WIDTH) + rng.normal(size=(TOKENS, WIDTH)))
        made.append(vectors * np.exp(heavy * rng.normal()))
    return made


def sentences() -> Iterator[str]:
    """Lines of the documents that are prose, each once."""
    for path in sorted(DOCUMENTS.glob("**/*.md")):
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
        for line in re.split(r"(?<=[.:;])\s+|\n\n|\|", text):
            words = " ".join(line.split())
            if 60 <= len(words) <= 200 and not words.startswith(("#", "`", "<", "![", "---")):
                yield words


def activations(model: str, layers: list[int]) -> list[np.ndarray]:
    """Of each sentence the residual stream [layer, token, d_model], without the first token."""
    texts = list(dict.fromkeys(sentences()))
    whole = {
        "model": {"path": model},
        "prompts": {"source": "text", "text": texts},
        "analyses": [{"use": "model.capture", "with": {"sites": ["resid_pre"]}, "layers": layers}],
        "report": False,
    }
    with tempfile.TemporaryDirectory() as place:
        data = gausslens.run(whole, store=Path(place) / "store", shown=False)["trained", "model.capture"]
        every = data["resid_pre"].transpose("prompt", "layer", "position", "d_model").values
    kept = [one[:, np.isfinite(one[0]).all(axis=-1)][:, 1:].astype(np.float64) for one in every]
    return [one for one in kept if one.shape[1] >= 8]


def real(model: str, repetitions: int, rng: np.random.Generator) -> None:
    """Sets of 40 and 160 prompts, each prompt drawn anew from the sentences."""
    layers = [1, 4]
    pool = activations(model, layers)
    print(f"{Path(model).name}: {len(pool)} sentences")
    for place, layer in enumerate(layers):
        for prompts in (40, 160):

            def draw(prompts: int = prompts, place: int = place) -> list[np.ndarray]:
                return [pool[i][place] for i in rng.integers(len(pool), size=prompts)]

            told(f"layer {layer}, {prompts} prompts", draw, 10, repetitions)


def main() -> None:
    """Planted streams, then the model."""
    here = Path(os.environ.get("GAUSSLENS_MODELS", "")) / "stories15m"
    model = sys.argv[1] if len(sys.argv) > 1 else str(here)
    repetitions = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    rng = np.random.default_rng(0)
    print(f"{'':<34} {'':<16} {'covers':>6} {'error':>6} {'unsure':>7}")
    for heavy, name in ((0.0, "light"), (HEAVY, "heavy")):
        for prompts in (20, 40, 160):
            for groups in (10, 20) if prompts == 40 else (10,):
                what = f"{name} tails, {prompts} prompts, {groups} groups"
                told(what, lambda p=prompts, h=heavy: planted(p, h, rng), groups, repetitions or 300)
    if Path(model).is_dir() or model.startswith("builtin:"):
        real(model, repetitions or 200, rng)
    else:
        print("no model: name one, or set GAUSSLENS_MODELS")


if __name__ == "__main__":
    main()
