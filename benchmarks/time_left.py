"""How honest the time left of a run is: what its lines tell, as ratios to what was left in truth.

A run is started without a terminal, into a store of its own, and its lines are read with the time at which they came.
From a third of the run on the time left should be within a factor of two, page included; and no 30 seconds should pass
without a line. Other work on the machine that comes or goes meanwhile counts as an error: repeat it.
``python benchmarks/time_left.py [RUN_FILE [--set KEY=VALUE ...]]``
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples/previous-token.yaml"
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
LEAST = 5.0  # seconds: told times are rounded to these


def lines_of(arguments: list[str], every: float) -> tuple[list[tuple[float, str]], float]:
    """The lines of a run and when they came, in seconds from its start; and how long it took."""
    with tempfile.TemporaryDirectory() as store:
        command = [sys.executable, "-m", "gausslens", "run", *arguments, "--store", store]
        environment = os.environ | {"GAUSSLENS_LOG_SECONDS": str(every), "PYTHONUNBUFFERED": "1"}
        began = time.monotonic()
        told = []
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
        ) as run:
            assert run.stderr is not None
            told = [(time.monotonic() - began, line.rstrip()) for line in run.stderr]
        if run.returncode:
            raise SystemExit("\n".join(line for _, line in told[-20:]))
        return told, time.monotonic() - began


def seconds_in(line: str) -> float | None:
    """The seconds that a line says are left: ``3 h 20 min left`` are 12000."""
    found = re.search(r", ((?:\d+ (?:h|min|s) ?)+)left", line)
    if found is None:
        return None
    return sum(int(number) * UNITS[unit] for number, unit in re.findall(r"(\d+) (h|min|s)", found[1]))


def main(arguments: list[str]) -> None:
    """Print the ratios."""
    every = float(os.environ.get("GAUSSLENS_LOG_SECONDS", "2"))
    told, whole = lines_of(arguments or [str(EXAMPLE)], every)
    times = [0.0, *(at for at, _ in told), whole]
    ratios = []
    for at, line in told:
        said = seconds_in(line)
        if said is None or at < whole / 3:
            continue
        # Told times are rounded, and are at least 5 s.
        ratios.append(max(said, LEAST) / max(whole - at, LEAST))
    silent = max(after - before for before, after in pairwise(times))
    print(f"{whole:.0f} s, {len(told)} lines, at most {silent:.1f} s apart")
    if ratios:
        within = sum(0.5 <= ratio <= 2 for ratio in ratios)
        print(
            f"told / true from a third on: {min(ratios):.2f} to {max(ratios):.2f}; {within} of {len(ratios)} within two"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
