"""What many prompts cost: `gausslens plan` and `gausslens run` of gaussian.moments on builtin:tiny over a JSONL file.

Peak memory and processor time of each, in a process of its own; beside them those of the same with 1,000 prompts, and
what each prompt more costs. Texts are of 3 to 12 short words, about 38 tokens of a byte.

    python benchmarks/many_prompts.py [PROMPTS [plan]]

By default 100,000 prompts; with 1000000 a run takes long, so `plan` leaves it out. Targets are those of
1,000,000 prompts: 1.5 GB, and a plan in a minute of one core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

GIGABYTES, SECONDS = 1.5, 60.0
FEW, MILLION = 1_000, 1_000_000
WORDS = [
    "the",
    "a",
    "small",
    "dog",
    "house",
    "runs",
    "over",
    "fast",
    "lazy",
    "river",
    "and",
    "then",
    "it",
    "was",
    "night",
    "in",
    "town",
    "they",
    "went",
    "home",
    "quietly",
    "again",
    "because",
]


def write_prompts(path: Path, count: int) -> None:
    """So many sentences of random words, one JSON object a line."""
    generator = np.random.default_rng(1)
    with path.open("w", encoding="utf-8") as stream:
        for number in range(count):
            text = " ".join(generator.choice(WORDS, generator.integers(3, 13)))
            stream.write(json.dumps({"text": f"{text.capitalize()}.", "id": number}) + "\n")


def cost(command: str, directory: Path, count: int) -> tuple[float, float]:
    """Peak memory in bytes and processor seconds of a command over so many prompts."""
    study = {
        "gausslens": 1,
        "name": f"many-{count}",
        "model": {"path": "builtin:tiny"},
        "prompts": {"source": "file", "path": str(directory / "prompts.jsonl"), "limit": count},
        "analyses": [{"use": "gaussian.moments"}],
        "report": False,
    }
    file = directory / f"many-{count}.yaml"
    file.write_text(json.dumps(study), encoding="utf-8")
    called = [sys.executable, "-m", "gausslens", command, str(file), "--store", str(directory / f"store-{count}")]
    one_core = os.environ | {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    started = subprocess.Popen(called, stdout=subprocess.DEVNULL, env=one_core)
    _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    if started.returncode:
        raise SystemExit(f"{' '.join(called)} ended with {started.returncode}")
    in_kilobytes = sys.platform != "darwin"
    return used.ru_maxrss * (1024 if in_kilobytes else 1), used.ru_utime + used.ru_stime


def main() -> None:
    """Print what few and many prompts cost, and what each more does."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    commands = ("plan",) if sys.argv[2:] == ["plan"] else ("plan", "run")
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        write_prompts(directory / "prompts.jsonl", count)
        for command in commands:
            memory, seconds = zip(*(cost(command, directory, n) for n in (FEW, count)), strict=True)
            each = [(most - least) / (count - FEW) for least, most in (memory, seconds)]
            print(f"{command} of {FEW:,} prompts: {memory[0] / 1e9:.2f} GB, {seconds[0]:.1f} s")
            print(f"{command} of {count:,} prompts: {memory[1] / 1e9:.2f} GB, {seconds[1]:.1f} s of one core")
            print(f"  each prompt more: {each[0]:.0f} bytes, {each[1] * 1e6:.0f} microseconds")
            told = [memory[0] + each[0] * MILLION, seconds[0] + each[1] * MILLION]
            limit = f" (at most {SECONDS:.0f} s)" if command == "plan" else ""
            print(f"  so 1,000,000: {told[0] / 1e9:.2f} GB (at most {GIGABYTES} GB), {told[1]:.0f} s{limit}")


if __name__ == "__main__":
    main()
