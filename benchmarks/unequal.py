"""What one long prompt among many short ones costs: peak memory and the size of the store, beside the short ones alone.

    python benchmarks/unequal.py [MODEL [SHORT [LONG]]]

SHORT prompts of 3 to 12 words, then the same and one of LONG words; ``model.attention`` keeps the map of every head of
every prompt, ``model.capture`` the patterns and the stream. Each run is a process of its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

MODEL, SHORT, LONG = "builtin:tiny", 10_000, 60
TARGET = 2.0
WORDS = ("one", "two", "cat", "sat", "rain", "red", "key", "door", "bird", "sea", "girl", "time")
ANALYSES: dict[str, dict[str, Any]] = {
    "model.attention": {"maps": "heads"},
    "model.capture": {"sites": ["pattern", "resid_post"]},
}


def texts(count: int, long: int) -> list[str]:
    """Short prompts of unequal length, and one long one where it is asked for."""
    found = [" ".join(WORDS[(7 * i + j) % len(WORDS)] for j in range(3 + i % 4)) for i in range(count)]
    return found + ([" ".join(WORDS[j % len(WORDS)] for j in range(long))] if long else [])


def child(model: str, analysis: str, count: int, long: int, store: str) -> None:
    """One run; prints its peak memory and what it wrote."""
    import gausslens

    gausslens.run(
        {
            "gausslens": 1,
            "name": "unequal",
            "model": {"path": model},
            "prompts": {"source": "text", "text": texts(count, long)},
            "analyses": [{"use": analysis, "layers": [0], "with": ANALYSES[analysis]}],
            "report": False,
        },
        store=store,
    )
    size = sum(file.stat().st_size for file in Path(store).rglob("*.h5"))
    print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, size]))


def measured(model: str, analysis: str, count: int, long: int) -> tuple[float, float]:
    """Peak memory and store of a run, in bytes."""
    with tempfile.TemporaryDirectory() as store:
        told = [sys.executable, __file__, "--child", model, analysis, str(count), str(long), store]
        out = subprocess.run(told, check=True, stdout=subprocess.PIPE, text=True).stdout
    memory, size = json.loads(out.splitlines()[-1])
    return float(memory), float(size)


def main(model: str = MODEL, short: str = str(SHORT), long: str = str(LONG)) -> None:
    """Both analyses, with and without the long prompt."""
    for analysis in ANALYSES:
        alone, both = (measured(model, analysis, int(short), n) for n in (0, int(long)))
        print(f"{analysis}, {short} short prompts and one of {long} words:")
        for what, one, other in zip(("peak memory", "store"), alone, both, strict=True):
            said = "met" if other < TARGET * one else "MISSED"
            print(f"  {what:12} {one / 1e6:9.1f} MB, with it {other / 1e6:9.1f} MB: {other / one:.2f} ({said})")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
    else:
        main(*sys.argv[1:])
