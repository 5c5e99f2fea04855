"""How costs grow: exponents of processor time in layers, heads, tokens, draws and prompts, each at most 1.1.

    python benchmarks/scale.py [ROWS ...]

Each row varies one size, others fixed, in steps of two. A cost is the processor time of this process (with
one thread) for a run from a dict into a fresh store, with opening its model and planning; minima of interleaved rounds.
The exponent is the slope, in logarithms, of what each doubling adds: what is the same at every size drops out. Where
noise makes a step negative it is the slope of the costs themselves, which is too small where fixed parts are large.
Three rows need Dask: ``engine`` is what a tiny step costs more where a worker computes it; ``steps`` and ``twin`` are
in seconds of a clock, two workers beside one with one thread each, at many steps of some 100 ms and at one large twin.
They want a quiet machine.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

MOST = 1.1
# Milliseconds of processor time that sending a tiny step to a worker may take.
ENGINE = 5
SPEED = 1.7
ROUNDS = 3
Cost = Callable[[int], float]


def study(
    model: dict[str, Any], analyses: list[dict[str, Any]], prompts: int = 8, length: int = 16, **more: Any
) -> Any:
    """A run of some analyses."""
    text = {"source": "repeated-random", "prompts": prompts, "length": length}
    made = {"gausslens": 1, "name": "scale", "model": model, "prompts": text, "analyses": analyses}
    return made | {"variants": {"trained": []}, "errors": False, "report": False} | more


def seconds(given: Any, store: Path, **how: Any) -> float:
    """Processor time of one run, in this process."""
    import gausslens

    with tempfile.TemporaryDirectory(dir=store) as fresh:
        start = time.process_time()
        gausslens.run(given, store=fresh, **how)
        return time.process_time() - start


def row(what: str, sizes: Sequence[int], cost: Cost, rounds: int = ROUNDS) -> float:
    """Measure one row and print it; the exponent, for rows that others put together."""
    cost(sizes[0])
    taken = np.array([[cost(size) for size in sizes] for _ in range(rounds)]).min(axis=0)
    exponent = fitted(sizes, taken)
    verdict = "" if exponent <= MOST else "   MISSED"
    told = ", ".join(f"{size}: {each:.2f}" for size, each in zip(sizes, taken, strict=True))
    print(f"{what:44} {exponent:5.2f}   at most {MOST}{verdict}   seconds at {told}", flush=True)
    return exponent


def fitted(sizes: Sequence[int], taken: np.ndarray) -> float:
    """The slope of the logarithm of what each doubling adds: what does not grow drops out of differences."""
    steps = np.diff(taken)
    if (steps <= 0).any():
        return float(np.polyfit(np.log(sizes), np.log(taken), 1)[0])
    return float(np.polyfit(np.log(sizes[:-1]), np.log(steps), 1)[0])


def made(top: Path, layers: int = 4, heads: int = 4, width: int = 256) -> dict[str, Any]:
    """A small model of so many layers and heads, of 32 numbers each, on a stream of a width."""
    import synthetic

    directory = top / f"model-{layers}-{heads}-{width}"
    if not directory.is_dir():
        sizes = {"hidden_size": width, "intermediate_size": 512, "vocab_size": 256, "head_dim": 32}
        each = {"num_attention_heads": heads, "num_key_value_heads": heads, "max_position_embeddings": 4096}
        config = synthetic.config_of("mistral-7b", layers, sizes | each)
        synthetic.write(config, directory, dtype="float32", plant="none")
    return {"path": str(directory)}


ATTENTION = {"use": "model.attention", "with": {"maps": "none"}}
SPECTRUM = {"use": "bilinear.spectrum"}
MOMENTS = {"use": "gaussian.moments"}
DRAWN = {"edits": [{"edit": "reinit.gaussian"}]}


def in_layers(top: Path) -> None:
    """Weights and streams by layers."""
    row("spectra, in layers", (4, 8, 16, 32), lambda n: seconds(study(made(top, n), [SPECTRUM]), top))
    streams = [ATTENTION, MOMENTS]
    row("attention and moments, in layers", (4, 8, 16, 32), lambda n: seconds(study(made(top, n), streams), top))


def in_heads(top: Path) -> None:
    """Streams by heads, of one width each."""
    sizes = (4, 8, 16, 32)
    row("attention, in heads", sizes, lambda n: seconds(study(made(top, 4, n), [ATTENTION], 32, 32), top))
    of_heads = {"use": "bilinear.spectrum", "with": {"matrices": ["W_Q"], "per_head": True}}
    row("spectra of heads, in heads", sizes, lambda n: seconds(study(made(top, 4, n), [of_heads]), top))


def in_tokens(top: Path) -> None:
    """Streams by tokens: prompts of one length, and more of them; a map of n tokens has n^2 cells by its nature."""
    sizes = (4096, 8192, 16384, 32768)
    for analysis in (ATTENTION, MOMENTS, {"use": "model.loss"}):
        name = f"{analysis['use']}, in tokens"
        row(name, sizes, lambda n, a=analysis: seconds(study(made(top), [a], n // 64, 32), top))


def in_draws(top: Path) -> None:
    """A null by draws, compared and summed up; then reading it."""

    def cost(draws: int) -> float:
        variants = {"trained": [], "drawn": DRAWN | {"draws": draws}}
        return seconds(study(made(top), [ATTENTION, SPECTRUM], variants=variants, against=["drawn"]), top)

    row("a null, in draws", (8, 16, 32, 64), cost, rounds=2)


def in_prompts(top: Path) -> None:
    """Many short prompts, with errors over them."""

    def cost(prompts: int) -> float:
        return seconds(study(made(top), [ATTENTION, MOMENTS], prompts, 4, errors={"groups": 8}), top)

    row("attention and moments with errors, in prompts", (512, 1024, 2048, 4096), cost)


def of_tiny_steps(top: Path) -> None:
    """What a tiny step costs more where a worker computes it: all processes together, steps sent several at a time.

    Each of so many twins has one step; what two numbers of them differ by leaves out how a run begins and ends.
    """
    few, many = 64, 320

    def cost(draws: int, workers: int | None) -> float:
        drawn = {"edits": [{"edit": "reinit.gaussian", "matrices": ["W_Q"]}], "draws": draws}
        tiny = {"use": "bilinear.spectrum", "with": {"matrices": ["W_Q"]}}
        given = study({"path": "builtin:tiny"}, [tiny], variants={"trained": [], "drawn": drawn})
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = seconds(given, top, workers=workers)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return own + after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    cost(few, None)
    ways = ((few, None), (many, None), (few, 1), (many, 1))
    taken = np.array([[cost(*way) for way in ways] for _ in range(ROUNDS)]).min(axis=0)
    here, there = ((taken[at + 1] - taken[at]) / (many - few) * 1000 for at in (0, 2))
    verdict = "" if there - here <= ENGINE else "   MISSED"
    told = f"{there:.1f} ms a step by a worker, {here:.1f} here"
    print(f"{'the engine, per tiny step':44} {there - here:5.2f}   at most {ENGINE} ms{verdict}   {told}", flush=True)


def of_busy_steps(top: Path) -> None:
    """Many twins of a step of some 100 ms that only computes: one worker and two, one thread each.

    What two numbers of them differ by leaves out how a run begins and ends; whole runs are told beside it.
    """
    few, many = 24, 120
    model = made(top, 1, heads=16, width=512)
    drawn = {"edits": [{"edit": "reinit.gaussian", "matrices": ["W_Q", "W_K"]}]}
    busy = {"use": "bilinear.spectrum", "with": {"matrices": ["W_Q", "W_K"]}}
    files = {}
    for draws in (few, many):
        files[draws] = top / f"busy-{draws}.yaml"
        given = study(model, [busy], variants={"drawn": drawn | {"draws": draws}})
        files[draws].write_text(json.dumps(given), encoding="utf-8")
    ways = [(draws, workers) for workers in (1, 2) for draws in (few, many)]
    taken = np.array([[spread(files[draws], workers, top) for draws, workers in ways] for _ in range(ROUNDS)])
    clock, processor = taken.min(axis=0).T
    one, two = clock[1] - clock[0], clock[3] - clock[2]
    verdict = "" if one / two >= SPEED else "   MISSED"
    step = (processor[1] - processor[0]) / (many - few) * 1000
    print(f"{'steps that compute, 2 workers beside 1':44} {one / two:5.2f}   at least {SPEED}{verdict}   ", end="")
    print(f"{step:.0f} ms of processor a step; seconds {one:.2f}, {two:.2f}, of whole runs ", end="")
    print(f"{clock[1]:.2f}, {clock[3]:.2f}; load {os.getloadavg()[0]:.1f}", flush=True)


def of_one_twin(top: Path) -> None:
    """One large twin with one worker and with two, of one thread each: 16 layers, 40,960 tokens."""
    import synthetic

    sizes = {"hidden_size": 1536, "intermediate_size": 1536, "vocab_size": 256, "head_dim": 64}
    each = {"num_attention_heads": 24, "num_key_value_heads": 24}
    synthetic.write(synthetic.config_of("mistral-7b", 16, sizes | each), top / "large", dtype="float32", plant="none")
    noise = {"noise": {"edits": [{"edit": "reinit.gaussian"}]}}
    model = {"path": str(top / "large")}
    beside("one twin's spectra, 2 workers beside 1", study(model, [SPECTRUM], variants=noise), top)
    streams = study(model, [MOMENTS], 160, 256, variants=noise, errors={"groups": 8})
    beside("one twin's moments, 2 workers beside 1", streams, top)


def beside(what: str, given: Any, top: Path) -> None:
    """A run with two workers beside the same with one."""
    file = top / "large.yaml"
    file.write_text(json.dumps(given), encoding="utf-8")
    taken = np.array([[spread(file, workers, top) for workers in (1, 2)] for _ in range(ROUNDS)])
    (one, busy), (two, both) = taken.min(axis=0)
    verdict = "" if one / two >= SPEED else "   MISSED"
    print(f"{what:44} {one / two:5.2f}   at least {SPEED}{verdict}   ", end="")
    print(
        f"seconds {one:.2f}, {two:.2f}; of processors {busy:.2f}, {both:.2f}; load {os.getloadavg()[0]:.1f}", flush=True
    )


def spread(file: Path, workers: int, top: Path) -> tuple[float, float]:
    """Seconds and processor seconds of a whole run by workers, with their start, into a fresh store."""
    with tempfile.TemporaryDirectory(dir=top) as fresh:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        run = [sys.executable, "-m", "gausslens", "run", str(file), "--store", fresh, "--workers", str(workers)]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# What there is to measure.
ROWS: dict[str, Callable[[Path], None]] = {
    "layers": in_layers,
    "heads": in_heads,
    "tokens": in_tokens,
    "draws": in_draws,
    "prompts": in_prompts,
    "engine": of_tiny_steps,
    "steps": of_busy_steps,
    "twin": of_one_twin,
}


def main() -> None:
    """Print the rows that are asked for, or all."""
    sys.path.insert(0, str(Path(__file__).parent))
    wanted = sys.argv[1:] or list(ROWS)
    with tempfile.TemporaryDirectory() as top:
        for name in wanted:
            ROWS[name](Path(top))


if __name__ == "__main__":
    main()
