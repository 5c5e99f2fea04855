"""Every pair of operations of a store, one done at each step of the other: nothing that was said finished is lost.

CI takes one place in sixteen, by a seed; the soak all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).parent / "children" / "interleave.py"


def interleaved(where: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(CHILD.parents[2]), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(CHILD), str(where), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=7200, env=environment)


@pytest.mark.parametrize("one_in", [pytest.param(16, marks=pytest.mark.full), pytest.param(1, marks=pytest.mark.soak)])
def test_no_operation_spoils_another(tmp_path: Path, one_in: int) -> None:
    done = interleaved(tmp_path / "stores", one_in, 22)
    assert done.returncode == 0, done.stderr
    *pairs, count = done.stdout.splitlines()
    print(f"{count} places of {len(pairs)} pairs")
    assert len(pairs) == 81
    assert int(count) > 1500 / one_in


def test_a_gc_that_holds_no_lock_is_found_out(tmp_path: Path) -> None:
    done = interleaved(tmp_path / "stores", 1, 22, "control")
    assert done.returncode == 1, done.stdout
    assert "is missing" in done.stderr
