"""How long commands take to start, as ratios to ``python -c "import pluggy, yaml, pydantic"``.

Minima of processor time over interleaved rounds: what else the machine does is not counted, and slows all alike.
``python benchmarks/start.py [ROUNDS]``
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 9
DUMMIES = 30
TARGETS = {"--help": 1.0, "plugins": 1.5, "check": 3.0}

PLUGIN = """
from gausslens import Analysis, Edit, hookimpl

@hookimpl
def analyses():
    return [Analysis(name="{name}.count", version=1, shape="stream", summary="Counts.",
                     parameters="{name}_parameters:Count", analysis="{name}_heavy:Count")]

@hookimpl
def edits():
    return [Edit(name="{name}.halve", version=1, summary="Halves.", parameters="{name}_parameters:Count",
                 edit="{name}_heavy:halve", touches=("W_Q",))]
"""
PARAMETERS = """
from pydantic import Field
from gausslens import Parameters

class Count(Parameters):
    of: str = Field("tokens", description="What to count.")
    least: int = Field(3, ge=1, description="Fewer are not told.")
"""
RUN_FILE = """
gausslens: 1
name: start
model: {path: builtin:tiny}
prompts: {source: text, text: [One two three.]}
variants:
  trained: []
  chance: {edits: [{edit: reinit.config}], draws: 8}
analyses:
  - {use: gaussian.moments, with: {site: resid_pre}}
against: chance
"""


def shelf(directory: Path) -> Path:
    """A directory with dummy plugins, as pip would install them."""
    for number in range(DUMMIES):
        name = f"dummy{number:02}"
        metadata = directory / f"{name}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[gausslens]\n{name} = {name}_plugin\n")
        (directory / f"{name}_plugin.py").write_text(PLUGIN.format(name=name))
        (directory / f"{name}_parameters.py").write_text(PARAMETERS)
        (directory / f"{name}_heavy.py").write_text("import torch\n")
    return directory


def seconds(arguments: list[str], environment: dict[str, str]) -> float:
    """Processor time of one process; its failure is ours."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, *arguments], env=environment, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(arguments)} failed:\n{said.read().decode()}")
    return used.ru_utime + used.ru_stime


def main(rounds: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        study = directory / "start.yaml"
        study.write_text(RUN_FILE)
        # Bytecode is kept, as it is for installed packages.
        plain = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
        plain |= {"OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(directory / "bytecode")}
        crowded = plain | {"PYTHONPATH": str(shelf(directory / "shelf"))}
        cases: dict[tuple[str, str], tuple[list[str], dict[str, str]]] = {
            ("", "reference"): (["-c", "import pluggy, yaml, pydantic"], plain)
        }
        for command in TARGETS:
            arguments = ["-m", "gausslens", command, *([str(study)] if command == "check" else [])]
            cases[command, "our plugins"] = (arguments, plain)
            cases[command, f"and {DUMMIES} more"] = (arguments, crowded)
        best = {case: seconds(*what) for case, what in cases.items()}  # fills the bytecode too
        for _ in range(rounds):
            for case, what in cases.items():
                best[case] = min(best[case], seconds(*what))
    reference = best["", "reference"]
    print(f"import pluggy, yaml, pydantic: {1000 * reference:.1f} ms; minima of {rounds} rounds")
    for (command, where), taken in best.items():
        if command:
            verdict = "" if taken <= TARGETS[command] * reference else "   MISSED"
            ratio = taken / reference
            print(
                f"{command:8} {where:12} {1000 * taken:6.1f} ms  ratio {ratio:.2f}, at most {TARGETS[command]}{verdict}"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else ROUNDS)
