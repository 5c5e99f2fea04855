"""What `gausslens plan` says that an analysis needs, beside what it took: processor time and memory of its step.

    python benchmarks/estimates.py [MODEL [PROMPTS LENGTH]] [--only NAME ...]

MODEL is builtin:clue-tiny or a directory. Each built-in analysis that looks at the model is run by itself, all in one
process, with one thread. Time is that of its step, from when the model is open; memory the growth of the process' peak
over what it held before (Linux tells both). Ratios are what was told over what was taken; below 1/3 and above 3 they
are marked, where at least a second, or 100 MB, was told or taken: starting takes some of both.
Fewer prompts than gaussian.joint and gaussian.propagate need leave these out.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import gausslens
from gausslens.contract.reference import resolve
from gausslens.measuring import execute
from gausslens.plugins import load
from gausslens.runs.resources import needs

OFF, SECONDS, BYTES = 3.0, 1.0, 100e6
# What has to be chosen.
WITH: dict[str, dict[str, Any]] = {"model.capture": {"sites": ["resid_post"]}}


def memory(what: str) -> int:
    """Bytes that the process holds (VmRSS), or held at most since ``start_anew`` (VmHWM)."""
    return int(Path("/proc/self/status").read_text().split(f"{what}:")[1].split()[0]) * 1024


def start_anew() -> None:
    """Let the peak of memory be what is held now."""
    Path("/proc/self/clear_refs").write_text("5")


def flops_per_second() -> float:
    """What a matrix product does in a second of processor time: `plan` takes one of the clock, which others share."""
    side = 768
    a = torch.ones(side, side)
    times = []
    for _ in range(5):
        start = time.process_time()
        a @ a
        times.append(time.process_time() - start)
    return 2 * side**3 / min(times[1:])


def analyses() -> list[str]:
    """Built-in analyses that look at a model, their code imported."""
    found = []
    for name, owned in load().analyses.items():
        if owned.descriptor.shape in ("stream", "weights", "forward") and owned.owner.distribution == "gausslens":
            resolve(str(owned.descriptor.analysis))
            found.append(name)
    return sorted(found)


def told_and_taken(study: dict[str, Any], flops: float) -> tuple[list[float], list[float]]:
    """Seconds and bytes of a run of one step: those that are told, and those that it takes."""
    told: list[float] = []
    taken: list[float] = []
    plain = execute.measured

    def timed(opened: Any, twin: Any, steps: Any, *rest: Any) -> Iterator[Any]:
        (step,) = steps
        need = needs(step, step.info, flops)
        told.extend([need.seconds, need.memory])
        start_anew()
        held, start = memory("VmRSS"), time.process_time()
        yield from plain(opened, twin, steps, *rest)
        taken.extend([time.process_time() - start, memory("VmHWM") - held])

    execute.measured = timed
    try:
        with tempfile.TemporaryDirectory() as store:
            gausslens.run(study, store=store)
    finally:
        execute.measured = plain
    return told, taken


def row(name: str, told: list[float], taken: list[float]) -> None:
    """Print one."""
    cells, marks = [], []
    units = (("time", SECONDS, 1.0), ("memory", BYTES, 1e6))
    for (what, least, unit), one, other in zip(units, told, taken, strict=True):
        ratio = one / max(other, least / 100)
        cells.append(f"{one / unit:9.2f} {other / unit:9.2f} {ratio:8.3g}")
        if max(one, other) >= least and not 1 / OFF <= ratio <= OFF:
            marks.append(f"{what.upper()} OFF")
    print(f"{name:24} {'   '.join(cells)}   {', '.join(marks)}", flush=True)


def main() -> None:
    """Print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="builtin:clue-tiny")
    parser.add_argument("prompts", nargs="?", type=int, default=64)
    parser.add_argument("length", nargs="?", type=int, default=40)
    parser.add_argument("--only", nargs="+")
    chosen = parser.parse_args()
    text = {"source": "repeated-random", "prompts": chosen.prompts, "length": chosen.length}
    made = {"gausslens": 1, "name": "one", "model": {"path": chosen.model}, "prompts": text, "errors": False}
    flops = flops_per_second()
    everything = analyses()
    print(f"{'':24} {'s told':>9} {'s taken':>9} {'ratio':>8}   {'MB told':>9} {'MB taken':>9} {'ratio':>8}")
    for name in chosen.only or everything:
        use = {"use": name, "with": WITH.get(name, {})}
        study = made | {"variants": {"trained": []}, "analyses": [use], "report": False}
        try:
            row(name, *told_and_taken(study, flops))
        except (gausslens.GausslensError, ValueError) as error:
            print(f"{name:24} not run: {' '.join(str(error).split())[:120]}", flush=True)


if __name__ == "__main__":
    main()
