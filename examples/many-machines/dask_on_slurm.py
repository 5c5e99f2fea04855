"""A run on workers that dask-jobqueue asks Slurm for; they come and go, and the run goes on with those there are.

python dask_on_slurm.py study.yaml 20
"""

from __future__ import annotations

import sys

from gausslens.__main__ import main as gausslens


def main(file: str, jobs: int) -> int:
    """Ask for workers, and run with them."""
    from dask_jobqueue import SLURMCluster

    cluster = SLURMCluster(
        cores=1,  # one task at a time in a worker, which may use more threads
        processes=1,
        memory="16GB",
        walltime="04:00:00",
        job_extra_directives=["--cpus-per-task=4"],
        job_script_prologue=["export OMP_NUM_THREADS=4"],
        # A worker whose time is nearly over takes no more tasks.
        worker_extra_args=["--lifetime", "230m", "--lifetime-stagger", "4m"],
    )
    cluster.scale(jobs=jobs)
    return gausslens(["run", file, "--scheduler", cluster.scheduler_address])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
