"""A writer is killed at each of its system calls that change anything: what it said is finished is there, and a run
resumes. The same with a naive writer of one file, which loses results: the control that shows what the test can see."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from store.children.kill_points import OTHERWISE, WHEN, durable
from store.stored import key, small

from gausslens.store import Store
from gausslens.store.bank import copy
from gausslens.store.maintain import verify

CHILD = Path(__file__).parent / "children" / "kill_points.py"
STRACE = shutil.which("strace")
# Those that make something durable or give it a name; and all others that change anything.
FAST = ["fsync", "link", "unlink", "rename", "mkdir"]
SLOW = ["openat", "pwrite64", "ftruncate", "fchmod"]

needs_strace = pytest.mark.skipif(STRACE is None, reason="strace is not installed")


def killed_at_each(job: str, call: str, where: Path) -> int:
    """Run the job once for each of its calls, each killed there; returns how many there were."""
    inject = f"inject={call}:signal=KILL:when={WHEN.get(call, OTHERWISE)}"
    strace = [str(STRACE), "-f", "-o", os.devnull, "-e", f"trace={call}", "-e", inject]
    environment = {**os.environ, "PYTHONPATH": str(CHILD.parents[2]), "OPENBLAS_NUM_THREADS": "1"}
    command = [*strace, sys.executable, str(CHILD), job, call, str(where)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def check_survivors(where: Path, points: int) -> None:
    for k in range(1, points + 1):
        store = Store(where / str(k))
        said = (where / f"{k}.finished").read_text().split()
        for name in said:
            if name.isdigit():
                xr.testing.assert_identical(store.read("probe.score", key(int(name))).load(), small(int(name)))
            elif name == "bulk":
                assert store.read("probe.bulk", key("bulk"))["score"].shape == (3, 4)
        if store.path.is_dir() and (store.path / "parts").is_dir() and (store.path / "tmp").is_dir():
            assert [f for f in verify(store.path) if not f.harmless] == [], f"point {k}"
        again: list[object] = []
        kept = {p: p.stat().st_mtime_ns for p in store.path.glob("parts/*/*.h5")}
        durable(store.path, again.append)
        assert again == [0, 1, 2, "bulk", "index"]
        assert {p: p.stat().st_mtime_ns for p in kept} == kept, f"point {k}: a finished result was made again"
        assert verify(store.path) == []
        assert list((store.path / "tmp").iterdir()) == []
        for i in range(3):
            xr.testing.assert_identical(store.read("probe.score", key(i)).load(), small(i))


@needs_strace
@pytest.mark.parametrize("call", [*FAST, *(pytest.param(c, marks=pytest.mark.full) for c in SLOW)])
def test_nothing_finished_is_lost_at_any_call(tmp_path: Path, call: str) -> None:
    points = killed_at_each("durable", call, tmp_path)
    assert points > 0, "the job makes no such call: the list is out of date"
    check_survivors(tmp_path, points)


@needs_strace
def test_the_control_loses_results(tmp_path: Path) -> None:
    points = killed_at_each("naive", "pwrite64", tmp_path)
    lost = [k for k in range(1, points + 1) if not naive_survived(tmp_path / str(k), tmp_path / f"{k}.finished")]
    assert len(lost) >= 3, f"{len(lost)} of {points}"


def naive_survived(where: Path, report: Path) -> bool:
    """Whether all that the naive writer said is finished can be read."""
    try:
        with h5py.File(where / "all.h5", "r") as file:
            return all(
                np.array_equal(file[f"{n}/score"][()], small(int(n))["score"].values)
                for n in report.read_text().split()
            )
    except (OSError, KeyError, RuntimeError):
        return report.read_text() == ""


@needs_strace
def test_the_list_of_calls_is_whole(tmp_path: Path) -> None:
    """What the job does on the disk: no call that changes files is missing from the list above."""
    log = tmp_path / "log"
    code = "import sys; from store.children.kill_points import *; durable(Path(sys.argv[1]), print)"
    changing = (
        "creat,open,openat,write,writev,pwrite64,pwritev,ftruncate,truncate,fallocate,fsync,fdatasync,sync,syncfs"
    )
    changing += ",chmod,fchmod,fchmodat,link,linkat,symlink,symlinkat,unlink,unlinkat,rename,renameat,renameat2,mkdir"
    changing += ",mkdirat,rmdir,mknod,mknodat,copy_file_range,sendfile,utimensat,setxattr,fsetxattr,pwritev2"
    environment = {**os.environ, "PYTHONPATH": str(CHILD.parents[2])}
    command = [
        str(STRACE),
        "-f",
        "-y",
        "-o",
        str(log),
        "-e",
        f"trace={changing}",
        sys.executable,
        "-c",
        code,
        str(tmp_path / "s"),
    ]
    subprocess.run(command, check=True, env=environment, capture_output=True, timeout=120)
    lines = [line.split(maxsplit=1)[1] for line in log.read_text().splitlines() if str(tmp_path / "s") in line]
    assert {line.split("(")[0] for line in lines} <= {*FAST, *SLOW}


@needs_strace
@pytest.mark.parametrize(
    "call", ["fsync", "link", *(pytest.param(c, marks=pytest.mark.full) for c in [*FAST[2:], *SLOW])]
)
def test_a_copy_is_whole_or_not_there_at_any_call(tmp_path: Path, call: str) -> None:
    points = killed_at_each("copied", call, tmp_path)
    assert points > 0, "the job makes no such call: the list is out of date"
    source = tmp_path / "source"
    for k in range(1, points + 1):
        where = tmp_path / str(k)
        if where.is_dir():
            for part in where.glob("parts/*/*.h5"):
                assert part.read_bytes() == (source / part.relative_to(where)).read_bytes(), f"point {k}"
        done = copy(source, where)
        assert done.wrong == []
        assert len(list(where.glob("parts/*/*.h5"))) == 5
        assert len(list(where.glob("runs/*/*.json"))) == len(list(where.glob("kept/*.json"))) == 1
        assert verify(where) == []
        assert list((where / "tmp").iterdir()) == []
